"""A fault that others have met in the field, on real nodes; tests/simulation/test_cases.py has the others."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_p41_snapshots_under_many_client_threads_neither_hang_nor_start_a_process(tmp_path: Path) -> None:
    """A process of its own: the hook that sees forks cannot be taken away again."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.integration.raft.forkless", str(tmp_path), "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["processes"] == []
    assert (result["hanging"], result["failures"]) == (0, [])
    assert min(result["checkpoints"]) >= 3
    assert result["checkpoint_failures"] == [0, 0, 0]
    assert result["operations"] > 200
    assert result["slowest"] < 10
