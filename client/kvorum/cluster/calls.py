"""Calls about queues under way.

They go to the leader. What changes something may be repeated after an unknown outcome (its second run finds its work
done), so all of them are simply sent again until they are answered or their deadline passes. No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters

MAX_PENDING: Final = 1_024
"""Calls that may be under way."""
MAX_BYTES: Final = 1_048_576
"""Bytes of calls in one frame; one larger call goes alone."""


class Promise(Protocol):
    """The part of a future that is needed here."""

    def done(self) -> bool: ...
    def set_result(self, result: pb.QueueReply, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class PendingCall:
    """A call that was not answered yet."""

    __slots__ = ("attempts", "call", "last_refusal", "on_stream", "overloaded", "promise", "timeout")

    def __init__(self, call: pb.QueueCall, promise: Promise, timeout: float) -> None:
        self.call = call
        self.promise = promise
        self.timeout = timeout
        self.attempts = 0
        self.on_stream = False
        self.last_refusal = ""
        self.overloaded = False
        """The last refusal was about room."""


class Calls:
    """All calls of a client."""

    def __init__(self, counters: Counters, *, max_pending: int = MAX_PENDING) -> None:
        self._counters = counters
        self._max_pending = max_pending
        self._last_id = 0
        self._live: dict[int, PendingCall] = {}
        self._waiting: deque[PendingCall] = deque()
        self._later: list[PendingCall] = []
        self.refusals = 0
        """Rounds of refusals since a call was last answered."""

    def submit(self, call: pb.QueueCall, promise: Promise, timeout: float) -> PendingCall:
        """Take a call in and give it its id. Errors: Overloaded."""
        if len(self._live) >= self._max_pending:
            raise errors.Overloaded(f"{len(self._live):,} calls about queues are under way already")
        self._last_id += 1
        call.id = self._last_id
        pending = self._live[call.id] = PendingCall(call, promise, timeout)
        self._waiting.append(pending)
        return pending

    def forget(self, pending: PendingCall) -> None:
        """The caller has its answer, or is gone."""
        self._live.pop(pending.call.id, None)

    def give_up(self, pending: PendingCall, error: errors.KvorumError) -> None:
        """End a call without a result."""
        self.forget(pending)
        if not pending.promise.done():
            pending.promise.set_exception(error)

    def give_up_all(self, error: Callable[[], errors.KvorumError], *, sent_only: bool = False) -> None:
        """End every call; with `sent_only` only those that are on the stream."""
        for pending in list(self._live.values()):
            if pending.on_stream or not sent_only:
                self.give_up(pending, error())

    @property
    def expecting(self) -> bool:
        """Something is unanswered or to be sent."""
        return bool(self._live)

    @property
    def has_refused(self) -> bool:
        """Refused calls wait for `retry_refused`."""
        return bool(self._later)

    def fill(self, frame: pb.ClientFrame, operations: int) -> int:
        """Put up to `operations` calls into a frame for a node that leads, and return their number."""
        count = size = 0
        while self._waiting and count < operations:
            pending = self._waiting[0]
            if pending.promise.done() or pending.on_stream:
                self._waiting.popleft()
                continue
            size += pending.call.ByteSize()
            if size > MAX_BYTES and count:
                break
            self._waiting.popleft()
            pending.on_stream = True
            pending.attempts += 1
            self._counters.retries += pending.attempts > 1
            frame.queue_calls.append(pending.call)
            count += 1
        return count

    def connection_lost(self) -> None:
        """The stream is gone: everything live is to be repeated."""
        self._later.clear()
        self._waiting.clear()
        for pending in self._live.values():
            pending.on_stream = False
            self._waiting.append(pending)

    def retry_refused(self) -> None:
        """Refused calls go again."""
        self._waiting.extend(self._later)
        self._later.clear()

    def answered(self, replies: Iterable[pb.QueueReply]) -> bool:
        """Take replies in. True if the node said that it does not lead."""
        no_leader = refused = False
        for reply in replies:
            pending = self._live.get(reply.id)
            if pending is None or not pending.on_stream:
                continue
            pending.on_stream = False
            if reply.status == pb.READ_STATUS_OK:
                self.refusals = 0
                del self._live[reply.id]
                if not pending.promise.done():
                    pending.promise.set_result(reply)
            elif reply.status == pb.READ_STATUS_INVALID:
                self.give_up(pending, errors.InvalidArgument(reply.message or "the node calls this call invalid"))
            else:
                refused = True
                no_leader |= reply.status == pb.READ_STATUS_NO_LEADER
                pending.overloaded = reply.status == pb.READ_STATUS_OVERLOADED
                known = pb.ReadStatus.DESCRIPTOR.values_by_number.get(reply.status)
                name = f"status {reply.status}" if known is None else known.name.removeprefix("READ_STATUS_").lower()
                pending.last_refusal = reply.message or name.replace("_", " ")
                self._later.append(pending)
        if refused:
            self.refusals += 1
        return no_leader
