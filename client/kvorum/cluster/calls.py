"""Calls about queues under way.

They go to the leader. What changes something may be repeated after an unknown outcome (its second run finds its work
done), so all of them are questions that are asked again. A change that ends without an answer, after an attempt that
may have made it, ends with an unknown outcome. No I/O, no clock.
"""

from collections import deque
from typing import Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import QUESTIONS
from kvorum.cluster.counters import Counters
from kvorum.cluster.questions import Promise, Question, Questions

MAX_PENDING: Final = 1_024
"""Calls that may be under way."""
MAX_BYTES: Final = 1_048_576
"""Bytes of calls in one frame; one larger call goes alone."""


class PendingCall(Question[pb.QueueReply]):
    """A call that was not answered yet."""

    __slots__ = ("call",)

    def __init__(self, call: pb.QueueCall, promise: Promise[pb.QueueReply], timeout: float) -> None:
        super().__init__(promise, timeout)
        self.call = call


class Calls(Questions[PendingCall, pb.QueueReply]):
    """All calls of a client."""

    one = "call"
    many = "calls about queues"

    def __init__(self, counters: Counters, *, max_pending: int = MAX_PENDING) -> None:
        super().__init__(counters, max_pending)
        self._waiting: deque[PendingCall] = deque()

    def submit(self, call: pb.QueueCall, promise: Promise[pb.QueueReply], timeout: float) -> PendingCall:
        """Take a call in and give it its id. Errors: Overloaded."""
        pending = PendingCall(call, promise, timeout)
        self._take_in(pending)
        call.id = pending.id
        return pending

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
            self._put_on_stream(pending)
            frame.queue_calls.append(pending.call)
            count += 1
        return count

    def give_up(self, question: PendingCall, error: errors.KvorumError) -> None:
        """End a call without an answer: a change that may have been made with OutcomeUnknown."""
        if (question.in_doubt or question.on_stream) and question.call.WhichOneof("call") not in QUESTIONS:
            error = errors.OutcomeUnknown(f"{error}; the change may have been made, and repeating it is harmless")
        super().give_up(question, error)

    def _is_done_in_part(self, answer: pb.QueueReply) -> bool:
        return answer.count > 0

    def _wait(self, question: PendingCall) -> None:
        self._join(self._waiting, question)

    def _wait_for_nothing(self) -> None:
        self._waiting.clear()
