"""Reads under way: questions that are asked again, since a read changes nothing. No I/O, no clock.

A node reads a few lists of a client at a time, and turns away those for which it has no place, or ends the stream. So
no more of them are on the stream than keep it busy. Those that were cancelled keep their places until they are
answered: the node does not know of it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters
from kvorum.cluster.questions import Promise, Question, Questions
from kvorum.entry import packed

MAX_PENDING: Final = 65_536
"""Reads that may be under way."""
MAX_LISTS: Final = 128
"""Reads of ranges on the stream; a node reads 32 of one connection at a time."""
MAX_BYTES: Final = 262_144
"""Bytes of reads in one frame, after which no more go into it."""
MAX_ANSWER: Final = limits.MAX_READ_ENTRIES * (limits.MAX_VALUE_SIZE + limits.MAX_WRITE_KEY_SIZE + 64)
"""Bytes of the largest answer to the largest read."""


class RowPromise:
    """A promise of a row, as `pb.PointAnswers` has it, for a read of that key."""

    __slots__ = ("_promise",)

    def __init__(self, promise: Promise[bytes]) -> None:
        self._promise = promise

    def done(self) -> bool:
        return self._promise.done()

    def set_result(self, result: pb.ReadResult, /) -> None:
        self._promise.set_result(packed(result.entries[0]))

    def set_exception(self, exception: BaseException, /) -> None:
        self._promise.set_exception(exception)


class PendingRead(Question[pb.ReadResult]):
    """A read that was not answered yet."""

    __slots__ = ("read", "size", "slices")

    def __init__(self, read: pb.Read, promise: Promise[pb.ReadResult], timeout: float) -> None:
        super().__init__(promise, timeout)
        self.read = read
        self.slices: pb.ReadResult | None = None
        """What came of an answer that needs more than one frame."""
        self.size = 0


class Reads(Questions[PendingRead, pb.ReadResult]):
    """All reads of a client. Strong ones go to the leader only; the others to any node that is connected."""

    one = "read"
    many = "reads"

    def __init__(self, counters: Counters, *, max_pending: int = MAX_PENDING) -> None:
        super().__init__(counters, max_pending)
        self._strong: deque[PendingRead] = deque()
        self._local: deque[PendingRead] = deque()
        self._strong_lists: deque[PendingRead] = deque()
        self._local_lists: deque[PendingRead] = deque()
        self._lists: set[int] = set()
        """Those on the stream."""

    def submit(self, read: pb.Read, promise: Promise[pb.ReadResult], timeout: float) -> PendingRead:
        """Take a read in and give it its id. Errors: Overloaded."""
        pending = PendingRead(read, promise, timeout)
        self._take_in(pending)
        read.id = pending.id
        return pending

    def fill(self, frame: pb.ClientFrame, operations: int, *, leading: bool) -> int:
        """Put up to `operations` reads into a frame and return their number; strong ones only if the node leads."""
        count = size = 0
        append = frame.reads.append
        lists = self._lists
        lines = (self._strong_lists, self._local_lists, self._strong, self._local)
        for queue in lines if leading else (self._local_lists, self._local):
            are_lists = queue is self._strong_lists or queue is self._local_lists
            while queue and count < operations and size < MAX_BYTES and not (are_lists and len(lists) >= MAX_LISTS):
                pending = queue.popleft()
                if pending.promise.done() or pending.on_stream:
                    continue
                self._put_on_stream(pending)
                if are_lists:
                    lists.add(pending.id)
                append(pending.read)
                size += pending.read.ByteSize()
                count += 1
        return count

    @property
    def has_place(self) -> bool:
        """Lists wait, and there is a place for one."""
        return bool(self._strong_lists or self._local_lists) and len(self._lists) < MAX_LISTS

    def answered(self, answers: Iterable[pb.ReadResult]) -> bool:
        """See `Questions.answered`."""
        if self._lists:
            self._lists.difference_update([part.id for part in answers if not part.more])
        return super().answered(answers)

    def _wait(self, question: PendingRead) -> None:
        strong = question.read.consistency == pb.CONSISTENCY_STRONG
        if question.read.ranges:
            self._join(self._strong_lists if strong else self._local_lists, question)
        else:
            self._join(self._strong if strong else self._local, question)

    def _wait_for_nothing(self) -> None:
        for line in (self._strong, self._local, self._strong_lists, self._local_lists):
            line.clear()
        self._lists.clear()

    def _begin_anew(self, question: PendingRead) -> None:
        question.slices = None

    def _whole(self, question: PendingRead, part: pb.ReadResult) -> pb.ReadResult | None:
        if part.more:
            self._slice(question, part)
            return None
        if question.slices is None or part.status != pb.READ_STATUS_OK:
            return part
        return _joined(question.slices, part)

    def _slice(self, pending: PendingRead, part: pb.ReadResult) -> None:
        """Rows of an answer that goes on in a later frame; the last slice says whether they hold."""
        if pending.slices is None:
            pending.slices, pending.size = pb.ReadResult(ranges=part.ranges), 0
        else:
            _joined(pending.slices, part)
        pending.size += part.ByteSize()
        if pending.size > MAX_ANSWER:
            self.give_up(pending, errors.Unavailable(f"the node's answer is larger than {MAX_ANSWER:,} bytes"))


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
