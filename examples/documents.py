"""Publish/subscribe: one event, a message of its own for each of three subscribers; one fails, the others do not care.

python -m examples.documents [TARGET]
"""

import asyncio
from datetime import timedelta

import kvorum
from examples.stage import beside, play

TOPIC = "documents"
SUBSCRIBERS = ("search", "recommendations", "notifications")


async def example(kv: kvorum.Kv) -> str:
    topic = kv.topic(TOPIC)
    await topic.remove()
    for name in (*SUBSCRIBERS, "audit"):
        await kv.queue(name).remove()
        await kv.queue(name).define(backoff=[20, 20, 20])
    await topic.define(retention=timedelta(hours=1))
    for name in SUBSCRIBERS:
        await topic.subscribe(name)
    assert await topic.subscriptions() == sorted(SUBSCRIBERS)

    # The document and its event are one commit, as with any message.
    for number in range(3):
        await kv.atomic().set(("document", number), f"text {number}").send_topic(TOPIC, {"changed": number}).commit()

    seen: dict[str, list[int]] = {name: [] for name in SUBSCRIBERS}
    complete = asyncio.Event()

    async def handle(message: kvorum.Message) -> None:
        number = message.value["changed"]
        if message.queue == "recommendations" and message.attempt <= 2:
            raise RuntimeError("the model is being loaded")
        seen[message.queue].append(number)
        if all(len(numbers) == 3 for numbers in seen.values()):
            complete.set()

    async with beside(*(kv.queue(name).listen(handle) for name in SUBSCRIBERS)):
        await complete.wait()
    assert all(sorted(numbers) == [0, 1, 2] for numbers in seen.values())
    failed = {name: (await kv.queue(name).stats()).failed for name in SUBSCRIBERS}
    assert failed == {"search": 0, "recommendations": 6, "notifications": 0}

    # Who comes later can have what is retained, in order.
    assert await topic.subscribe("audit", since=timedelta(hours=1)) == 3
    batch = await kv.queue("audit").receive_batch(max=3)
    assert [message.value["changed"] for message in batch] == [0, 1, 2]
    await batch.ack_all()
    return f"documents: ok, 3 events for {len(SUBSCRIBERS)} subscribers and a late one"


if __name__ == "__main__":
    play(example)
