"""A wall that shows two keys as they change: each event is a list aligned with the keys.

python -m examples.wall [TARGET]
"""

import asyncio

import kvorum
from examples.stage import play

SONG, BAND = ("wall", "song"), ("wall", "band")


async def example(kv: kvorum.Kv) -> str:
    await kv.delete_prefix(("wall",))
    shown: list[tuple[object, object]] = []
    changed = asyncio.Condition()

    async def wall() -> None:
        async for song, band in kv.watch([SONG, BAND]):
            async with changed:
                shown.append((song.value, band.value if band.exists else "nobody"))
                changed.notify_all()

    async def until(wanted: tuple[object, object]) -> None:
        async with asyncio.timeout(10), changed:
            await changed.wait_for(lambda: bool(shown) and shown[-1] == wanted)

    watching = asyncio.create_task(wall())
    await until((None, "nobody"))  # the first event comes at once
    await kv.atomic().set(SONG, "So What").set(BAND, "Miles Davis").commit()
    await until(("So What", "Miles Davis"))
    await kv.set(SONG, "Take Five")
    await until(("Take Five", "Miles Davis"))
    await kv.delete(BAND)
    await until(("Take Five", "nobody"))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    # Both values of one commit arrived together: there was never a song of Miles Davis without him.
    assert ("So What", "nobody") not in shown
    assert shown == [*dict.fromkeys(shown)]
    return f"wall: ok, {len(shown)} events"


if __name__ == "__main__":
    play(example)
