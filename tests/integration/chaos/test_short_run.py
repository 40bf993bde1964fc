"""A short run on real processes, by the command that people use."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import linearizability, serializability
from chaos.history import load

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(90)
def test_a_short_run_finds_nothing_and_says_what_it_did(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos", "--seconds", "8", "--seed", "5", "--dir", str(tmp_path), "--keep"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=80, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"chaos: ok faults (\d+) \((.+)\) operations (\d+) \(ok (\d+), not applied (\d+), unknown (\d+)\)"
        r" retries (\d+) messages (\d+) deliveries (\d+)",
        last,
    )
    assert found is not None, last
    faults, _, operations, ok, denied, unknown, _, messages, deliveries = found.groups()
    assert int(faults) >= 1
    assert int(operations) == int(ok) + int(denied) + int(unknown)
    assert int(ok) > 500
    assert int(deliveries) >= int(messages) > 0
    (folder,) = tmp_path.iterdir()
    history = list(load(folder / "resolved.jsonl"))
    assert len(history) == int(operations)
    assert linearizability.check(history).ok
    assert serializability.check(history).ok
