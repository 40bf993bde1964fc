"""The examples, on every kind of database; each checks its own result."""

import asyncio
import importlib
import subprocess
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

import kvorum
from examples import issuing, mails
from tests.integration.api.jumping import Jumps, play
from tests.integration.cluster_fixture import ThreeNodes
from tests.pace import BUSY

ROOT = Path(__file__).parents[3]
EXAMPLES = (
    *("profiles", "tickets", "votes", "wall", "leaderboard", "transfer"),
    *("issuing", "exactly_once", "mails", "webhooks", "workers", "documents", "answers", "ordered", "idempotency"),
    *("many_queues", "locks"),
)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_checks_itself(target: str, name: str) -> None:
    """Scenarios 1 to 16, and locks."""
    example = importlib.import_module(f"examples.{name}").example
    if name == "mails":
        example = partial(example, day=mails.SHORT_DAY * BUSY)  # in a day it does something before the next one
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


async def test_orders_to_issue_tickets_survive_a_restart_of_everything(tmp_path: Path) -> None:
    """Scenario 7, on a folder and on a cluster."""
    folder = str(tmp_path / "data.kv")
    async with kvorum.open_kv(folder) as kv:
        tickets = await issuing.begin(kv)
    async with kvorum.open_kv(folder) as kv:
        assert (await issuing.finish(kv, tickets)).startswith("issuing: ok, 3 tickets")
    with ThreeNodes(tmp_path) as cluster:
        async with kvorum.open_kv(cluster.url) as kv:
            tickets = await issuing.begin(kv)
        for number in range(3):
            await asyncio.to_thread(cluster.kill, number)
        await asyncio.to_thread(cluster.start_all)
        async with kvorum.open_kv(cluster.url) as kv:
            assert (await issuing.finish(kv, tickets)).startswith("issuing: ok, 3 tickets")


async def test_examples_of_queues_go_on_without_their_leader(tmp_path: Path) -> None:
    """It is killed while they run, and comes back."""
    with ThreeNodes(tmp_path) as cluster:
        async with kvorum.open_kv(cluster.url, timeout=timedelta(seconds=30)) as kv:
            for name in ("exactly_once", "workers", "ordered", "many_queues"):
                victim = await asyncio.to_thread(cluster.leader)
                playing = asyncio.create_task(importlib.import_module(f"examples.{name}").example(kv))
                await asyncio.to_thread(cluster.kill, victim)
                assert not playing.done()
                await asyncio.to_thread(cluster.start, victim)
                assert (await playing).startswith(f"{name}: ok")


def test_a_survey_is_mailed_after_three_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 9, with days of 24 hours."""

    async def mail(jumps: Jumps) -> str:
        async def passes(duration: timedelta) -> None:
            jumps.pass_by(duration)

        async with kvorum.open_kv(str(tmp_path / "data.kv")) as kv:
            return await mails.example(kv, day=timedelta(days=1), passes=passes)

    assert play(mail, monkeypatch) == "mails: ok, 8 mails sent, 1 cancelled"
