"""Faults of one machine that goes on: its disk hangs, is full, syncs slowly or fails to; its clock is wrong."""

import asyncio
import time
from collections.abc import Callable
from random import Random
from typing import Final

from kvorum_node.dev_cluster import in_thread

from .arena import Arena
from .cuts import name
from .faults import Fault

LASTING: Final = (0.2, 4.0)
"""Seconds."""
LEAST: Final = 1.0
"""Seconds in which a node syncs and asks for the time."""
DELAYS: Final = (0.01, 0.05, 0.2, 0.7)
"""Seconds that a sync takes: from a busy disk to one with which no node should lead."""
JUMPS: Final = (1.5, 60.0, 3_600.0, 30 * 86_400.0)
"""Seconds that a clock jumps."""
PATIENCE: Final = 15.0
"""Seconds until a node has ended itself after a failed sync."""
LOOK: Final = 0.02
FAULTY_DISK: Final = 70
"""Exit status of a node that was stopped by its disk."""


class Misbehaved(Exception):
    """A node did what it must not do over such a fault."""


class Machines:
    """For `longest` seconds at most, or `LEAST`. Errors of all methods: Misbehaved, and those of `Arena`."""

    def __init__(self, arena: Arena, rng: Random, say: Callable[[str], None], longest: float = LASTING[1]) -> None:
        self._arena = arena
        self._rng = rng
        self._say = say
        self._longest = longest

    async def strike(self, fault: Fault, victim: int) -> int:
        """For a while. Returns writes that waited or were refused, syncs, or questions for the time that were met."""
        seconds = self._rng.uniform(LASTING[0], self._longest)
        if fault == "hang":
            return await self._hang(victim, seconds)
        if fault == "full":
            return await self._full(victim, seconds)
        if fault == "slow-sync":
            return await self._slow(victim, max(seconds, LEAST))
        if fault == "failing-sync":
            return await self._failing(victim)
        return await self._jump(victim, max(seconds, LEAST), forward=fault == "clock-forward")

    async def _hang(self, victim: int, seconds: float) -> int:
        """Every write waits; the node may end itself over it, but not die of it."""
        disk = self._arena.disks[victim]
        self._say(f"the disk of {name(victim)} hangs for {seconds:.2f} s")
        self._arena.may_end.add(victim)
        await in_thread(disk.hang)
        began = time.monotonic()
        waiting = asyncio.ensure_future(in_thread(disk.try_write))
        try:
            await asyncio.sleep(seconds)
            waited = not waiting.done()
        finally:
            await in_thread(disk.go_on)
            await waiting
        await self._release(victim)
        return waited and time.monotonic() - began >= seconds

    async def _full(self, victim: int, seconds: float) -> int:
        """No block is left. The node may end itself over it."""
        disk = self._arena.disks[victim]
        self._say(f"the disk of {name(victim)} is full for {seconds:.2f} s")
        self._arena.may_end.add(victim)
        await in_thread(disk.fill)
        try:
            refused = await in_thread(disk.has_no_room)
            await asyncio.sleep(seconds)
        finally:
            await in_thread(disk.make_room)
        await self._release(victim)
        return refused

    async def _release(self, victim: int) -> None:
        status = await in_thread(self._arena.release, victim)
        if status is not None:
            self._say(f"{name(victim)} had ended itself with status {status}")
            if status < 0:
                raise Misbehaved(f"{name(victim)} died of signal {-status} over its disk")

    async def _slow(self, victim: int, seconds: float) -> int:
        delay = self._rng.choice(DELAYS)
        shim = self._arena.shims[victim]
        self._say(f"each sync of {name(victim)} takes {delay:g} s longer for {seconds:.2f} s")
        before = shim.delayed
        shim.delay_syncs(delay)
        try:
            await asyncio.sleep(seconds)
        finally:
            shim.delay_syncs(0.0)
        return shim.delayed - before

    async def _failing(self, victim: int) -> int:
        """One sync fails: the node must end itself, and not try again."""
        shim, before = self._arena.shims[victim], self._arena.shims[victim].failed
        self._say(f"a sync of {name(victim)} fails")
        self._arena.may_end.add(victim)
        shim.fail_syncs(1)
        try:
            await in_thread(self._wait_for_end, victim)
        finally:
            shim.fail_syncs(0)
        failed = shim.failed - before
        status = await in_thread(self._arena.release, victim)
        if failed and status != FAULTY_DISK:
            how = "goes on" if status is None else f"ended with status {status}"
            raise Misbehaved(f"{name(victim)} {how} after a failed sync; expected status {FAULTY_DISK}")
        return failed

    def _wait_for_end(self, victim: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._arena.pid(victim) and time.monotonic() < deadline:
            time.sleep(LOOK)

    async def _jump(self, victim: int, seconds: float, *, forward: bool) -> int:
        """The wall clock jumps, and later jumps back. Monotonic clocks go on."""
        jump = self._rng.choice(JUMPS) * (1 if forward else -1)
        shim = self._arena.shims[victim]
        self._say(f"the clock of {name(victim)} jumps by {jump:+g} s for {seconds:.2f} s")
        before = shim.asked
        shim.set_clock(jump)
        try:
            await asyncio.sleep(seconds)
            answer = await in_thread(self._arena.peek, victim)
            off = 0.0 if answer is None else answer.wall_ms / 1_000 - time.time()
        finally:
            shim.set_clock(0.0)
        if answer is not None and abs(off - jump) > 1.0:
            raise Misbehaved(f"{name(victim)} takes its clock to be {off:+.1f} s off, after a jump of {jump:+g} s")
        return shim.asked - before
