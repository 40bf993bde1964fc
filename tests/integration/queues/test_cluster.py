"""Queues on three real nodes: restarts, killed consumers, and event loops that stand still."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import kvorum
from kvorum.cluster.heartbeat import Heartbeat
from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster_fixture import pace_of
from tests.integration.queues.conftest import LEASE

PATIENCE = 60.0
SLACK = 1.5
"""Seconds on top of a bound, for the calls that tell."""

HOLDER = """
import asyncio, sys
import kvorum
async def main():
    async with kvorum.open_kv(sys.argv[1]) as kv:
        number = 0
        async for message in kv.queue(sys.argv[2]).receive(prefetch=9):
            number += 1
            if number > 2:
                print("holding", flush=True)
                await asyncio.Event().wait()
            await message.ack()
            print(message.value, flush=True)
asyncio.run(main())
"""
"""Handles two messages, and holds the next eight: one that it began, and others."""


@contextlib.asynccontextmanager
async def holder(url: str, queue: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, url, queue, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_holding(process: asyncio.subprocess.Process) -> list[str]:
    """What it has handled."""
    lines = []
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while (line := (await process.stdout.readline()).decode().strip()) != "holding":
            assert line, "the consumer ended"
            lines.append(line)
    return lines


async def test_p03_clients_of_different_nodes_share_a_queue(own_cluster: DevCluster) -> None:
    first = f"kvorum://{own_cluster.client_address(0)}"
    second = f"kvorum://{own_cluster.client_address(1)}"
    async with kvorum.open_kv(first) as sender, kvorum.open_kv(second) as receiver:
        waiting = asyncio.ensure_future(receiver.queue("q").receive_batch(max=1, wait=15_000))
        await sender.queue("q").send("there")
        batch = await waiting
        assert batch.values == ["there"]
        await batch.ack_all()


async def test_p59_a_waiting_receiver_survives_the_restart_of_every_node(own_cluster: DevCluster) -> None:
    async with kvorum.open_kv(own_cluster.url, timeout=30_000) as kv:
        queue, listened = kv.queue("q"), kv.queue("listened")
        got: asyncio.Queue[Any] = asyncio.Queue()
        stop = asyncio.Event()
        listening = asyncio.ensure_future(listened.listen(lambda message: got.put_nowait(message.value), stop=stop))
        receiver = queue.receive()
        for number in range(own_cluster.nodes):
            waiting = asyncio.ensure_future(receiver.next())
            await asyncio.to_thread(own_cluster.terminate, number)
            await asyncio.to_thread(own_cluster.start, number)
            await asyncio.to_thread(own_cluster.leader)
            await queue.send(number)
            await listened.send(number)
            async with asyncio.timeout(PATIENCE):
                message = await waiting
                assert message is not None and message.value == number
                await message.ack()
                assert await got.get() == number
        await receiver.aclose()
        stop.set()
        await listening
        assert (await queue.stats()).messages == 0


async def test_p76_p87_messages_of_a_killed_consumer_move_on(own_cluster: DevCluster) -> None:
    async with kvorum.open_kv(own_cluster.url) as kv:
        queue = kv.queue("q")
        await queue.send_batch(list(range(10)))
        async with holder(own_cluster.url, "q") as process:
            assert await until_holding(process) == ["0", "1"]
            async with asyncio.timeout(PATIENCE):
                while (await queue.stats()).leased < 8:  # noqa: ASYNC110  # nobody tells of it
                    await asyncio.sleep(0.02)
            pace = pace_of(own_cluster)
            process.kill()
            await process.wait()
            batch: list[kvorum.Message] = []
            while len(batch) < 8:
                batch += await queue.receive_batch(max=8 - len(batch), wait=PATIENCE * 1_000)
            assert pace.seconds() <= LEASE / 1_000 + 1.0 + SLACK
        assert sorted(message.value for message in batch) == list(range(2, 10))
        attempts = {message.value: message.attempt for message in batch}
        assert attempts == {2: 2, **dict.fromkeys(range(3, 10), 1)}  # only what was begun has used up an attempt
        await asyncio.gather(*(message.ack() for message in batch))
        assert (await queue.stats()).messages == 0


async def test_p83_messages_of_a_dead_consumer_return_to_their_own_queue(own_cluster: DevCluster) -> None:
    async with kvorum.open_kv(own_cluster.url) as kv:
        first, second = kv.queue("first"), kv.queue("second")
        await second.send_batch(list(range(5)))
        stop = asyncio.Event()
        seen: list[Any] = []
        listening = asyncio.ensure_future(first.listen(lambda message: seen.append(message.value), stop=stop))
        async with holder(own_cluster.url, "second") as process:
            await until_holding(process)
            pace = pace_of(own_cluster)
            process.kill()
            await process.wait()
        while (await second.stats()).leased:
            assert pace.seconds() <= 2 * LEASE / 1_000 + 1.0 + SLACK
            await asyncio.sleep(0.02)
        stats = await second.stats()
        assert (stats.messages, stats.ready, stats.lost) == (3, 3, 1)
        stop.set()
        await listening
        assert seen == []


# ---- an event loop that stands still


async def blocked_deliveries(cluster: DevCluster, blocked: float, meanwhile: Callable[[], object]) -> list[int]:
    """The attempts of one message whose handler blocks the loop, and a 0 for each that was lost meanwhile."""
    attempts: list[int] = []
    async with kvorum.open_kv(cluster.url) as kv:
        queue, stop = kv.queue("q"), asyncio.Event()

        def handle(message: kvorum.Message) -> None:
            attempts.append(message.attempt)
            meanwhile()
            time.sleep(blocked)
            stop.set()

        await queue.send("job")
        async with asyncio.timeout(PATIENCE + blocked):
            await queue.listen(handle, stop=stop)
        await asyncio.sleep(0.2)
        stats = await queue.stats()
        attempts += [0] * stats.lost
        return attempts


async def test_a_blocked_loop_keeps_its_leases_over_a_new_leader(own_cluster: DevCluster) -> None:
    def kill_leader() -> None:
        own_cluster.kill(own_cluster.leader())

    assert await blocked_deliveries(own_cluster, 5 * LEASE / 1_000, kill_leader) == [1]


async def test_without_the_heartbeat_they_would_be_lost(
    own_cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeat, "beat", lambda self, wanted: None)

    def kill_leader() -> None:
        own_cluster.kill(own_cluster.leader())

    assert (await blocked_deliveries(own_cluster, 5 * LEASE / 1_000, kill_leader))[1:] == [0]
