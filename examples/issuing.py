"""Issuing tickets: the sale and the order to issue its ticket are one commit, and the order is tried until it is done.

python -m examples.issuing [TARGET]
"""

import kvorum
from examples.stage import beside, emptied, play, shown
from kvorum.errors import OutOfRange

QUEUE = "issue"
STOCK = ("issuing", "stock")
ISSUED = ("issuing", "issued")
BACKOFF = [20, 20, 20, 20, 20]
"""Milliseconds. The default is 100 ms, 1 s, 5 s, 30 s, 60 s: five retries as well."""


class PrinterJam(Exception):
    pass


async def sell(kv: kvorum.Kv, order: str) -> bool:
    """Take one from the stock, note the order, and send it to be issued: all of it or nothing."""
    operation = (
        kv.atomic()
        .check(("issuing", "order", order), exists=False)
        .sum(STOCK, -1, minimum=0)
        .set(("issuing", "order", order), "sold")
        .send(QUEUE, order, backoff_schedule=BACKOFF, keys_if_undelivered=[("issuing", "failed", order)])
    )
    try:
        return bool(await operation.commit())
    except OutOfRange:
        return False  # sold out


async def issue(kv: kvorum.Kv, message: kvorum.Message) -> None:
    """May be called again for an order that it has issued already, if this process dies in between, for example."""
    order = message.value
    if order == "jammed" or (order == "A2" and message.attempt <= 2):
        raise PrinterJam(order)
    await (
        kv.atomic()
        .check((*ISSUED, order), exists=False)  # issued once, however often the message comes
        .set((*ISSUED, order), f"seat of {order}")
        .sum(("issuing", "count"), 1)
        .commit()
    )


async def begin(kv: kvorum.Kv) -> int:
    """Sell; returns how many tickets are to be issued. Whatever happens from here on, they will be."""
    await kv.delete_prefix(("issuing",))
    await kv.queue(QUEUE).remove()
    await kv.set(STOCK, 4)
    orders = ["A1", "A2", "A3", "jammed", "too late"]
    sold = [order for order in orders if await sell(kv, order)]
    assert sold == orders[:4]
    assert not await sell(kv, "A1")  # the check fails: no second message either
    assert (await kv.queue(QUEUE).stats()).messages == 4
    return 3


async def finish(kv: kvorum.Kv, tickets: int) -> str:
    async def handle(message: kvorum.Message) -> None:
        await issue(kv, message)

    async with beside(kv.queue(QUEUE).listen(handle)):
        await shown(kv, ("issuing", "count"), lambda count: count == tickets)
        failed = await shown(kv, ("issuing", "failed", "jammed"), bool)
        await emptied(kv.queue(QUEUE))
    issued = [entry.key[-1] async for entry in kv.list(ISSUED)]
    assert (issued, failed) == (["A1", "A2", "A3"], "jammed")
    return f"issuing: ok, {len(issued)} tickets issued, 1 order stored as undeliverable"


async def example(kv: kvorum.Kv) -> str:
    return await finish(kv, await begin(kv))


if __name__ == "__main__":
    play(example)
