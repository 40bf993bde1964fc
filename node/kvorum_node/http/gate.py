"""How many bytes of writes go on at a time, and whose are next.

What has been handed to the proposer stands in one line there, and everybody else's writes behind it. So only some go
on; the rest waits here, where one connection after the other has its turn, however much each has sent.
"""

import asyncio
from collections import deque
from collections.abc import Hashable


class Gate:
    """At most `limit` bytes are inside, or one part that is larger on its own."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[Hashable, deque[tuple[asyncio.Future[None], int]]] = {}
        """Those who wait, by connection; the first connection is next. Nobody waits in an empty queue."""
        self.inside = 0
        self.waiting = 0

    async def enter(self, who: Hashable, size: int) -> None:
        """Wait for one's turn. `leave` must follow, unless this is cancelled."""
        if not self._queues and self._has_room(size):
            self.inside += size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(who, deque()).append((future, size))
        self.waiting += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(size)  # its turn had just come
            else:
                self._forget(who, future)
                self._admit()  # it may have been in the way
            raise
        finally:
            self.waiting -= 1

    def leave(self, size: int) -> None:
        """Done with so many bytes."""
        self.inside -= size
        self._admit()

    def _forget(self, who: Hashable, future: asyncio.Future[None]) -> None:
        """Connections that come, send and go while the line stands still must not gather in it."""
        queue = self._queues.get(who)
        if queue is not None:
            left = deque(part for part in queue if part[0] is not future)
            if left:
                self._queues[who] = left  # at its old place
            else:
                del self._queues[who]

    def _has_room(self, size: int) -> bool:
        return not self.inside or self.inside + size <= self._limit

    def _admit(self) -> None:
        queues = self._queues
        while queues:
            who, queue = next(iter(queues.items()))
            while queue and queue[0][0].done():
                queue.popleft()  # it gave up
            if not queue:
                del queues[who]
                continue
            future, size = queue[0]
            if not self._has_room(size):
                return
            queue.popleft()
            del queues[who]
            if queue:
                queues[who] = queue  # at the end of the line
            self.inside += size
            future.set_result(None)
