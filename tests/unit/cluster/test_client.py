"""The cluster backend against scripted nodes: every way to answer, break off, lie and freeze."""

import asyncio
import time

import pytest

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.backend import WriteOutcome
from kvorum.cluster import ClusterBackend
from tests.pace import Pace, Witness
from tests.unit.cluster.conftest import Connect
from tests.unit.cluster.fake_node import FakeNode, FakeState, FakeStream, put, refuse
from tests.unit.cluster.steps import until


class Once:
    """A hook that deals with the first frame that carries writes in its own way."""

    def __init__(self, misdeed: str) -> None:
        self.misdeed = misdeed
        self.done = asyncio.Event()

    async def __call__(self, stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if not frame.HasField("writes") or self.done.is_set():
            return False
        self.done.set()
        state, group = stream.node.state, frame.writes
        match self.misdeed:
            case "applied, answer lost":
                state.apply(group)
                stream.break_off()
            case "not applied, no answer":
                stream.break_off()
            case "orderly end without an answer":
                stream.end()
            case "answered twice":
                answer = pb.ServerFrame(results=[state.apply(group)])
                stream.send(answer)
                stream.send(answer)
            case "answers for strangers":
                stranger = pb.ResultGroup(session=b"stranger!!", results=[pb.WriteResult(seq=1, outcome=1)])  # type: ignore[arg-type]
                other = pb.ResultGroup(session=group.session, results=[pb.WriteResult(seq=999, outcome=1)])  # type: ignore[arg-type]
                stream.send(pb.ServerFrame(results=[stranger, other], reads=[pb.ReadResult(id=77)], pong=5))
                stream.answer(frame)
            case "garbage":
                stream.send(b"\xff\xff\xff\xff garbage")  # type: ignore[arg-type]
            case "applied, but called unknown":
                state.apply(group)
                stream.send(refuse(group, pb.OUTCOME_UNKNOWN))
            case "overloaded":
                stream.send(refuse(group, pb.OUTCOME_OVERLOADED))
            case "an outcome of the future":
                stream.send(refuse(group, 120))
            case "session expired":
                state.sessions.clear()
                stream.answer(frame)
            case "not leader, no hint":
                stream.send(refuse(group, pb.OUTCOME_NOT_LEADER, pb.Leader()))
            case "ends with an error":
                stream.send(pb.ServerFrame(error="going down"))
        return True


@pytest.mark.parametrize(
    "misdeed",
    [
        "applied, answer lost",
        "not applied, no answer",
        "orderly end without an answer",
        "answered twice",
        "answers for strangers",
        "garbage",
        "applied, but called unknown",
        "overloaded",
        "an outcome of the future",
        "session expired",
        "not leader, no hint",
        "ends with an error",
    ],
)
async def test_whatever_happens_to_an_attempt_each_write_is_applied_once_and_acknowledged(
    misdeed: str,
    state: FakeState,
    nodes: list[FakeNode],
    backend: ClusterBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    once = nodes[0].hook = Once(misdeed)
    outcomes: list[WriteOutcome] = await asyncio.gather(
        *(backend.write(put(b"k%d" % number), timeout=10) for number in range(50))
    )
    assert once.done.is_set()
    assert {outcome.result.outcome for outcome in outcomes} == {pb.OUTCOME_DONE}
    ops = [op for _, _, op in state.executed]
    assert sorted(ops) == sorted(put(b"k%d" % number) for number in range(50))
    assert len({outcome.versionstamp for outcome in outcomes}) == 50
    assert not [record for record in caplog.records if record.name == "asyncio"]
    for number, outcome in enumerate(outcomes):
        assert state.rows[b"k%d" % number].versionstamp == outcome.versionstamp


async def test_a_repeat_after_a_broken_stream_is_the_same_session_number_and_bytes(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    nodes[0].hook = Once("applied, answer lost")
    outcome = await backend.write(put(b"k"), timeout=10)
    first, again = nodes[0].writes()
    assert first.SerializeToString() == again.SerializeToString()
    assert outcome.versionstamp == (2).to_bytes(8, "big") + b"\0\0", "the first attempt's versionstamp"
    assert backend.statistics()["retries"] == 1
    assert backend.statistics()["reconnects"] == 1


async def test_concurrent_writes_share_frames(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    await backend.write(put(b"first"), timeout=5)
    before = len(nodes[0].frames)
    await asyncio.gather(*(backend.write(put(b"k%d" % number), timeout=5) for number in range(500)))
    assert len(nodes[0].frames) - before <= 5


async def test_more_writes_than_the_window_are_all_done_within_it(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    count = limits.SESSION_WINDOW + 1_500
    outcomes = await asyncio.gather(*(backend.write(put(b"k%d" % number), timeout=30) for number in range(count)))
    assert {outcome.result.outcome for outcome in outcomes} == {pb.OUTCOME_DONE}
    assert len(state.executed) == count
    for group in nodes[0].writes():
        assert max(write.seq for write in group.writes) < group.ack_below + limits.SESSION_WINDOW
        assert len(group.writes) <= limits.MAX_FRAME_OPERATIONS


async def test_a_hint_is_followed_and_a_new_leader_is_found(
    state: FakeState, nodes: list[FakeNode], open_backend: Connect
) -> None:
    backend = await open_backend(nodes[1])  # knows of one follower only
    await backend.write(put(b"a"), timeout=5)
    assert nodes[0].writes() and not nodes[1].writes()
    state.lead(nodes[2])
    await backend.write(put(b"b"), timeout=5)
    assert len(nodes[2].writes()) == 1


async def test_leaders_are_found_whose_advertised_addresses_lead_nowhere(
    state: FakeState, nodes: list[FakeNode], open_backend: Connect
) -> None:
    """As outside of a container network: only the addresses that the client was given work."""
    for node in nodes:
        node.advertised = "127.0.0.1:9"  # the discard service's, which nobody runs
    backend = await open_backend()
    for turn, leader in enumerate((0, 2, 1, 0, 1, 2), 1):
        seen = len(nodes[leader].writes())
        state.lead(nodes[leader])
        await backend.write(put(b"a"), timeout=5)
        assert len(nodes[leader].writes()) > seen and len(state.executed) == turn
    await nodes[2].kill()
    state.lead(nodes[0])
    await backend.write(put(b"b"), timeout=5)
    assert len(state.executed) == 7
    # Each node was met once, and the advertised address tried at most once while some were strangers.
    assert backend.statistics()["failed_connections"] <= 2


async def test_a_killed_leader_is_left_at_once_and_its_successor_is_awaited(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"a"), timeout=5)
    await nodes[0].kill()
    asyncio.get_running_loop().call_later(0.3, state.lead, nodes[2])
    pace = Pace()
    await asyncio.gather(*(backend.write(put(b"k%d" % number), timeout=5) for number in range(20)))
    # The followers still name the dead leader for 0.3 s; its successor is pushed to the waiting client.
    assert pace.seconds() < 1.5
    assert len(state.executed) == 21


async def test_a_leader_that_steps_down_and_comes_back_on_the_same_stream(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"a"), timeout=5)
    state.lead(None)
    waiting = asyncio.create_task(backend.write(put(b"b"), timeout=5))
    await asyncio.wait([waiting], timeout=0.05)
    state.lead(nodes[0])
    assert (await waiting).result.outcome == pb.OUTCOME_DONE


async def test_p37_a_deadline_of_200_ms_during_an_election_holds_and_says_not_applied(
    state: FakeState, backend: ClusterBackend
) -> None:
    """P37: deadline 200 ms during election -> DEADLINE_EXCEEDED at 200 ms ± 50, outcome stated."""
    timeout = 0.2
    state.lead(None)
    begun = time.monotonic()
    async with Witness(timeout + 0.05):
        with pytest.raises(errors.DeadlineExceeded, match="not applied") as caught:
            await backend.write(put(b"k"), timeout=timeout)
    assert time.monotonic() - begun >= timeout - 0.001
    assert caught.value.outcome == "not applied" and caught.value.retryable
    with pytest.raises(errors.DeadlineExceeded):
        await backend.read(pb.Read(keys=[b"k"]), timeout=timeout)
    assert state.executed == []


async def test_p37_a_deadline_after_sending_says_unknown(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    await backend.write(put(b"first"), timeout=5)
    nodes[0].freeze()
    begun = time.monotonic()
    async with Witness(0.25):
        with pytest.raises(errors.OutcomeUnknown) as caught:
            await backend.write(put(b"k"), timeout=0.2)
    assert time.monotonic() - begun >= 0.199
    assert caught.value.outcome == "unknown"
    assert backend.statistics()["unknown"] == 1


async def test_a_given_up_write_that_arrives_later_is_abandoned_by_the_state_machine(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    held: list[pb.WriteGroup] = []

    async def swallow(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.HasField("writes") and not held:
            held.append(frame.writes)
            return True
        return False

    await backend.write(put(b"first"), timeout=5)  # so that the next one is sent at once
    nodes[0].hook = swallow
    with pytest.raises(errors.OutcomeUnknown):
        await backend.write(put(b"late"), timeout=0.9)
    await backend.write(put(b"next"), timeout=5)
    result = state.apply(held[0]).results[0]
    assert result.outcome == pb.OUTCOME_ABANDONED
    assert b"late" not in state.rows


async def test_a_cancelled_write_is_not_repeated_and_does_not_hold_the_window(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    await backend.write(put(b"first"), timeout=5)
    nodes[0].hook = Once("not applied, no answer")
    task = asyncio.create_task(backend.write(put(b"cancelled"), timeout=5))
    await until(nodes[0].hook.done)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await backend.write(put(b"second"), timeout=5)
    assert nodes[0].writes()[-1].ack_below == 3
    assert b"cancelled" not in state.rows


async def test_an_invalid_write_is_refused_with_the_nodes_words_and_hurts_nobody_else(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    async def judge(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if not frame.HasField("writes"):
            return False
        bad = [write for write in frame.writes.writes if write.op == b"bad"]
        good = [write for write in frame.writes.writes if write.op != b"bad"]
        group = pb.WriteGroup(session=frame.writes.session, ack_below=frame.writes.ack_below)
        if bad:
            group.writes.extend(bad)
            stream.send(refuse(group, pb.OUTCOME_INVALID, message="value: 70,000 is above the limit of 65,536"))
            del group.writes[:]
        if good:
            group.writes.extend(good)
            stream.answer(pb.ClientFrame(writes=group))
        return True

    nodes[0].hook = judge
    bad, good = await asyncio.gather(
        backend.write(b"bad", timeout=5), backend.write(put(b"k"), timeout=5), return_exceptions=True
    )
    assert isinstance(bad, errors.InvalidArgument) and "65,536" in str(bad)
    assert isinstance(good, WriteOutcome)


async def test_a_frozen_node_is_left_within_three_seconds(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    """P48, P49: the leader is frozen -> the next call succeeds within 5 s, watches move without loss or repetition."""
    await backend.write(put(b"k", b"1"), timeout=5)
    events = backend.watch([b"k"])
    assert [entry.value for entry in await anext(events)] == [b"1"]
    nodes[0].freeze()
    asyncio.get_running_loop().call_later(0.2, state.lead, nodes[1])
    begun, pace = time.monotonic(), Pace()
    outcome = await backend.write(put(b"k", b"2"), timeout=10)
    assert pace.seconds() <= 3.5
    assert time.monotonic() - begun >= 1.5
    assert outcome.result.outcome == pb.OUTCOME_DONE
    assert [entry.value for entry in await asyncio.wait_for(anext(events), 60)] == [b"2"]
    assert pace.seconds() <= 5.5
    assert [op for _, _, op in state.executed].count(put(b"k", b"2")) == 1
    nodes[0].thaw()
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_leader_that_freezes_after_the_last_consumer_has_ended_is_left(
    state: FakeState, nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    """What was leased to the consumer unseen is named to the next leader, as nobody's."""
    came, ended, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.consumers:
            came.set()
        if frame.stop_consumers:
            ended.set()
        return False

    async def see_next(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if any(start.id == consumer.id and start.queue != "q" for start in frame.consumers):
            told.set()
        return False

    nodes[0].hook, nodes[1].hook = see, see_next
    consumer = await backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None)
    await until(came)
    await consumer.close()
    await until(ended)
    nodes[0].freeze()
    state.lead(nodes[1])
    await until(told)
    nodes[0].thaw()


async def test_a_quiet_stream_is_not_ended_when_nothing_is_expected_or_pings_are_answered(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    events = backend.watch([b"k"])
    await anext(events)
    pinged = asyncio.Event()

    async def see(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.ping >= 2:
            pinged.set()
        return False

    nodes[0].hook = see
    await until(pinged)
    assert len(nodes[0].streams) == 1
    assert backend.statistics()["reconnects"] == 0
    await events.aclose()  # type: ignore[attr-defined]
