"""Calls that have ended and do not go.

While a client opens no window for a call, gRPC keeps what it was given last, the call's end with it, and the call's
place among those that may be under way. Only the client can change that, or the end of its connection. So a connection
is shut if a call on it has ended and does not go within some seconds. Its other calls end with it, and are begun anew.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from .connections import shut

PATIENCE: Final = 10.0
"""Seconds for a call to go."""
SHORT_PATIENCE: Final = 1.0
"""The same while others need the room that it takes."""
LOOK: Final = 0.5
"""Seconds between looks."""

Task = asyncio.Task[Any]


class Leaving:
    """`port` is where the server listens."""

    def __init__(self, full: Callable[[], bool]) -> None:
        """`full`: whether others need the room."""
        self._full = full
        self.port = 0
        self._calls: dict[Task, tuple[float, str]] = {}
        """Since when, and whose they are."""
        self._timer: asyncio.TimerHandle | None = None
        self._shutting: asyncio.Future[int] | None = None
        self._shut = 0

    def add(self, task: Task, peer: str) -> None:
        """The call that is served by a task has ended, and has gone when the task has. May be called twice."""
        if task not in self._calls:
            loop = asyncio.get_running_loop()
            self._calls[task] = loop.time(), peer
            task.add_done_callback(self._gone)
            if self._timer is None:
                self._timer = loop.call_later(LOOK, self._look)

    def statistics(self) -> dict[str, float]:
        """Calls, and connections."""
        return {"calls_leaving": len(self._calls), "connections_shut": self._shut}

    def _gone(self, task: Task) -> None:
        self._calls.pop(task, None)

    def _look(self) -> None:
        self._timer = None
        if not self._calls:
            return  # the next one sets it
        loop = asyncio.get_running_loop()
        patience = SHORT_PATIENCE if self._full() else PATIENCE
        peers = {peer for since, peer in self._calls.values() if since <= loop.time() - patience}
        if peers and (self._shutting is None or self._shutting.done()):
            self._shutting = self.shut(peers)
        self._timer = loop.call_later(LOOK, self._look)

    def shut(self, peers: set[str]) -> "asyncio.Future[int]":
        """Shut the connections of these peers."""
        # The loop has no time to look at all files of the process.
        shutting = asyncio.get_running_loop().run_in_executor(None, shut, self.port, peers)
        shutting.add_done_callback(self._count)
        return shutting

    def _count(self, shutting: "asyncio.Future[int]") -> None:
        if not shutting.cancelled():
            self._shut += shutting.result()
