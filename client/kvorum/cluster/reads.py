"""Reads under way.

A read changes nothing, so it is simply sent again until it is answered or its deadline passes. No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters

MAX_PENDING: Final = 65_536
"""Reads that may be under way."""
MAX_ANSWER: Final = limits.MAX_READ_ENTRIES * (limits.MAX_VALUE_SIZE + limits.MAX_WRITE_KEY_SIZE + 64)
"""Bytes of the largest answer to the largest read."""


class Promise(Protocol):
    """The part of a future that is needed here."""

    def done(self) -> bool: ...
    def set_result(self, result: pb.ReadResult, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class PendingRead:
    """A read that was not answered yet."""

    __slots__ = ("attempts", "last_refusal", "on_stream", "promise", "read", "size", "slices", "timeout")

    def __init__(self, read: pb.Read, promise: Promise, timeout: float) -> None:
        self.read = read
        self.promise = promise
        self.timeout = timeout
        self.attempts = 0
        self.on_stream = False
        self.last_refusal = ""
        self.slices: pb.ReadResult | None = None
        """What came of an answer that needs more than one frame."""
        self.size = 0


class Reads:
    """All reads of a client. Strong ones go to the leader only; the others to any node that is connected."""

    def __init__(self, counters: Counters, *, max_pending: int = MAX_PENDING) -> None:
        self._counters = counters
        self._max_pending = max_pending
        self._last_id = 0
        self._live: dict[int, PendingRead] = {}
        self._strong: deque[PendingRead] = deque()
        self._local: deque[PendingRead] = deque()
        self._later: list[PendingRead] = []
        self.refusals = 0
        """Rounds of refusals since a read was last answered."""

    def submit(self, read: pb.Read, promise: Promise, timeout: float) -> PendingRead:
        """Take a read in and give it its id. Errors: Overloaded."""
        if len(self._live) >= self._max_pending:
            raise errors.Overloaded(f"{len(self._live):,} reads are under way already")
        self._last_id += 1
        read.id = self._last_id
        pending = self._live[read.id] = PendingRead(read, promise, timeout)
        self._queue(pending)
        return pending

    def forget(self, pending: PendingRead) -> None:
        """The caller has its answer, or is gone."""
        self._live.pop(pending.read.id, None)

    def give_up(self, pending: PendingRead, error: errors.KvorumError) -> None:
        """End a read without a result."""
        self.forget(pending)
        if not pending.promise.done():
            pending.promise.set_exception(error)

    def give_up_all(self, error: Callable[[], errors.KvorumError], *, sent_only: bool = False) -> None:
        """End every read; with `sent_only` only those that are on the stream."""
        for pending in list(self._live.values()):
            if pending.on_stream or not sent_only:
                self.give_up(pending, error())

    @property
    def expecting(self) -> bool:
        """Something is unanswered or to be sent."""
        return bool(self._live)

    @property
    def has_refused(self) -> bool:
        """Refused reads wait for `retry_refused`."""
        return bool(self._later)

    def fill(self, frame: pb.ClientFrame, operations: int, *, leading: bool) -> int:
        """Put up to `operations` reads into a frame and return their number; strong ones only if the node leads."""
        count = 0
        append = frame.reads.append
        for queue in (self._strong, self._local) if leading else (self._local,):
            while queue and count < operations:
                pending = queue.popleft()
                if pending.promise.done() or pending.on_stream:
                    continue
                pending.on_stream = True
                pending.attempts += 1
                if pending.attempts > 1:
                    self._counters.retries += 1
                append(pending.read)
                count += 1
        return count

    def connection_lost(self) -> None:
        """The stream is gone: everything live is to be repeated."""
        self._strong.clear()
        self._local.clear()
        self._later.clear()
        for pending in self._live.values():
            pending.on_stream = False
            pending.slices = None
            self._queue(pending)

    def retry_refused(self) -> None:
        """Refused reads go again."""
        for pending in self._later:
            self._queue(pending)
        self._later.clear()

    def answered(self, results: Iterable[pb.ReadResult]) -> bool:
        """Take results in. True if the node said that it knows no leader."""
        no_leader = refused = False
        live = self._live
        for result in results:
            pending = live.get(result.id)
            if pending is None or not pending.on_stream:
                continue
            if result.more:
                self._slice(pending, result)
                continue
            pending.on_stream = False
            if result.status == pb.READ_STATUS_OK:
                self.refusals = 0
                del live[result.id]
                if pending.slices is not None:
                    result = _joined(pending.slices, result)
                if not pending.promise.done():
                    pending.promise.set_result(result)
            elif result.status == pb.READ_STATUS_INVALID:
                self.give_up(pending, errors.InvalidArgument(result.message or "the node calls this read invalid"))
            else:
                refused = True
                pending.slices = None
                no_leader |= result.status == pb.READ_STATUS_NO_LEADER
                known = pb.ReadStatus.DESCRIPTOR.values_by_number.get(result.status)
                name = f"status {result.status}" if known is None else known.name.removeprefix("READ_STATUS_").lower()
                pending.last_refusal = result.message or name.replace("_", " ")
                self._later.append(pending)
        if refused:
            self.refusals += 1
        return no_leader

    def _slice(self, pending: PendingRead, part: pb.ReadResult) -> None:
        """Rows of an answer that goes on in a later frame; the last slice says whether they hold."""
        if pending.slices is None:
            pending.slices, pending.size = pb.ReadResult(ranges=part.ranges), 0
        else:
            _joined(pending.slices, part)
        pending.size += part.ByteSize()
        if pending.size > MAX_ANSWER:
            self.give_up(pending, errors.Unavailable(f"the node's answer is larger than {MAX_ANSWER:,} bytes"))

    def _queue(self, pending: PendingRead) -> None:
        (self._strong if pending.read.consistency == pb.CONSISTENCY_STRONG else self._local).append(pending)


def _joined(have: pb.ReadResult, part: pb.ReadResult) -> pb.ReadResult:
    """`have` with the rows of a later slice, and with all that only the last slice carries."""
    for mine, more in zip(have.ranges, part.ranges, strict=False):
        mine.entries.extend(more.entries)
        mine.count += more.count
    if not part.more:
        have.status, have.read_versionstamp, have.message, have.id, have.time_ms = (
            part.status,
            part.read_versionstamp,
            part.message,
            part.id,
            part.time_ms,
        )
        have.entries.extend(part.entries)
    return have
