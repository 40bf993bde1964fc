"""Calls about queues, and the heartbeat that keeps leases: against fake nodes."""

import asyncio
import threading
from collections.abc import Callable
from unittest import mock

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend, calls, client, keeper
from kvorum.cluster.calls import Calls
from kvorum.cluster.consumers import Consumers
from kvorum.cluster.counters import Counters
from kvorum.cluster.heartbeat import Heartbeat
from tests.unit.cluster.conftest import Connect
from tests.unit.cluster.fake_node import FakeNode, FakeState, FakeStream

OK = pb.READ_STATUS_OK


def purge() -> pb.QueueCall:
    return pb.QueueCall(purge=pb.Purge(queue="q"))


def look() -> pb.QueueCall:
    return pb.QueueCall(peek=pb.Peek(queue="q"))


def answering(*statuses: "pb.ReadStatus", done: int = 0) -> Callable[[FakeStream, pb.ClientFrame], object]:
    """A hook that answers calls in turn, the last one for ever."""
    left = list(statuses)

    async def hook(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        for call in frame.queue_calls:
            status = left.pop(0) if len(left) > 1 else left[0]
            count = 7 if status == OK else done
            reply = pb.QueueReply(id=call.id, status=status, count=count, message=f"status {status}")
            stream.send(pb.ServerFrame(queue_replies=[reply]))
        return bool(frame.queue_calls)

    return hook


def calls_of(node: FakeNode) -> list[pb.QueueCall]:
    return [call for frame in node.frames for call in frame.queue_calls]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # facts of many kinds, in other threads too
            await asyncio.sleep(0.01)


# ---- calls


async def test_a_call_goes_to_the_leader_and_is_answered(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    nodes[0].hook = answering(OK)  # type: ignore[assignment]
    reply = await backend.queue_call(purge(), timeout=5)
    assert reply.count == 7
    assert [call.WhichOneof("call") for call in calls_of(nodes[0])] == ["purge"]


async def test_a_call_follows_the_leader_and_is_repeated(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    async def move(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if frame.queue_calls:
            state.lead(nodes[1])
            stream.break_off()
        return bool(frame.queue_calls)

    nodes[0].hook = move
    nodes[1].hook = answering(OK)  # type: ignore[assignment]
    assert (await backend.queue_call(purge(), timeout=5)).count == 7
    assert len(calls_of(nodes[0])) == len(calls_of(nodes[1])) == 1


@pytest.mark.parametrize("status", [pb.READ_STATUS_OVERLOADED, pb.READ_STATUS_TOO_OLD, pb.READ_STATUS_NO_LEADER])
async def test_a_refusal_that_may_pass_is_repeated(
    nodes: list[FakeNode], backend: ClusterBackend, status: "pb.ReadStatus"
) -> None:
    nodes[0].hook = answering(status, status, OK)  # type: ignore[assignment]
    assert (await backend.queue_call(purge(), timeout=5)).count == 7
    assert len(calls_of(nodes[0])) == 3


async def test_what_is_invalid_is_told_at_once(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    nodes[0].hook = answering(pb.READ_STATUS_INVALID)  # type: ignore[assignment]
    with pytest.raises(errors.InvalidArgument, match="status 3"):
        await backend.queue_call(purge(), timeout=5)


async def test_a_call_ends_at_its_deadline_and_says_what_was_last_answered(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    nodes[0].hook = answering(pb.READ_STATUS_OVERLOADED)  # type: ignore[assignment]
    with pytest.raises(errors.Overloaded, match=r"no answer within 900 ms .*status 4"):
        await backend.queue_call(purge(), timeout=0.9)
    nodes[0].hook = lambda stream, frame: asyncio.sleep(0, result=True)
    with pytest.raises(errors.DeadlineExceeded):
        await backend.queue_call(look(), timeout=0.2)


@pytest.mark.parametrize("answered", [False, True], ids=["not answered", "lost with the leader"])
async def test_a_change_that_may_have_been_made_ends_as_unknown(
    nodes: list[FakeNode], backend: ClusterBackend, answered: bool
) -> None:
    swallow = lambda stream, frame: asyncio.sleep(0, result=True)  # noqa: E731
    nodes[0].hook = answering(pb.READ_STATUS_NO_LEADER) if answered else swallow  # type: ignore[assignment]
    with pytest.raises(errors.OutcomeUnknown, match=r"no answer within 300 ms.*may have been made"):
        await backend.queue_call(purge(), timeout=0.3)


@pytest.mark.parametrize("status", [pb.READ_STATUS_OVERLOADED, pb.READ_STATUS_DENIED, pb.READ_STATUS_INVALID])
async def test_a_change_that_was_refused_in_its_midst_ends_as_unknown(
    nodes: list[FakeNode], backend: ClusterBackend, status: "pb.ReadStatus"
) -> None:
    nodes[0].hook = answering(status, done=3)  # type: ignore[assignment]
    with pytest.raises(errors.OutcomeUnknown, match=rf"status {status}.*may have been made"):
        await backend.queue_call(purge(), timeout=0.3)


async def test_a_change_that_was_never_sent_ends_as_not_applied(state: FakeState, backend: ClusterBackend) -> None:
    state.lead(None)
    await until(lambda: backend._keeper.leading is None)
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await backend.queue_call(purge(), timeout=0.2)
    assert caught.value.outcome == "not applied"


def test_a_refusal_says_nothing_about_an_attempt_before_it() -> None:
    loop = asyncio.new_event_loop()
    under_way = Calls(Counters())
    promises = [loop.create_future() for _ in range(2)]
    for call, promise in zip((purge(), look()), promises, strict=True):
        under_way.submit(call, promise, 1.0)
    under_way.fill(pb.ClientFrame(), 100)
    under_way.connection_lost()
    under_way.fill(pb.ClientFrame(), 100)
    under_way.answered([pb.QueueReply(id=number, status=pb.READ_STATUS_UNAUTHENTICATED) for number in (1, 2)])
    changed, looked = (promise.exception() for promise in promises)
    assert isinstance(changed, errors.OutcomeUnknown) and isinstance(looked, errors.Unauthenticated)
    loop.close()


async def test_closing_ends_calls(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    nodes[0].hook = lambda stream, frame: asyncio.sleep(0, result=True)
    calling = [asyncio.ensure_future(backend.queue_call(call, timeout=5)) for call in (look(), purge())]
    await until(lambda: len(calls_of(nodes[0])) == 2)
    await backend.close()
    looking, changing = await asyncio.gather(*calling, return_exceptions=True)
    assert isinstance(looking, errors.Closed) and isinstance(changing, errors.OutcomeUnknown)


async def test_calls_are_bounded_in_number_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_BYTES", 40)
    loop = asyncio.get_running_loop()
    several = Calls(Counters(), max_pending=3)
    for _ in range(3):
        several.submit(pb.QueueCall(purge=pb.Purge(queue="q" * 20)), loop.create_future(), 1.0)
    with pytest.raises(errors.Overloaded, match="3 calls"):
        several.submit(purge(), loop.create_future(), 1.0)
    sizes = []
    while several.fill(frame := pb.ClientFrame(), 100):
        sizes.append(len(frame.queue_calls))
    assert sizes == [1, 1, 1]


# ---- consumers


def delivery(number: int, **more: bool) -> pb.Delivery:
    return pb.Delivery(consumer=1, message_id=b"m%d" % number, lease_id=b"l%d" % number, attempt=1, **more)


async def test_what_is_taken_is_in_hand_until_it_is_started_and_never_named_again() -> None:
    given_back: list[pb.Delivery] = []
    changes: list[int] = []
    consumers = Consumers(Counters(), lambda: None, given_back.append, lambda: changes.append(consumers.leasing))
    consumer = consumers.start("q", 5, 1, lambda _: None, take=True)
    consumers.fill(frame := pb.ClientFrame(), b"s", 100)
    assert frame.consumers[0].take and not frame.consumers[0].expiring
    consumers.deliveries([delivery(1, taken=True), delivery(2, taken=True)], b"s")
    consumer.started(b"l1")
    consumers.fill(frame := pb.ClientFrame(), b"s", 100)
    assert list(frame.started[0].lease_ids) == [b"l1"]
    assert list(consumer.held) == [b"l2"]
    consumers.connection_lost()
    consumers.fill(frame := pb.ClientFrame(), b"s", 100)
    assert len(frame.consumers[0].held) == 0
    await consumer.close()
    consumers.deliveries([delivery(3, taken=True)], b"s")
    assert given_back == [] and changes == []


async def test_leases_that_need_a_heartbeat_are_counted() -> None:
    changes: list[int] = []
    consumers = Consumers(Counters(), lambda: None, lambda _: None, lambda: changes.append(consumers.leasing))
    consumers.start("q", 5, 1, lambda _: None, expiring=True)
    assert changes == []
    consumer = consumers.start("q", 5, 1, lambda _: None)
    assert changes == [1]
    consumers.deliveries([pb.Delivery(consumer=2, message_id=b"m", lease_id=b"l")], b"s")
    await consumer.close()
    assert consumers.leasing == 1 and changes == [1]  # the message in hand still depends on it
    consumer.settled(b"l")
    consumer.settled(b"l")
    assert changes == [1, 0]


# ---- the heartbeat


def beats(node: FakeNode) -> list[FakeStream]:
    """Streams of heartbeats that are open."""
    return [
        stream
        for stream in node.streams
        if stream in node.state.streams and stream.hello is not None and "heartbeat" in stream.hello.client
    ]


async def consuming(backend: ClusterBackend, node: FakeNode) -> object:
    consumer = await backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None)
    await until(lambda: len(beats(node)) == 1)
    return consumer


async def test_a_consumer_brings_a_heartbeat_of_the_same_session(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REST_AFTER", 0.1)
    await backend.read(pb.Read(keys=[b"a"]), timeout=5)
    assert not any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate())
    consumer = await consuming(backend, nodes[0])
    (stream,) = beats(nodes[0])
    assert stream.hello is not None and stream.hello.session in state.sessions
    assert stream.hello.cluster_id == state.cluster_id
    await consumer.close()  # type: ignore[attr-defined]
    await until(lambda: not beats(nodes[0]))


async def test_consumers_that_follow_each_other_share_a_heartbeat(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    """As those of a program that asks for a batch again and again: each would have its thread and its connection."""
    with mock.patch.object(Heartbeat, "rest", autospec=True, side_effect=Heartbeat.rest) as rest:
        for _ in range(5):
            consumer = await consuming(backend, nodes[0])
            await consumer.close()  # type: ignore[attr-defined]
        assert rest.call_count == 0 and len(beats(nodes[0])) == 1
        await backend.close()
    assert not any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate())


async def test_a_heartbeat_follows_the_leader(nodes: list[FakeNode], state: FakeState, backend: ClusterBackend) -> None:
    await consuming(backend, nodes[0])
    state.lead(nodes[1])
    await until(lambda: len(beats(nodes[1])) == 1 and not beats(nodes[0]))


async def test_a_heartbeat_waits_at_another_node_for_the_next_leader(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    await consuming(backend, nodes[0])
    await nodes[0].kill()  # and the others still call it the leader
    await until(lambda: bool(beats(nodes[1]) or beats(nodes[2])))
    state.lead(nodes[2])
    await until(lambda: len(beats(nodes[2])) == 1 and not beats(nodes[1]))


async def test_a_heartbeat_leaves_a_frozen_node(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    await consuming(backend, nodes[0])
    nodes[0].freeze()
    state.leader = nodes[1]
    await until(lambda: len(beats(nodes[1])) == 1)


async def test_consumers_without_leases_need_no_heartbeat(nodes: list[FakeNode], backend: ClusterBackend) -> None:
    await backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None, take=True)
    await backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None, expiring=True)
    await until(lambda: sum(len(frame.consumers) for frame in nodes[0].frames) == 2)
    assert not any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate())


async def test_closing_ends_the_heartbeat_and_its_thread(nodes: list[FakeNode], open_backend: Connect) -> None:
    backend = await open_backend()
    await consuming(backend, nodes[0])
    await backend.close()
    assert not any(thread.name == "kvorum-heartbeat" for thread in threading.enumerate())


async def test_a_consumer_that_waits_in_vain_has_it_logged(
    nodes: list[FakeNode], backend: ClusterBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "COMPLAIN_AFTER", 0.2)
    await backend.consume("q", credits=1, concurrency=1, deliver=lambda _: None, take=True)
    for node in nodes:
        await node.kill()
    await until(lambda: "no leader for" in caplog.text)
    assert f"127.0.0.1:{nodes[0].port}: " in caplog.text
    assert caplog.text.count("no leader for") == 1  # and not again within a minute


async def test_nodes_that_point_at_each_other_are_not_asked_in_a_tight_loop(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    await consuming(backend, nodes[0])

    def pointing_at(other: FakeNode) -> Callable[[pb.Hello], pb.ServerFrame]:
        leader = pb.Leader(node_id=other.id, address=other.address, term=9)
        return lambda hello: pb.ServerFrame(hello=pb.HelloReply(protocol=1, node_id="x", leader=leader))

    before = [len(node.streams) for node in nodes]
    nodes[1].greet, nodes[2].greet = pointing_at(nodes[2]), pointing_at(nodes[1])
    state.lead(nodes[1])

    def asked() -> int:
        return sum(len(node.streams) for node in nodes) - sum(before)

    await asyncio.sleep(1.0)
    assert asked() <= 40  # two connections, with pauses of up to half a second
    await until(lambda: asked() >= 2)
    nodes[1].greet = nodes[2].greet = None
    await until(lambda: len(beats(nodes[1])) == 1)


async def test_a_leader_that_ends_each_heartbeat_is_not_asked_in_a_tight_loop(
    nodes: list[FakeNode], state: FakeState, backend: ClusterBackend
) -> None:
    await consuming(backend, nodes[0])
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    def greet(hello: pb.Hello) -> pb.ServerFrame:
        reply = pb.HelloReply(protocol=1, cluster_id=state.cluster_id, node_id="n0", leader=state.hint())
        if "heartbeat" in hello.client:
            asked.append(loop.time())
            loop.call_soon(beats(nodes[0])[-1].end)
        return pb.ServerFrame(hello=reply)

    nodes[0].greet = greet
    beats(nodes[0])[0].end()
    await until(lambda: len(asked) == 6)
    assert asked[-1] - asked[0] > 0.3  # with pauses of 50, 100, 200 ms
