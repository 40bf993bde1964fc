"""An ordered key-value environment in memory, with the part of py-lmdb's API that log and store use.

Why not LMDB itself: opening, syncing and copying real files would make a seed cost seconds, and what a power cut leaves
of a file could not be chosen. How equal the two are is judged by a property test that drives both.

A *table* is a sorted list of keys and a dict of values, never changed after its commit: a transaction copies a table
before its first write to it. So a snapshot is a reference, an abort is forgetting, a nested transaction starts with its
parent's tables, and old images of the whole environment cost nothing to keep. Copying is linear in the table, which is
cheap for the few thousand rows of a simulated run.

`Storage` is what outlives the process: the image that reads see, and the images since the last sync, of which a power
cut keeps what it likes (`lose_power`). A write transaction of a synced environment is durable when `commit` returns,
unless it is made inside `held_sync`: then it is when `finish_sync` is called, and until then a cut keeps all of it or
nothing, since LMDB writes its root last.
"""

import os
import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import lmdb

from tests.simulation.whole import image

MAX_KEY: Final = 511
_ANY: Final = 1 << 30
"""A key that is only looked for may be longer: it is not there."""
_KEPT_IMAGES: Final = 32
PAGE_SIZE: Final = 4096
_ROWS_OF_A_PAGE: Final = 32
"""About; who asks for pages wants to know how large a state is."""


class Table:
    """Sorted rows."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes] | None = None, values: dict[bytes, bytes] | None = None) -> None:
        self.keys: list[bytes] = keys if keys is not None else []
        self.values: dict[bytes, bytes] = values if values is not None else {}

    def copy(self) -> "Table":
        return Table(self.keys.copy(), self.values.copy())


Image = dict[bytes | None, Table]
"""All tables by name; None is the main one."""


class Storage:
    """What is on the disk, and what the machine's memory holds of it."""

    def __init__(self, rows: image.Rows | None = None) -> None:
        self.live: Image = {None: Table()}
        for name, found in (rows or {}).items():
            self.live[name] = Table([key for key, _ in found], dict(found))
        self.synced: Image = self.live
        self.unsynced: list[Image] = []
        """Images committed since, oldest first; the last one is `live`."""
        self.holding = False

    def copy(self) -> "Storage":
        """What a copy of the files holds: what is seen now, as if it were synced."""
        other = Storage()
        other.live = other.synced = self.live
        return other

    def commit(self, new: Image, *, sync: bool) -> None:
        self.live = new
        if sync and not self.holding:
            self.finish_sync()
            return
        self.unsynced.append(new)
        del self.unsynced[:-_KEPT_IMAGES]

    def finish_sync(self) -> None:
        self.synced = self.live
        self.unsynced.clear()

    @contextmanager
    def held_sync(self) -> Iterator[None]:
        """Commits in here are in memory only, until `finish_sync`."""
        self.holding = True
        try:
            yield
        finally:
            self.holding = False

    def lose_process(self, rng: random.Random, *, atomic: bool) -> bool:
        """A killed process may have been in the middle of its commit. True if something is lost."""
        if not atomic or not self.unsynced or rng.random() < 0.5:
            self.finish_kill()
            return False
        self.live = self.synced
        self.unsynced.clear()
        return True

    def finish_kill(self) -> None:
        """The page cache outlives the process; what is in it will be written some day."""
        if self.unsynced:
            del self.unsynced[:-_KEPT_IMAGES]

    def lose_power(self, rng: random.Random, *, atomic: bool) -> bool:
        """Keep something of what was not synced: one of the images, or, if the environment is not `atomic`, some rows
        of one and some of another. True if the newest image is lost."""
        images = [self.synced, *self.unsynced]
        kept = rng.choice(images)
        lost = kept is not self.live
        if not atomic and len(images) > 1 and rng.random() < 0.7:
            kept, lost = _torn(rng, kept, rng.choice(images)), True
        self.live = self.synced = kept
        self.unsynced.clear()
        return lost


def _torn(rng: random.Random, one: Image, two: Image) -> Image:
    found: Image = {}
    for name in one.keys() | two.keys():
        tables = one.get(name, Table()), two.get(name, Table())
        table = Table()
        for key in sorted(tables[0].values.keys() | tables[1].values.keys()):
            value = rng.choice(tables).values.get(key)
            if value is not None:
                table.keys.append(key)
                table.values[key] = value
        found[name] = table
    return found


class Environment:
    """As `lmdb.Environment`, opened by one process."""

    def __init__(
        self, storage: Storage, *, map_size: int = 1 << 20, sync: bool = True, readonly: bool = False, **_: Any
    ) -> None:
        self.storage = storage
        self._readonly = readonly
        self._map_size = map_size
        self._sync = sync
        self._writing = False
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

    def open_db(self, name: bytes) -> "Database":
        if name not in self.storage.live:
            with self.begin(write=True) as txn:
                txn.table(Database(name), write=True)
        return Database(name)

    def sync(self, force: bool = False) -> None:
        if self._sync or force:
            self.storage.finish_sync()

    def stat(self) -> dict[str, int]:
        return _stat(self.storage.live[None])

    def info(self) -> dict[str, int]:
        # A file of no pages: there is none whose size could be checked.
        return {"map_size": self._map_size, "last_pgno": -1, "last_txnid": self.transactions, "num_readers": 0}

    def copyfd(self, fd: int, compact: bool = False, txn: "Transaction | None" = None) -> None:
        """Write what a transaction sees, or what is committed, as the bytes of a file. Raises OSError."""
        if self._closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        tables = self.storage.live if txn is None else txn.tables()
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


def _check_key(key: bytes, longest: int = MAX_KEY) -> None:
    if not 0 < len(key) <= longest:
        raise lmdb.BadValsizeError("MDB_BAD_VALSIZE: Unsupported size of key/DB name/data, or wrong DUPFIXED size")


class Transaction:
    """As `lmdb.Transaction`, without buffers."""

    def __init__(self, env: Environment, db: Database | None, parent: "Transaction | None", write: bool) -> None:
        self._env = env
        self._db = db
        self._parent = parent
        self._write = write
        self._child = False
        self._open = True
        if write and parent is None:
            if env._writing:
                raise lmdb.Error("a second write transaction would wait for ever")
            env._writing = True
        elif parent is not None:
            parent._check(True)
            parent._child = True
        self._image: Image = dict(env.storage.live if parent is None else parent._image)
        self._own: set[bytes | None] = set()

    def _check(self, write: bool) -> None:
        if not self._open:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        if self._child:
            raise lmdb.BadTxnError("MDB_BAD_TXN: Transaction must abort, has a child, or is invalid")
        if write and not self._write:
            raise lmdb.ReadonlyError("Permission denied")

    def table(self, db: Database | None, *, write: bool = False) -> Table:
        self._check(write)
        db = db if db is not None else self._db
        name = None if db is None else db.name
        table = self._image.get(name)
        if table is None:
            table = self._image[name] = Table()
            self._own.add(name)
        elif write and name not in self._own:
            table = self._image[name] = table.copy()
            self._own.add(name)
        return table

    def tables(self) -> Image:
        self._check(False)
        return self._image

    def drop(self, db: Database, delete: bool = True) -> None:
        """Empty a table; `delete` takes away its name as well."""
        self.table(db, write=True)
        if delete and db.name:
            del self._image[db.name]
        else:
            self._image[db.name or None] = Table()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._open:
            if kind is None:
                self.commit()
            else:
                self.abort()

    def commit(self) -> None:
        self._check(False)
        self._end()
        if self._parent is not None:
            self._parent._image = self._image
            self._parent._own |= self._own
        elif self._write and self._own:
            self._env.transactions += 1
            self._env.storage.commit(self._image, sync=self._env._sync)

    def abort(self) -> None:
        if self._open:
            self._end()

    def _end(self) -> None:
        self._open = False
        if self._parent is not None:
            self._parent._child = False
        elif self._write:
            self._env._writing = False

    def stat(self, db: Database) -> dict[str, int]:
        return _stat(self.table(db))

    def get(self, key: bytes, default: bytes | None = None, db: Database | None = None) -> bytes | None:
        found = self.table(db).values.get(key, default)
        if found is default:
            _check_key(key, _ANY)
        return found

    def put(
        self, key: bytes, value: bytes, *, overwrite: bool = True, append: bool = False, db: Database | None = None
    ) -> bool:
        table = self.table(db, write=True)
        _check_key(key)
        key, value = bytes(key), bytes(value)
        if append:
            if table.keys and key <= table.keys[-1]:
                return False
            table.keys.append(key)
        elif key not in table.values:
            insort(table.keys, key)
        elif not overwrite:
            return False
        table.values[key] = value
        return True

    def replace(self, key: bytes, value: bytes, db: Database | None = None) -> bytes | None:
        old = self.table(db, write=True).values.get(key)
        self.put(key, value, db=db)
        return old

    def pop(self, key: bytes, db: Database | None = None) -> bytes | None:
        old = self.table(db, write=True).values.get(key)
        if old is not None:
            self.delete(key, db=db)
        else:
            _check_key(key, _ANY)
        return old

    def delete(self, key: bytes, *, db: Database | None = None) -> bool:
        table = self.table(db, write=True)
        _check_key(key, _ANY)
        if table.values.pop(key, None) is None:
            return False
        del table.keys[bisect_left(table.keys, key)]
        return True

    def cursor(self, db: Database | None = None) -> "Cursor":
        self._check(False)
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
        _check_key(key, _ANY)
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
        keys = self._txn.table(self._db, write=True).keys
        at = bisect_left(keys, self._key)
        self._txn.delete(self._key, db=self._db)
        self._go(keys, at)
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
