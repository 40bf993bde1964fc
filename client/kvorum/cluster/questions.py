"""What is simply asked again until it is answered: what reads and calls about queues have in common.

A question goes onto a stream, and onto the next one if that breaks. A refusal that may pass is kept until
`retry_refused`; one that will not ends the question with an error, as its deadline does. No I/O, no clock.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.counters import Counters
from kvorum.rights import refused as refusal

SPARE: Final = 1_000
"""Questions beyond twice those that are alive that may be in a line: nobody takes from it while there is no leader, and
those that were given up stay in it."""

_Answer_contra = TypeVar("_Answer_contra", contravariant=True)


class Promise(Protocol[_Answer_contra]):
    """The part of a future that is needed here."""

    def done(self) -> bool: ...
    def set_result(self, result: _Answer_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Answer(Protocol):
    """What `pb.ReadResult` and `pb.QueueReply` both have."""

    id: int
    status: "pb.ReadStatus"
    message: str


A = TypeVar("A", bound=Answer)


class Question(Generic[A]):
    """Something that was not answered yet."""

    __slots__ = ("attempts", "id", "in_doubt", "last_refusal", "on_stream", "overloaded", "promise", "timeout")

    def __init__(self, promise: Promise[A], timeout: float) -> None:
        self.id = 0
        self.promise = promise
        self.timeout = timeout
        self.attempts = 0
        self.on_stream = False
        self.in_doubt = False
        """An attempt ended without a definite answer."""
        self.last_refusal = ""
        self.overloaded = False
        """The last refusal was about room."""


Q = TypeVar("Q", bound=Question[Any])


class Questions(Generic[Q, A]):
    """All questions of a client of one kind; `one` and `many` are what messages call them.

    A subclass has `fill`, which puts those that wait into a frame, and says where they wait.
    """

    one: ClassVar[str]
    many: ClassVar[str]

    def __init__(self, counters: Counters, max_pending: int) -> None:
        self._counters = counters
        self._max_pending = max_pending
        self._last_id = 0
        self._live: dict[int, Q] = {}
        self._later: list[Q] = []
        self.refusals = 0
        """Rounds of refusals since a question was last answered."""

    # ---- what callers do

    def _take_in(self, question: Q) -> None:
        """Give a question its id and let it wait. Errors: Overloaded."""
        if len(self._live) >= self._max_pending:
            raise errors.Overloaded(f"{len(self._live):,} {self.many} are under way already")
        self._last_id += 1
        question.id = self._last_id
        self._live[question.id] = question
        self._wait(question)

    def forget(self, question: Q) -> None:
        """The caller has its answer, or is gone."""
        self._live.pop(question.id, None)

    def give_up(self, question: Q, error: errors.KvorumError) -> None:
        """End a question without an answer."""
        self.forget(question)
        if not question.promise.done():
            question.promise.set_exception(error)

    def give_up_all(self, error: Callable[[], errors.KvorumError], *, sent_only: bool = False) -> None:
        """End every question; with `sent_only` only those that are on the stream."""
        for question in list(self._live.values()):
            if question.on_stream or not sent_only:
                self.give_up(question, error())

    # ---- what the connection does

    @property
    def expecting(self) -> bool:
        """Something is unanswered or to be sent."""
        return bool(self._live)

    @property
    def has_refused(self) -> bool:
        """Refused questions wait for `retry_refused`."""
        return bool(self._later)

    def connection_lost(self) -> None:
        """The stream is gone: everything live is to be repeated."""
        self._later.clear()
        self._wait_for_nothing()
        for question in self._live.values():
            question.in_doubt |= question.on_stream
            question.on_stream = False
            self._begin_anew(question)
            self._wait(question)

    def retry_refused(self) -> None:
        """Refused questions go again."""
        for question in self._later:
            self._wait(question)
        self._later.clear()

    def _join(self, line: deque[Q], question: Q) -> None:
        """Put a question at the end of a line."""
        if len(line) > 2 * len(self._live) + SPARE:
            alive = [waiting for waiting in line if not waiting.promise.done()]
            line.clear()
            line.extend(alive)
        line.append(question)

    def _put_on_stream(self, question: Q) -> None:
        """It is in the frame that goes next."""
        question.on_stream = True
        question.attempts += 1
        if question.attempts > 1:
            self._counters.retries += 1

    def answered(self, answers: Iterable[A]) -> bool:
        """Take answers in. True if the node said that it does not lead, or knows no leader."""
        no_leader = refused = False
        live = self._live
        for part in answers:
            question = live.get(part.id)
            if question is None or not question.on_stream:
                continue
            answer = self._whole(question, part)
            if answer is None:
                continue
            question.on_stream = False
            if answer.status == pb.READ_STATUS_OK:
                self.refusals = 0
                del live[question.id]
                if not question.promise.done():
                    question.promise.set_result(answer)
                continue
            # What was lost with the leader is answered as "no leader" as well.
            question.in_doubt |= answer.status == pb.READ_STATUS_NO_LEADER or self._is_done_in_part(answer)
            if answer.status == pb.READ_STATUS_INVALID:
                self.give_up(
                    question, errors.InvalidArgument(answer.message or f"the node calls this {self.one} invalid")
                )
            elif (problem := refusal(answer.status, answer.message)) is not None:
                self.give_up(question, problem)
            else:
                refused = True
                no_leader |= answer.status == pb.READ_STATUS_NO_LEADER
                self._begin_anew(question)
                question.overloaded = answer.status == pb.READ_STATUS_OVERLOADED
                question.last_refusal = answer.message or status_name(answer.status)
                self._later.append(question)
        if refused:
            self.refusals += 1
        return no_leader

    # ---- what the kinds differ in

    def _wait(self, question: Q) -> None:
        """Put a question where `fill` finds it."""
        raise NotImplementedError

    def _wait_for_nothing(self) -> None:
        """Nothing waits any more."""
        raise NotImplementedError

    def _whole(self, question: Q, part: A) -> A | None:
        """The answer that this is, or that it completes; None: there is more to come."""
        return part

    def _is_done_in_part(self, answer: A) -> bool:
        """Whether something was done, although this is a refusal."""
        return False

    def _begin_anew(self, question: Q) -> None:
        """What came of its answer does not count any more."""


def status_name(status: int) -> str:
    known = pb.ReadStatus.DESCRIPTOR.values_by_number.get(status)
    if known is None:
        return f"status {status}"
    return known.name.removeprefix("READ_STATUS_").lower().replace("_", " ")
