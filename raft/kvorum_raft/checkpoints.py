"""The checkpoints of a node on its disk.

A checkpoint is a folder named after the last entry that is in it, with the file `state` and a `MANIFEST` that says what
that file is. It gets its name by a rename after everything in it was synced, read back and compared, and loses it by
another rename before anything in it is deleted; so a folder with such a name is whole, whenever the node died. Beside
them lie `draft-*` (being made, or being deleted) and at most one `incoming-*` (a snapshot that the leader sends), which
nobody takes for a checkpoint; one that turns out damaged all the same becomes `damaged-*`.

Everything that changes the folder runs in `Background`, one job after the other, or at the start before there is a
loop; `manifests` is replaced as a whole, so the loop may read it at any time.
"""

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvorum_raft.background import Stopping
from kvorum_raft.base import Base as Base
from kvorum_raft.copier import Copier as Copier
from kvorum_raft.copier import PipeCopier as PipeCopier
from kvorum_raft.copier import PlainCopier as PlainCopier
from kvorum_raft.copier import hash_of, hash_on_disk, write_all
from kvorum_raft.direct import shorten
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.manifest import Manifest as Manifest
from kvorum_raft.seams import FileSystem, StateFacts, StateImage

STATE: Final = "state"
MANIFEST: Final = "MANIFEST"
DRAFT: Final = "draft-"
INCOMING: Final = "incoming-"
_DAMAGED: Final = "damaged-"
_NAME: Final = re.compile(r"\d{20}-\d{10,20}\Z")
_MARGIN: Final = 256 << 20
_MARGIN_SHARE: Final = 20
"""Bytes of the disk, or this part of a small one, that no checkpoint takes."""
_MAX_MANIFEST: Final = 1 << 20
_log = logging.getLogger("kvorum.raft")


def sync_path(path: Path) -> None:
    """fsync a file or a folder. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Checkpoints:
    """`folder` is created if it is missing. `sync` is called with every file and folder whose durability matters,
    before anything relies on it."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: Callable[[Path], None] = sync_path,
        copier: Copier | None = None,
        statvfs: Callable[[Path], FileSystem] = os.statvfs,
    ) -> None:
        self._statvfs = statvfs
        self.folder = folder
        self.sync = sync
        self.copier: Copier = copier if copier is not None else PipeCopier()
        self._manifests: tuple[Manifest, ...] = ()

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """Of the complete ones, newest last."""
        return self._manifests

    @property
    def newest(self) -> Manifest | None:
        return self._manifests[-1] if self._manifests else None

    def check_room(self, size: int) -> None:
        """Raises OSError (ENOSPC) if so many bytes more would leave the log, which is on the same disk, without room:
        it ends the node when it finds none."""
        disk = self._statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        margin = min(_MARGIN, disk.f_blocks * disk.f_frsize // _MARGIN_SHARE)
        if free < size + margin:
            text = f"{free:,} bytes free; a file of {size:,} would leave less than {margin:,} for the log"
            raise OSError(errno.ENOSPC, text, str(self.folder))

    def path(self, manifest: Manifest) -> Path:
        """Its state file."""
        return self.folder / manifest.name / STATE

    # ------------------------------------------------------------------ start

    def load(self) -> list[Manifest]:
        """Find what is there, delete drafts, put what is damaged aside; returns the complete ones, newest last.

        Their files are looked at, not read: see `verify`. Raises ConfigurationError for one of a newer version, and
        OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sync(self.folder.parent)
        found: list[Manifest] = []
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith(DRAFT):
                _delete(path)
            elif _NAME.match(path.name):
                self._take(path, found)
        self._keep_newest_incoming()
        self._manifests = tuple(sorted(found, key=lambda one: (one.base.index, one.base.term)))
        return list(self._manifests)

    def _take(self, path: Path, found: list[Manifest]) -> None:
        try:
            manifest = read_manifest(path)
            size = (path / STATE).stat().st_size
            if manifest.name != path.name:
                raise ValueError(f"its manifest is of {manifest.name}")
            if size != manifest.size:
                raise ValueError(f"its file has {size} bytes of {manifest.size}")
        except (ValueError, FileNotFoundError, NotADirectoryError) as error:
            self._put_aside(path, str(error))
            return
        found.append(manifest)

    def _keep_newest_incoming(self) -> None:
        """The leader may go on with one; which one it offers is not known yet."""
        resumable: list[tuple[int, Path]] = []
        for path in self.folder.glob(f"{INCOMING}*"):
            try:
                resumable.append((read_manifest(path).base.index, path))
            except (ValueError, ConfigurationError, FileNotFoundError, NotADirectoryError) as error:
                _log.warning("an unfinished snapshot is deleted: %s", error)
                self.remove_folder(path)
        for _, path in sorted(resumable)[:-1]:
            self.remove_folder(path)

    def _put_aside(self, path: Path, why: str) -> None:
        """For whoever wants to see what happened; only the last one, since nothing else bounds them."""
        aside = self.folder / f"{_DAMAGED}{path.name}"
        _log.warning("the checkpoint %s is damaged, not used, and may be deleted: %s", aside, why)
        for old in self.folder.glob(f"{_DAMAGED}*"):
            _delete(old)
        path.rename(aside)
        self.sync(self.folder)

    # ------------------------------------------------------------------ making

    def draft(self, image: StateImage, base: Base) -> "Draft":
        """Begin a checkpoint; nothing is written yet. The image stays the caller's. ValueError if `base` is not the
        image's last entry."""
        return Draft(self, image, base)

    def write(
        self,
        image: StateImage,
        describe: Callable[[StateFacts], Base | None],
        inspect: Callable[[Path], StateFacts],
    ) -> Manifest:
        """All steps at once. Raises what they raise, and ValueError if there is no description."""
        base = describe(image.facts)
        if base is None:
            raise ValueError(f"the log does not know entry {image.facts.index}")
        draft = self.draft(image, base)
        draft.copy()
        draft.verify(inspect)
        return draft.publish()

    def publish(self, path: Path, manifest: Manifest) -> Manifest:
        """Make the folder at `path`, whose file `state` is synced and was compared with `manifest`, a checkpoint.

        One of the same entry and content that is whole stays, and the new one goes: between taking one name away and
        giving it anew there would be neither. Raises OSError.
        """
        old = next((one for one in self._manifests if one.name == manifest.name), None)
        if old is not None and self._is_as_good(old, manifest):
            self.remove_folder(path, paced=True)
            return old
        write_manifest(path, manifest)
        self.sync(path / MANIFEST)
        self.sync(path)
        if old is not None:
            self.drop(old, paced=True)
        target = self.folder / manifest.name
        if target.exists():
            self._put_aside(target, "another one of this entry takes its place")
        path.rename(target)
        self.sync(self.folder)
        self._manifests = tuple(sorted((*self._manifests, manifest), key=lambda one: (one.base.index, one.base.term)))
        return manifest

    def _is_as_good(self, old: Manifest, new: Manifest) -> bool:
        if old.content_hash != new.content_hash:
            return False
        try:
            self.verify(old, paced=True)
        except ValueError as error:
            _log.warning("a new checkpoint takes the place of a damaged one: %s", error)
            return False
        return True

    # ------------------------------------------------------------------ checking

    def verify(self, manifest: Manifest, *, paced: bool = False) -> None:
        """Read its file back from the disk and compare. Not for the event loop, where it should be paced: at the start
        nothing else wants the disk. Raises ValueError with one line if it is damaged or gone, OSError if the disk
        fails; Stopping if paced."""
        try:
            self.check_file(self.path(manifest), manifest.size, manifest.file_hash, paced=paced)
        except FileNotFoundError as error:
            raise ValueError(f"the checkpoint {manifest.name} is gone") from error

    def check_file(self, path: Path, size: int, file_hash: bytes, *, paced: bool = True) -> None:
        """The same for any file."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # what is synced; else the cache would answer
            if self.copier.direct:
                found = hash_on_disk(fd, self.copier.pause if paced else None)
            else:
                found = hash_of(fd)
        finally:
            os.close(fd)
        if found != (size, file_hash):
            raise ValueError(f"{path} is damaged: {found[0]} bytes of {size}, or other ones than were written")

    # ------------------------------------------------------------------ deleting

    def keep(self, count: int = 2) -> None:
        """Delete all but the newest ones. Raises OSError."""
        if count < 1:
            raise ValueError("the last checkpoint is never deleted this way")
        for manifest in self._manifests[:-count]:
            self.drop(manifest, paced=True)

    def drop(self, manifest: Manifest, *, paced: bool = False) -> None:
        """Delete one. Who has its file open under `direct.keep_whole` may read on. Raises OSError."""
        self._manifests = tuple(one for one in self._manifests if one != manifest)
        path = self.folder / manifest.name
        if path.exists():
            self.remove_folder(path, paced=paced)

    def clear(self) -> None:
        """Delete everything, unfinished ones too. Raises OSError."""
        for manifest in self._manifests:
            self.drop(manifest)
        if self.folder.exists():
            for path in list(self.folder.iterdir()):
                self.remove_folder(path)

    def remove_folder(self, path: Path, *, paced: bool = False) -> None:
        """Delete a folder in this one: first its name, then its contents, `paced` unless nothing else wants the disk.
        Raises OSError."""
        doomed = self.folder / f"{DRAFT}deleted-{path.name.removeprefix(DRAFT)}"
        _delete(doomed)
        if path.exists():
            path.rename(doomed)
            self.sync(self.folder)
            self.delete(doomed, paced=paced)

    def delete(self, path: Path, *, paced: bool = True) -> None:
        """A folder or file that has no name of worth. What cannot be deleted now is tried again at the next start."""
        if paced and self.copier.direct:
            self._shorten(path)
        _delete(path)

    def _shorten(self, path: Path) -> None:
        with contextlib.suppress(OSError, Stopping):  # deleting says what is wrong, and ends at once when the node does
            shorten(path / STATE, self.copier.pause)


class Draft:
    """A checkpoint in the making. The steps in order: `copy`, `verify`, `publish`; one that raises has deleted what was
    written. Not for the event loop."""

    def __init__(self, checkpoints: Checkpoints, image: StateImage, base: Base) -> None:
        self._checkpoints = checkpoints
        self._image = image
        self._facts = image.facts
        if base.index != self._facts.index:
            raise ValueError(f"a description of entry {base.index} for a state at entry {self._facts.index}")
        self._base = base
        self._folder = checkpoints.folder / f"{DRAFT}{base.index:020}-{base.term:010}"
        self._manifest: Manifest | None = None

    def copy(self) -> None:
        """Write the file and sync it. Uses the image, the other steps don't. Raises OSError, Stopping, or what the
        image raises."""
        try:
            _delete(self._folder)
            self._folder.mkdir(parents=True)
            fd = os.open(self._folder / STATE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                size, file_hash = self._checkpoints.copier.copy(self._image, fd)
            finally:
                os.close(fd)
            self._checkpoints.sync(self._folder / STATE)
            if size < 1:
                raise ValueError("the image of the state is empty")
            self._manifest = Manifest(self._base, self._facts.content_hash, size, file_hash)
        except BaseException:
            self.discard()
            raise

    def verify(self, inspect: Callable[[Path], StateFacts]) -> None:
        """Read it back from the disk, and compare what is in it with what the image said. Raises ValueError, OSError,
        Stopping."""
        try:
            manifest = self._copied()
            file = self._folder / STATE
            self._checkpoints.check_file(file, manifest.size, manifest.file_hash)
            found = inspect(file)
            if found != self._facts:
                raise ValueError(
                    f"a checkpoint of entry {self._facts.index} is not what the state was: "
                    f"entry {found.index}, hash {found.content_hash.hex()} instead of {self._facts.content_hash.hex()}"
                )
        except BaseException:
            self.discard()
            raise

    def publish(self) -> Manifest:
        """From now on it is a checkpoint. Raises OSError."""
        try:
            return self._checkpoints.publish(self._folder, self._copied())
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete what is left of it, if anything."""
        self._checkpoints.delete(self._folder)

    def _copied(self) -> Manifest:
        if self._manifest is None:
            raise RuntimeError("the steps of a checkpoint came in a wrong order")
        return self._manifest


def read_manifest(path: Path) -> Manifest:
    """Of the folder at `path`. Raises ValueError, ConfigurationError, OSError."""
    with (path / MANIFEST).open("rb") as file:
        return Manifest.decode(file.read(_MAX_MANIFEST))


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Into the folder at `path`, not synced. Raises OSError."""
    fd = os.open(path / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, manifest.encode())
    finally:
        os.close(fd)


def _delete(path: Path) -> None:
    """A folder or file that has no name of worth; what cannot be deleted now is tried again at the next start."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot delete %s: %s", path, error.strerror)
