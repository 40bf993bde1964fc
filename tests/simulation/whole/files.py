"""The files of a machine beside its environments: what a power cut leaves of them, and how to put them back.

They are real files, in a folder in memory. Of each file the content at its last sync is kept, and of each folder the
names at its own last sync. A cut takes each folder as it is or as it was synced, and each file that is not as it was
synced whole, old, torn or empty. Names and contents are independent, as with most file systems: a renamed draft whose
folder was not synced may have its old name again, and a name that was synced may lead to a file that was not.

The tag in a `data.mdb` is not content (its `Storage` has its own model), and what lies in folders named in `DURABLE` is
synced by its owner by other ways, and is left alone.
"""

import os
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.simulation.whole.vault import TAG

DURABLE: Final = frozenset({"raft"})
_DESCRIPTORS: Final = Path("/proc/self/fd")
Tree = dict[str, bytes | None]
"""Content of all files by their paths below the folder; None = a folder."""
Here = dict[int, os.PathLike[str]]
"""Files and folders by their inodes."""


class Files:
    """All that is below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.lost = 0
        """Files and names that cuts have taken."""

    def sync(self, path: Path) -> None:
        """fsync of a file or folder. Raises OSError."""
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = _list(path)
        else:
            self._contents[found.st_ino] = path.read_bytes()

    # ---- as they are

    def tree(self) -> Tree:
        return {name: None if entry.is_dir() else Path(entry).read_bytes() for name, entry in _below(self.folder)}

    def restore(self, tree: Tree) -> None:
        """Put everything back; what has not changed is not touched."""
        here = dict(_below(self.folder))
        for name, entry in reversed(list(here.items())):
            if name not in tree or (tree[name] is None) != entry.is_dir():
                shutil.rmtree(entry) if entry.is_dir() else Path(entry).unlink()
                del here[name]
        for name, content in sorted(tree.items()):
            path = self.folder / name
            if content is None:
                path.mkdir(exist_ok=True)
            elif name not in here or path.read_bytes() != content:
                path.write_bytes(content)

    # ---- a cut

    def lose_power(self, rng: random.Random) -> None:
        """Keep what was synced, and something of the rest."""
        if not self.folder.exists():
            return
        top = self.folder.stat().st_ino
        here: Here = {top: self.folder}
        here |= {entry.inode(): entry for _, entry in _below(self.folder)}
        tree: Tree = {}
        self._fold(rng, top, "", here, tree)
        self.restore(tree)
        self._contents.clear()
        self._names.clear()
        self.sync_all()

    def sync_all(self) -> None:
        """Every file and every folder."""
        self.sync(self.folder)
        for _, entry in _below(self.folder):
            self.sync(Path(entry))

    def _fold(self, rng: random.Random, inode: int, prefix: str, here: Here, tree: Tree) -> None:
        now = _list(here[inode]) if inode in here else {}
        synced = self._names.get(inode, {})
        names = now
        if now != synced and not prefix.startswith(tuple(DURABLE)) and rng.random() < 0.5:
            names = {**synced, **{name: now[name] for name in now.keys() & DURABLE}}
            self.lost += 1
        for name, (child, is_folder) in sorted(names.items()):
            path = f"{prefix}{name}"
            if is_folder:
                tree[path] = None
                self._fold(rng, child, f"{path}/", here, tree)
            else:
                tree[path] = self._content(rng, child, path, here)

    def _content(self, rng: random.Random, inode: int, path: str, here: Here) -> bytes:
        now = Path(here[inode]).read_bytes() if inode in here else None
        synced = self._contents.get(inode)
        if now is not None and (now == synced or now.startswith(TAG) or path.startswith(tuple(DURABLE))):
            return now
        self.lost += 1
        if now is None:
            return synced or b""
        # How many random numbers are drawn must not depend on the length: some files name a process or an inode.
        torn = now[: int(rng.random() * (len(now) + 1))]
        return rng.choice((now, synced or b"", torn, bytes(len(now))))


def _below(folder: str | os.PathLike[str], prefix: str = "") -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """All files and folders with their paths below this one, in the order of the names; a folder before what is in
    it. Nothing if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        yield f"{prefix}{entry.name}", entry
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")


def _list(folder: str | os.PathLike[str]) -> dict[str, tuple[int, bool]]:
    with os.scandir(folder) as entries:
        return {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}


def release(folder: Path) -> list[int]:
    """What the kernel does with the descriptors that a dead process had open below a folder, locks with them. They stay
    taken, and lead nowhere, until the caller closes them: somebody of the dead process may still do so."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    found = []
    below = f"{folder}/"
    for link in list(_DESCRIPTORS.iterdir()):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(below):
            os.dup2(nowhere, int(link.name))
            found.append(int(link.name))
    os.close(nowhere)
    return found


def close_released(fds: list[int]) -> None:
    """Those that still lead nowhere."""
    for fd in fds:
        try:
            if str((_DESCRIPTORS / str(fd)).readlink()) == os.devnull:
                os.close(fd)
        except OSError:
            continue
