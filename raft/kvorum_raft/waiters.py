"""Those who wait until the local state holds an entry."""

import asyncio
import heapq
from typing import Final

from kvorum_raft.errors import NotLeader, Overloaded

_PURGE: Final = 1024


class StateWaiters:
    """In order of the index that they wait for; at most `limit`, of which those that gave up are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._purge_at = _PURGE
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, index: int) -> "asyncio.Future[None]":
        """Completes when that entry is applied; NotLeader if the node ends before. Raises Overloaded."""
        if len(self._waiting) >= self._purge_at:
            self._waiting = [one for one in self._waiting if not one[2].done()]
            heapq.heapify(self._waiting)
            self._purge_at = max(2 * len(self._waiting), _PURGE)
        if len(self._waiting) >= self._limit:
            raise Overloaded(f"{self._limit} reads wait for the state already")
        self._number += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (index, self._number, future))
        return future

    def reached(self, index: int) -> None:
        while self._waiting and self._waiting[0][0] <= index:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(NotLeader(why))
