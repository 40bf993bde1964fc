"""Mails: a welcome now, a survey in three days, and a reminder that its user may cancel or put off.

python -m examples.mails [TARGET]

A day lasts 0.3 s here. The tests let the three days pass, on a clock of their own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import kvorum
from examples.stage import beside, play

QUEUE = "mails"
SHORT_DAY = timedelta(milliseconds=300)


async def sleep(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())


async def register(kv: kvorum.Kv, user: str, day: timedelta) -> str:
    """One commit: the user, the mails, and the id of the reminder by which it can be cancelled."""
    done = await (
        kv.atomic()
        .set(("mails", "user", user), {"registered": True})
        .send(QUEUE, {"to": user, "text": "welcome"})
        .send(QUEUE, {"to": user, "text": "survey"}, delay=3 * day)
        .send(QUEUE, {"to": user, "text": "reminder"}, delay=2 * day)
        .commit()
    )
    return done.messages[2].id


async def example(
    kv: kvorum.Kv, *, day: timedelta = SHORT_DAY, passes: Callable[[timedelta], Awaitable[None]] = sleep
) -> str:
    queue = kv.queue(QUEUE)
    await queue.remove()
    mails: list[str] = []
    arrived = asyncio.Condition()

    async def mail(message: kvorum.Message) -> None:
        async with arrived:
            mails.append(f"{message.value['text']} to {message.value['to']}")
            arrived.notify_all()

    async def until(count: int) -> None:
        async with arrived:
            await arrived.wait_for(lambda: len(mails) >= count)

    async with beside(queue.listen(mail), within=(5 * day).total_seconds() + 120):
        reminders = {user: await register(kv, user, day) for user in ("ann", "bob", "cy")}
        await until(3)
        assert sorted(mails) == ["welcome to ann", "welcome to bob", "welcome to cy"]

        # Ann does what she was to be reminded of, Bob asks for a day more.
        assert await queue.cancel(reminders["ann"])
        assert await queue.reschedule(reminders["bob"], delay=4 * day)
        waiting = await queue.peek(limit=100)
        assert len(waiting) == 5 and {info.state for info in waiting} == {"scheduled"}

        await passes(3 * day + day / 2)
        await until(7)
        assert sorted(mails[3:]) == ["reminder to cy", "survey to ann", "survey to bob", "survey to cy"]
        assert mails[3] == "reminder to cy"  # it was due first
        assert not await queue.cancel(reminders["cy"])  # too late: it is done
        await passes(day)
        await until(8)
    assert mails[7:] == ["reminder to bob"]
    return f"mails: ok, {len(mails)} mails sent, 1 cancelled"


if __name__ == "__main__":
    play(example)
