"""Votes: one commit counts a vote for its song and in the total; counters stop at a floor.

python -m examples.votes [TARGET]
"""

import asyncio

import kvorum
from examples.stage import play
from kvorum.errors import OutOfRange

TOTAL = ("voteTotal",)
SONGS = ("Blue Note", "Night Train", "So What")
VOTERS = 30


async def vote(kv: kvorum.Kv, song: str) -> None:
    await kv.atomic().sum(("vote", song), 1).sum(TOTAL, 1).commit()


async def consistent(kv: kvorum.Kv) -> int:
    """The total, which in one consistent read equals the sum over the songs at any moment."""
    total, *songs = await kv.get_many([TOTAL, *(("vote", song) for song in SONGS)])
    assert (total.value or 0) == sum(entry.value or 0 for entry in songs)
    return int(total.value or 0)


async def example(kv: kvorum.Kv) -> str:
    await kv.delete_prefix(("vote",))
    await kv.delete(TOTAL)
    voting = asyncio.gather(*(vote(kv, SONGS[number % 3]) for number in range(VOTERS)))
    looks = 0
    while not voting.done():
        await consistent(kv)
        looks += 1
    await voting
    assert await consistent(kv) == VOTERS

    # Numbers of any kind go up and down. A counter that `sum` made never goes below 0, a plain number has no floor
    # but the one that is asked for; what would go beyond is refused, or stops there with `clamp`.
    for stock in (kvorum.KvU64(3), 3):
        key = ("vote", "stock")
        await kv.set(key, stock)
        await kv.atomic().sum(key, -1).commit()
        try:
            await kv.atomic().sum(key, -3, minimum=0).commit()
        except OutOfRange:
            assert (await kv.get(key)).value == 2
        else:
            raise AssertionError("it went below its floor")
        await kv.atomic().sum(key, -3, minimum=0, clamp=True).commit()
        assert (await kv.get(key)).value == 0
    return f"votes: ok, {VOTERS} votes counted, and consistent in {looks} looks meanwhile"


if __name__ == "__main__":
    play(example)
