"""Some dozens of whole-node schedules in CI; `scripts/sim` plays as many as one likes.

They run in processes of their own, because a seed is one schedule only under a fixed hash seed.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.whole import schedule
from tests.simulation.whole.__main__ import ENOUGH, MINIMUM, blind_spots
from tests.simulation.whole.clock import Clock, ProcessLoop, Stuck

ROOT = Path(__file__).parents[2]


def _sim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.whole", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _figure(output: str, name: str) -> int:
    found = re.search(rf"\b{name} (\d+)", output.strip().splitlines()[-1])
    assert found is not None, output
    return int(found[1])


@pytest.mark.parametrize(("first", "seeds", "nodes"), [(0, 26, 3), (5000, 4, 5)])
def test_whole_nodes_keep_every_promise(first: int, seeds: int, nodes: int) -> None:
    ended = _sim("--seeds", str(seeds), "--first-seed", str(first), "--nodes", str(nodes))
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert _figure(ended.stdout, "seeds") == seeds
    assert _figure(ended.stdout, "violations") == _figure(ended.stdout, "unconverged") == 0
    assert ended.stderr == ""


def test_one_seed_is_one_schedule() -> None:
    first, second = (_sim("--seed", "6", "--trace") for _ in range(2))
    assert first.returncode == 0
    assert len(first.stdout.splitlines()) > 1000
    # All but the last line, which says how long it took.
    assert first.stdout.splitlines()[:-1] == second.stdout.splitlines()[:-1]


def test_seeds_differ() -> None:
    assert schedule.run(1).digest != schedule.run(2).digest


def test_a_blind_run_is_no_success() -> None:
    enough = Counter({name: round(ENOUGH * least) + 1 for name, least in MINIMUM.items()})
    assert blind_spots(enough, ENOUGH) == []
    del enough["kill"]
    assert [spot.partition(":")[0] for spot in blind_spots(enough, ENOUGH)] == ["kill"]


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
