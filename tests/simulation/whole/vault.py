"""Where a machine's environments are kept, and `lmdb.open` for the processes on it.

The real file `data.mdb` holds a *tag*, which names the `Storage` with the content, so a file can be renamed, missed and
deleted like a real one. A file that holds an image instead (`copyfd` wrote it) becomes an environment when it is opened
for writing. A copy of a tagged file is not a second environment: whoever copies folders behind the process's back asks
`copied` to tell them apart.
"""

import itertools
from pathlib import Path
from typing import Any, Final

import lmdb

from kvorum_raft.write_ahead import SIZE
from tests.simulation.whole import image
from tests.simulation.whole.environment import Environment
from tests.simulation.whole.storage import AheadFile, Storage

TAG: Final = b"storage "
_DIGITS: Final = 8
_TAG_SIZE: Final = len(TAG) + _DIGITS + 1
"""Bytes that are looked at: one more than there are, so that what only begins as a tag does is none that is known."""


class Vault:
    """Of one machine."""

    def __init__(self) -> None:
        self._storages: dict[bytes, Storage] = {}
        self._numbers = itertools.count()

    def open(
        self, path: str, *, subdir: bool = True, readonly: bool = False, create: bool = True, **options: Any
    ) -> Environment:
        """As `lmdb.open`. Errors: lmdb.Error and its kinds."""
        data = Path(path) / "data.mdb" if subdir else Path(path)
        if not data.exists() and (readonly or not create):
            raise lmdb.Error(f"{path}: No such file or directory")
        storage = self.find(data)
        if storage is None:
            storage = self._read(data, readonly=readonly)
        return Environment(storage, readonly=readonly, **options)

    def open_ahead(self, path: Path, whole: bool) -> AheadFile:
        """The write-ahead file beside an environment that is open, as `kvorum_raft.write_ahead.SyncedFile`."""
        storage = self.find(path.parent / "data.mdb")
        assert storage is not None
        if storage.ahead is None:
            assert not whole, "a log whose write-ahead file is missing"
            storage.ahead = AheadFile(storage, bytes(SIZE))
        return storage.ahead

    def find(self, data: Path) -> Storage | None:
        """What the tag in a file names; None if the file is missing or holds no tag. Raises lmdb.InvalidError for a
        tag of elsewhere."""
        try:
            with data.open("rb", buffering=0) as file:
                content = file.read(_TAG_SIZE)
        except FileNotFoundError:
            return None
        if not content.startswith(TAG):
            return None
        if content not in self._storages:
            raise lmdb.InvalidError("MDB_INVALID: File is not an LMDB file")
        return self._storages[content]

    def _read(self, data: Path, *, readonly: bool) -> Storage:
        content = data.read_bytes() if data.exists() else b""
        if not content and readonly:
            raise lmdb.InvalidError("MDB_INVALID: File is not an LMDB file")
        storage = Storage(image.unpack(content)) if content else Storage()
        if not readonly:
            self.keep(data, storage)
        return storage

    def keep(self, data: Path, storage: Storage) -> None:
        """Put a tag into the file."""
        tag = TAG + b"%0*d" % (_DIGITS, next(self._numbers))
        self._storages[tag] = storage
        data.write_bytes(tag)

    def copied(self, folder: Path, origin: "Vault") -> None:
        """A folder of a machine (its own one, or another's) was copied here: from now on the copies differ."""
        for data in sorted(folder.rglob("data.mdb")):
            storage = origin.find(data)
            if storage is not None:
                self.keep(data, storage.copy())

    def storages(self, folder: Path) -> dict[Path, Storage]:
        """All that are there now, by their files; others are forgotten."""
        found = {data: storage for data in sorted(folder.rglob("data.mdb")) if (storage := self.find(data)) is not None}
        kept = {id(storage) for storage in found.values()}
        self._storages = {tag: storage for tag, storage in self._storages.items() if id(storage) in kept}
        return found
