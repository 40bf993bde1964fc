"""A few dozen random schedules in CI; `python -m tests.simulation.fuzz` plays as many as one likes.

They run in processes of their own, because a seed is one schedule only under a fixed hash seed.
"""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import fuzz
from tests.simulation.fuzz_moves import MINIMUM

ROOT = Path(__file__).parents[2]


def _fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.fuzz", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", [0, 60])
def test_three_nodes_keep_every_promise(first: int) -> None:
    """Together with joining and removed nodes, snapshots, transfers, power cuts; and all of that really happens."""
    ended = _fuzz("--seeds", "60", "--first-seed", str(first), "--minimums")
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert ended.stdout.splitlines()[-1].startswith("60 seeds, 0 bad {}")


@pytest.mark.timeout(400)
def test_five_nodes_keep_every_promise() -> None:
    ended = _fuzz("--seeds", "10", "--first-seed", "1000", "--nodes", "5")
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]


def test_too_few_events_are_a_failure() -> None:
    ended = _fuzz("--seeds", "1", "--first-seed", "4", "--minimums")
    assert ended.returncode == 1
    assert re.search(r"^too seldom: .*promoted", ended.stdout, re.MULTILINE), "seed 4 changes no members"
    assert {"installs", "promoted", "removed leaders", "unsynced losses"} <= MINIMUM.keys()


def test_the_judge_sees_the_faults_of_the_plain_core(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")
    assert sum(fuzz.run(seed, plain=True)[0] != "" for seed in range(8)) >= 3


def test_one_seed_is_one_schedule() -> None:
    first, second = (_fuzz("--seeds", "2", "--first-seed", "7").stdout.splitlines() for _ in range(2))
    assert len(first) > 1
    without_time = [re.sub(r"[\d.]+ s$", "", line) for line in first]
    assert without_time == [re.sub(r"[\d.]+ s$", "", line) for line in second]
