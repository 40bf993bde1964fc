"""How each example runs: `python -m examples.NAME [TARGET]`, on a folder, a cluster or, by default, in memory."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import kvorum
from kvorum.errors import Closed


def play(example: Callable[[kvorum.Kv], Awaitable[str]]) -> None:
    """Open the database that the command line names, run the example on it and print what it found."""

    async def run() -> str:
        async with kvorum.open_kv(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as kv:
            return await example(kv)

    # Handlers that raise are logged with their tracebacks. A service wants to see that; here they raise on purpose.
    logging.getLogger("kvorum").setLevel(logging.CRITICAL)
    print(asyncio.run(run()))


@asynccontextmanager
async def beside(*jobs: Coroutine[Any, Any, object], within: float = 120) -> AsyncIterator[None]:
    """Run workers beside a block, which ends with an error if one of them does, and cancel them at its end. The block
    has `within` seconds."""
    async with asyncio.timeout(within), asyncio.TaskGroup() as group:
        tasks = [group.create_task(job) for job in jobs]
        yield
        for task in tasks:
            task.cancel()


async def shown(kv: kvorum.Kv, key: kvorum.Key, wanted: Callable[[Any], object]) -> Any:
    """Wait until the value of a key (None: there is none) is as wanted, and return it."""
    async for (entry,) in kv.watch([key]):
        if wanted(entry.value):
            return entry.value
    raise Closed


async def emptied(queue: kvorum.Queue) -> kvorum.QueueStats:
    """Wait until all messages of a queue are done, or dead. What a handler did may be seen a moment before that."""
    while (stats := await queue.stats()).messages:
        await asyncio.sleep(0.02)
    return stats
