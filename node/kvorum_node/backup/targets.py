"""Where an archive lies.

A target keeps whole files under names and knows nothing of what is in them. A name is a path of parts, joined by `/`,
of letters, digits and `._%~-`. Everything blocks, and belongs into a thread. What a target raises is OSError.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from kvorum_raft.checkpoints import sync_path

from .files import NewFile
from .places import S3Place

_PART: Final = re.compile(r"[A-Za-z0-9_%~-][A-Za-z0-9._%~-]{0,400}\Z")
MAX_NAMES: Final = 1_000_000


class ArchiveTarget(Protocol):
    """See the module."""

    def put(self, name: str, parts: Iterable[bytes], *, replace: bool = False) -> int:
        """Keep a file, whole or not at all, and durably. Returns its size. What `parts` raises comes through, and
        leaves nothing. One of that name is there already: FileExistsError, unless `replace`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Those that begin with it, in order."""
        ...

    def get(self, name: str) -> BinaryIO:
        """To be read from its beginning, and closed. FileNotFoundError."""
        ...

    def delete(self, name: str) -> None:
        """Nothing happens if it is gone already."""
        ...

    def halt(self) -> None:
        """This process ends: who waits for the target, or asks it from now on, may get OSError soon."""
        ...


def is_name(name: str) -> bool:
    """Whether it can be one of a file."""
    return all(_PART.match(part) for part in name.split("/"))


def check_name(name: str) -> list[str]:
    """Its parts. Raises ValueError."""
    parts = name.split("/")
    if not is_name(name):
        raise ValueError(f"{name!r:.200} is no name of an archived file")
    return parts


def open_target(place: Path | S3Place) -> ArchiveTarget:
    """What is meant by it. Raises OSError, e.g. if a library is missing."""
    if isinstance(place, Path):
        return LocalFolder(place)
    from .s3_objects import S3Bucket  # imports a large library that most do without

    return S3Bucket(place)


class LocalFolder:
    """A folder of this machine, or one that is mounted: what is put there is synced before it has its name.

    It must be there: where its disk is not mounted, files would go to the disk below it, unseen, and be missing later.
    For the same reason a folder in it that was there once is not made anew.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[Path] = set()
        """Folders that files were found in, or put into."""

    def __str__(self) -> str:
        return str(self._root)

    def put(self, name: str, parts: Iterable[bytes], *, replace: bool = False) -> int:
        """See `ArchiveTarget`."""
        target = self._path(name)
        self._require()
        self._make(target.parent)
        with NewFile(target, replace=replace) as file:
            for part in parts:
                file.write(part)
            file.keep()
            self._seen.add(target.parent)
            return file.size

    def names(self, prefix: str) -> list[str]:
        """See `ArchiveTarget`. Raises OSError also if there are more than `MAX_NAMES`."""
        self._require()
        found: list[str] = []
        for folder, folders, files in os.walk(self._root):
            folders.sort()
            inside = Path(folder).relative_to(self._root)
            for file in files:
                name = (inside / file).as_posix()
                if name.startswith(prefix) and not file.startswith("."):
                    found.append(name)
                    self._seen.add(self._root / inside)
            if len(found) > MAX_NAMES:
                raise OSError(f"{self._root} has more than {MAX_NAMES:,} files")
        return sorted(found)

    def get(self, name: str) -> BinaryIO:
        """See `ArchiveTarget`."""
        return self._path(name).open("rb")

    def delete(self, name: str) -> None:
        """See `ArchiveTarget`."""
        path = self._path(name)
        path.unlink(missing_ok=True)
        if path.parent.exists():
            sync_path(path.parent)

    def halt(self) -> None:
        """See `ArchiveTarget`."""

    def _path(self, name: str) -> Path:
        return self._root.joinpath(*check_name(name))

    def _require(self) -> None:
        if not self._root.is_dir():
            raise FileNotFoundError(f"the folder {self._root} is not there: mount its disk, or make it")

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if folder in self._seen:
            raise FileNotFoundError(
                f"{folder} has vanished with what was in it: mount its disk, or put it back; to begin anew, restart the"
                " node"
            )
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            sync_path(folder)
            if folder == self._root:
                return
            folder = folder.parent
