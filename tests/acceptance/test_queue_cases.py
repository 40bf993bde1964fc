"""Reported cases of queues, on three real nodes that are killed, and with the shipped command."""

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import kvorum
from kvorum_node.dev_cluster import DevCluster, in_thread
from tests.acceptance.test_command_line import run

PATIENCE = 30.0
"""Seconds."""
LEASE = "10s"
"""Long enough for a command to be started in the meantime."""
WORKER = """
import asyncio, sys, kvorum

async def main():
    async with kvorum.open_kv(sys.argv[1]) as kv:
        async for message in kv.queue("jobs").receive(prefetch=0):
            print(message.value, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_p67_policy_and_messages_are_there_after_twenty_kills(tmp_path: Path) -> None:
    """P67: create queue with policy, 20 random kills → policy and messages present."""
    randomly = random.Random(67)
    cluster = DevCluster(tmp_path)
    policy = kvorum.QueuePolicy(max_attempts=7, backoff=kvorum.Exponential(50, cap=500, jitter=0.0), max_backlog=10_000)
    try:
        await in_thread(cluster.start_all)
        async with kvorum.open_kv(cluster.url, timeout=PATIENCE * 1_000) as kv:
            queue = kv.queue("lasting")
            await queue.define(max_attempts=7, backoff=policy.backoff, max_backlog=10_000)
            defined = await queue.policy()
            sent: dict[str, int] = {}
            over, enough = asyncio.Event(), asyncio.Event()

            async def send() -> None:
                number = 0
                while not over.is_set():
                    # Repeated by the client until it is answered: each number is on the queue once.
                    sent[(await queue.send(number, group=f"g{number % 5}")).id] = number
                    number += 1
                    if number > 20:
                        enough.set()

            sending = asyncio.ensure_future(send())
            # Twenty kills: of one node, of two (then nothing is served until one is back), of all.
            for victims in (randomly.sample(range(3), count) for count in (1, 2, 3, 1, 2, 3, 2, 1, 3, 2)):
                for victim in victims:
                    await in_thread(cluster.kill, victim)
                await asyncio.sleep(randomly.random() / 4)
                await in_thread(cluster.start_all)
            await asyncio.wait_for(enough.wait(), PATIENCE)
            over.set()
            await asyncio.wait_for(sending, PATIENCE)
        await in_thread(cluster.stop)
        await in_thread(cluster.start_all)
        for number in range(3):
            async with kvorum.open_kv(f"kvorum://{cluster.client_address(number)}") as kv:
                queue = kv.queue("lasting")
                assert await queue.policy() == defined
                stats = await queue.stats()
                assert (stats.sent, stats.messages, stats.waiting) == (len(sent), len(sent), len(sent) - 5)
                assert {info.id: info.value for info in await queue.peek(limit=len(sent) + 1)} == sent
        assert defined is not None and (defined.max_attempts, defined.max_backlog) == (7, 10_000)
        assert isinstance(defined.backoff, kvorum.Exponential) and len(sent) > 20
    finally:
        await in_thread(cluster.stop)


def test_p88_a_killed_workers_job_is_listed_and_comes_again_with_its_history(tmp_path: Path) -> None:
    """P88: kill −9 worker; look in CLI → listed as leased → redelivered, with history."""
    cluster = DevCluster(tmp_path)
    cluster.start_all()
    worker: subprocess.Popen[str] | None = None
    try:
        run(cluster, "queue", "define", "jobs", "--lease", LEASE)
        (id_,) = run(cluster, "queue", "send", "jobs", '"long"').stdout.split()
        worker = subprocess.Popen([sys.executable, "-c", WORKER, cluster.url], stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "long\n"
        worker.kill()
        killed = time.monotonic()
        worker.wait()
        listed = json.loads(run(cluster, "queue", "peek", "jobs", "--kind", "leased", "--json").stdout)
        assert (listed["id"], listed["state"], listed["attempt"], listed["value"]) == (id_, "leased", 1, "long")
        assert listed["holder"]
        assert run(cluster, "queue", "receive", "jobs", "--wait", "40s", "--keep").stdout == '"long"\n'
        assert time.monotonic() - killed <= 10 + 1 + PATIENCE / 3  # the command takes a while to start and to end
        (again,) = run(cluster, "queue", "peek", "jobs", "--json").stdout.splitlines()
        kinds = [(failure["attempt"], failure["kind"]) for failure in json.loads(again)["failures"]]
        assert kinds == [(1, "lost"), (2, "failed")]
    finally:
        if worker is not None:
            worker.kill()
            worker.communicate()
        cluster.stop()
