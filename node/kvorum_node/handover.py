"""A leader that knows it will be slow or gone hands its office over, instead of letting the others find out.

That costs them one round of messages; finding out costs an election timeout.
"""

import asyncio
import logging
from typing import Final

from kvorum_raft.errors import RaftError
from kvorum_raft.seams import Administration, Consensus

from .timers import Timers

logger = logging.getLogger("kvorum.node")

AGAIN: Final = 60.0
"""Seconds between two transfers for lateness: on a machine that is slow for long, the office must not wander about."""


class HandOver:
    """`patience` is seconds: the longest election timeout. A loop that calls back later than `too_late` seconds is no
    place for a leader (rules J1)."""

    def __init__(
        self,
        consensus: Consensus,
        administration: Administration,
        timers: Timers,
        *,
        patience: float,
        too_late: float,
    ) -> None:
        self._consensus = consensus
        self._administration = administration
        self._timers = timers
        self._patience = patience
        self._too_late = too_late
        self._not_before = float("-inf")
        self._task: asyncio.Task[bool] | None = None
        self._for_lateness = 0

    def late(self, seconds: float) -> None:
        """The loop was that late."""
        now = self._timers.time()
        if seconds <= self._too_late or now < self._not_before or not self._can():
            return
        self._not_before = now + AGAIN
        self._for_lateness += 1
        logger.warning("the loop was %.0f ms late: handing leadership over", seconds * 1000)
        self._task = asyncio.get_running_loop().create_task(self.now())

    async def now(self) -> bool:
        """Hand over if this node leads and there is somebody to take it. True if somebody did, in time."""
        if not self._can():
            return False
        try:
            async with asyncio.timeout(self._patience):
                leader = await self._administration.transfer()
        except TimeoutError:
            logger.warning("nobody took leadership over within %g s", self._patience)
            return False
        except (RaftError, ValueError) as error:
            logger.warning("leadership was not handed over: %s", error)
            return False
        logger.info("node %s leads now", leader)
        return True

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def statistics(self) -> dict[str, float]:
        return {"handed_over_for_lateness": self._for_lateness}

    def _can(self) -> bool:
        if not self._consensus.is_leader:
            return False
        return any(not peer.learner and peer.connected for peer in self._consensus.status().peers)
