"""Competing consumers: workers share a queue, take batches of up to ten, and settle each message on its own.

python -m examples.workers [TARGET]
"""

from collections import Counter

import kvorum
from examples.stage import beside, emptied, play

QUEUE = "images"
IMAGES = 60


async def example(kv: kvorum.Kv) -> str:
    queue = kv.queue(QUEUE)
    await queue.remove()
    await queue.define(lease=500, max_batch=10, max_wait=200, backoff=[20, 20, 20])
    sent = await queue.send_batch([{"image": number} for number in range(IMAGES)])
    assert len({one.id for one in sent}) == IMAGES
    done: Counter[int] = Counter()
    by: Counter[str] = Counter()

    # One that takes ten and is never heard of again. A killed process looks like this to the others, as its leases are
    # renewed no more; here the process lives, so this consumer says that nobody shall renew them.
    lost = await queue.receive_batch(wait=30_000, renew=False)
    assert len(lost) == 10

    async def work(name: str) -> None:
        while True:
            batch = await queue.receive_batch()  # max_batch and max_wait of the policy
            for message in batch:
                if message.value["image"] % 7 == 0 and message.attempt == 1:
                    await message.retry(reason="out of memory")
                else:
                    done[message.value["image"]] += 1
            by[name] += len(batch)
            await batch.ack_all()  # all that were not settled one by one

    async with beside(*(work(name) for name in ("ann", "bob", "cy"))):
        stats = await emptied(queue)
    assert set(done) == set(range(IMAGES)) and set(done.values()) == {1}
    assert len(by) == 3 and min(by.values()) > 0  # all of them had work
    assert (stats.messages, stats.dead, stats.done, stats.lost) == (0, 0, IMAGES, 10)
    return f"workers: ok, {stats.done} images, {stats.lost} of them taken over, {stats.failed} tried again"


if __name__ == "__main__":
    play(example)
