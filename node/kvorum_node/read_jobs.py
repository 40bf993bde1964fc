"""What is read by slices (see `lists`): jobs, and how much of the state one step of them reads."""

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any, Protocol

from kvorum._proto import kvorum_pb2 as pb

from .store import Snapshot, Store, write_bare_entry, write_entry

SLICE_ROWS = 256
SLICE_BYTES = 256 * 1024
SLICE_COUNT = 4_096
"""Rows in one slice that are only counted: 1 to 2 ms."""
NODE, ASIDE, HTTP = "node", "aside", "http"
"""Owners of jobs that are no client's connection."""


class Line(Protocol):
    """The reader, as far as jobs know it."""

    def begin(self, job: "ReadJob", /) -> bool: ...
    def turn_away(self, job: "ReadJob", /) -> None: ...
    def resume(self, job: "ReadJob", /) -> None: ...
    def cancel(self, job: "ReadJob", /) -> None: ...


class Slice(Protocol):
    """What one step of a job has read."""

    @property
    def more(self) -> bool:
        """Further slices follow."""
        ...


class ReadJob:
    """Something to be read by slices. Subclasses read, one slice for each `step`.

    `deliver` gets slices on the loop; `more` is False in the last. Call `resume` for the next one, or `cancel`.
    """

    def __init__(self, reader: Line, owner: Hashable = NODE) -> None:
        """`owner` is whose turn it takes."""
        self._reader = reader
        self.owner = owner
        self.snapshot: Snapshot | None = None
        self.opened_at = 0.0
        self.idle = False
        """Its taker's turn; neither queued nor in the thread's hands."""
        self.idle_since = 0.0
        self.cancelled = False
        self.given_up = ""
        """Why it is to end without all that was asked for."""
        self.begun_at = self.first_at = perf_counter()
        """When it was asked for, and when its first slice was read; whoever takes it slowly makes it last."""
        self.slices = 0

    def may_begin(self) -> bool:
        """Its turn has come. False: whoever waits for it keeps it, and calls `begin` later, or never."""
        return True

    def begin(self) -> None:
        """Wait for a turn again."""
        if not self._reader.begin(self):
            self._reader.turn_away(self)

    def resume(self) -> None:
        self._reader.resume(self)

    def cancel(self) -> None:
        """Nothing more comes."""
        self._reader.cancel(self)

    def step(self, store: Store) -> Slice:
        """In the thread: the next slice. Raises StoreFault."""
        raise NotImplementedError

    def failed(self, problem: str, status: "pb.ReadStatus" = pb.READ_STATUS_NO_LEADER) -> Slice:
        """The last slice of a job that nothing can be read for; in the thread, or before it has begun."""
        raise NotImplementedError

    def deliver(self, part: Any) -> None:
        """On the loop: a slice is there."""
        raise NotImplementedError

    def release(self) -> None:
        """In the thread, or when it has ended: close the snapshot."""
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None


class ListJob(ReadJob):
    """One read with ranges; `taker` gets its slices."""

    def __init__(
        self,
        reader: Line,
        read: pb.Read,
        taker: "Callable[[ListJob, pb.ReadResult], None]",
        time_ms: int = 0,
        *,
        owner: Hashable = NODE,
        may_begin: "Callable[[ListJob], bool] | None" = None,
    ) -> None:
        super().__init__(reader, owner)
        self.read = read
        self.taker = taker
        self.size = 0
        """Bytes of the rows in the slice that was delivered last, about."""
        self.gathered = 0
        """Bytes that its taker has, and keeps for now."""
        self._kept: pb.ReadResult | None = None
        self._may_begin = may_begin
        self.denied = 0
        """The status that was answered in place of what was read; 0: none was."""
        self._time_ms = time_ms
        """The cluster's time when the list was asked for, if it matters."""
        self._position = 0
        self._rows: Iterator[tuple[bytes, bytes]] | None = None
        self._counted: Iterator[bytes] | None = None

    def may_begin(self) -> bool:
        return self._may_begin is None or self._may_begin(self)

    def failed(self, problem: str, status: "pb.ReadStatus" = pb.READ_STATUS_NO_LEADER) -> pb.ReadResult:
        self.size = 0
        return pb.ReadResult(id=self.read.id, status=status, message=problem)

    def deliver(self, part: Any) -> None:
        self.taker(self, part)

    def keep(self, part: pb.ReadResult | None) -> None:
        """Not sent yet: the next slice is written behind its rows, which to put together afterwards would take a third
        of the loop's time of a list. Nobody else may touch it from `resume` on. None: it was sent after all."""
        self._kept = part

    def deny(self, status: int) -> None:
        """Whoever asked may not have it: nothing more comes, and it counts as that."""
        self.denied = status
        self.cancel()

    def step(self, store: Store) -> pb.ReadResult:
        """In the thread: the next slice."""
        if self.snapshot is None:
            self.snapshot = store.snapshot()
        part, self._kept = self._kept, None
        if part is None:
            part, self.size = pb.ReadResult(id=self.read.id, status=pb.READ_STATUS_OK), 0
            for _ in self.read.ranges:
                part.ranges.add()
        if self.given_up or self.cancelled:
            return self.failed(f"the list {self.given_up}: go on from the last key", pb.READ_STATUS_TOO_OLD)
        budget = _Budget()
        part.more = not self._fill_ranges(self.snapshot, part, budget)
        self.size += SLICE_BYTES - budget.size
        if part.more:
            return part
        with_expiry = self.read.with_expiry
        part.entries.extend(self.snapshot.get(key, with_expiry=with_expiry) for key in self.read.keys)
        self.size += sum(entry.ByteSize() for entry in part.entries)
        part.read_versionstamp = self.snapshot.versionstamp
        part.time_ms = self._time_ms
        return part

    def _fill_ranges(self, snapshot: Snapshot, part: pb.ReadResult, budget: "_Budget") -> bool:
        """False: the slice is full before the last range was read."""
        ranges = self.read.ranges
        while self._position < len(ranges):
            selected, found = ranges[self._position], part.ranges[self._position]
            if not (self._count if selected.count_only else self._fill)(snapshot, selected, found, budget):
                return False
            self._position += 1
        return True

    def _fill(self, snapshot: Snapshot, selected: pb.ReadRange, found: pb.RangeResult, budget: "_Budget") -> bool:
        """Rows of a range, until the slice is full. True: there are no more."""
        if self._rows is None:
            self._rows = snapshot.iter_rows(selected)
        write, with_expiry = write_bare_entry if selected.keys_only else write_entry, self.read.with_expiry
        add = found.entries.add
        for key, row in self._rows:
            write(add(), key, row, with_expiry=with_expiry)
            budget.rows -= 1
            # what was read, also where less of it is told
            budget.size -= len(key) + len(row) + 32
            if budget.rows <= 0 or budget.size <= 0:
                return False
        self._rows = None
        return True

    def _count(self, snapshot: Snapshot, selected: pb.ReadRange, found: pb.RangeResult, budget: "_Budget") -> bool:
        """The number of a range's rows, as far as this slice goes. True: that is all."""
        if self._counted is None:
            self._counted = snapshot.iter_keys(selected)
        most = SLICE_COUNT * budget.rows // SLICE_ROWS
        count = sum(1 for _ in islice(self._counted, most))
        found.count += count
        budget.rows -= count * SLICE_ROWS // SLICE_COUNT
        if count == most:
            return False
        self._counted = None
        return True

    def release(self) -> None:
        self._rows = self._counted = None
        super().release()


class _Budget:
    """What is left of a slice."""

    __slots__ = ("rows", "size")

    def __init__(self) -> None:
        self.rows = SLICE_ROWS
        self.size = SLICE_BYTES
