"""Kills a node in the middle of long work: while it makes a backup, while a snapshot is on its way.

For that there is ballast in the database, so that the work takes its time.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import kvorum
from kvorum_node.dev_cluster import in_thread
from kvorum_raft.checkpoints import INCOMING

from .arena import Arena
from .cuts import name
from .membership import Membership
from .nemesis import Nemesis
from .recorder import ROOT

BALLAST: Final = (ROOT, "ballast")
PIECES: Final = 96
PIECE: Final = 60_000
"""Bytes; all together a good part of a second of a backup."""
AT_ONCE: Final = 8
CALL: Final = 30_000
"""Milliseconds for each write of ballast."""
OUTAGE: Final = (0.0, 0.6)
PATIENCE: Final = 40.0
LOOK: Final = 0.003
LOG_BASE: Final = "log_base_index"
"""Of a node's statistics."""
SLOWLY: Final = 0.1
"""Seconds for each sync of a node that gets a snapshot."""
_COMMAND: Final = (sys.executable, "-m", "kvorum.cli")


class RestartFailed(Exception):
    """What was interrupted left something wrong behind, or cannot be done again."""


async def load_ballast(url: str) -> None:
    """Errors: those of a client."""
    async with kvorum.open_kv(url) as kv:
        for first in range(0, PIECES, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            await asyncio.gather(
                *(kv.set((*BALLAST, number), os.urandom(PIECE), timeout=CALL) for number in numbers),
            )


class Restarts:
    """Errors of all methods: RestartFailed, and those of `Nemesis` and `Membership`."""

    def __init__(
        self, arena: Arena, nemesis: Nemesis, membership: Membership, rng: Random, say: Callable[[str], None]
    ) -> None:
        self._arena = arena
        self._nemesis = nemesis
        self._membership = membership
        self._rng = rng
        self._say = say
        self._number = 0

    async def during_backup(self) -> int:
        """Kill a node while it makes a backup: no file appears. Afterwards a backup is made and is whole. Returns 1 if
        the backup was under way when the node died."""
        victim = self._rng.choice(self._arena.present)
        self._number += 1
        folder = self._arena.base_dir / f"backup{self._number}"
        folder.mkdir()
        file = folder / "backup"
        self._say(f"kill -9 of {name(victim)}, which makes a backup")
        saving = self._save(file, "--node", name(victim))
        try:
            under_way = await in_thread(self._kill_in_the_middle, victim, folder, saving)
            await asyncio.sleep(self._rng.uniform(*OUTAGE))
            await in_thread(self._arena.start, victim)
            said, status = await in_thread(_ended, saving)
        finally:
            saving.kill()
            saving.communicate()
        if (status == 0) != file.exists():
            raise RestartFailed(f"backup save has ended with status {status}, and its file is there or not: {said}")
        await self._nemesis.whole_again()
        if not file.exists():
            said, status = await in_thread(_ended, self._save(file))
            if status:
                raise RestartFailed(f"no backup can be made afterwards: {said}")
        said, status = await in_thread(_ended, self._run("verify", str(file)))
        if status:
            raise RestartFailed(f"the backup is not whole: {said}")
        file.unlink()
        return under_way and status == 0

    def _save(self, file: Path, *options: str) -> "subprocess.Popen[str]":
        url = "kvorum://" + ",".join(self._arena.client_address(number) for number in self._arena.present)
        return self._run("save", str(file), "--url", url, "--timeout", f"{PATIENCE:g}s", *options)

    @staticmethod
    def _run(*words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*_COMMAND, "backup", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _kill_in_the_middle(self, victim: int, folder: Path, saving: "subprocess.Popen[str]") -> bool:
        """As soon as something of the backup has come. Returns whether more was to come."""
        deadline = time.monotonic() + PATIENCE
        while saving.poll() is None and time.monotonic() < deadline:
            if any(file.stat().st_size for file in folder.iterdir()):
                self._arena.kill(victim)
                return saving.poll() is None
            time.sleep(LOOK)
        self._arena.kill(victim)
        return False

    async def during_snapshot(self) -> int:
        """A member comes back with an empty folder and gets a snapshot; meanwhile it is killed, or the sender is.
        Returns 1 if the snapshot was under way then."""
        rng, arena = self._rng, self._arena
        leader = await self._leader_without_old_log()
        victim = rng.choice([number for number in arena.present if number != leader])
        receiving = rng.random() < 0.6
        killed = victim if receiving else leader
        what = "receives" if receiving else "sends"
        self._say(f"{name(victim)} loses its folder; kill -9 of {name(killed)}, which {what} its snapshot")
        hits = 0

        async def interrupt() -> None:
            nonlocal hits
            hits = await in_thread(self._kill_under_way, victim, killed)
            if arena.shims:
                arena.shims[victim].delay_syncs(0.0)
            await asyncio.sleep(rng.uniform(*OUTAGE))
            await in_thread(arena.start, killed)

        if arena.shims:
            arena.shims[victim].delay_syncs(SLOWLY)  # or it might all be over before anybody looks
        try:
            await self._membership.replace(victim, interrupt)
        finally:
            if arena.shims:
                arena.shims[victim].delay_syncs(0.0)
        return hits

    async def _leader_without_old_log(self) -> int:
        """One whose log begins behind a checkpoint, so that a new node cannot be given the log alone. Ballast is
        written until it is."""
        deadline = time.monotonic() + PATIENCE
        while True:
            leader = await in_thread(self._arena.leader)
            status = await in_thread(self._arena.peek, leader)
            if status is not None and status.statistics[LOG_BASE]:
                return leader
            if time.monotonic() > deadline:
                raise RestartFailed(f"{name(leader)} has not cut its log in {PATIENCE:g} s of writing")
            await load_ballast(self._arena.url)

    def _kill_under_way(self, victim: int, killed: int) -> bool:
        """As soon as something of the snapshot has come. Returns whether it was still under way then."""
        deadline = time.monotonic() + PATIENCE
        folder, before = self._arena.data_dir(victim), self._arena.killed
        while not _arriving(folder) and time.monotonic() < deadline:
            time.sleep(LOOK)
        self._arena.kill(killed)
        return _arriving(folder) and self._arena.killed > before


def _arriving(data: Path) -> bool:
    """Whether a part of a snapshot is in a node's folder, and not more."""
    try:
        return any(file.stat().st_size for file in data.rglob(f"{INCOMING}*"))
    except FileNotFoundError:  # it has just become a checkpoint
        return False


def _ended(process: "subprocess.Popen[str]") -> tuple[str, int]:
    """What it said, and its exit status."""
    try:
        said, _ = process.communicate(timeout=PATIENCE * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    return said.strip(), process.returncode
