"""Gives back messages that came for consumers which are closed: their attempts have not begun."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb

RETURN_TIMEOUT: Final = 10.0
"""Seconds for an attempt to give a message back that came too late."""
RETURN_PAUSE: Final = 0.2
"""Seconds until the next one."""
MAX_RETURNS: Final = 64
"""Messages that are being given back at a time."""


class Write(Protocol):
    """`Backend.write`."""

    def __call__(self, op: bytes, *, timeout: float) -> Awaitable[Any]: ...


class Returns:
    """`write` is the client's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Write, is_closed: Callable[[], bool]) -> None:
        self._loop = loop
        self._write = write
        self._is_closed = is_closed
        self._tasks: set[asyncio.Task[None]] = set()
        self._late: deque[pb.Delivery] = deque()

    def give_back(self, delivery: pb.Delivery) -> None:
        """Begin to; it goes on by itself until the client is closed."""
        self._late.append(delivery)
        if not self._is_closed() and len(self._tasks) < MAX_RETURNS:
            task = self._loop.create_task(self._return_all())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """Wait for what is under way, once the client is closed."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _return_all(self) -> None:
        while self._late:
            delivery = self._late.popleft()
            write = pb.AtomicWrite()
            write.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_RETURN)
            await self._return(write.SerializeToString())

    async def _return(self, op: bytes) -> None:
        """Insist: the lease is renewed for as long as this client lives."""
        while not self._is_closed():
            try:
                await self._write(op, timeout=RETURN_TIMEOUT)
                return
            except errors.KvorumError as error:
                if isinstance(error, errors.Closed) or (error.outcome == "not applied" and not error.retryable):
                    return
            await asyncio.sleep(RETURN_PAUSE)
