"""The hand-over of a watch: what has come waits until it is fetched. No I/O, no clock."""

import asyncio
from typing import Generic, TypeVar

from kvorum import errors

T = TypeVar("T")


class Fetched(Generic[T]):
    """Subclasses say what is there."""

    __slots__ = ("_loop", "_problem", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._problem: errors.KvorumError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def _take(self) -> T | None:
        """What comes next, which is not there any more afterwards; None: nothing is there."""
        raise NotImplementedError

    def fail(self, problem: errors.KvorumError) -> None:
        """End the watch: what was not fetched is still handed over, then the problem is raised."""
        self._problem = problem
        self._wake()

    async def next(self) -> T:
        """Wait for what comes next. Errors: what `fail` was given."""
        while True:
            if (found := self._take()) is not None:
                return found
            if self._problem is not None:
                raise self._problem
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
