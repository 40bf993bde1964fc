"""`kill -9` of a process that writes the log, again and again: what it said is synced is there when the next one
starts, and what is there is what it wrote up to some batch."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kvorum_raft.log_store import LogStore
from tests.integration.raft.log_history import after
from tests.integration.raft.log_writer import MOST_UNSYNCED

ROUNDS = 8
LINES = {"open": 120, "write": 3_000, "close": 60, "never": 1}
"""About so many lines of code the stages have."""


class Attack:
    """One folder, and processes that are killed one after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.synced = 0
        self.kills = 0
        self._seed = seed
        self._rng = random.Random(seed)

    def round(self, stage: str) -> None:
        rng = self._rng
        lines, batches = rng.randint(1, LINES[stage]), rng.randint(1, 200)
        kill_after = rng.randint(1, batches) if stage == "never" else sys.maxsize
        arguments = (str(self.folder), str(self._seed), str(batches), stage, str(lines))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.integration.raft.log_writer", *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        ) as process:
            try:
                self._listen(process, kill_after)
            except BaseException:
                process.kill()
                raise
        assert process.returncode in (0, -9), f"exit code {process.returncode}, stage {stage}, {lines} lines"
        self.kills += process.returncode == -9

    def _listen(self, process: subprocess.Popen[bytes], kill_after: int) -> None:
        assert process.stdout is not None
        before = self.synced
        for line in process.stdout:
            word, number = line.decode().split(maxsplit=1)
            if word == "found":
                assert before <= int(number) <= before + MOST_UNSYNCED, "it is not what the one before wrote"
                self.synced = before = int(number)
            else:
                assert word == "synced", line
                self.synced = int(number)
            if self.synced - before >= kill_after:
                process.kill()

    def check(self) -> None:
        """At last."""
        store = LogStore.open(self.folder, map_size=1 << 30)
        stored = store.verify(cache=1 << 30)
        model = after(self._seed, stored.state)
        assert self.synced <= model.number <= self.synced + MOST_UNSYNCED
        model.check(store, stored)
        store.close()


@pytest.mark.parametrize("seed", range(2))
def test_what_was_said_to_be_synced_outlives_every_kill(tmp_path: Path, seed: int) -> None:
    attack = Attack(tmp_path / "log", seed)
    for number in range(ROUNDS):
        attack.round(["never", "open", "write", "close"][number % 4])
    attack.check()
    assert attack.synced > 100 and attack.kills >= ROUNDS // 2
