"""One ReadIndex round for everybody who waits for one: reads and first watch events of all connections."""

import asyncio
from collections.abc import Callable

from kvorum_raft.errors import NotLeader, Overloaded, RaftError
from kvorum_raft.seams import Consensus

from .timers import Timers

Passed = Callable[[RaftError | None], None]

MAX_WAITING = 65_536


class Barrier:
    """Calls back once the local state holds everything that was committed when `wait` was called, or with an error.

    A round serves those who came before it began; those who come later get the next one.
    """

    def __init__(self, consensus: Consensus, timers: Timers, *, patience: float) -> None:
        self._consensus = consensus
        self._timers = timers
        self._patience = patience
        self._waiting: list[Passed] = []
        self._task: asyncio.Task[None] | None = None
        self.fresh_at = float("-inf")
        """Loop time at which the newest successful round began: the state is at least that new."""
        self._rounds = self._served = 0

    def wait(self, passed: Passed) -> None:
        if len(self._waiting) >= MAX_WAITING:
            passed(Overloaded("too many reads wait"))
            return
        self._waiting.append(passed)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._answer(self._waiting, NotLeader("the node stops"))
        self._waiting = []

    def statistics(self) -> dict[str, float]:
        return {"barrier_rounds": self._rounds, "barrier_served": self._served, "barrier_waiting": len(self._waiting)}

    async def _run(self) -> None:
        batch: list[Passed] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                begun = self._timers.time()
                error = await self._round()
                self._rounds += 1
                self._served += len(batch)
                if error is None:
                    self.fresh_at = begun
                done, batch = batch, []
                self._answer(done, error)
        except asyncio.CancelledError:
            self._answer(batch, NotLeader("the node stops"))
            raise
        finally:
            self._task = None

    async def _round(self) -> RaftError | None:
        try:
            async with asyncio.timeout(self._patience):
                await self._consensus.read_index()
        except RaftError as error:
            return error
        except TimeoutError:
            return NotLeader(f"the leader did not confirm itself within {self._patience:g} s")
        return None

    @staticmethod
    def _answer(batch: list[Passed], error: RaftError | None) -> None:
        for passed in batch:
            passed(error)
