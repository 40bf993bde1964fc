"""How each example runs: `python -m examples.NAME [TARGET]`, on a folder, a cluster or, by default, in memory."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import kvorum


def play(example: Callable[[kvorum.Kv], Awaitable[str]]) -> None:
    """Open the database that the command line names, run the example on it and print what it found."""

    async def run() -> str:
        async with kvorum.open_kv(sys.argv[1] if len(sys.argv) > 1 else ":memory:") as kv:
            return await example(kv)

    print(asyncio.run(run()))
