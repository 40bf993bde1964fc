"""Does harm, one fault after the other; the next one only after the last victims have rejoined.

All it touches are processes, networks and disks of its own arena. Which fault, whom and for how long comes from a
seeded generator; what the cluster makes of it is not repeatable, these are real processes.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .cuts import Cuts, name
from .faults import KINDS, Category, Fault, by_category, deck
from .links import Links
from .machines import Machines, Misbehaved

SHORT_PAUSE: Final = (0.05, 0.4)
"""Seconds; below the shortest election timeout of 0.5 s."""
LONG_PAUSE: Final = (1.0, 4.0)
OUTAGE: Final = (0.05, 1.5)
"""Seconds from a kill to the start of the node."""
BRIEF_OUTAGE: Final = (0.02, 0.6)
"""The same when many faults are wanted."""
STAGGER: Final = (0.0, 0.8)
"""Seconds between the starts of two nodes."""
QUIET: Final = (0.2, 1.2)
"""Seconds between two faults."""
BRIEF_QUIET: Final = (0.02, 0.3)
DEAD_DISK: Final = (0.0, 0.5)
"""Seconds that a node is left alone with a disk that has died."""
LONGEST: Final = 5.0
"""Seconds."""
PATIENCE: Final = 60.0
"""Seconds that a victim may take to rejoin."""
SLOW: Final = 3.0
"""Seconds to a whole cluster that are worth a line."""
LOOK: Final = 0.03
"""Seconds between two looks at whether it has."""


class DidNotRejoin(Exception):
    """The cluster is not whole again in time after a fault."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was seen through. Moments are those of the monotonic clock, in seconds."""

    fault: Fault
    began: float
    ended: float
    """The victims may run again, ways are whole."""
    whole: float
    """The cluster is as if nothing had been."""


class Nemesis:
    """See the module. `say` is called with a line for each fault, `wanted` are numbers of faults by category: they are
    spread over the time of the run. `longest` is how many seconds a fault may last that is no kill."""

    def __init__(
        self,
        arena: Arena,
        rng: Random,
        faults: Sequence[Fault],
        say: Callable[[str], None],
        wanted: Mapping[Category, int] | None = None,
        longest: float = LONGEST,
    ) -> None:
        self._arena = arena
        self._rng = rng
        self._faults = tuple(faults)
        self._say = say
        self._wanted = dict(wanted or {})
        self._longest = longest
        self._cuts = None if arena.lab is None else Cuts(arena, arena.lab, rng, say, longest)
        self._links = None if arena.lab is None else Links(arena, arena.lab, rng, say, longest)
        self._machines = Machines(arena, rng, say, longest)
        self.others: dict[Fault, Callable[[], Awaitable[int]]] = {}
        """Faults that somebody else knows how to do; each returns its hits."""
        self.hits: Counter[str] = Counter()
        """By kind: processes that were killed or stood still, packets that were lost, syncs that failed, …: what proves
        that a fault has done something."""
        self.struck: list[Struck] = []
        self._moments = (0.0, 0.0)
        self.counts: Counter[str] = Counter()
        """Faults by kind: after each of them the cluster was whole again."""
        self.rejoins: list[float] = []
        """Seconds from the end of each fault to a whole cluster."""

    def short_of(self) -> list[str]:
        """What is wanted and has not come."""
        sums = by_category(self.counts)
        return [f"{sums[kind]} of {number} {kind}" for kind, number in self._wanted.items() if sums[kind] < number]

    def idle(self) -> list[str]:
        """Kinds of faults that came and did nothing."""
        return sorted(kind for kind in self.counts if not self.hits[kind])

    def missing(self) -> list[str]:
        """Kinds of faults that may come and did not."""
        return sorted(kind for kind in self._faults if not self.counts[kind])

    async def run(self, stop: asyncio.Event, until: float, most: int) -> None:
        """Do harm until `stop`, a moment of the monotonic clock, or `most` times.

        A fault that has begun is seen through. Each kind comes before any comes again, unless numbers are wanted.

        Errors: DidNotRejoin; ClusterFailed if a node ends that was not killed; those of `Arena`.
        """
        began = time.monotonic()
        cards: list[Fault] = []
        drawn = dealt = 0
        while self.counts.total() < most:
            if not cards:
                cards = deck(self._rng, self._faults, self._wanted)
                dealt = len(cards)
            # What is wanted has to come within nine tenths of the time.
            due = began + (until - began) * 0.9 * drawn / dealt if self._wanted else 0.0
            pause = self._rng.uniform(*(BRIEF_QUIET if self._wanted else QUIET))
            pause = max(pause, due - time.monotonic())
            await asyncio.sleep(min(pause, max(0.0, until - time.monotonic())))
            if stop.is_set() or time.monotonic() >= until:
                return
            fault = cards.pop()
            drawn += 1
            await self.strike(fault)
            await self.whole_again()
            self.done(fault)

    def done(self, fault: Fault) -> None:
        """The last fault was seen through, and the cluster is whole."""
        self.counts[fault] += 1
        self.struck.append(Struck(fault, *self._moments, time.monotonic()))

    async def strike(self, fault: Fault) -> None:
        """Do it, and let the victims run again. Errors: those of `run`."""
        began = time.monotonic()
        hits = await self._strike(fault)
        self._moments = (began, time.monotonic())
        self.hits[fault] += hits
        if not hits:
            self._say(f"{fault} did nothing")

    async def _strike(self, fault: Fault) -> int:
        nodes = list(self._arena.present)
        if fault in self.others:
            return await self.others[fault]()
        if fault in KINDS["cuts"]:
            assert self._cuts is not None, "cuts need a lab"
            return await self._cuts.strike(fault)
        if fault in KINDS["links"]:
            assert self._links is not None, "links need a lab"
            return await self._links.strike(fault)
        if fault == "pause":
            return await self._pause(await self._leader() if self._rng.random() < 0.5 else self._rng.choice(nodes))
        if fault in KINDS["power-cuts"]:
            number = {"power": 1, "power-two": 2, "power-all": len(nodes)}[fault]
            return await self._power(self._rng.sample(nodes, number))
        if fault in (*KINDS["bad-disks"], *KINDS["syncs"], *KINDS["clocks"]):
            victim = await self._leader() if self._rng.random() < 0.5 else self._rng.choice(nodes)
            try:
                return await self._machines.strike(fault, victim)
            except Misbehaved as error:
                raise DidNotRejoin(str(error)) from error
        return await self._kill(fault, await self._victims(fault, nodes))

    async def _victims(self, fault: Fault, nodes: list[int]) -> list[int]:
        if fault == "kill":
            return [self._rng.choice(nodes)]
        if fault == "leader":
            return [await self._leader()]
        if fault == "majority":
            return self._rng.sample(nodes, len(nodes) // 2 + 1)
        return self._rng.sample(nodes, len(nodes))

    async def _kill(self, fault: Fault, victims: list[int]) -> int:
        self._say(f"kill -9 of {fault}: {_names(victims)}")
        before = self._arena.killed
        for victim in victims:
            await in_thread(self._arena.kill, victim)
        killed = self._arena.killed - before
        await self._outage()
        await self._start(victims)
        return killed

    async def _power(self, victims: list[int]) -> int:
        frozen = self._rng.random() < 0.6
        alone = 0.0 if frozen else self._rng.uniform(*DEAD_DISK)
        self._say(f"{'power cut' if frozen else f'dead disk, after {alone:.2f} s power cut'} of {_names(victims)}")
        before = self._arena.losses
        await in_thread(lambda: self._arena.cut_power(victims, frozen=frozen, seconds=alone))
        await self._outage()
        await self._start(victims, self._arena.restore_power)
        return self._arena.losses - before

    async def _outage(self) -> None:
        await asyncio.sleep(self._rng.uniform(*(BRIEF_OUTAGE if self._wanted else OUTAGE)))

    async def _start(self, victims: list[int], prepare: Callable[[int], None] | None = None) -> None:
        self._rng.shuffle(victims)
        for number, victim in enumerate(victims):
            if number:
                await asyncio.sleep(self._rng.uniform(*STAGGER))
            if prepare is not None:
                await in_thread(prepare, victim)
            await in_thread(self._arena.start, victim)

    async def _pause(self, victim: int) -> int:
        short = self._rng.random() < 0.5
        seconds = min(self._longest, self._rng.uniform(*(SHORT_PAUSE if short else LONG_PAUSE)))
        pid = self._arena.pid(victim)
        if not pid:
            raise DidNotRejoin(f"{name(victim)} does not run, and nobody killed it")
        self._say(f"SIGSTOP of {name(victim)} for {seconds:.2f} s")
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
            stopped = _stands_still(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        return stopped

    async def _leader(self) -> int:
        """One that is just being taken out of the cluster is left in peace: it might not come back."""
        leader = await in_thread(self._arena.leader)
        return leader if leader in self._arena.present else self._rng.choice(self._arena.present)

    async def whole_again(self) -> None:
        """Wait until the cluster is. Errors: DidNotRejoin, and those of `Arena`."""
        began = time.monotonic()
        goal: list[int] = []
        told = False
        while not await in_thread(self._is_whole, goal):
            if time.monotonic() > began + PATIENCE:
                raise DidNotRejoin(f"the cluster is not whole again after {PATIENCE:g} s: {self._state()}")
            if not told and time.monotonic() > began + SLOW:
                told = True
                self._say(f"not whole yet: {await in_thread(self._state)}")
            await asyncio.sleep(LOOK)
        took = time.monotonic() - began
        self.rejoins.append(took)
        if took > SLOW:
            self._say(f"whole again only after {took:.1f} s")

    def _is_whole(self, goal: list[int]) -> bool:
        """Whether every node follows one leader, and has stored and applied what was committed when all were first
        seen to do so: one that still builds its state cannot lead yet.

        That moment's commit index is kept in `goal`; clients go on meanwhile.
        """
        leader = self._arena.peek(self._arena.leader(PATIENCE))
        answers = [self._arena.peek(number) for number in self._arena.present]
        if leader is None or leader.commit_index == 0:
            return False
        match = {peer.node_id: peer.match_index for peer in leader.peers if peer.connected}
        match[leader.node_id] = leader.last_log_index
        for answer in answers:
            if answer is None or answer.leader.node_id != leader.node_id or answer.term != leader.term:
                return False
            if answer.node_id not in match:
                return False
        if not goal:
            goal.append(leader.commit_index)
        applied = [answer.applied_index for answer in answers if answer is not None]
        return min(*match.values(), *applied) >= goal[0]

    def _state(self) -> str:
        lines = []
        for number in range(self._arena.nodes):
            answer = self._arena.peek(number)
            if answer is None:
                lines.append(f"{name(number)} does not answer")
                continue
            peers = ", ".join(f"{peer.node_id} {peer.match_index}/{peer.connected}" for peer in answer.peers)
            lines.append(
                f"{name(number)} {answer.role} term {answer.term} leader {answer.leader.node_id or 'none'}"
                f" commit {answer.commit_index} last {answer.last_log_index} ({peers})"
            )
        return "; ".join(lines)


def _stands_still(pid: int) -> bool:
    """Whether the process is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(map(name, nodes))
