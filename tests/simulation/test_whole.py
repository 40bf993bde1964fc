"""A hundred whole-node schedules in CI; `scripts/sim` plays as many as one likes.

They run in processes of their own, because a seed is one schedule only under a fixed hash seed.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvorum_node.store.sessions import SessionLog
from tests.simulation.whole import crew, mutations, schedule
from tests.simulation.whole.__main__ import ENOUGH, MINIMUM, blind_spots
from tests.simulation.whole.clock import Clock, ProcessLoop, Stuck
from tests.simulation.whole.mutations import RULES
from tests.simulation.whole.plots import PLOTS
from tests.simulation.whole.troubles import WEIGHTS

ROOT = Path(__file__).parents[2]


def _sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.whole", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def _figure(output: str, name: str) -> int:
    found = re.search(rf"\b{name} (\d+)", output.strip().splitlines()[-1])
    assert found is not None, output
    return int(found[1])


@pytest.mark.timeout(620)
def test_whole_nodes_keep_every_promise() -> None:
    """Three nodes, and five in every third seed."""
    ended = _sim("--seeds", "100")
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert _figure(ended.stdout, "seeds") == 100
    for name in ("violations", "unconverged", "undecided"):
        assert _figure(ended.stdout, name) == 0
    assert ended.stderr == ""


def test_one_seed_is_one_schedule() -> None:
    first, second = (_sim("--seed", "6", "--trace") for _ in range(2))
    assert first.returncode == 0, first.stdout[-2000:]
    assert len(first.stdout.splitlines()) > 1000
    # All but the last line, which says how long it took.
    assert first.stdout.splitlines()[:-1] == second.stdout.splitlines()[:-1]


def test_a_seed_is_the_same_in_whichever_process_it_is_played() -> None:
    settings = schedule.Settings()
    found = list(crew.play_all([3, 4, 5], settings, 2))
    assert sorted(one.seed for one in found) == [3, 4, 5]
    again = {one.seed: one for one in crew.play_all([5, 3], settings, 2)}
    assert {one.seed: one for one in found if one.seed != 4} == again


def test_a_seed_without_a_rule_fails() -> None:
    """One rule here; `scripts/sim --mutations` disables all of them in turn."""
    ended = _sim("--seeds", "4", "--first-seed", "5", "--rule", "session dedup", "--stop-at-first")
    assert ended.returncode == 1
    assert _figure(ended.stdout, "violations") == 1
    assert "has two answers" in ended.stdout


@pytest.mark.parametrize(
    ("rule", "finding"),
    [
        ("what never began is no attempt", "queues: attempts"),
        ("the head of a group stays its head", "queues: order"),
        ("ids are remembered", "whose id is remembered for"),
        ("a past is copied in its turn", "behind what was sent later"),
        ("timers go with their queue", "whose id is remembered for"),
        ("an empty inbox is forgotten", "queues: inbox "),
        ("rights are state", "to another "),
        ("rights are judged in apply", "was done, and should have been refused"),
    ],
)
def test_without_a_rule_seeds_fail(rule: str, finding: str) -> None:
    ended = _sim("--seeds", "24", "--rule", rule, "--stop-at-first")
    assert ended.returncode == 1
    assert finding in ended.stdout


@pytest.mark.parametrize(
    ("plot", "rule", "finding"),
    [
        ("stale_leader", "ReadIndex needs a round", "serializability, invalid"),
        ("old_snapshot", "snapshots up to the commit index are ignored", "a snapshot brings node"),
    ],
)
def test_a_plot_is_fatal_to_a_product_without_its_rule(plot: str, rule: str, finding: str) -> None:
    """And to nothing else: the same seeds with all rules are good."""
    without = _sim("--seeds", "4", "--plot", plot, "--rule", rule, "--stop-at-first")
    assert without.returncode == 1
    assert finding in without.stdout
    played = _figure(without.stdout, "seeds")
    whole = _sim("--seeds", str(played), "--plot", plot)
    assert whole.returncode == 0, whole.stdout
    assert f"plot {plot} {played}" in whole.stdout


def test_a_killed_leader_is_soon_followed_by_another_one() -> None:
    """Twenty times; `python -m tests.simulation.whole.elections` kills as often as one likes."""
    command = [sys.executable, "-m", "tests.simulation.whole.elections"]
    for kills, aim, status in (("20", "2.0", 0), ("2", "0.4", 1)):  # nobody campaigns as early as that
        ended = subprocess.run(
            [*command, "--kills", kills, "--aim", aim],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == status, ended.stdout + ended.stderr
        assert f"elections: disk good kills {kills} " in ended.stdout


def test_no_rule_is_forgotten() -> None:
    assert len(RULES) == 31
    with pytest.raises(KeyError):
        mutations.disabled("another one")


def test_a_rule_is_enabled_again() -> None:
    before = SessionLog.judge
    with mutations.disabled("session dedup"):
        assert SessionLog.judge is not before
    assert SessionLog.judge is before


def test_the_plain_class_fails() -> None:
    ended = _sim("--plain", "--seeds", "12")
    assert ended.returncode == 0, ended.stdout
    assert _figure(ended.stdout, "violations") >= 3


def test_seeds_differ() -> None:
    assert schedule.run(1).digest != schedule.run(2).digest


def test_a_blind_run_is_no_success() -> None:
    enough = Counter({name: round(ENOUGH * least) + 1 for name, least in MINIMUM.items()})
    assert blind_spots(enough, ENOUGH) == []
    del enough["kill"]
    assert [spot.partition(":")[0] for spot in blind_spots(enough, ENOUGH)] == ["kill"]


def test_every_move_has_a_minimum() -> None:
    assert {*WEIGHTS, *(f"plot {name}" for name in PLOTS)} <= MINIMUM.keys()


# ---- the loop


def test_time_passes_only_from_event_to_event() -> None:
    clock = Clock()
    loop = ProcessLoop(clock, "p", rate=2.0, began=100.0)
    seen: list[float] = []
    loop.run(lambda: loop.call_later(3.0, lambda: seen.append(loop.time())))
    clock.run_until(1.4)
    assert not seen
    clock.run_until(10.0)
    assert len(seen) == 1
    assert 103.0 <= seen[0] < 103.001, "never early, hardly late"
    assert clock.now == 10.0


@pytest.mark.parametrize("timers_first", [True, False])
def test_a_paused_process_gets_its_input_and_its_timers_when_it_goes_on(timers_first: bool) -> None:
    clock = Clock()
    loop = ProcessLoop(clock, "p")
    seen: list[str] = []
    loop.run(lambda: loop.call_later(1.0, seen.append, "timer"))
    loop.pause()
    clock.after(2.0, loop.run, seen.append, "input")
    clock.run_until(3.0)
    assert seen == []
    loop.go_on(timers_first=timers_first)
    assert seen == (["timer", "input"] if timers_first else ["input", "timer"])


def test_a_killed_process_does_nothing_more() -> None:
    clock = Clock()
    loop = ProcessLoop(clock, "p")
    seen: list[str] = []

    def die() -> None:
        loop.call_soon(seen.append, "soon")
        loop.call_later(1.0, seen.append, "later")
        loop.kill()

    loop.run(die)
    loop.run(seen.append, "input")
    clock.run_until(5.0)
    assert seen == []


def test_a_process_that_spins_is_found() -> None:
    loop = ProcessLoop(Clock(), "p")

    def spin() -> None:
        loop.call_soon(spin)

    with pytest.raises(Stuck):
        loop.run(spin)


def test_each_process_runs_in_its_own_loop_and_threads_run_in_none() -> None:
    clock = Clock()
    loops = [ProcessLoop(clock, name) for name in "pq"]
    seen: list[Any] = []

    def look() -> None:
        seen.append(asyncio.get_running_loop())

    def look_and_call() -> None:
        loops[1].run(look)  # the other one, in the middle of this one's callback
        look()

    def thread() -> None:
        clock.enter(None)
        with pytest.raises(RuntimeError, match="no running event loop"):
            look()

    for loop in loops:
        clock.at(1.0, loop.run, look)
    clock.at(2.0, loops[0].run, look_and_call)
    clock.at(3.0, thread)
    clock.at(4.0, loops[0].run, look)
    clock.run_until(5.0)
    loops[1].run(look)  # while time stands still
    assert seen == [loops[0], loops[1], loops[1], loops[0], loops[0], loops[1]]
    with pytest.raises(RuntimeError, match="no running event loop"):
        look()


def test_a_callback_that_fails_is_told_of_and_the_next_one_runs() -> None:
    clock = Clock()
    told: list[tuple[str, str]] = []
    loop = ProcessLoop(clock, "p", on_error=lambda name, context: told.append((name, repr(context["exception"]))))
    seen: list[int] = []
    loop.call_soon(lambda: 1 // 0)
    loop.call_soon(seen.append, 1)
    loop.call_soon(seen.append, 2).cancel()
    clock.run_until(1.0)
    assert seen == [1]
    assert told == [("p", "ZeroDivisionError('integer division or modulo by zero')")]
