"""What producers and consumers have in common as processes."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Protocol

import kvorum
from kvorum.durations import Duration

from ..crew import log_to
from .book import Book


class Worker(Protocol):
    async def run(self) -> None:
        """Until it is told to stop."""
        ...


Make = Callable[[kvorum.Kv, Book, argparse.Namespace, asyncio.Event], Worker]


def work(options: argparse.Namespace, make: Make, *, timeout: Duration | None = None) -> None:
    """Make a worker and let it run; whatever is said on the standard input, or the end of it, tells it to stop.

    Errors: KvorumError if there is no cluster; OSError.
    """
    log_to(options.file.with_suffix(".log"))
    asyncio.run(_work(options, make, timeout))


async def _work(options: argparse.Namespace, make: Make, timeout: Duration | None) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    with Book(options.file) as book:
        async with kvorum.open_kv(options.url, timeout=timeout) as kv:
            await make(kv, book, options, stop).run()
