"""A leaderboard service: votes by `sum`, a wall that watches only the total, and a queue whose handler archives.

python -m examples.leaderboard [TARGET]
"""

import asyncio

import kvorum
from examples.stage import play

TOTAL = ("board", "total")
SONGS = ("Blue Note", "Night Train", "So What")
QUEUE = "archive"


async def vote(kv: kvorum.Kv, song: str) -> None:
    await kv.atomic().sum(("board", "vote", song), 1).sum(TOTAL, 1).commit()


async def job(kv: kvorum.Kv) -> None:
    """Put a snapshot of all votes on the queue; one page is one snapshot."""
    votes = await kv.list(("board", "vote"), limit=500).page()
    await kv.enqueue({str(entry.key[-1]): int(entry.value) for entry in votes}, queue=QUEUE)


async def example(kv: kvorum.Kv) -> str:
    for prefix in (("board",), ("archive",)):
        await kv.delete_prefix(prefix)
    archived = asyncio.Event()

    async def archive(votes: dict[str, int]) -> None:
        operation = kv.atomic()
        for song, count in votes.items():
            operation.set(("archive", song), count)  # written again if the message comes again: the same
        await operation.commit()
        archived.set()

    async def wall() -> int:
        async for (total,) in kv.watch([TOTAL]):
            if total.value == 30:
                return int(total.value)
        raise AssertionError("the watch ended")

    handling = asyncio.create_task(kv.listen_queue(archive, queue=QUEUE))
    showing = asyncio.create_task(wall())
    await asyncio.gather(*(vote(kv, SONGS[number % 3]) for number in range(30)))
    async with asyncio.timeout(10):
        assert await showing == 30
        await job(kv)
        await archived.wait()
    handling.cancel()
    await asyncio.gather(handling, return_exceptions=True)
    rows = [(entry.key[-1], entry.value) async for entry in kv.list(("archive",))]
    assert rows == [(song, 10) for song in SONGS]
    return f"leaderboard: ok, {len(rows)} songs archived"


if __name__ == "__main__":
    play(example)
