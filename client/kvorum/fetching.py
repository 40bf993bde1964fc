"""What a backend's iterator gives, one item at a time, to readers whose waits may be cancelled (by `asyncio.timeout`,
say): the fetch goes on, and the next wait takes it over, so nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from kvorum.errors import Closed
from kvorum.link import Link

T = TypeVar("T")


class Fetches(Generic[T]):
    """`source` is what a `Backend` returned; None has nothing to give. Belongs to the event loop of its readers."""

    __slots__ = ("__weakref__", "_fetch", "_link", "_source")

    def __init__(self, source: AsyncIterator[T] | None, link: Link) -> None:
        self._source = source
        self._link = link
        self._fetch: asyncio.Task[T | None] | None = None

    async def next(self) -> T | None:
        """The next item; None at the end, and when this or the client is closed. Errors: those of the source."""
        if self._source is None:
            return None
        if self._fetch is None:
            self._fetch = asyncio.ensure_future(_fetch(self._source))
            self._fetch.add_done_callback(retrieve)
        fetch = self._fetch
        await asyncio.wait([fetch])
        if self._fetch is fetch:
            self._fetch = None
        try:
            return fetch.result()
        except (asyncio.CancelledError, Closed):
            if self._source is None or self._link.closed:
                return None
            raise

    async def aclose(self) -> None:
        """End it, also for a task that waits for the next item."""
        source, self._source = self._source, None
        if self._fetch is not None:
            self._fetch.cancel()
            await asyncio.wait([self._fetch])
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()

    def __del__(self) -> None:
        # A fetch that was left behind by a cancelled wait; nobody can ask for its outcome any more.
        fetch = getattr(self, "_fetch", None)
        if fetch is not None and not fetch.done() and not fetch.get_loop().is_closed():
            fetch.get_loop().call_soon_threadsafe(fetch.cancel)


async def _fetch(source: AsyncIterator[T]) -> T | None:
    return await anext(source, None)


def retrieve(fetch: "asyncio.Future[T]") -> None:
    """An outcome that nobody waits for must not leave a log line."""
    if not fetch.cancelled():
        fetch.exception()
