"""The rules of repeats, sessions and outcomes, without any I/O."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.cluster.counters import Counters
from kvorum.cluster.writes import PendingWrite, Writes
from tests.unit.cluster.fake_node import FakeState, put, refuse

SESSION = b"session-01"


class Promise:
    """What a caller is told."""

    def __init__(self) -> None:
        self.result: WriteOutcome | None = None
        self.error: BaseException | None = None
        self.cancelled = False

    def done(self) -> bool:
        return self.cancelled or self.result is not None or self.error is not None

    def set_result(self, result: WriteOutcome, /) -> None:
        assert not self.done()
        self.result = result

    def set_exception(self, exception: BaseException, /) -> None:
        assert not self.done()
        self.error = exception


@pytest.fixture
def writes() -> Writes:
    made = Writes(Counters())
    made.session_opened(SESSION)
    return made


def submit(writes: Writes, op: bytes = b"op") -> tuple[PendingWrite, Promise]:
    promise = Promise()
    return writes.submit(op, promise, 1.0), promise


def sent(writes: Writes, operations: int = 1_000) -> pb.WriteGroup:
    frame = pb.ClientFrame()
    count = writes.fill(frame, operations)
    assert frame.HasField("writes") == bool(count)
    assert count == len(frame.writes.writes)
    return frame.writes


def answer(writes: Writes, outcome: int, *seqs: int, session: bytes = SESSION, message: str = "") -> bool:
    group = pb.ResultGroup(session=session, stamp_prefix=b"\0\0\0\0\0\0\0\x07")
    for seq in seqs:
        group.results.add(seq=seq, outcome=outcome, number=seq, message=message)
    return writes.answered([group])


def expire(writes: Writes, pending: PendingWrite) -> None:
    writes.give_up(pending, "late", errors.DeadlineExceeded("late; not applied"))


def test_a_repeat_has_the_same_number_and_bytes_and_the_same_order(writes: Writes) -> None:
    for op in (b"a", b"b", b"c"):
        submit(writes, op)
    first = sent(writes)
    assert [(write.seq, write.op) for write in first.writes] == [(1, b"a"), (2, b"b"), (3, b"c")]
    answer(writes, pb.OUTCOME_DONE, 2)
    writes.connection_lost()
    submit(writes, b"d")
    again = sent(writes)
    assert [(write.seq, write.op) for write in again.writes] == [(1, b"a"), (3, b"c"), (4, b"d")]
    assert again.ack_below == 1


def test_nothing_is_on_a_stream_twice(writes: Writes) -> None:
    submit(writes)
    assert len(sent(writes).writes) == 1
    assert len(sent(writes).writes) == 0


def test_ack_below_follows_the_lowest_live_write(writes: Writes) -> None:
    for _ in range(4):
        submit(writes)
    assert sent(writes).ack_below == 1
    answer(writes, pb.OUTCOME_DONE, 2, 1)
    submit(writes)
    assert sent(writes).ack_below == 3
    answer(writes, pb.OUTCOME_DONE, 4, 5)
    submit(writes)
    assert sent(writes).ack_below == 3
    answer(writes, pb.OUTCOME_DONE, 3, 6)
    submit(writes)
    assert sent(writes).ack_below == 7


def test_the_versionstamp_of_a_result_and_of_a_repeated_answer(writes: Writes) -> None:
    _, promise = submit(writes)
    _, repeated = submit(writes)
    _, failed = submit(writes)
    sent(writes)
    group = pb.ResultGroup(session=SESSION, stamp_prefix=b"\0\0\0\0\0\0\0\x09")
    group.results.add(seq=1, outcome=pb.OUTCOME_DONE, number=258)
    group.results.add(seq=2, outcome=pb.OUTCOME_DONE, number=3, stamp_prefix=b"\0\0\0\0\0\0\0\x05")
    group.results.add(seq=3, outcome=pb.OUTCOME_CHECK_FAILED, failed_checks=[1])
    writes.answered([group])
    assert promise.result is not None and promise.result.versionstamp == b"\0\0\0\0\0\0\0\x09\x01\x02"
    assert repeated.result is not None and repeated.result.versionstamp == b"\0\0\0\0\0\0\0\x05\x00\x03"
    assert failed.result is not None and failed.result.versionstamp == b""
    assert list(failed.result.result.failed_checks) == [1]


@pytest.mark.parametrize(
    "outcome",
    [pb.OUTCOME_CHECK_FAILED, pb.OUTCOME_TYPE_ERROR, pb.OUTCOME_STALE_LEASE, pb.OUTCOME_RANGE_ERROR],
)
def test_executed_outcomes_are_results_even_after_an_attempt_in_doubt(writes: Writes, outcome: int) -> None:
    _, promise = submit(writes)
    sent(writes)
    writes.connection_lost()
    sent(writes)
    answer(writes, outcome, 1)
    assert promise.result is not None
    assert promise.result.result.outcome == outcome
    assert promise.result.versionstamp == b""


@pytest.mark.parametrize(
    ("outcome", "error"),
    [(pb.OUTCOME_INVALID, errors.InvalidArgument), (pb.OUTCOME_NO_SPACE, errors.NoSpace)],
)
def test_a_first_refusal_that_will_stay_is_told_at_once(
    writes: Writes, outcome: int, error: type[errors.KvorumError]
) -> None:
    _, promise = submit(writes)
    sent(writes)
    answer(writes, outcome, 1, message="the reason")
    assert type(promise.error) is error
    assert "the reason" in str(promise.error)
    writes.connection_lost()
    assert len(sent(writes).writes) == 0


def test_invalid_after_an_attempt_in_doubt_is_unknown(writes: Writes) -> None:
    _, promise = submit(writes)
    sent(writes)
    writes.connection_lost()
    sent(writes)
    answer(writes, pb.OUTCOME_INVALID, 1)
    assert isinstance(promise.error, errors.OutcomeUnknown)


def test_no_space_after_an_attempt_in_doubt_goes_on_and_finds_the_stored_result(writes: Writes) -> None:
    _, promise = submit(writes)
    sent(writes)
    writes.connection_lost()
    sent(writes)
    answer(writes, pb.OUTCOME_NO_SPACE, 1)
    assert not promise.done()
    writes.retry_refused()
    assert [write.seq for write in sent(writes).writes] == [1]
    answer(writes, pb.OUTCOME_DONE, 1)
    assert promise.result is not None


@pytest.mark.parametrize(
    "outcome", [pb.OUTCOME_NOT_LEADER, pb.OUTCOME_OVERLOADED, pb.OUTCOME_WINDOW, pb.OUTCOME_UNKNOWN]
)
def test_a_refusal_that_may_pass_is_repeated_under_the_same_number(writes: Writes, outcome: int) -> None:
    _, promise = submit(writes, b"bytes")
    sent(writes)
    assert answer(writes, outcome, 1) == (outcome == pb.OUTCOME_NOT_LEADER)
    assert not promise.done()
    assert writes.has_refused
    assert len(sent(writes).writes) == 0
    writes.retry_refused()
    assert [(write.seq, write.op) for write in sent(writes).writes] == [(1, b"bytes")]


@pytest.mark.parametrize(
    ("history", "unknown"),
    [
        ([], False),
        (["sent"], True),
        (["sent", "lost"], True),
        (["sent", pb.OUTCOME_NOT_LEADER], False),
        (["sent", pb.OUTCOME_OVERLOADED, "retry", "sent", pb.OUTCOME_WINDOW], False),
        (["sent", pb.OUTCOME_NOT_LEADER, "lost", "sent"], True),
        (["sent", "lost", "sent", pb.OUTCOME_NOT_LEADER], True),
        (["sent", pb.OUTCOME_UNKNOWN], True),
        (["sent", 99], True),
        (["sent", pb.OUTCOME_UNSPECIFIED], True),
    ],
)
def test_at_its_deadline_a_write_is_unknown_if_any_attempt_is_in_doubt(
    writes: Writes, history: list[str | int], unknown: bool
) -> None:
    pending, promise = submit(writes)
    steps: dict[str, Callable[[], object]] = {
        "sent": lambda: sent(writes),
        "lost": writes.connection_lost,
        "retry": writes.retry_refused,
    }
    for step in history:
        if isinstance(step, str):
            steps[step]()
        else:
            answer(writes, step, 1)
    expire(writes, pending)
    assert type(promise.error) is (errors.OutcomeUnknown if unknown else errors.DeadlineExceeded)
    writes.connection_lost()
    writes.retry_refused()
    assert len(sent(writes).writes) == 0, "what was given up must never be sent again"


def test_abandoned_is_unknown(writes: Writes) -> None:
    _, promise = submit(writes)
    sent(writes)
    answer(writes, pb.OUTCOME_ABANDONED, 1)
    assert isinstance(promise.error, errors.OutcomeUnknown)


def test_an_answer_to_what_is_not_on_the_stream_is_no_answer(writes: Writes) -> None:
    pending, promise = submit(writes)
    answer(writes, pb.OUTCOME_DONE, 1)
    sent(writes)
    writes.connection_lost()
    answer(writes, pb.OUTCOME_NOT_LEADER, 1)
    answer(writes, pb.OUTCOME_DONE, 1)
    answer(writes, pb.OUTCOME_DONE, 1, session=b"another..!")
    assert not promise.done()
    expire(writes, pending)
    assert isinstance(promise.error, errors.OutcomeUnknown)


def test_an_expired_session_is_replaced_for_writes_without_doubt(writes: Writes) -> None:
    _, one = submit(writes, b"one")
    _, two = submit(writes, b"two")
    sent(writes)
    _, three = submit(writes, b"three")
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 1)
    assert writes.needs_session
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 2)
    assert len(sent(writes).writes) == 0
    writes.session_opened(b"session-02")
    group = sent(writes)
    assert group.session == b"session-02"
    assert sorted((write.seq, write.op) for write in group.writes) == [(1, b"two"), (2, b"one"), (3, b"three")]
    answer(writes, pb.OUTCOME_DONE, 1, 2, 3, session=b"session-02")
    assert one.result and two.result and three.result


def test_an_expired_session_is_told_without_a_write_too(writes: Writes) -> None:
    _, on_stream = submit(writes, b"on the stream")
    sent(writes)
    _, waiting = submit(writes, b"waiting")
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 0)
    assert not writes.session_id and writes.needs_session
    answer(writes, pb.OUTCOME_DONE, 1)
    assert on_stream.result is not None
    writes.session_opened(b"session-02")
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 0)  # late, and of the old session
    assert writes.session_id == b"session-02"
    assert [write.op for write in sent(writes).writes] == [b"waiting"]
    assert not waiting.done()


def test_an_expired_session_leaves_a_write_with_an_attempt_in_doubt_unknown(writes: Writes) -> None:
    _, doubtful = submit(writes, b"doubtful")
    sent(writes)
    writes.connection_lost()
    _, clean = submit(writes, b"clean")
    sent(writes)
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 2, 1)
    assert isinstance(doubtful.error, errors.OutcomeUnknown)
    writes.session_opened(b"session-02")
    assert [write.op for write in sent(writes).writes] == [b"clean"]
    assert not clean.done()


def test_what_is_unanswered_when_its_session_expires_waits_for_its_own_answer(writes: Writes) -> None:
    _, first = submit(writes, b"first")
    _, second = submit(writes, b"second")
    _, third = submit(writes, b"third")
    sent(writes)
    answer(writes, pb.OUTCOME_SESSION_EXPIRED, 2)
    answer(writes, pb.OUTCOME_DONE, 1)
    assert first.result is not None
    writes.connection_lost()
    assert isinstance(third.error, errors.OutcomeUnknown)
    assert not second.done()
    writes.session_opened(b"session-02")
    assert [write.op for write in sent(writes).writes] == [b"second"]


def test_the_window_holds_new_writes_back_until_the_lowest_is_answered(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSION_WINDOW", 4)
    promises = [submit(writes)[1] for _ in range(10)]
    assert [write.seq for write in sent(writes).writes] == [1, 2, 3, 4]
    answer(writes, pb.OUTCOME_DONE, 2, 3, 4)
    assert len(sent(writes).writes) == 0
    answer(writes, pb.OUTCOME_DONE, 1)
    assert [write.seq for write in sent(writes).writes] == [5, 6, 7, 8]
    assert sum(promise.done() for promise in promises) == 4


def test_frames_are_bounded_by_number_and_bytes_but_one_large_write_goes_alone(writes: Writes) -> None:
    for _ in range(5):
        submit(writes, b"x" * 400_000)
    assert [len(sent(writes).writes) for _ in range(4)] == [2, 2, 1, 0]
    submit(writes, b"x" * 2_000_000)
    submit(writes)
    assert len(sent(writes).writes) == 1
    assert len(sent(writes, operations=0).writes) == 0
    assert len(sent(writes, operations=1).writes) == 1


def test_too_many_or_too_large_waiting_writes_are_refused_and_the_gone_ones_do_not_count() -> None:
    writes = Writes(Counters(), max_waiting=2, max_bytes=100)
    pending, promise = submit(writes)
    submit(writes)
    with pytest.raises(errors.Overloaded):
        submit(writes)
    promise.cancelled = True
    writes.forget(pending)
    submit(writes)
    roomy = Writes(Counters(), max_bytes=100)
    pending, _ = submit(roomy, b"x" * 90)
    with pytest.raises(errors.Overloaded):
        submit(roomy, b"x" * 20)
    roomy.forget(pending)
    submit(roomy, b"x" * 20)


# ---- random schedules

STEPS = (
    "submit",
    "submit",
    "fill",
    "fill",
    "deliver",
    "deliver",
    "deliver",
    "late",
    "lose",
    "refuse",
    "unknown",
    "retry",
    "expire",
    "cancel",
    "end session",
    "open session",
)


class World:
    """A client, a state machine, and everything that is on its way; connections break, groups arrive late or not
    at all.
    """

    def __init__(self) -> None:
        self.state = FakeState()
        self.writes = Writes(Counters())
        self.calls: list[tuple[bytes, PendingWrite, Promise]] = []
        self.stream: list[pb.WriteGroup] = []
        """Groups on the current stream, in order, unanswered."""
        self.limbo: list[pb.WriteGroup] = []
        """Groups of broken streams and lost leaders, that may still reach the log, in any order."""
        self.acks: dict[bytes, int] = {}
        self.ops: dict[tuple[bytes, int], bytes] = {}

    def unsettled(self) -> list[tuple[bytes, PendingWrite, Promise]]:
        return [call for call in self.calls if not call[2].done()]

    def step(self, name: str, number: int) -> None:
        match name:
            case "submit":
                op = put(b"key", str(len(self.calls)).encode())
                promise = Promise()
                self.calls.append((op, self.writes.submit(op, promise, 1.0), promise))
            case "fill":
                self.fill(1 + number % 4)
            case "deliver" if self.stream:
                self.writes.answered([self.state.apply(self.stream.pop(0))])
            case "late" if self.limbo:
                self.state.apply(self.limbo.pop(number % len(self.limbo)))
            case "lose":
                self.limbo += self.stream
                self.stream.clear()
                self.writes.connection_lost()
            case "refuse" if self.stream:
                outcome = (pb.OUTCOME_NOT_LEADER, pb.OUTCOME_OVERLOADED, pb.OUTCOME_WINDOW)[number % 3]
                self.writes.answered(refuse(self.stream.pop(0), outcome).results)
            case "unknown" if self.stream:
                group = self.stream.pop(0)
                self.limbo.append(group)
                self.writes.answered(refuse(group, pb.OUTCOME_UNKNOWN).results)
            case "retry":
                self.writes.retry_refused()
            case "expire" | "cancel" if self.unsettled():
                _, pending, promise = self.unsettled()[number % len(self.unsettled())]
                if name == "expire":
                    expire(self.writes, pending)
                else:
                    promise.cancelled = True
                self.writes.forget(pending)
            case "end session":
                self.state.sessions.clear()
            case "open session" if not self.writes.session_id:
                self.writes.session_opened(self.state.open_session())

    def fill(self, operations: int) -> None:
        group = sent(self.writes, operations)
        if not group.writes:
            return
        self.stream.append(group)
        assert group.ack_below >= self.acks.get(group.session, 1), "ack_below must never fall"
        self.acks[group.session] = group.ack_below
        for write in group.writes:
            assert write.op == self.ops.setdefault((group.session, write.seq), write.op), "a number was used twice"
        for _, pending, promise in self.calls:
            if not promise.done() and pending.session is not None and pending.session.id == group.session:
                assert group.ack_below <= pending.seq, "ack_below passed a live write"

    def finish(self) -> None:
        """Heal everything, let every group arrive, and judge what callers were told."""
        rounds = 0
        while self.unsettled():
            rounds += 1
            assert rounds < 1_000, "a write is never sent again"
            for name in ("lose", "open session", "fill", "deliver", "retry"):
                self.step(name, 3)
        while self.limbo:
            self.step("late", 0)
        executed = [op for _, _, op in self.state.executed]
        assert len(executed) == len(set(executed)), "a write was applied twice"
        for op, _, promise in self.calls:
            if promise.result is not None:
                assert op in executed
            elif isinstance(promise.error, errors.OutcomeUnknown) or promise.cancelled:
                pass
            else:
                assert isinstance(promise.error, errors.DeadlineExceeded), promise.error
                assert op not in executed, "a write that was called not applied was applied"


@settings(max_examples=400, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1_000)), min_size=20, max_size=60),
    window=st.sampled_from([2, 3, 4_096]),
)
def test_exactly_once_true_outcomes_and_a_correct_ack_below_under_any_schedule(
    steps: list[tuple[str, int]], window: int
) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SESSION_WINDOW", window)
        world.step("open session", 0)
        for name, number in steps:
            world.step(name, number)
        world.finish()


async def test_a_future_is_a_promise() -> None:
    writes = Writes(Counters())
    writes.session_opened(SESSION)
    future: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
    writes.submit(b"op", future, 1.0)
    sent(writes)
    answer(writes, pb.OUTCOME_DONE, 1)
    assert (await future).result.outcome == pb.OUTCOME_DONE
