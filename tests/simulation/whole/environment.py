"""An ordered key-value environment in memory, with the part of py-lmdb's API that log and store use.

Why not LMDB itself: opening, syncing and copying real files would make a seed cost seconds, and what a power cut leaves
of a file could not be chosen. How equal the two are is judged by a property test that drives both.

A write transaction changes the rows of its `Storage` where they are, and can undo that; its children do the same, each
from its own place on. Who only reads has tables that nobody changes.

`Storage` is what outlives the process. A write transaction of a synced environment is durable when `commit` returns,
unless it is made inside `held_sync`: then it is when `finish_sync` is called, and until then a cut keeps all of it or
nothing, since LMDB writes its root last.
"""

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import lmdb

from tests.simulation.whole import image
from tests.simulation.whole.storage import Image, Name, Storage, Table, Undo, undo

MAX_KEY: Final = 511
PAGE_SIZE: Final = 4096
_ROWS_OF_A_PAGE: Final = 32
"""About; who asks for pages wants to know how large a state is."""
_NOTHING: Final = Table()
"""A table that is not there."""


class Environment:
    """As `lmdb.Environment`, opened by one process."""

    def __init__(
        self, storage: Storage, *, map_size: int = 1 << 20, sync: bool = True, readonly: bool = False, **_: Any
    ) -> None:
        self.storage = storage
        self._readonly = readonly
        self._map_size = map_size
        self.synced = sync
        self._closed = False
        self.transactions = 0

    def begin(
        self, db: "Database | None" = None, parent: "Transaction | None" = None, write: bool = False
    ) -> "Transaction":
        if self._closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        if write and self._readonly:
            raise lmdb.ReadonlyError("Permission denied")
        return Transaction(self, db, parent, write)

    def open_db(self, name: bytes, *, create: bool = True) -> "Database":
        if name not in self.storage.committed():
            if not create:
                raise lmdb.NotFoundError("mdb_dbi_open: MDB_NOTFOUND: No matching key/data pair found")
            with self.begin(write=True) as txn:
                txn.make(name)
        return Database(name)

    def sync(self, force: bool = False) -> None:
        if self.synced or force:
            self.storage.finish_sync()

    def stat(self) -> dict[str, int]:
        return _stat(self.storage.committed()[None])

    def info(self) -> dict[str, int]:
        # A file of no pages: there is none whose size could be checked.
        return {"map_size": self._map_size, "last_pgno": -1, "last_txnid": self.transactions, "num_readers": 0}

    def copyfd(self, fd: int, compact: bool = False, txn: "Transaction | None" = None) -> None:
        """Write what a transaction sees, or what is committed, as the bytes of a file. Raises OSError."""
        if self._closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        tables = self.storage.committed() if txn is None else txn.tables()
        rows = {name: [(key, table.values[key]) for key in table.keys] for name, table in tables.items()}
        data = memoryview(image.pack(rows))
        while data:
            data = data[os.write(fd, data) :]

    def reader_check(self) -> int:
        """Readers die with their process."""
        return 0

    def readers(self) -> str:
        return "(no active readers)\n"

    def close(self) -> None:
        self._closed = True


class Database:
    """A table's name."""

    __slots__ = ("name",)

    def __init__(self, name: bytes) -> None:
        self.name = name


def _stat(table: Table) -> dict[str, int]:
    pages = {"branch_pages": 0, "leaf_pages": len(table.keys) // _ROWS_OF_A_PAGE, "overflow_pages": 0}
    return {"psize": PAGE_SIZE, "depth": 1, "entries": len(table.keys), **pages}


def _bad_key() -> lmdb.Error:
    return lmdb.BadValsizeError("MDB_BAD_VALSIZE: Unsupported size of key/DB name/data, or wrong DUPFIXED size")


class Transaction:
    """As `lmdb.Transaction`, without buffers."""

    __slots__ = (
        "_child",
        "_env",
        "_image",
        "_mark",
        "_name",
        "_open",
        "_parent",
        "_storage",
        "_taken",
        "_touched",
        "_write",
        "_writing",
        "undo",
    )

    def __init__(self, env: Environment, db: Database | None, parent: "Transaction | None", write: bool) -> None:
        self._env = env
        self._storage = storage = env.storage
        self._name: Name = None if db is None else db.name
        self._parent = parent
        self._write = write
        self._child: Transaction | None = None
        self._open = True
        self._touched = False
        """It has written, were it only what was there."""
        self._image: Image = storage.live
        if parent is not None:
            parent._check(write=True)
            parent._child = self
            parent._writing = False
            self.undo, self._taken = parent.undo, parent._taken
        elif write:
            if storage.writer is not None:
                raise lmdb.Error("a second write transaction would wait for ever")
            storage.writer = self
            self.undo: Undo = []
            self._taken: Image = {}
            """Tables that nobody else looks at."""
        else:
            self._image = storage.committed().copy()
            if storage.writer is not None:
                storage.writer._taken.clear()
            for table in self._image.values():
                table.readers += 1
        self._mark = len(self.undo) if write else 0
        """Where its own part of the undo begins."""
        self._writing = write
        """It may write now."""

    def _check(self, *, write: bool) -> None:
        if not self._open:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        if self._child is not None:
            raise lmdb.BadTxnError("MDB_BAD_TXN: Transaction must abort, has a child, or is invalid")
        if write and not self._write:
            raise lmdb.ReadonlyError("Permission denied")

    def table(self, db: Database | None) -> Table:
        """To look at."""
        if not self._open or self._child is not None:
            self._check(write=False)
        return self._image.get(self._name if db is None else db.name, _NOTHING)

    def _take(self, name: Name) -> Table:
        """To change: the first time a copy, if somebody else reads it."""
        self._check(write=True)
        table = self._taken.get(name)
        if table is None:
            table = self._image.get(name)
            if table is None:
                self.undo += (name, b"", None)
                table = self._image[name] = Table()
            elif table.readers:
                table = self._image[name] = table.copy()
            self._taken[name] = table
        return table

    def make(self, name: bytes) -> None:
        """An empty table."""
        self._take(name)
        self._touched = True

    def tables(self) -> Image:
        self._check(write=False)
        return self._image

    def drop(self, db: Database, delete: bool = True) -> None:
        """Empty a table. (Its name stays.)"""
        table = self._take(db.name)
        self._touched = True
        for key in table.keys:
            self.undo += (db.name, key, table.values[key])
        table.keys.clear()
        table.values.clear()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._open:
            if kind is None:
                self.commit()
            else:
                self.abort()

    def commit(self) -> None:
        self._check(write=False)
        self._end()
        if self._parent is not None:
            self._parent._touched |= self._touched
        elif self._touched:
            self._env.transactions += 1
            self._storage.commit(self.undo, sync=self._env.synced)

    def abort(self) -> None:
        if self._open:
            if self._child is not None:
                self._child.abort()
            if self._write and len(self.undo) > self._mark:
                undo(self._image, self.undo[self._mark :])
                del self.undo[self._mark :]
            self._end()

    def _end(self) -> None:
        self._open = self._writing = False
        if self._parent is not None:
            self._parent._child = None
            self._parent._writing = self._parent._open
        elif self._write:
            self._storage.writer = None
        else:
            for table in self._image.values():
                table.readers -= 1

    def lose(self) -> None:
        """Its process is dead; what it does from now on is nothing."""
        self.abort()

    def stat(self, db: Database) -> dict[str, int]:
        return _stat(self.table(db))

    def get(self, key: bytes, default: bytes | None = None, db: Database | None = None) -> bytes | None:
        if not self._open or self._child is not None:
            self._check(write=False)
        table = self._image.get(self._name if db is None else db.name, _NOTHING)
        found = table.values.get(key, default)
        if found is default and not key:
            raise _bad_key()
        return found

    def put(
        self, key: bytes, value: bytes, *, overwrite: bool = True, append: bool = False, db: Database | None = None
    ) -> bool:
        name = self._name if db is None else db.name
        table = self._taken.get(name) if self._writing else None
        if table is None:
            table = self._take(name)
        self._touched = True
        if not 0 < len(key) <= MAX_KEY:
            raise _bad_key()
        key, value = bytes(key), bytes(value)
        old = table.values.get(key)
        if append:
            if table.keys and key <= table.keys[-1]:
                return False
            table.keys.append(key)
        elif old is None:
            insort(table.keys, key)
        elif not overwrite:
            return False
        self.undo += (name, key, old)
        table.values[key] = value
        return True

    def replace(self, key: bytes, value: bytes, db: Database | None = None) -> bytes | None:
        name = self._name if db is None else db.name
        table = self._taken.get(name) if self._writing else None
        if table is None:
            table = self._take(name)
        self._touched = True
        if not 0 < len(key) <= MAX_KEY:
            raise _bad_key()
        key, value = bytes(key), bytes(value)
        old = table.values.get(key)
        if old is None:
            insort(table.keys, key)
        self.undo += (name, key, old)
        table.values[key] = value
        return old

    def pop(self, key: bytes, db: Database | None = None) -> bytes | None:
        name = self._name if db is None else db.name
        table = self._taken.get(name) if self._writing else None
        if table is None:
            table = self._take(name)
        self._touched = True
        if not key:
            raise _bad_key()
        old = table.values.pop(key, None)
        if old is not None:
            del table.keys[bisect_left(table.keys, key)]
            self.undo += (name, key, old)
        return old

    def delete(self, key: bytes, *, db: Database | None = None) -> bool:
        return self.pop(key, db) is not None

    def cursor(self, db: Database | None = None) -> "Cursor":
        self._check(write=False)
        return Cursor(self, db)


class Cursor:
    """As `lmdb.Cursor`. It remembers a key, not a place, so writes beside it do no harm."""

    def __init__(self, txn: Transaction, db: Database | None) -> None:
        self._txn = txn
        self._db = db
        self._key: bytes | None = None

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._key = None

    def _go(self, keys: list[bytes], at: int) -> bool:
        self._key = keys[at] if 0 <= at < len(keys) else None
        return self._key is not None

    def first(self) -> bool:
        return self._go(self._txn.table(self._db).keys, 0)

    def last(self) -> bool:
        keys = self._txn.table(self._db).keys
        return self._go(keys, len(keys) - 1)

    def next(self) -> bool:
        if self._key is None:
            return self.first()
        keys = self._txn.table(self._db).keys
        return self._go(keys, bisect_right(keys, self._key))

    def prev(self) -> bool:
        if self._key is None:
            return self.last()
        keys = self._txn.table(self._db).keys
        return self._go(keys, bisect_left(keys, self._key) - 1)

    def set_range(self, key: bytes) -> bool:
        """The first key at or behind this one; an empty key means the first of all."""
        keys = self._txn.table(self._db).keys
        return self._go(keys, bisect_left(keys, key))

    def set_key(self, key: bytes) -> bool:
        if not key:
            raise _bad_key()
        self._key = key if key in self._txn.table(self._db).values else None
        return self._key is not None

    def key(self) -> bytes:
        return b"" if self._key is None else self._key

    def value(self) -> bytes:
        return b"" if self._key is None else self._txn.table(self._db).values.get(self._key, b"")

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()

    def delete(self) -> bool:
        """Delete the row here and move to the next one."""
        if self._key is None:
            return False
        self._txn.delete(self._key, db=self._db)
        self.set_range(self._key)
        return True

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._iterate(self.next, self.first, keys, values)

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        return self._iterate(self.prev, self.last, keys, values)

    def _iterate(self, step: Any, start: Any, keys: bool, values: bool) -> Iterator[Any]:
        going = self._key is not None or start()
        while going:
            if keys and values:
                yield self.item()
            else:
                yield self.key() if keys else self.value()
            going = step()
