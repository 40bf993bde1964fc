"""A money transfer: two balances are checked and written in one commit that also enqueues a notice to each side.

python -m examples.transfer [TARGET]
"""

import asyncio

import kvorum
from examples.stage import play

QUEUE = "notices"


def account(name: str) -> tuple[str, str]:
    return ("account", name)


async def transfer(kv: kvorum.Kv, giver: str, taker: str, amount: int) -> bool:
    """False if the giver has too little. Repeated as long as somebody else changes one of the two in between."""
    while True:
        mine, theirs = await kv.get_many([account(giver), account(taker)])
        if mine.value < amount:
            return False
        done = await (
            kv.atomic()
            .check(mine)
            .check(theirs)
            .set(mine.key, mine.value - amount)
            .set(theirs.key, theirs.value + amount)
            .enqueue({"to": giver, "text": f"{amount} to {taker}"}, queue=QUEUE)
            .enqueue({"to": taker, "text": f"{amount} from {giver}"}, queue=QUEUE)
            .commit()
        )
        if done:
            return True


async def example(kv: kvorum.Kv) -> str:
    for name in ("ann", "bob"):
        await kv.set(account(name), 100)
    notices: list[tuple[str, str]] = []
    arrived = asyncio.Condition()

    async def notify(notice: dict[str, str]) -> None:
        async with arrived:
            notices.append((notice["to"], notice["text"]))
            arrived.notify_all()

    handling = asyncio.create_task(kv.listen_queue(notify, queue=QUEUE))

    # A check that fails: nothing is written, and nothing is enqueued.
    old = await kv.get(account("ann"))
    assert await transfer(kv, "ann", "bob", 1)
    failed = await kv.atomic().check(old).set(old.key, 0).enqueue({"to": "ann", "text": "never"}, queue=QUEUE).commit()
    assert not failed and failed.failed_checks == (0,)

    # Forty at once, both ways: no coin is lost or made.
    there, back = ([transfer(kv, *names, 5) for _ in range(20)] for names in (("ann", "bob"), ("bob", "ann")))
    done = 1 + sum(await asyncio.gather(*there, *back))
    balances = [entry.value for entry in await kv.get_many([account("ann"), account("bob")])]
    assert sum(balances) == 200 and min(balances) >= 0
    assert not await transfer(kv, "ann", "bob", 1_000)

    async with asyncio.timeout(20), arrived:
        await arrived.wait_for(lambda: len(set(notices)) >= 3 and len(notices) >= 2 * done)
    assert {text for _, text in notices} <= {
        "1 to bob",
        "1 from ann",
        "5 to bob",
        "5 from ann",
        "5 to ann",
        "5 from bob",
    }
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    return f"transfer: ok, {done} transfers, balances {balances}"


if __name__ == "__main__":
    play(example)
