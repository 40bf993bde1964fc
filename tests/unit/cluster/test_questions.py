"""What reads and calls have in common: both kinds keep the same promises."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.calls import Calls
from kvorum.cluster.counters import Counters
from kvorum.cluster.reads import Reads


@dataclass
class Kept:
    """A promise that remembers what it was told."""

    results: list[object] = field(default_factory=list)
    error: BaseException | None = None

    def done(self) -> bool:
        return bool(self.results) or self.error is not None

    def set_result(self, result: object) -> None:
        assert not self.done()
        self.results.append(result)

    def set_exception(self, exception: BaseException) -> None:
        assert not self.done()
        self.error = exception


@dataclass
class Kind:
    """One of the two, by the same words."""

    asked: Any
    counters: Counters
    new: Callable[[], Any]
    answer: Callable[..., Any]
    sent: Callable[[pb.ClientFrame], list[int]]
    fill: Callable[[pb.ClientFrame, int], int]

    def submit(self) -> tuple[Any, Kept]:
        promise = Kept()
        return self.asked.submit(self.new(), promise, 1.0), promise

    def go(self, most: int = 100) -> list[int]:
        """Ids of those that go into the next frame."""
        frame = pb.ClientFrame()
        count = self.fill(frame, most)
        ids = self.sent(frame)
        assert count == len(ids)
        return ids


def reads(most: int) -> Kind:
    counters = Counters()
    asked = Reads(counters, max_pending=most)
    return Kind(
        asked,
        counters,
        lambda: pb.Read(keys=[b"k"]),
        pb.ReadResult,
        lambda frame: [read.id for read in frame.reads],
        lambda frame, count: asked.fill(frame, count, leading=True),
    )


def calls(most: int) -> Kind:
    counters = Counters()
    asked = Calls(counters, max_pending=most)
    return Kind(
        asked,
        counters,
        lambda: pb.QueueCall(peek=pb.Peek(queue="q")),
        pb.QueueReply,
        lambda frame: [call.id for call in frame.queue_calls],
        asked.fill,
    )


@pytest.fixture(params=[reads, calls])
def kind(request: pytest.FixtureRequest) -> Kind:
    made = request.param(3)
    assert isinstance(made, Kind)
    return made


def test_each_gets_an_id_and_goes_once(kind: Kind) -> None:
    assert not kind.asked.expecting
    for _ in range(3):
        kind.submit()
    assert kind.asked.expecting
    assert kind.go(2) == [1, 2]
    assert kind.go() == [3]
    assert kind.go() == []


def test_more_than_may_be_under_way_are_refused_until_one_is_forgotten(kind: Kind) -> None:
    first, _ = kind.submit()
    kind.submit()
    kind.submit()
    with pytest.raises(errors.Overloaded, match=r"3 (reads|calls about queues) are under way already"):
        kind.submit()
    kind.asked.forget(first)
    kind.submit()


def test_an_answer_ends_its_own_and_only_while_it_is_on_the_stream(kind: Kind) -> None:
    _, early = kind.submit()
    kind.asked.answered([kind.answer(id=1, status=pb.READ_STATUS_OK)])
    assert not early.done()
    kind.go()
    _, other = kind.submit()
    kind.go()
    answer = kind.answer(id=1, status=pb.READ_STATUS_OK)
    assert kind.asked.answered([kind.answer(id=77, status=pb.READ_STATUS_OK), answer, answer]) is False
    assert early.results == [answer]
    assert not other.done()


def test_a_caller_that_is_gone_is_not_told(kind: Kind) -> None:
    pending, promise = kind.submit()
    kind.go()
    promise.set_result("it was cancelled")
    kind.asked.answered([kind.answer(id=1, status=pb.READ_STATUS_OK)])
    kind.asked.give_up(pending, errors.Closed())
    assert promise.results == ["it was cancelled"]
    assert promise.error is None


def test_a_break_repeats_all_in_order(kind: Kind) -> None:
    for _ in range(3):
        kind.submit()
    kind.go(2)
    kind.asked.answered([kind.answer(id=1, status=pb.READ_STATUS_OK)])
    kind.asked.connection_lost()
    assert kind.go() == [2, 3]
    assert kind.counters.retries == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [(pb.READ_STATUS_NO_LEADER, "no leader"), (pb.READ_STATUS_OVERLOADED, "overloaded"), (99, "status 99")],
)
def test_what_is_refused_waits_for_its_retry(kind: Kind, status: "pb.ReadStatus", text: str) -> None:
    pending, promise = kind.submit()
    kind.go()
    assert kind.asked.answered([kind.answer(id=1, status=status)]) == (status == pb.READ_STATUS_NO_LEADER)
    assert (pending.last_refusal, pending.overloaded) == (text, status == pb.READ_STATUS_OVERLOADED)
    assert (kind.asked.refusals, kind.asked.has_refused, kind.go()) == (1, True, [])
    kind.asked.retry_refused()
    assert (kind.asked.has_refused, kind.go()) == (False, [1])
    kind.asked.answered([kind.answer(id=1, status=status, message="in its own words")])
    assert (pending.last_refusal, kind.asked.refusals) == ("in its own words", 2)
    kind.asked.retry_refused()
    kind.go()
    kind.asked.answered([kind.answer(id=1, status=pb.READ_STATUS_OK)])
    assert (kind.asked.refusals, len(promise.results), kind.asked.expecting) == (0, 1, False)


def test_what_is_invalid_ends_with_what_the_node_says(kind: Kind) -> None:
    for message in ("too much of it", ""):
        pending, promise = kind.submit()
        kind.go()
        assert not kind.asked.answered([kind.answer(id=pending.id, status=pb.READ_STATUS_INVALID, message=message)])
        assert isinstance(promise.error, errors.InvalidArgument)
        assert str(promise.error) == message or str(promise.error) == f"the node calls this {kind.asked.one} invalid"
    assert not kind.asked.expecting


def test_all_are_given_up_or_only_those_that_are_on_the_stream(kind: Kind) -> None:
    _, sent = kind.submit()
    kind.go()
    _, waiting = kind.submit()
    kind.asked.give_up_all(lambda: errors.Unavailable("it ended"), sent_only=True)
    assert isinstance(sent.error, errors.Unavailable)
    assert not waiting.done()
    kind.asked.give_up_all(lambda: errors.Closed("closed"))
    assert isinstance(waiting.error, errors.Closed)
    assert not kind.asked.expecting


def test_what_was_given_up_is_not_gathered_while_nobody_leads(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.questions.SPARE", 50)
    kept = [kind.submit() for _ in range(2)]
    for _ in range(1_000):
        pending, promise = kind.submit()
        kind.asked.give_up(pending, errors.DeadlineExceeded())
        assert isinstance(promise.error, errors.DeadlineExceeded)
    lines = [line for line in vars(kind.asked).values() if isinstance(line, deque)]
    assert sum(map(len, lines)) < 100
    assert kind.go() == [pending.id for pending, _ in kept]
