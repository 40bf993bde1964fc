"""Counters of queues.

They are kept in memory while an entry runs and written once for each queue at its end; what a refused commit has
counted is counted back. A queue exists from its first message or definition on, as a row of counters. Queues whose
names begin with U+0000 are inboxes of single processes: their counters go when they are empty.
"""

import struct
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import MAX_QUEUES

from .. import checked
from ..errors import Refused
from ..records import MESSAGE, QUEUE, TALLY
from . import formats
from .formats import DEAD_STATE, LEASED_STATE

if TYPE_CHECKING:
    from ..entry import Entry
    from ..rows import Rows

_QUEUE_FULL: Final = int(pb.OUTCOME_QUEUE_FULL)
_COUNTERS: Final = struct.Struct(">11Q")
MESSAGES, LEASED, DEAD, SENT, DELIVERED, DONE, FAILED, LOST, DIED, EXPIRED, DUPLICATES, _EXISTS = range(12)
"""Positions; the first eleven stand in the row, in this order."""
Deltas = tuple[tuple[int, int], ...]
_ACKED: Final = ((MESSAGES, -1), (LEASED, -1), (DONE, 1))


def is_inbox(queue: bytes) -> bool:
    return queue[:1] == b"\x00"


class Tallies:
    """The counters that an entry has touched."""

    __slots__ = ("_journal", "_live", "_rows")

    def __init__(self, rows: "Rows") -> None:
        self._rows = rows
        self._live: dict[bytes, list[int]] = {}
        self._journal: list[tuple[list[int], Deltas]] | None = None

    def of(self, queue: bytes) -> list[int]:
        """The counters as they are now; not to be changed by the caller."""
        counts = self._live.get(queue)
        if counts is None:
            row = self._rows.get(TALLY + queue)
            counts = self._live[queue] = [0] * 12 if row is None else [*_COUNTERS.unpack(row), 1]
        return counts

    def has(self, queue: bytes) -> bool:
        """Whether there is such a queue."""
        return bool(self.of(queue)[_EXISTS])

    def add(self, queue: bytes, deltas: Deltas) -> None:
        """Count; makes the queue if there is none, whatever the limit."""
        counts = self._live.get(queue) or self.of(queue)
        if not counts[_EXISTS]:
            self._rows.queues += 1
            deltas = (*deltas, (_EXISTS, 1))
        for at, delta in deltas:
            counts[at] += delta
        if self._journal is not None:
            self._journal.append((counts, deltas))

    def done(self, queue: bytes) -> None:
        """Count an acknowledgement: as `add` does, in 0.17 instead of 0.21 µs."""
        counts = self._live.get(queue)
        if counts is None or self._journal is not None or not counts[_EXISTS]:
            self.add(queue, _ACKED)
            return
        counts[MESSAGES] -= 1
        counts[LEASED] -= 1
        counts[DONE] += 1

    def admit(self, queue: bytes) -> list[int]:
        """The counters of a queue that is to be used; raises Refused if it would be one too many."""
        counts = self.of(queue)
        if not counts[_EXISTS] and self._rows.queues >= MAX_QUEUES:
            raise Refused(
                _QUEUE_FULL, f"there are {MAX_QUEUES:,} queues (MAX_QUEUES): remove some before others are used"
            )
        return counts

    def drop(self, queue: bytes) -> None:
        """Forget the counters of a queue of which nothing is left. Not within a commit."""
        counts = self.of(queue)
        if counts[_EXISTS]:
            self._rows.queues -= 1
            counts[:] = [0] * 12

    # ---- commits

    def begin(self) -> None:
        self._journal = []

    def keep(self) -> None:
        self._journal = None

    def roll_back(self) -> None:
        """The number of queues is the savepoint's to set back."""
        journal, self._journal = self._journal, None
        for counts, deltas in journal or ():
            for at, delta in deltas:
                counts[at] -= delta

    # ---- the entry's end

    def finish(self, entry: "Entry") -> Generator[None, None, None]:
        """Write what the entry has counted."""
        rows = self._rows
        for queue, counts in self._live.items():
            empty_inbox = is_inbox(queue) and not (counts[MESSAGES] or counts[DEAD])
            if counts[_EXISTS] and empty_inbox and rows.get(QUEUE + queue) is None:
                self.drop(queue)
            if counts[_EXISTS]:
                rows.put(TALLY + queue, _COUNTERS.pack(*counts[:11]))
            else:
                rows.remove(TALLY + queue)
            if entry.spend():
                yield


def unpack(row: bytes) -> tuple[int, ...]:
    """The eleven counters of a row."""
    return _COUNTERS.unpack(row)


def build(entry: "Entry") -> Generator[None, None, None]:
    """Count the messages of a state of format 3; the first thing that the first entry of data version 3 does."""
    rows = entry.rows
    found: dict[bytes, list[int]] = {}
    for _, row in checked.table(rows.txn, MESSAGE):
        message = formats.unpack_message(row)
        counts = found.setdefault(message.queue, [0] * 11)
        counts[DEAD if message.state == DEAD_STATE else MESSAGES] += 1
        counts[LEASED] += message.state == LEASED_STATE
        if entry.spend():
            yield
    for queue, counts in found.items():
        rows.put(TALLY + queue, _COUNTERS.pack(*counts))
        if entry.spend():
            yield
    rows.queues = len(found)
    rows.has_queues = True


def count(found: dict[bytes, list[int]], message: formats.Message) -> None:
    """Count a message for the scrub: messages, leased and dead ones of each queue."""
    counts = found.setdefault(message.queue, [0, 0, 0])
    counts[DEAD if message.state == DEAD_STATE else MESSAGES] += 1
    counts[LEASED] += message.state == LEASED_STATE
