"""Kills and freezes nodes, one fault after the other; the next one only after the last victims have rejoined.

All it touches are processes that its cluster started, by their ids. Which fault, whom and for how long comes from a
seeded generator; what the cluster makes of it is not repeatable, these are real processes.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Literal, get_args

from kvorum_node.dev_cluster import DevCluster, in_thread

Fault = Literal["kill", "leader", "majority", "all", "pause"]
"""kill -9 of any node, of the leader, of two of three, of all; SIGSTOP for less or more than an election timeout."""
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

SHORT_PAUSE: Final = (0.05, 0.4)
"""Seconds; below the shortest election timeout of 0.5 s."""
LONG_PAUSE: Final = (1.0, 4.0)
OUTAGE: Final = (0.05, 1.5)
"""Seconds from a kill to the start of the node."""
STAGGER: Final = (0.0, 0.8)
"""Seconds between the starts of two nodes."""
QUIET: Final = (0.2, 1.2)
"""Seconds between two faults."""
PATIENCE: Final = 30.0
"""Seconds that a victim may take to rejoin."""
LOOK: Final = 0.05
"""Seconds between two looks at whether it has."""
BEHIND: Final = 200
"""Entries that a node which has rejoined may still be behind: clients go on meanwhile."""


class DidNotRejoin(Exception):
    """The cluster is not whole again in time after a fault."""


class Nemesis:
    """See the module. `say` is called with a line for each fault."""

    def __init__(self, cluster: DevCluster, rng: Random, faults: Sequence[Fault], say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._rng = rng
        self._faults = tuple(faults)
        self._say = say
        self.counts: Counter[str] = Counter()
        """Faults by kind; pauses are `short pause` and `long pause`."""
        self.slowest = 0.0
        """Seconds from the end of a fault to a whole cluster, at most."""

    async def run(self, stop: asyncio.Event, until: float, most: int) -> None:
        """Do harm until `stop`, a moment of the monotonic clock, or `most` times.

        A fault that has begun is seen through. Each kind comes before any comes again.

        Errors: DidNotRejoin; ClusterFailed if a node ends that was not killed.
        """
        bag: list[Fault] = []
        while self.counts.total() < most:
            await asyncio.sleep(min(self._rng.uniform(*QUIET), max(0.0, until - time.monotonic())))
            if stop.is_set() or time.monotonic() >= until:
                return
            if not bag:
                bag = self._rng.sample(self._faults, len(self._faults))
            await self._strike(bag.pop())
            await self._whole_again()

    async def _strike(self, fault: Fault) -> None:
        nodes = list(range(self._cluster.nodes))
        if fault == "pause":
            victim = await self._leader() if self._rng.random() < 0.5 else self._rng.choice(nodes)
            await self._pause(victim)
            return
        if fault == "kill":
            victims = [self._rng.choice(nodes)]
        elif fault == "leader":
            victims = [await self._leader()]
        elif fault == "majority":
            victims = self._rng.sample(nodes, len(nodes) // 2 + 1)
        else:
            victims = self._rng.sample(nodes, len(nodes))
        self.counts[fault] += 1
        self._say(f"kill -9 of {fault}: {_names(victims)}")
        for victim in victims:
            await in_thread(self._cluster.kill, victim)
        await asyncio.sleep(self._rng.uniform(*OUTAGE))
        self._rng.shuffle(victims)
        for number, victim in enumerate(victims):
            if number:
                await asyncio.sleep(self._rng.uniform(*STAGGER))
            await in_thread(self._cluster.start, victim)

    async def _pause(self, victim: int) -> None:
        short = self._rng.random() < 0.5
        seconds = self._rng.uniform(*(SHORT_PAUSE if short else LONG_PAUSE))
        pid = self._cluster.pid(victim)
        if not pid:
            raise DidNotRejoin(f"{_names([victim])} does not run, and nobody killed it")
        self.counts["short pause" if short else "long pause"] += 1
        self._say(f"SIGSTOP of {_names([victim])} for {seconds:.2f} s")
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _leader(self) -> int:
        return await in_thread(self._cluster.leader)

    async def _whole_again(self) -> None:
        began = time.monotonic()
        while not await in_thread(self._is_whole):
            if time.monotonic() > began + PATIENCE:
                raise DidNotRejoin(f"the cluster is not whole again after {PATIENCE:g} s")
            await asyncio.sleep(LOOK)
        self.slowest = max(self.slowest, time.monotonic() - began)

    def _is_whole(self) -> bool:
        """Whether all follow one leader and are about as far as it is."""
        leader = self._cluster.peek(self._cluster.leader(PATIENCE))
        answers = [self._cluster.peek(number) for number in range(self._cluster.nodes)]
        if leader is None:
            return False
        return all(
            answer is not None
            and answer.leader.node_id == leader.node_id
            and answer.term == leader.term
            and answer.applied_index + BEHIND >= leader.commit_index > 0
            for answer in answers
        )


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Names, separated by commas. Errors: ValueError."""
    found: list[Fault] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        match = [fault for fault in FAULTS if fault == name]
        if not match:
            raise ValueError(f"unknown fault {name!r}, expected some of {','.join(FAULTS)}")
        found += match
    if not found:
        raise ValueError("no fault was named")
    return tuple(dict.fromkeys(found))


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(f"n{number + 1}" for number in nodes)
