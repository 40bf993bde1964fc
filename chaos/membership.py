"""Changes the members of a cluster under load and under fire: three nodes become four and three again, over and over.

Each round takes in a node with an empty folder, makes it a voter, takes out one of the four (often the leader), and
now and then deletes the folder of a member and lets it take its old place with an empty one. While most of these steps
are under way, a fault strikes.
"""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .cuts import name
from .faults import Fault
from .nemesis import DidNotRejoin, Nemesis
from .operator import Operator

FAULTS: Final[tuple[Fault, ...]] = (
    *("kill", "leader", "pause", "isolate", "deaf", "dumb", "pair", "split", "reset", "power"),
)
"""Those that leave a majority, so that changes can go on."""
UNDER_FIRE: Final = 0.7
"""Part of the steps that a fault strikes."""
DELAY: Final = (0.0, 0.5)
"""Seconds from the beginning of a step to its fault."""
GHOST: Final = 1.5
"""Seconds that a removed node gets to do harm: longer than an election timeout."""


class Membership:
    """See the module; `faults` are what may strike, of those that it allows."""

    def __init__(
        self, arena: Arena, nemesis: Nemesis, rng: Random, faults: Sequence[Fault], say: Callable[[str], None]
    ) -> None:
        self._arena = arena
        self._nemesis = nemesis
        self._rng = rng
        self._faults = [fault for fault in FAULTS if fault in faults]
        self._say = say
        self._operator = Operator(arena)
        self.counts: Counter[str] = Counter()
        """Changes by kind; each was seen by the leader afterwards."""

    async def run(self, stop: asyncio.Event, until: float) -> None:
        """Change members until `stop` or a moment of the monotonic clock; a round that has begun is finished.

        Errors: ChangeFailed, and those of `Nemesis.run`.
        """
        while not stop.is_set() and time.monotonic() < until:
            await self._round()

    async def change(self) -> int:
        """A round as a fault among others. Returns the number of changes."""
        before, under_fire = self.counts.total(), self._faults
        self._faults = []  # one fault at a time
        try:
            await self._round()
        finally:
            self._faults = under_fire
        return self.counts.total() - before

    async def _round(self) -> None:
        rng, arena = self._rng, self._arena
        newcomer = next(number for number in range(arena.nodes) if number not in arena.present)
        await in_thread(arena.start, newcomer)
        await self._step("add", newcomer, lambda: self._operator.add(newcomer))
        arena.present.append(newcomer)
        await self._step("promote", newcomer, lambda: self._operator.promote(newcomer))
        if rng.random() < 0.4:
            await self._wipe(rng.choice(arena.present))
        leader = await in_thread(arena.leader)
        leaving = leader if rng.random() < 0.6 else rng.choice(arena.present)
        arena.present.remove(leaving)
        await self._step("remove leader" if leaving == leader else "remove", leaving, lambda: self._take_out(leaving))
        await self._ghost(leaving)

    def _take_out(self, leaving: int) -> None:
        self._arena.may_end.add(leaving)
        self._operator.remove(leaving)

    async def _wipe(self, victim: int) -> None:
        """All that a member has is lost; it comes back with nothing."""
        self._say(f"{name(victim)} loses its folder")
        await self._emptied(victim)
        await self._step("replace", victim, lambda: self._operator.replace(victim))
        self._arena.present.append(victim)
        await self._step("promote", victim, lambda: self._operator.promote(victim))

    async def replace(self, victim: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """The same as one fault among others: something happens while the node gets what it lacks."""
        await self._emptied(victim)
        changing = asyncio.ensure_future(in_thread(self._operator.replace, victim))
        try:
            await meanwhile()
        finally:
            await changing
        self._arena.present.append(victim)
        await self._nemesis.whole_again()
        self.counts["replace"] += 1
        await in_thread(self._operator.promote, victim)
        self.counts["promote"] += 1

    async def _emptied(self, victim: int) -> None:
        self._arena.present.remove(victim)
        await in_thread(self._empty, victim)
        await in_thread(self._arena.start, victim)

    async def _ghost(self, gone: int) -> None:
        """A node that was taken out comes back with its old folder: that must not disturb the others, let alone let it
        in again. Then it gets an empty folder."""
        arena = self._arena
        await self._nemesis.whole_again()
        before = await in_thread(arena.status, await in_thread(arena.leader))
        await in_thread(arena.kill, gone)
        self._say(f"{name(gone)}, taken out, comes back")
        await in_thread(arena.spawn, gone)
        await asyncio.sleep(GHOST)
        after = await in_thread(arena.status, await in_thread(arena.leader))
        if after.term != before.term:
            raise DidNotRejoin(f"{name(gone)}, taken out, disturbed the others: term {before.term} became {after.term}")
        await in_thread(self._empty, gone)
        arena.may_end.discard(gone)

    def _empty(self, number: int) -> None:
        self._arena.kill(number)
        shutil.rmtree(self._arena.data_dir(number))
        self._arena.let_join(number)

    async def _step(self, what: str, number: int, change: Callable[[], None]) -> None:
        """A change, perhaps with a fault meanwhile; afterwards the cluster is whole."""
        rng = self._rng
        self._say(f"{what} {name(number)}")
        changing = asyncio.ensure_future(in_thread(change))
        fault = rng.choice(self._faults) if self._faults and rng.random() < UNDER_FIRE else None
        try:
            if fault is not None:
                await asyncio.sleep(rng.uniform(*DELAY))
                await self._nemesis.strike(fault)
        finally:
            await changing
        await self._nemesis.whole_again()
        if fault is not None:
            self._nemesis.done(fault)
        self.counts[what] += 1
