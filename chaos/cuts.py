"""Faults of the network: who does not hear whom, for a while."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .faults import Fault
from .network import Lab, Seat

LASTING: Final = (0.3, 5.0)
"""Seconds; longer and shorter than an election timeout."""
RESETS: Final = (0.05, 0.4)
"""Seconds between two breaks of all connections."""
FLAPS: Final = (0.05, 0.9)
"""Seconds that a way is cut, or whole, before the other comes."""


class Cuts:
    """Cuts the network of an arena that has a lab, for `longest` seconds at most. Errors: those of `Arena`, `Lab`."""

    def __init__(
        self, arena: Arena, lab: Lab, rng: Random, say: Callable[[str], None], longest: float = LASTING[1]
    ) -> None:
        self._arena = arena
        self._lab = lab
        self._rng = rng
        self._say = say
        self._longest = longest

    async def strike(self, fault: Fault) -> int:
        """Cut, wait, heal. Returns how many packets were lost, or connections broken."""
        seconds = self._rng.uniform(LASTING[0], self._longest)
        nodes = list(self._arena.present)
        if fault == "reset":
            return await self._reset(self._rng.choice(nodes), seconds)
        before = await in_thread(self._lab.sent_again)
        try:
            if fault == "isolate":
                await self._isolate(await in_thread(self._arena.leader), seconds)
            elif fault == "unplug":
                await self._unplug(self._rng.choice(nodes), seconds)
            elif fault in ("deaf", "dumb"):
                await self._one_way(nodes, seconds, deaf=fault == "deaf")
            elif fault == "pair":
                # Two followers have nothing to say to each other.
                one = await in_thread(self._arena.leader)
                other = self._rng.choice([node for node in nodes if node != one])
                self._say(f"no way between {name(one)} and {name(other)} for {seconds:.2f} s")
                seats = self._arena.seats
                await in_thread(self._lab.split, ([seats[one]], [seats[other]]))
            elif fault == "flap":
                await self._flap(nodes, max(seconds, 2 * FLAPS[1]))
                seconds = 0.0
            else:
                await self._split(nodes, seconds)
            await asyncio.sleep(seconds)
        finally:
            await in_thread(self._heal)
        return await in_thread(self._lab.sent_again) - before

    def _heal(self) -> None:
        self._lab.heal()
        for number in range(self._arena.nodes):
            self._arena.forget(number)

    async def _isolate(self, leader: int, seconds: float) -> None:
        """Clients still reach a leader that its peers do not hear: does it notice that it leads nobody?"""
        self._say(f"{name(leader)}, the leader, without its peers for {seconds:.2f} s")
        seats = self._arena.seats
        others = [seat for number, seat in enumerate(seats) if number != leader]
        await in_thread(self._lab.split, ([seats[leader]], others))

    async def _unplug(self, victim: int, seconds: float) -> None:
        self._say(f"{name(victim)} without a cable for {seconds:.2f} s")
        await in_thread(self._lab.unplug, self._arena.seats[victim])

    async def _flap(self, nodes: Sequence[int], seconds: float) -> None:
        """A node whose ways to the others are cut and whole again, over and over: elections begin and are in vain."""
        rng, seats = self._rng, self._arena.seats
        victim = await in_thread(self._arena.leader) if rng.random() < 0.5 else rng.choice(nodes)
        others = [seat for seat in seats if seat is not seats[victim]]
        self._say(f"the ways of {name(victim)} flap for {seconds:.2f} s")
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await in_thread(self._lab.split, ([seats[victim]], others))
            await asyncio.sleep(rng.uniform(*FLAPS))
            await in_thread(self._lab.heal)
            await asyncio.sleep(rng.uniform(*FLAPS))

    async def _one_way(self, nodes: Sequence[int], seconds: float, *, deaf: bool) -> None:
        """One node deaf or dumb for another one, or for all, clients included or not."""
        rng, seats = self._rng, self._arena.seats
        leader = await in_thread(self._arena.leader)
        victim = leader if rng.random() < 0.5 else rng.choice(nodes)
        others = [seat for seat in seats if seat is not seats[victim]]
        whom = rng.choice(("one peer", "its peers", "everybody"))
        if whom == "one peer":
            others = [seats[rng.choice([node for node in nodes if node != leader]) if victim == leader else leader]]
        elif whom == "everybody":
            others += self._crews()
        self._say(f"{name(victim)} {'deaf' if deaf else 'dumb'} for {whom}, for {seconds:.2f} s")
        ways = [(other, seats[victim]) if deaf else (seats[victim], other) for other in others]
        await in_thread(self._lab.cut, ways)

    async def _split(self, nodes: Sequence[int], seconds: float) -> None:
        """A minority, often with the leader, and clients on either side."""
        rng, seats = self._rng, self._arena.seats
        size = rng.randrange(1, (len(nodes) - 1) // 2 + 1)
        minority = rng.sample(nodes, size)
        if rng.random() < 0.6:
            leader = await in_thread(self._arena.leader)
            minority = [leader, *(node for node in minority if node != leader)][:size]
        here: list[Seat] = [seats[number] for number in minority]
        there: list[Seat] = [seat for seat in seats if seat not in here]
        crews = self._crews()
        rng.shuffle(crews)
        sides = ["minority" if at % 2 else "majority" for at in range(len(crews))]
        for crew, side in zip(crews, sides, strict=True):
            (here if side == "minority" else there).append(crew)
        self._say(f"{', '.join(map(name, minority))} and {sides.count('minority')} crews apart for {seconds:.2f} s")
        await in_thread(self._lab.split, (here, there))

    async def _reset(self, victim: int, seconds: float) -> int:
        """Connections break as if somebody in between had no patience."""
        self._say(f"connections of {name(victim)} are reset for {seconds:.2f} s")
        broken, end = 0, asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            broken += await in_thread(self._lab.reset, self._arena.seats[victim])
            await asyncio.sleep(self._rng.uniform(*RESETS))
        await in_thread(self._heal)
        return broken

    def _crews(self) -> list[Seat]:
        return [seat for seat in self._arena.crew_seats if seat is not None]


def name(number: int) -> str:
    """Of a node."""
    return f"n{number + 1}"
