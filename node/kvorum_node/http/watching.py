"""A watch's frames: a full snapshot whenever a watched key was written, and a sign of life every few seconds.

Snapshots are taken when the reader has room for one, so a slow reader costs nothing and sees the newest state.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb

from .datapath import watch_frame

KEEP_ALIVE: Final = bytes(4)
"""A frame without content."""
PERIOD: Final = 5.0
"""Seconds between signs of life at most; the first one comes at once."""
SPREAD: Final = 0.2
"""They come earlier by up to this part of it: those of a thousand watches must not come all at once."""


async def frames(
    snapshots: AsyncIterator[Sequence[pb.KvEntry]], relabel: Callable[[bytes], bytes] | None, rng: random.Random
) -> AsyncGenerator[bytes, None]:
    """Frames, until the node cannot go on. The client then comes back and starts with a full snapshot."""
    upcoming: asyncio.Task[Sequence[pb.KvEntry]] | None = None
    try:
        yield KEEP_ALIVE
        while True:
            if upcoming is None:
                upcoming = asyncio.ensure_future(anext(snapshots))
            await asyncio.wait([upcoming], timeout=PERIOD * (1 - SPREAD * rng.random()))
            if not upcoming.done():
                yield KEEP_ALIVE
                continue
            task, upcoming = upcoming, None
            try:
                entries = task.result()
            except (errors.KvorumError, StopAsyncIteration):
                return
            yield watch_frame(entries, relabel)
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait([upcoming])
        close = getattr(snapshots, "aclose", None)
        if close is not None:
            await close()
