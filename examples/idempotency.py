"""Idempotency by a key that lives for a day, and messages that come at most once.

python -m examples.idempotency [TARGET]
"""

import asyncio
from datetime import timedelta

import kvorum
from examples.stage import beside, play, shown

ORDERS, LOGS = "orders", "logs"
DAY = timedelta(days=1)


async def example(kv: kvorum.Kv) -> str:
    orders, logs = kv.queue(ORDERS), kv.queue(LOGS)
    for queue in (orders, logs):
        await queue.remove()
    await kv.delete_prefix(("idempotency",))

    # A caller that does not know whether it got through sends again, with the same key. The queue knows it for a day.
    first = await orders.send({"order": "A1", "amount": 3}, dedup_id="A1", dedup_window=DAY)
    again = await orders.send({"order": "A1", "amount": 3}, dedup_id="A1", dedup_window=DAY)
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)

    # What comes from elsewhere may be two messages, with one key inside: whoever handles them keeps the keys.
    await orders.send_batch([{"order": "B1", "amount": 4}, {"order": "B1", "amount": 4}])

    async def handle(message: kvorum.Message) -> None:
        key = ("idempotency", "seen", message.value["order"])
        done = await (
            message.atomic()
            .check(key, exists=False)
            .set(key, True, expire_in=DAY)
            .sum(("idempotency", "sold"), message.value["amount"])
            .ack()
            .commit()
        )
        if not done:  # handled before, within a day: returning acknowledges it
            await kv.atomic().sum(("idempotency", "repeated"), 1).commit()

    async with beside(orders.listen(handle)):
        await shown(kv, ("idempotency", "repeated"), lambda count: count == 1)
        sold = await shown(kv, ("idempotency", "sold"), lambda amount: amount == 7)
    left = await kv.expires_in(("idempotency", "seen", "A1"))
    assert left is not None and timedelta(hours=23) < left <= DAY

    # Lines of a log: rather lost than written twice. They are done when they are handed out.
    written: list[str] = []
    tried: list[str] = []
    complete = asyncio.Event()

    async def write(message: kvorum.Message) -> None:
        tried.append(message.value)
        if len(tried) == 5:
            complete.set()
        if message.value == "line 2":
            raise RuntimeError("the disk is full")  # nobody sees this line again
        written.append(message.value)

    await logs.send_batch([f"line {number}" for number in range(5)])
    async with beside(logs.listen(write, at_most_once=True, concurrency=1)):
        await complete.wait()
    assert tried == [f"line {number}" for number in range(5)]
    assert written == [line for line in tried if line != "line 2"]
    stats = await logs.stats()
    assert (stats.messages, stats.dead, stats.delivered) == (0, 0, 5)
    return f"idempotency: ok, {sold} sold, {len(written)} of {len(tried)} lines written"


if __name__ == "__main__":
    play(example)
