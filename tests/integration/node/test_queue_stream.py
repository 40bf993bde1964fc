"""Named queues on the wire: calls and consumers of three real nodes, spoken to by hand."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api.queues import MAX_QUEUE_CALLS
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream, enqueue_op, settle_op

OK = pb.READ_STATUS_OK


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("queues")) as cluster:
        yield cluster


@pytest.fixture
def leader(cluster: ThreeNodes) -> str:
    return cluster.client_address(cluster.leader())


@pytest.fixture
def follower(cluster: ThreeNodes) -> str:
    return cluster.client_address(cluster.followers()[0])


async def call(stream: RawStream, **call: Any) -> pb.QueueReply:
    """Make a call and wait for its answer."""
    stream.seen.ClearField("queue_replies")
    await stream.send(pb.ClientFrame(queue_calls=[pb.QueueCall(id=77, **call)]))
    (reply,) = await stream.until("queue_replies")
    assert reply.id == 77
    return reply  # type: ignore[no-any-return]


async def define(stream: RawStream, name: str, **policy: Any) -> None:
    """Define a queue. A new cluster's leader may not have heard yet what all members know."""
    serialised = pb.QueuePolicy(**policy).SerializeToString()
    async with asyncio.timeout(60):
        while (reply := await call(stream, define=pb.DefineQueue(name=name, policy=serialised))).status != OK:
            assert reply.status == pb.READ_STATUS_OVERLOADED and "version" in reply.message, reply
            await asyncio.sleep(0.05)


async def test_calls_are_answered_by_the_leader(leader: str, follower: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await define(stream, "calls", max_attempts=3)
        await stream.write(*[enqueue_op(b"%d" % number, "calls") for number in range(600)])
        (info,) = (await call(stream, queues=pb.ListQueues(name="calls", one=True, counts=True))).queues
        assert (info.messages, info.ready, info.sent, info.defined) == (600, 600, 600, True)
        reply = await call(stream, peek=pb.Peek(queue="calls", limit=7))
        assert [message.payload for message in reply.messages] == [b"%d" % number for number in range(7)]
        assert reply.after and reply.time_ms
        assert (await call(stream, purge=pb.Purge(queue="calls", limit=100))).count == 100
        assert (await call(stream, purge=pb.Purge(queue="calls"))).count == 500
        reply = await call(stream, define=pb.DefineQueue(name="x" * 300))
        assert reply.status == pb.READ_STATUS_INVALID and "MAX_QUEUE_NAME_SIZE" in reply.message
        assert (await call(stream)).status == pb.READ_STATUS_INVALID
    async with RawStream(follower) as stream:
        await stream.greet()
        assert (await call(stream, peek=pb.Peek(queue="calls"))).status == pb.READ_STATUS_NO_LEADER
        assert (await stream.until("leader")).address == leader


async def test_calls_of_one_connection_are_bounded_and_those_of_a_lost_one_end(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        frame = pb.ClientFrame()
        for number in range(MAX_QUEUE_CALLS + 40):
            frame.queue_calls.add(id=number, queues=pb.ListQueues(counts=True))
        await stream.send(frame)
        replies = await stream.until("queue_replies", MAX_QUEUE_CALLS + 40)
        assert {reply.id for reply in replies} == set(range(MAX_QUEUE_CALLS + 40))
        statuses = [reply.status for reply in replies]
        assert statuses.count(OK) >= MAX_QUEUE_CALLS
        assert set(statuses) <= {OK, pb.READ_STATUS_OVERLOADED}
        await stream.send(frame)
    async with RawStream(leader) as stream:
        await stream.greet()
        assert (await call(stream, queues=pb.ListQueues(counts=True))).status == OK


async def test_a_paused_queue_waits_and_a_bound_holds(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await define(stream, "bound", max_in_flight=2)
        assert (await call(stream, pause=pb.PauseQueue(name="bound", paused=True))).status == OK
        await stream.send(pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue="bound", credits=10)]))
        await stream.write(*[enqueue_op(b"%d" % number, "bound") for number in range(5)])
        await call(stream, peek=pb.Peek(queue="bound"))
        assert not stream.seen.deliveries
        assert (await call(stream, pause=pb.PauseQueue(name="bound"))).status == OK
        for number in range(5):
            deliveries = await stream.until("deliveries", number + 1)
            assert len(deliveries) <= number + 2
            assert deliveries[number].payload == b"%d" % number
            await stream.write(settle_op(deliveries[number]))


async def test_expiring_leases_end_by_the_queues_lease_and_extensions_hold(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await define(stream, "expiring", lease_ms=600)
        await stream.send(
            pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue="expiring", credits=1, expiring=True)])
        )
        await stream.write(enqueue_op(b"x", "expiring"))
        (first,) = await stream.until("deliveries")
        begun = time.monotonic()
        assert first.lease_ms == 600
        await stream.send(pb.ClientFrame(started=[pb.Started(consumer=1, lease_ids=[first.lease_id])]))
        extend = pb.AtomicWrite()
        extend.settles.add(
            message_id=first.message_id, lease_id=first.lease_id, kind=pb.SETTLE_KIND_EXTEND, delay_ms=1_500
        )
        (result,) = await stream.write(extend.SerializeToString())
        assert result.outcome == pb.OUTCOME_DONE
        # Said again: it is out of this consumer's hands. Else its place would stay taken when it lapses.
        await stream.send(pb.ClientFrame(started=[pb.Started(consumer=1, lease_ids=[first.lease_id])]))
        again = (await stream.until("deliveries", 2))[1]
        assert time.monotonic() - begun >= 1.5
        assert (again.payload, again.attempt) == (b"x", 2)
        (result,) = await stream.write(settle_op(first))
        assert result.outcome == pb.OUTCOME_STALE_LEASE


async def test_taken_messages_flow_by_what_is_reported_as_started(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await define(stream, "taken")
        payloads = [b"%03d" % number + bytes(20_000) for number in range(200)]
        for begin in range(0, 200, 20):
            await stream.write(*[enqueue_op(payload, "taken") for payload in payloads[begin : begin + 20]])
        await stream.send(pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue="taken", credits=20, take=True)]))
        got: list[pb.Delivery] = []
        while len(got) < 200:
            await stream.until("deliveries")
            new = list(stream.seen.deliveries)
            stream.seen.ClearField("deliveries")
            got += new
            assert all(delivery.taken for delivery in new) and len(new) <= 20
            await stream.send(
                pb.ClientFrame(started=[pb.Started(consumer=1, lease_ids=[delivery.lease_id for delivery in new])])
            )
        assert [delivery.payload for delivery in got] == payloads
        (info,) = (await call(stream, queues=pb.ListQueues(name="taken", one=True))).queues
        assert (info.messages, info.done) == (0, 200)


async def test_a_schedule_ticks_and_its_message_says_for_which_moment(leader: str) -> None:
    async with RawStream(leader) as stream:
        await stream.greet()
        await stream.open_session()
        await define(stream, "ticks")
        schedule = pb.Schedule(cron="* * * * * *", message=pb.Enqueue(queue="ticks", payload=b"tick"))
        defined = pb.DefineSchedule(name="secondly", definition=schedule.SerializeToString())
        assert (await call(stream, schedule=defined)).status == OK
        await stream.send(pb.ClientFrame(consumers=[pb.StartConsumer(id=1, queue="ticks", credits=10)]))
        deliveries = await stream.until("deliveries", 3)
        moments = [pb.Headers.FromString(delivery.headers).tick_ms for delivery in deliveries[:3]]
        assert moments == [moments[0] + 1_000 * number for number in range(3)] and moments[0] % 1_000 == 0
        for delivery, moment in zip(deliveries, moments, strict=False):
            assert 0 <= delivery.enqueued_at_ms - moment < 1_000
        assert (await call(stream, schedule=pb.DefineSchedule(name="secondly"))).status == OK
