"""Named queues of the embedded database."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.embedded import EmbeddedBackend, open_embedded
from kvorum_node.queue.delivery import LEASES_PAGE
from kvorum_raft.errors import NoSpace
from tests.integration.node.raw import enqueue_op


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    backend = await open_embedded(tmp_path / "app.kv")
    yield backend
    await backend.close()


async def call(backend: EmbeddedBackend, **call: Any) -> pb.QueueReply:
    return await backend.queue_call(pb.QueueCall(**call), timeout=10)


async def define(backend: EmbeddedBackend, name: str, **policy: Any) -> None:
    await call(backend, define=pb.DefineQueue(name=name, policy=pb.QueuePolicy(**policy).SerializeToString()))


async def test_calls(backend: EmbeddedBackend) -> None:
    await define(backend, "q", max_attempts=2)
    await asyncio.gather(*[backend.write(enqueue_op(b"%d" % number), timeout=10) for number in range(300)])
    (info,) = (await call(backend, queues=pb.ListQueues(counts=True))).queues
    assert (info.name, info.ready, info.defined) == ("q", 300, True)
    assert len((await call(backend, peek=pb.Peek(queue="q", limit=9))).messages) == 9
    assert (await call(backend, purge=pb.Purge(queue="q"))).count == 300
    with pytest.raises(errors.InvalidArgument, match="MAX_QUEUE_NAME_SIZE"):
        await call(backend, purge=pb.Purge(queue="x" * 300))
    with pytest.raises(errors.InvalidArgument, match="no such time zone"):
        schedule = pb.Schedule(cron="* * * * *", time_zone="Mars/Base", message=pb.Enqueue(queue="q", payload=b"x"))
        await call(backend, schedule=pb.DefineSchedule(name="s", definition=schedule.SerializeToString()))


async def test_a_call_has_a_deadline_and_ends_with_the_database(tmp_path: Path) -> None:
    backend = await open_embedded(tmp_path / "app.kv")
    with pytest.raises(errors.DeadlineExceeded):
        await backend.queue_call(pb.QueueCall(queues=pb.ListQueues()), timeout=0.0)
    with pytest.raises(errors.OutcomeUnknown, match="may be done in part"):
        await backend.queue_call(pb.QueueCall(purge=pb.Purge(queue="q")), timeout=0.0)
    backend._service.lists.begin = lambda job: True  # type: ignore[method-assign]  # a list that is never read
    waiting = asyncio.create_task(call(backend, queues=pb.ListQueues()))
    changing = asyncio.create_task(call(backend, purge=pb.Purge(queue="q")))
    await asyncio.sleep(0)
    await backend.close()
    with pytest.raises(errors.Closed):
        await waiting
    with pytest.raises(errors.OutcomeUnknown, match="may be made"):
        await changing
    with pytest.raises(errors.Closed):
        await call(backend, queues=pb.ListQueues())


async def test_a_change_that_was_refused_in_its_midst_says_what_was_done(backend: EmbeddedBackend) -> None:
    await asyncio.gather(*[backend.write(enqueue_op(b"%d" % number), timeout=10) for number in range(600)])
    propose, left = backend._consensus.propose, [1]

    def one_chunk(payload: bytes) -> Any:
        if not left:
            raise NoSpace("the disk is full")
        left.pop()
        return propose(payload)

    backend._consensus.propose = one_chunk  # type: ignore[method-assign]
    with pytest.raises(errors.OutcomeUnknown, match="the disk is full; 256 messages were done before"):
        await call(backend, purge=pb.Purge(queue="q"))
    backend._consensus.propose = propose  # type: ignore[method-assign]
    assert (await call(backend, purge=pb.Purge(queue="q"))).count == 344


async def test_expiring_leases_and_taken_messages(backend: EmbeddedBackend) -> None:
    await define(backend, "q", lease_ms=500)
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    slow = await backend.consume("q", credits=1, concurrency=1, deliver=got.put_nowait, expiring=True)
    await backend.write(enqueue_op(b"x"), timeout=10)
    first = await asyncio.wait_for(got.get(), 60)
    slow.started(first.lease_id)
    slow.settled(first.lease_id)  # not true, but whoever says nothing of a lapsed message gets no other one
    again = await asyncio.wait_for(got.get(), 60)
    assert (first.attempt, again.attempt, again.lease_ms) == (1, 2, 500)
    taken: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    taker = await backend.consume("once", credits=1, concurrency=1, deliver=taken.put_nowait, take=True)
    for number in range(3):
        await backend.write(enqueue_op(b"%d" % number, "once"), timeout=10)
    for number in range(3):
        delivery = await asyncio.wait_for(taken.get(), 60)
        assert delivery.taken and delivery.payload == b"%d" % number
        assert taken.empty()
        taker.started(delivery.lease_id)
    (info,) = (await call(backend, queues=pb.ListQueues(name="once", one=True))).queues
    assert (info.messages, info.done) == (0, 3)


async def test_more_leases_than_a_page_go_back_when_it_is_opened_again(tmp_path: Path) -> None:
    """The process that held them is gone for certain."""
    folder = tmp_path / "app.kv"
    backend = await open_embedded(folder)
    count = 2 * LEASES_PAGE + 100
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    for _ in range(2):
        await backend.consume("q", credits=1_000, concurrency=1, deliver=got.put_nowait)
    await asyncio.gather(*[backend.write(enqueue_op(b"x"), timeout=10) for _ in range(count)])
    async with asyncio.timeout(60):
        for _ in range(count):
            await got.get()

    async def killed() -> None:
        """Says no goodbye."""

    backend._give_back = killed  # type: ignore[method-assign]
    await backend.close()
    backend = await open_embedded(folder)
    (info,) = (await call(backend, queues=pb.ListQueues(name="q", one=True))).queues
    assert (info.messages, info.leased) == (count, 0)
    await backend.close()


async def test_a_missed_tick_is_run_once_when_it_is_opened_again(tmp_path: Path) -> None:
    folder = tmp_path / "app.kv"
    backend = await open_embedded(folder)
    schedule = pb.Schedule(cron="* * * * * *", message=pb.Enqueue(queue="q", payload=b"x"), grace_ms=1_000)
    await call(backend, schedule=pb.DefineSchedule(name="s", definition=schedule.SerializeToString()))
    closed_ms = time.time_ns() // 1_000_000
    await backend.close()
    await asyncio.sleep(3.2)  # three ticks of a schedule that nobody looks at
    backend = await open_embedded(folder)
    got: asyncio.Queue[pb.Delivery] = asyncio.Queue()
    await backend.consume("q", credits=100, concurrency=1, deliver=got.put_nowait)
    deliveries = [await asyncio.wait_for(got.get(), 60) for _ in range(2)]
    moments = [pb.Headers.FromString(delivery.headers).tick_ms for delivery in deliveries]
    assert moments[0] > closed_ms + 1_000, "the last one that was missed, not the first"
    assert moments[1] > moments[0]
    await backend.close()
