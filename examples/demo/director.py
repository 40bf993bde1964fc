"""What happens to the nodes while the program runs: the leader is killed, twice, in the middle of the work, and started
again.
"""

import asyncio
import time
from collections.abc import Callable

from kvorum_node.dev_cluster import DevCluster, in_thread

from .ledger import Ledger

MIN_IN_FLIGHT = 100
"""Operations that must be under way at the moment of a kill, so that it hurts."""
PATIENCE = 20.0
"""Seconds that anything expected may take before the demo gives up."""


class Director:
    """Kills and restarts nodes by the program's own progress, never by the clock."""

    def __init__(self, cluster: DevCluster, ledger: Ledger, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._say = say
        self.kills = 0
        self.in_flight_at_kills: list[int] = []
        self.gaps: list[float] = []
        """Seconds from each kill to the next acknowledged vote."""

    async def kill_leader_when(self, finished: int, before: Callable[[], None] | None = None) -> None:
        """Once `finished` votes are in and enough operations are under way, call `before`, kill the leader, see the
        votes go on, start it again.
        """
        await self._until(lambda: self._ledger.votes_finished >= finished, "votes to come in")
        leader = await in_thread(self._cluster.leader)
        if before is not None:
            before()
        await self._until(
            lambda: self._ledger.under_way >= MIN_IN_FLIGHT, f"{MIN_IN_FLIGHT} operations to be in flight"
        )
        acknowledged, in_flight, killed_at = len(self._ledger.acknowledged), self._ledger.under_way, time.monotonic()
        self._cluster.kill(leader)
        self.kills += 1
        self.in_flight_at_kills.append(in_flight)
        self._say(f"kill -9 of the leader, node {leader + 1}, with {in_flight} operations in flight")
        # Answers that had left the dead node may still come in; what counts is the first one of the next leader.
        await in_thread(self._cluster.leader)
        acknowledged = len(self._ledger.acknowledged)
        await self._until(lambda: len(self._ledger.acknowledged) > acknowledged, "the next acknowledged vote")
        self.gaps.append(time.monotonic() - killed_at)
        new_leader = await in_thread(self._cluster.leader)
        self._say(f"node {new_leader + 1} leads; votes are acknowledged again {self.gaps[-1]:.2f} s after the kill")
        await in_thread(self._cluster.start, leader)
        self._say(f"node {leader + 1} is back and catches up")

    async def replicas_differ(self) -> list[str]:
        """Wait until all nodes have applied the same entry; returns what is wrong with their hashes, if anything."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            replicas = await in_thread(self._cluster.hashes)
            if len({index for index, _ in replicas}) == 1:
                index, digest = replicas[0]
                if all(replica == (index, digest) for replica in replicas):
                    self._say(f"all {len(replicas)} replicas are equal at entry {index}: {digest.hex()[:16]}…")
                    return []
                return [f"replicas differ at the same entry: {replicas}"]
            await asyncio.sleep(0.1)
        return [f"the replicas did not come to the same entry within {PATIENCE:.0f} s: {replicas}"]

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE:.0f} s for {what}")
            await asyncio.sleep(0.002)
