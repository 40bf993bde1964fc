"""Linearizable reads on a node that does not lead: one question to the leader is under way, and serves everybody who
asked before it left."""

import asyncio
from collections.abc import Callable

from kvorum_raft.errors import NotLeader, Overloaded


class FollowerReads:
    """`ask(id)` sends a question and says whether there was a leader to ask.

    Ids go on from `first_id`, which must differ from start to start of a node: the leader's answer to a question of the
    process before this one may arrive here, and is older than what this one asks.
    """

    def __init__(
        self,
        ask: Callable[[int], bool],
        clock: Callable[[], float],
        *,
        limit: int,
        timeout: float,
        first_id: int,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._limit = limit
        self._timeout = timeout
        self._id = first_id - 1
        self._asked: list[asyncio.Future[int]] = []
        self._asked_at = 0.0
        self._next: list[asyncio.Future[int]] = []

    def __len__(self) -> int:
        return len(self._asked) + len(self._next)

    def read(self) -> "asyncio.Future[int]":
        """Resolves with an index that the local state must reach. Raises NotLeader, Overloaded."""
        if len(self) >= self._limit:
            raise Overloaded(f"{self._limit} linearizable reads wait already")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._next.append(future)
        if not self._asked:
            self._send()
        return future

    def _send(self) -> None:
        self._id += 1
        self._asked, self._next = self._next, []
        self._asked_at = self._clock()
        if not self._ask(self._id):
            self.fail("no leader is known or reachable")

    def answered(self, read_id: int, ok: bool, index: int) -> None:
        if read_id != self._id or not self._asked:
            return
        asked, self._asked = self._asked, []
        for future in asked:
            if future.done():
                continue
            if ok:
                future.set_result(index)
            else:
                future.set_exception(NotLeader("the node that was asked does not lead any more"))
        if self._next:
            self._send()

    def fail(self, reason: str) -> None:
        """The leader changed or cannot be reached."""
        waiting = self._asked + self._next
        self._asked, self._next = [], []
        self._id += 1
        for future in waiting:
            if not future.done():
                future.set_exception(NotLeader(reason))

    def check_age(self) -> None:
        """An answer that does not come is given up."""
        if self._asked and self._clock() - self._asked_at > self._timeout:
            self.fail("the leader does not answer")
