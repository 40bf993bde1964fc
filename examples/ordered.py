"""Ordered groups: messages of one user are handled one after the other, over retries too; users run side by side.

python -m examples.ordered [TARGET]
"""

import asyncio

import kvorum
from examples.stage import beside, play

QUEUE = "accounts"
USERS = [f"user {number}" for number in range(8)]
STEPS = ["open", "fill", "pay", "pay", "close"]


async def example(kv: kvorum.Kv) -> str:
    queue = kv.queue(QUEUE)
    await queue.remove()
    await queue.define(backoff=[20, 20])  # three attempts
    for step, name in enumerate(STEPS):
        await queue.send_batch(
            [kvorum.Outgoing({"user": user, "step": step, "do": name}, group=user) for user in USERS]
        )
    await queue.send({"user": "user 0", "step": 5, "do": "nonsense"}, group="user 0")
    await queue.send({"user": "user 0", "step": 6, "do": "reopen"}, group="user 0")

    handled: dict[str, list[int]] = {user: [] for user in USERS}
    running: set[str] = set()
    at_once = 0
    complete = asyncio.Event()

    async def handle(message: kvorum.Message) -> None:
        nonlocal at_once
        user, step = message.value["user"], message.value["step"]
        assert user not in running  # never two of one user
        running.add(user)
        at_once = max(at_once, len(running))
        try:
            await asyncio.sleep(0.01)
            if message.value["do"] == "nonsense" or (message.value["do"] == "pay" and message.attempt == 1):
                raise RuntimeError("the bank is closed")  # what comes after it waits until it is done, or dead
            handled[user].append(step)
        finally:
            running.remove(user)
        if sum(map(len, handled.values())) == len(USERS) * len(STEPS) + 1:
            complete.set()

    async with beside(queue.listen(handle, concurrency=8)):
        await complete.wait()
    assert handled == {user: [0, 1, 2, 3, 4] + [6] * (user == "user 0") for user in USERS}
    assert at_once > 1
    # What failed for good is out of the way of its group, and can be looked at.
    (dead,) = await queue.dead.peek()
    assert (dead.value["do"], dead.attempt, dead.failures[-1].reason) == (
        "nonsense",
        3,
        "RuntimeError: the bank is closed",
    )
    return f"ordered: ok, {len(USERS)} users, {at_once} at once, each in order"


if __name__ == "__main__":
    play(example)
