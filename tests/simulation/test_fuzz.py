"""A few dozen random schedules in CI; `python -m tests.simulation.fuzz` plays as many as one likes."""

import logging

import pytest

from tests.simulation import fuzz


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "pysyncobj.syncobj")
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.mark.parametrize("seed", range(60))
def test_three_nodes_keep_every_promise(seed: int) -> None:
    finding, schedule = fuzz.run(seed)
    assert finding == ""
    assert schedule.judge.leaders, "a schedule without a leader proves nothing"


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_five_nodes_keep_every_promise(seed: int) -> None:
    assert fuzz.run(seed, nodes=5)[0] == ""


def test_schedules_do_something() -> None:
    schedules = [fuzz.run(seed)[1] for seed in range(200, 210)]
    assert sum(len(schedule.judge.acked) for schedule in schedules) > 500
    assert sum(schedule.judge.reads for schedule in schedules) > 50
    assert sum(schedule.crashes for schedule in schedules) > 20
    assert sum(len(schedule.judge.leaders) for schedule in schedules) > 20


def test_the_judge_sees_the_faults_of_the_plain_core() -> None:
    assert sum(fuzz.run(seed, plain=True)[0] != "" for seed in range(15)) >= 3


def test_one_seed_is_one_schedule() -> None:
    first, second = (fuzz.run(7)[1] for _ in range(2))
    assert first.judge.history == second.judge.history
    assert first.world.clock.now == second.world.clock.now
