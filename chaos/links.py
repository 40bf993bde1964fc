"""Slow and lossy links: packets that come late, or do not come."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .cuts import LASTING, name
from .faults import Fault
from .network import Lab, Seat

DELAYS: Final = (5.0, 40.0, 150.0, 400.0)
"""Milliseconds, one way; the last one makes a round trip longer than most elections."""
JITTER: Final = 0.3
"""Part of the delay."""
LOSSES: Final = (0.03, 0.1, 0.3)
"""Parts of the packets."""
LEAST: Final = 1.0
"""Seconds in which some of the packets are lost for certain."""
PATIENCE: Final = 10.0


class Delayer:
    """A process that holds back what a seat sends. Errors: OSError, CalledProcessError."""

    def __init__(self, lab: Lab, seat: Seat, milliseconds: float, targets: Sequence[Seat]) -> None:
        self._lab = lab
        self._seat = seat
        command = [sys.executable, "-m", "chaos.delayer", "1", str(milliseconds), str(milliseconds * JITTER)]
        self._process = subprocess.Popen(
            seat.command(*command), stdout=subprocess.PIPE, text=True, pass_fds=(seat.namespace,)
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            self._process.kill()
            self._process.communicate()
            raise OSError("the kernel gives no queue for packets")
        how = ("-j", "NFQUEUE", "--queue-num", "1", "--queue-bypass")
        lab.filter(seat, [("OUTPUT", "-d", target.address, *how) for target in targets])

    def end(self) -> int:
        """Let everything go. Returns the number of packets that were held back."""
        try:
            self._lab.unfilter(self._seat)
        finally:
            self._process.terminate()
            try:
                said, _ = self._process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                said, _ = self._process.communicate()
        return int(said.strip() or 0)


def lose(lab: Lab, seat: Seat, part: float, targets: Sequence[Seat]) -> None:
    """Drop a part of the packets from and to these targets, until `Lab.unfilter`, which tells how many."""
    how = ("-m", "statistic", "--mode", "random", "--probability", str(part), "-j", "DROP")
    ways = [("OUTPUT", "-d"), ("INPUT", "-s")]
    lab.filter(seat, [(chain, side, target.address, *how) for target in targets for chain, side in ways])


class Links:
    """Troubles the network of an arena that has a lab, for `longest` seconds at most, or `LEAST`.

    Errors: those of `Arena`, `Lab` and `Delayer`.
    """

    def __init__(
        self, arena: Arena, lab: Lab, rng: Random, say: Callable[[str], None], longest: float = LASTING[1]
    ) -> None:
        self._arena = arena
        self._lab = lab
        self._rng = rng
        self._say = say
        self._longest = longest

    async def strike(self, fault: Fault) -> int:
        """Trouble a node's link for a while. Returns how many packets were late, or lost."""
        rng, seats = self._rng, self._arena.seats
        seconds = max(LEAST, rng.uniform(LASTING[0], self._longest))
        leader = await in_thread(self._arena.leader)
        victim = leader if rng.random() < 0.6 else rng.choice(self._arena.present)
        seat = seats[victim]
        targets = [other for other in seats if other is not seat]
        if everybody := rng.random() < 0.5:
            targets += [crew for crew in self._arena.crew_seats if crew is not None]
        whom = "everybody" if everybody else "its peers"
        if fault == "slow":
            delay = rng.choice(DELAYS)
            self._say(f"what {name(victim)} sends to {whom} comes {delay:g} ms late for {seconds:.2f} s")
            delayer = await in_thread(Delayer, self._lab, seat, delay, targets)
            try:
                await asyncio.sleep(seconds)
            finally:
                count = await in_thread(delayer.end)
            return count
        part = rng.choice(LOSSES)
        self._say(f"{part:.0%} of what goes between {name(victim)} and {whom} is lost for {seconds:.2f} s")
        await in_thread(lose, self._lab, seat, part, targets)
        try:
            await asyncio.sleep(seconds)
        finally:
            dropped = await in_thread(self._lab.unfilter, seat)
        return dropped
