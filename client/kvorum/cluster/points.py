"""Reads of one key each that are under way. Those of a moment are one thing: a batch. No I/O, no clock.

They are most of all calls, and a busy client makes hundreds at once. Each for itself, as `reads` has them, they take a
message, an id, a place in a table and one in a bucket of deadlines; in a batch, a place in two lists. A batch is asked
again as a whole, as far as it was not answered, and its reads have one deadline. Cancelled ones stay until it ends.

While some batches are on their way, what is asked for waits until one of them is answered, or there are enough for a
full batch: the node confirms that it leads once for each, which costs more than all else of a few reads. So batches
grow with the load, and a client that is not busy waits for nothing.
"""

from asyncio import InvalidStateError
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Protocol

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters
from kvorum.cluster.questions import status_name
from kvorum.rights import refused as refused_for

FULL: Final = 128
"""Reads of one batch: about a millisecond of the client's work, so that client and node work at the same time."""
IN_FLIGHT: Final = 2
"""Batches on their way, of those for the leader and of the others, beyond which smaller ones than a full one wait."""
MAX_PENDING: Final = 65_536
"""Reads that may be under way."""


class Promise(Protocol):
    """The part of a future that is needed here."""

    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def set_result(self, result: bytes, /) -> None:
        """Raises InvalidStateError if it is done."""
        ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Batch:
    """Reads that ask for the same and end in the same moment, if they are not answered."""

    __slots__ = (
        "answered",
        "attempts",
        "consistency",
        "id",
        "keys",
        "last_refusal",
        "max_age_ms",
        "moment",
        "promises",
        "timeout",
    )

    def __init__(self, moment: int, timeout: float, consistency: "pb.Consistency", max_age_ms: int) -> None:
        self.moment = moment
        self.timeout = timeout
        self.consistency = consistency
        self.max_age_ms = max_age_ms
        self.keys: list[bytes] = []
        self.promises: list[Promise] = []
        self.id = 0
        """0: it is not on the stream."""
        self.answered = 0
        """How many of its reads the stream has answered so far."""
        self.attempts = 0
        self.last_refusal = ""

    def asks_like(self, other: "Batch") -> bool:
        """They are two only because they end at different times: together they are sent like one."""
        return self.consistency == other.consistency and self.max_age_ms == other.max_age_ms

    def keep_rest(self) -> None:
        """Forget what is answered, or whose caller is gone."""
        rest = [(key, promise) for key, promise in zip(self.keys, self.promises, strict=True) if not promise.done()]
        self.keys = [key for key, _ in rest]
        self.promises = [promise for _, promise in rest]
        self.answered = 0

    def fail(self, error: Callable[[], errors.KvorumError]) -> None:
        """End what is left of it."""
        for promise in self.promises:
            if not promise.done():
                promise.set_exception(error())
                # A caller that is cancelled in this very turn must not leave a log line about it.
                promise.exception()


class _Lane:
    """Batches that the same nodes may answer."""

    __slots__ = ("in_flight", "open", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        self.open: Batch | None = None
        """The last one of those that wait, if reads may still join it."""
        self.in_flight = 0

    def may_send(self) -> bool:
        waiting = self.waiting
        return bool(waiting) and (self.in_flight < IN_FLIGHT or sum(len(batch.keys) for batch in waiting) >= FULL)


class Points:
    """All reads of one key of a client.

    `began` is called with each new batch, which is to be ended with `expired` in its moment, and `ended` when that is
    of no more use. `wake` tells that there is something to send. `otherwise` takes a batch whose node does not know
    them.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        began: Callable[[Batch], None],
        ended: Callable[[Batch], None],
        wake: Callable[[], None],
        otherwise: Callable[[Batch], None],
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._counters = counters
        self._began = began
        self._ended = ended
        self._wake = wake
        self._otherwise = otherwise
        self._max_pending = max_pending
        self._strong = _Lane()
        self._local = _Lane()
        self._sent: dict[int, Batch] = {}
        self._later: list[Batch] = []
        self._last_id = 0
        self._pending = 0
        self._full = False
        """No room was found, and nothing has ended since."""
        self.known = False
        """The connected node takes `pb.PointReads`."""
        self.refusals = 0
        """Rounds of refusals since one was last answered."""

    # ---- what callers do

    def submit(
        self, key: bytes, promise: Promise, moment: int, timeout: float, consistency: "pb.Consistency", max_age_ms: int
    ) -> None:
        """Take a read in, which is answered with a row of `pb.PointAnswers`. `moment` is when it is to end, as a number
        of steps of time that the caller chooses. Errors: Overloaded."""
        if self._pending >= self._max_pending:
            self._sweep()
        batch = (self._local if consistency else self._strong).open
        if (
            batch is None
            or batch.moment != moment
            or batch.timeout != timeout
            or (consistency and (batch.consistency != consistency or batch.max_age_ms != max_age_ms))
        ):
            batch = self._begin(moment, timeout, consistency, max_age_ms)
        keys = batch.keys
        keys.append(key)
        batch.promises.append(promise)
        self._pending += 1
        if len(keys) == FULL:
            self._lane(consistency).open = None
            self._wake()

    def _begin(self, moment: int, timeout: float, consistency: "pb.Consistency", max_age_ms: int) -> Batch:
        lane = self._lane(consistency)
        batch = lane.open = Batch(moment, timeout, consistency, max_age_ms)
        lane.waiting.append(batch)
        self._began(batch)
        self._wake()
        return batch

    def _sweep(self) -> None:
        """Make room: those that wait and were cancelled. Errors: Overloaded."""
        for batch in () if self._full else (*self._strong.waiting, *self._local.waiting):
            self._pending -= len(batch.keys)
            batch.keep_rest()
            self._pending += len(batch.keys)
        self._full = self._pending >= self._max_pending
        if self._full:
            raise errors.Overloaded(f"{self._pending:,} reads are under way already")

    def expired(self, batch: Batch, error: Callable[[], errors.KvorumError]) -> None:
        """End what is left of a batch."""
        self._end(batch)
        batch.fail(error)

    def give_up_all(self, error: Callable[[], errors.KvorumError], *, sent_only: bool = False) -> None:
        """End every read; with `sent_only` only those that are on the stream."""
        batches = list(self._sent.values())
        if not sent_only:
            batches += (*self._later, *self._strong.waiting, *self._local.waiting)
        for batch in batches:
            self.expired(batch, error)

    # ---- what the connection does

    @property
    def expecting(self) -> bool:
        """Something is unanswered or to be sent."""
        return bool(self._pending)

    @property
    def has_refused(self) -> bool:
        """Refused reads wait for `retry_refused`."""
        return bool(self._later)

    def fill(self, frame: pb.ClientFrame, newest: bytes, operations: int, *, leading: bool) -> int:
        """Put up to `operations` reads into a frame and return their number; strong ones only if the node leads.
        `newest` is the newest state that this client has seen."""
        count = 0
        for lane in (self._strong, self._local) if leading else (self._local,):
            begun, last = count, None
            while lane.may_send() or (
                last and lane.waiting and lane.waiting[0].asks_like(last) and count < begun + FULL
            ):
                if count + len(lane.waiting[0].keys) > operations:
                    break
                batch = lane.waiting.popleft()
                if batch is lane.open:
                    lane.open = None
                if batch.attempts:
                    self._pending -= len(batch.keys)
                    batch.keep_rest()
                    self._pending += len(batch.keys)
                if not batch.keys:
                    self._end(batch)
                elif self.known:
                    self._send(frame.point_reads.add(), batch, lane, newest)
                    count += len(batch.keys)
                    last = batch
                else:
                    self._end(batch)
                    self._otherwise(batch)
        return count

    def _send(self, message: pb.PointReads, batch: Batch, lane: _Lane, newest: bytes) -> None:
        self._last_id += 1
        message.id = batch.id = self._last_id
        message.keys.extend(batch.keys)
        if batch.consistency:
            message.consistency = batch.consistency
            message.max_age_ms = batch.max_age_ms
            message.min_versionstamp = newest
        self._sent[batch.id] = batch
        lane.in_flight += 1
        if batch.attempts:
            self._counters.retries += len(batch.keys)
        batch.attempts += 1

    def connection_lost(self) -> None:
        """The stream is gone: everything on it is to be repeated."""
        again = sorted((*self._sent.values(), *self._later), key=lambda batch: batch.id, reverse=True)
        self._sent.clear()
        self._later.clear()
        self._strong.in_flight = self._local.in_flight = 0
        for batch in again:
            batch.id = 0
            self._lane(batch.consistency).waiting.appendleft(batch)

    def retry_refused(self) -> None:
        """Refused reads go again."""
        for batch in reversed(self._later):
            batch.id = 0
            self._lane(batch.consistency).waiting.appendleft(batch)
        self._later.clear()

    def answered(self, answers: Iterable[pb.PointAnswers]) -> bool:
        """Take answers in. True if the node said that it does not lead, or knows no leader."""
        no_leader = refused = False
        for answer in answers:
            batch = self._sent.get(answer.id)
            if batch is None:
                continue
            status = answer.status
            if status == pb.READ_STATUS_OK:
                self.refusals = 0
                self._take_rows(batch, answer)
            elif status == pb.READ_STATUS_INVALID:
                text = answer.message or "the node calls these reads invalid"
                self.expired(batch, lambda text=text: errors.InvalidArgument(text))  # type: ignore[misc]
            elif refused_for(status, answer.message) is not None:
                # One key is enough for that: each is asked for by itself.
                self._pending -= len(batch.keys)
                batch.keep_rest()
                self._pending += len(batch.keys)
                self._end(batch)
                self._otherwise(batch)
            else:
                refused = True
                no_leader |= status == pb.READ_STATUS_NO_LEADER
                batch.last_refusal = answer.message or status_name(status)
                self._landed(batch)
                self._later.append(batch)
        if refused:
            self.refusals += 1
        if self._strong.may_send() or self._local.may_send():
            self._wake()
        return no_leader

    def _take_rows(self, batch: Batch, answer: pb.PointAnswers) -> None:
        rows = answer.rows
        at = batch.answered
        batch.answered = at + len(rows)
        for promise, row in zip(islice(batch.promises, at, None), rows, strict=False):
            try:  # to ask first whether its caller is still there takes longer
                promise.set_result(row)
            except InvalidStateError:
                continue
        if batch.answered >= len(batch.promises):
            self._end(batch)

    # ---- small things

    def _lane(self, consistency: "pb.Consistency") -> _Lane:
        return self._local if consistency else self._strong

    def _landed(self, batch: Batch) -> None:
        """It is not on the stream any more."""
        del self._sent[batch.id]
        self._lane(batch.consistency).in_flight -= 1

    def _end(self, batch: Batch) -> None:
        """Nothing is to be done for it any more."""
        lane = self._lane(batch.consistency)
        if batch.id in self._sent:
            self._landed(batch)
        elif batch in self._later:
            self._later.remove(batch)
        elif batch in lane.waiting:
            lane.waiting.remove(batch)
            if batch is lane.open:
                lane.open = None
        self._pending -= len(batch.keys)
        self._full = False
        self._ended(batch)
