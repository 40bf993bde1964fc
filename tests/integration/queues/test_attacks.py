"""Attacks on queues: calls cut off at bad moments, messages lost on their way, many listeners told to end."""

import asyncio
import os
import signal

import pytest

import kvorum
from kvorum.cluster.consumers import Consumers
from kvorum.queues.intake import Intake
from kvorum_node.dev_cluster import DevCluster, in_thread


async def test_a_batch_that_is_cut_off_while_its_line_closes_costs_no_attempt(
    kv: kvorum.Kv, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on = asyncio.Event(), asyncio.Event()
    close = Intake.close

    async def slowly(intake: Intake[kvorum.Message]) -> None:
        closing.set()
        await go_on.wait()
        await close(intake)

    monkeypatch.setattr(Intake, "close", slowly)
    queue = kv.queue(name)
    await queue.define(max_attempts=1)
    sent = await queue.send("x")
    receiving = asyncio.ensure_future(queue.receive_batch(max=1, wait=30_000))
    await closing.wait()
    receiving.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    info = await queue.find(sent.id)
    assert info is not None
    assert (info.state, info.attempt, info.failures) == ("ready", 0, ())
    assert await queue.purge() == 1


async def test_what_was_on_its_way_to_a_receiver_that_ended_is_not_leased_for_ever(
    own_cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = asyncio.Event()
    async with kvorum.open_kv(own_cluster.url, timeout=30_000) as kv:
        queue = kv.queue("q")
        with monkeypatch.context() as on_the_way:
            on_the_way.setattr(Consumers, "deliveries", lambda *_: lost.set())
            await queue.send("x")
            receiving = asyncio.ensure_future(queue.receive_batch(max=2, wait=30_000))
            await lost.wait()
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
        leader = await in_thread(own_cluster.leader)
        await in_thread(own_cluster.kill, leader)
        (message,) = await queue.receive_batch(max=1, wait=20_000)
        assert (message.value, message.attempt) == ("x", 1)
        await message.ack()
        assert (await queue.stats()).leased == 0


async def test_a_batch_does_not_wait_for_the_verdicts_on_the_one_before(kv: kvorum.Kv, name: str) -> None:
    queue = kv.queue(name)
    await queue.send_batch(list(range(120)))
    batches = [await queue.receive_batch(max=40, wait=20_000) for _ in range(3)]
    assert [len(batch) for batch in batches] == [40, 40, 40]
    assert sorted(value for batch in batches for value in batch.values) == list(range(120))
    for batch in batches:
        await batch.ack_all()


async def test_a_client_whose_receiver_has_messages_ready_can_be_closed_without_a_cluster(
    own_cluster: DevCluster,
) -> None:
    kv = await kvorum.open_kv(own_cluster.url, timeout=1_000)
    queue = kv.queue("q")
    await queue.send_batch(list(range(20)), timeout=20_000)
    receiver = queue.receive(prefetch=9)
    message = await receiver.next()
    assert message is not None
    async with asyncio.timeout(20):
        while (await queue.stats(timeout=20_000)).leased < 10:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.05)
    for number in range(3):
        await in_thread(own_cluster.kill, number)
    closing = asyncio.ensure_future(kv.close())
    assert (await asyncio.wait([closing], timeout=10.0))[0]
    await closing


async def test_a_signal_ends_all_listeners_of_a_client() -> None:
    async with kvorum.open_kv(":memory:") as kv:
        begun = asyncio.Event()
        listeners = [
            asyncio.ensure_future(kv.queue(name).listen(lambda _: begun.set(), signals=(signal.SIGUSR1,)))
            for name in ("a", "b", "a")
        ]
        await kv.queue("a").send("x")
        await begun.wait()
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(10):
            await asyncio.gather(*listeners)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
