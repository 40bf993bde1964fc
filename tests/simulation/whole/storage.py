"""What a machine's disk and memory hold of one environment: sorted tables, and how to undo what was done to them.

Rows are changed where they are, and of each change the old row is kept: in a list for each transaction, the *undo*. An
abort walks it backwards; so does whoever asks for what was seen before, which is seldom: power cuts, killed processes,
and readers that begin while somebody writes. (Copying a table before its first change in each transaction, and
giving the copies back, took a twenty-fifth of a seed's time.) A table that a reader looks at is the exception:
whoever changes it copies it first.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.whole import image

if TYPE_CHECKING:
    from tests.simulation.whole.environment import Transaction

_KEPT_IMAGES: Final = 32
"""Of those since the last sync, the newest ones, which a power cut chooses from."""
_SECTOR: Final = 512
"""Bytes that a disk writes whole or not at all."""
Name = bytes | None
"""Of a table; None is the main one."""
Undo = list[Any]
"""Table, key, and the value before (None: there was no such row); the next table, and so on, oldest first. An empty
key: there was no table. (As tuples they were up to two thirds of what the collector looked through after a seed.)"""


class Table:
    """Sorted rows. `readers` counts those who must not see changes."""

    __slots__ = ("keys", "readers", "values")

    def __init__(self, keys: list[bytes] | None = None, values: dict[bytes, bytes] | None = None) -> None:
        self.keys: list[bytes] = keys if keys is not None else []
        self.values: dict[bytes, bytes] = values if values is not None else {}
        self.readers = 0

    def copy(self) -> "Table":
        return Table(self.keys.copy(), self.values.copy())

    def put_back(self, key: bytes, value: bytes | None) -> None:
        """Make the row what it was."""
        if value is None:
            del self.values[key]
            del self.keys[bisect_left(self.keys, key)]
            return
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value


Image = dict[Name, Table]
"""All tables by name."""


class Storage:
    """What is on the disk, and what the machine's memory holds of it."""

    def __init__(self, rows: image.Rows | None = None) -> None:
        self.live: Image = {None: Table()}
        """What is seen, and what the transaction that is under way has done to it."""
        for name, found in (rows or {}).items():
            self.live[name] = Table([key for key, _ in found], dict(found))
        self.writer: Transaction | None = None
        self._unsynced: list[Undo] = []
        """Of the commits since the last sync, oldest first."""
        self._holding = False
        self.ahead: AheadFile | None = None
        """The file that lies beside a log's environment."""

    # ---- what is seen

    def committed(self) -> Image:
        """All tables without what is under way. They are not to be changed, nor kept over the next change."""
        writer = self.writer
        if writer is None or not writer.undo:
            return self.live
        touched = set(writer.undo[::3])
        found = {name: table.copy() if name in touched else table for name, table in self.live.items()}
        undo(found, writer.undo)
        return found

    def _copied(self, commits: int = 0) -> Image:
        """Copies of all tables as they were before the last so many commits."""
        found = {name: table.copy() for name, table in self.committed().items()}
        for done in reversed(self._unsynced[len(self._unsynced) - commits :]):
            undo(found, done)
        return found

    def copy(self) -> "Storage":
        """What a copy of the files holds: what is seen now, as if it were synced."""
        other = Storage()
        other.live = self._copied()
        if self.ahead is not None:
            other.ahead = AheadFile(other, self.ahead.content())
        return other

    # ---- what is done

    def commit(self, done: Undo, *, sync: bool) -> None:
        self.writer = None
        if sync and not self._holding:
            self.finish_sync()
        else:
            self._unsynced.append(done)

    def finish_sync(self) -> None:
        self._unsynced.clear()
        if self.ahead is not None:
            self.ahead.before = None

    @property
    def holding(self) -> bool:
        """What is written now is not synced before `finish_sync`."""
        return self._holding

    @contextmanager
    def held_sync(self) -> Iterator[None]:
        """Commits in here are in memory only, until `finish_sync`."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    # ---- what goes wrong

    def lose_process(self, rng: random.Random, *, atomic: bool) -> bool:
        """A killed process may have been in the middle of its commit. True if something is lost. Else the page cache
        outlives the process; what is in it will be written some day."""
        self._lose_writer()
        if self.ahead is not None and self.ahead.before is not None:
            return self.ahead.lose(rng)
        if not atomic or not self._unsynced or rng.random() < 0.5:
            return False
        self.live = self._copied(len(self._unsynced))
        self._unsynced.clear()
        return True

    def lose_power(self, rng: random.Random, *, atomic: bool) -> bool:
        """Keep something of what was not synced: one of the images, or, if the environment is not `atomic`, some rows
        of one and some of another. True if the newest image is lost."""
        self._lose_writer()
        if self.ahead is not None and self.ahead.before is not None:
            return self.ahead.lose(rng)
        # What was synced, and the newest ones since; each by the number of commits that it lacks.
        lacking = [len(self._unsynced), *range(min(len(self._unsynced), _KEPT_IMAGES) - 1, -1, -1)]
        kept = rng.choice(lacking)
        lost = kept > 0
        live = self._copied(kept)
        if not atomic and len(lacking) > 1 and rng.random() < 0.7:
            live, lost = _torn(rng, live, self._copied(rng.choice(lacking))), True
        self.live = live
        self._unsynced.clear()
        return lost

    def _lose_writer(self) -> None:
        if self.writer is not None:
            self.writer.lose()


class AheadFile:
    """A log's write-ahead file (`kvorum_raft.write_ahead.File`)."""

    def __init__(self, storage: Storage, content: bytes) -> None:
        self._storage = storage
        self.bytes = bytearray(content)
        """What is seen."""
        self.before: tuple[int, bytes] | None = None
        """Where something was written that is not synced, and what was there."""

    def content(self) -> bytes:
        return bytes(self.bytes)

    def write(self, offset: int, data: bytes) -> None:
        assert self.before is None, "the write before is not synced"
        if self._storage.holding:
            self.before = offset, bytes(self.bytes[offset : offset + len(data)])
        self.bytes[offset : offset + len(data)] = data

    def close(self) -> None:
        """The content outlives the process."""

    def lose(self, rng: random.Random) -> bool:
        """What was not synced is there, or is not, or some of its sectors are. True unless all of it is there."""
        assert self.before is not None
        (offset, old), self.before = self.before, None
        kept = rng.random()
        if kept < 0.3:
            return False
        for at in range(0, len(old), _SECTOR):
            if kept > 0.6 or rng.random() < 0.5:
                self.bytes[offset + at : offset + at + _SECTOR] = old[at : at + _SECTOR]
        return True


def undo(tables: Image, done: Undo) -> None:
    """Take changes back, the newest one first."""
    for at in range(len(done) - 3, -1, -3):
        name, key, value = done[at : at + 3]
        if key:
            tables[name].put_back(key, value)
        else:
            del tables[name]


def _torn(rng: random.Random, one: Image, two: Image) -> Image:
    found: Image = {}
    for name in sorted(one.keys() | two.keys(), key=lambda name: name or b""):
        tables = one.get(name, Table()), two.get(name, Table())
        table = Table()
        for key in sorted(tables[0].values.keys() | tables[1].values.keys()):
            value = rng.choice(tables).values.get(key)
            if value is not None:
                table.keys.append(key)
                table.values[key] = value
        found[name] = table
    return found
