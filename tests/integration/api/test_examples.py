"""The examples, on every kind of database; each checks its own result."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kvorum

ROOT = Path(__file__).parents[3]
EXAMPLES = ("profiles", "tickets", "votes", "wall", "leaderboard", "transfer")


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_checks_itself(target: str, name: str) -> None:
    """Scenarios 1 to 6."""
    example = importlib.import_module(f"examples.{name}").example
    async with kvorum.open_kv(target) as kv:
        for _ in range(2):  # it does not mind what an earlier run has left
            assert (await example(kv)).startswith(f"{name}: ok")


def test_all_examples_are_tested() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__", "stage"}
    assert found == set(EXAMPLES)


def test_an_example_runs_from_the_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.profiles", str(tmp_path / "data.kv")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "profiles: ok, 2,500 voices in 3 pages\n"), done.stderr
