"""A ticket sale: ten tickets, fifty buyers at once. With a check exactly ten succeed; without it the sale oversells.

python -m examples.tickets [TARGET]
"""

import asyncio

import kvorum
from examples.stage import play

STOCK = ("ticket", "c001", "stock")
TICKETS = 10
BUYERS = 50


async def buy(kv: kvorum.Kv) -> bool:
    """Read, and write only if nobody has written meanwhile; else read again."""
    while True:
        stock = await kv.get(STOCK)
        if stock.value == 0:
            return False
        if await kv.atomic().check(stock).set(STOCK, stock.value - 1).commit():
            return True


async def buy_carelessly(kv: kvorum.Kv, everybody_looked: asyncio.Barrier) -> bool:
    """The same without a check; the barrier makes happen what otherwise happens only now and then."""
    stock = await kv.get(STOCK)
    await everybody_looked.wait()
    if stock.value == 0:
        return False
    await kv.set(STOCK, stock.value - 1)
    return True


async def example(kv: kvorum.Kv) -> str:
    await kv.set(STOCK, TICKETS)
    sold = sum(await asyncio.gather(*(buy(kv) for _ in range(BUYERS))))
    assert (sold, (await kv.get(STOCK)).value) == (TICKETS, 0)

    await kv.set(STOCK, TICKETS)
    barrier = asyncio.Barrier(BUYERS)
    oversold = sum(await asyncio.gather(*(buy_carelessly(kv, barrier) for _ in range(BUYERS))))
    assert oversold == BUYERS
    assert (await kv.get(STOCK)).value == TICKETS - 1  # forty-nine sales left no trace
    return f"tickets: ok, {sold} of {TICKETS} sold with a check, {oversold} without"


if __name__ == "__main__":
    play(example)
