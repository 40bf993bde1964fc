"""Many moments behind one alarm."""

import random

import pytest

from kvorum_node.queue.deadlines import SLICE, Deadlines
from tests.unit.node.harness import VirtualTimers


class Rung:
    """Keys told of, with the moment."""

    def __init__(self) -> None:
        self.timers = VirtualTimers()
        self.told: list[tuple[float, str]] = []
        self.slices: list[int] = []
        self.deadlines: Deadlines[str] = Deadlines(self.timers, self._tell)

    def _tell(self, keys: list[str]) -> None:
        self.slices.append(len(keys))
        self.told += [(round(self.timers.time(), 6), key) for key in keys]


def test_each_is_told_of_once_at_its_moment() -> None:
    rung = Rung()
    for key, at in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        rung.deadlines.set(key, at)
    rung.timers.advance(2.5)
    assert rung.told == [(1.0, "a"), (2.0, "b")]
    rung.timers.advance(10)
    assert rung.told[2:] == [(3.0, "c")] and len(rung.deadlines) == 0


def test_one_can_be_moved_both_ways_and_taken_back() -> None:
    rung = Rung()
    rung.deadlines.set("later", 1.0)
    rung.deadlines.set("later", 5.0)
    rung.deadlines.set("sooner", 5.0)
    rung.deadlines.set("sooner", 2.0)
    rung.deadlines.set("never", 3.0)
    rung.deadlines.cancel("never")
    rung.deadlines.cancel("unknown")
    rung.deadlines.set("there and back", 1.0)
    rung.deadlines.set("there and back", 9.0)
    rung.deadlines.set("there and back", 4.0)
    rung.timers.advance(20)
    assert rung.told == [(2.0, "sooner"), (4.0, "there and back"), (5.0, "later")]


def test_a_burst_is_told_in_slices() -> None:
    rung = Rung()
    for number in range(10 * SLICE):
        rung.deadlines.set(f"{number:05}", 1.0)
    rung.timers.advance(1.0)
    assert rung.slices == [SLICE] * 10
    assert [key for _, key in rung.told] == [f"{number:05}" for number in range(10 * SLICE)]


def test_leases_that_are_extended_all_the_time_cost_no_memory_and_no_alarms() -> None:
    rung = Rung()
    for turn in range(100):
        for number in range(100):
            rung.deadlines.set(str(number), 10.0 + turn)
    assert len(rung.deadlines._heap) == 100
    for number in range(100, 10_000):
        rung.deadlines.set(str(number), 10.0)
        rung.deadlines.cancel(str(number))
    assert len(rung.deadlines._heap) < 1_000
    rung.timers.advance(108.9)
    assert rung.told == []
    rung.timers.advance(0.1)
    assert len(rung.told) == 100


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_set_and_cancelled_comes_when_it_is_due(seed: int) -> None:
    rng = random.Random(seed)
    rung = Rung()
    expected: dict[str, float] = {}
    history: list[tuple[float, str]] = []
    for _ in range(2_000):
        key = str(rng.randrange(60))
        match rng.randrange(4):
            case 0 | 1:
                at = rung.timers.time() + rng.choice([0.5, 1.0, 2.0, 4.0])
                rung.deadlines.set(key, at)
                expected[key] = at
            case 2:
                rung.deadlines.cancel(key)
                expected.pop(key, None)
            case 3:
                end = rung.timers.time() + rng.choice([0.0, 0.125, 1.0])
                due = sorted((at, key) for key, at in expected.items() if at <= end)
                history += due
                for _, key in due:
                    del expected[key]
                rung.timers.advance(end - rung.timers.time())
                assert sorted(rung.told) == sorted((round(at, 6), key) for at, key in history)
                assert len(rung.deadlines) == len(expected)
