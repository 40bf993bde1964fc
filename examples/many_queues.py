"""One worker, many queues: it dispatches by the queue's name, and each queue has its own policy.

python -m examples.many_queues [TARGET]
"""

import asyncio
from collections.abc import Awaitable, Callable

import kvorum
from examples.stage import beside, play, shown

Handle = Callable[[kvorum.Kv, kvorum.Batch], Awaitable[None]]


async def thumbnails(kv: kvorum.Kv, batch: kvorum.Batch) -> None:
    """The effects of a batch and the end of its messages, in one commit."""
    operation = kv.atomic()
    for message in batch:
        operation.sum(("many", "thumbnails"), 1).ack(message)
    await operation.commit()


async def invoices(kv: kvorum.Kv, batch: kvorum.Batch) -> None:
    for message in batch:
        if message.value == "unpayable":
            await message.retry(reason="no such account")
        else:
            await message.atomic().sum(("many", "invoices"), 1).ack().commit()


async def complaints(kv: kvorum.Kv, batch: kvorum.Batch) -> None:
    """What could not be invoiced. It knows where it comes from, and why."""
    for message in batch:
        origin = message.origin
        assert origin is not None
        told = [origin.queue, origin.attempts, [failure.reason for failure in origin.failures]]
        await message.atomic().set(("many", "complaint"), told).ack().commit()


HANDLERS: dict[str, Handle] = {"thumbnails": thumbnails, "invoices": invoices, "complaints": complaints}


async def define(kv: kvorum.Kv) -> None:
    for name in HANDLERS:
        await kv.queue(name).remove()
    await kv.queue("thumbnails").define(max_batch=50, max_wait=300, dead_letters="drop", lease=5_000)
    await kv.queue("invoices").define(
        max_batch=1, max_attempts=3, backoff=[20], dead_letters="complaints", max_in_flight=4
    )
    await kv.queue("complaints").define(max_batch=10, max_wait=100)


async def worker(kv: kvorum.Kv) -> None:
    async def dispatch(batch: kvorum.Batch) -> None:
        await HANDLERS[batch[0].queue](kv, batch)

    async def listen(name: str) -> None:
        policy = await kv.queue(name).policy()
        assert policy is not None and policy.max_batch is not None
        await kv.queue(name).listen(dispatch, batch=policy.max_batch)

    await asyncio.gather(*map(listen, HANDLERS))


async def example(kv: kvorum.Kv) -> str:
    await kv.delete_prefix(("many",))
    await define(kv)
    async with beside(worker(kv)):
        await kv.queue("thumbnails").send_batch(list(range(120)))
        await kv.queue("invoices").send_batch(["A1", "unpayable", "A2"])
        await shown(kv, ("many", "thumbnails"), lambda count: count == 120)
        await shown(kv, ("many", "invoices"), lambda count: count == 2)
        complaint = await shown(kv, ("many", "complaint"), bool)
    assert complaint == ["invoices", 3, ["no such account"] * 3]
    stats = {one.name: (one.messages, one.done, one.died) for one in await kv.queues() if one.name in HANDLERS}
    assert stats == {"thumbnails": (0, 120, 0), "invoices": (0, 2, 1), "complaints": (0, 1, 0)}
    return f"many_queues: ok, {len(HANDLERS)} queues, {sum(done for _, done, _ in stats.values())} messages handled"


if __name__ == "__main__":
    play(example)
