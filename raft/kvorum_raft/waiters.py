"""Those who wait until the local state holds an entry."""

import asyncio
import heapq

from kvorum_raft.errors import NotLeader


class StateWaiters:
    """In order of the index that they wait for. Bounded by the reads that lead here."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, index: int) -> "asyncio.Future[None]":
        """Completes when that entry is applied; NotLeader if the node ends before."""
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
