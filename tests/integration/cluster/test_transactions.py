"""Transactions of many callers, while the leader is killed: each happens as a whole or not at all, and as it says."""

import asyncio
import itertools
import random

import kvorum
from kvorum.errors import Conflict, OutcomeUnknown, Unavailable
from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster.test_faults import Progress

ACCOUNTS, EACH, CALLERS = 6, 1_000, 16


async def test_transfers_keep_the_total_while_the_leader_is_killed_twice(own_cluster: DevCluster) -> None:
    acknowledged: set[int] = set()
    not_applied: set[int] = set()
    numbers = itertools.count()
    finished = asyncio.Event()
    progress = Progress()

    async def transfer(kv: kvorum.Kv, number: int, rng: random.Random) -> None:
        source, target = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 20)

        async def move(tx: kvorum.Transaction) -> None:
            left, right = await tx.get(("account", source)), await tx.get(("account", target))
            tx.set(left.key, left.value - amount).set(right.key, right.value + amount)
            tx.set(("moved", number), [source, target, amount])

        await kv.transaction(move, attempts=1_000, timeout=20_000)

    async def caller(kv: kvorum.Kv, rng: random.Random) -> None:
        while not finished.is_set():
            number = next(numbers)
            try:
                await transfer(kv, number, rng)
            except OutcomeUnknown:
                pass
            except (Unavailable, Conflict):
                not_applied.add(number)
            else:
                acknowledged.add(number)
                progress.advance()

    async with kvorum.open_kv(own_cluster.url) as kv:
        for account in range(ACCOUNTS):
            await kv.set(("account", account), EACH)
        callers = [asyncio.create_task(caller(kv, random.Random(number))) for number in range(CALLERS)]
        for _ in range(2):
            await progress.more(50)
            victim = await asyncio.to_thread(own_cluster.leader)
            await asyncio.to_thread(own_cluster.kill, victim)
            await progress.more(50)
            await asyncio.to_thread(own_cluster.start, victim)
        await progress.more(20)
        finished.set()
        await asyncio.gather(*callers)

        moved = {entry.key[1]: entry.value async for entry in kv.list(("moved",), batch_size=1_000)}
        expected = dict.fromkeys(range(ACCOUNTS), EACH)
        for source, target, amount in moved.values():
            expected[source] -= amount
            expected[target] += amount
        balances = {entry.key[1]: entry.value async for entry in kv.list(("account",))}
    assert balances == expected and sum(balances.values()) == ACCOUNTS * EACH
    assert acknowledged <= moved.keys()
    assert not not_applied & moved.keys()
