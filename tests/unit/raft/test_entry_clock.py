"""D1: the cluster's time never goes back, and no single clock can poison it."""

import pytest

from kvorum_raft.entry_clock import MAX_STEP_MS, EntryClock

TRUE = 1_700_000_000_000
YEAR = 365 * 86_400_000


class Bench:
    """One node's clock among others; `wall_error` is what its own wall clock is off."""

    def __init__(self, wall_error: int = 0) -> None:
        self.now = 100.0
        self.wall_error = wall_error
        self.clock = EntryClock("A", lambda: self.true + self.wall_error, lambda: self.now)

    @property
    def true(self) -> int:
        return TRUE + int(self.now * 1000)

    def hear(self, node_id: str, error: int) -> None:
        self.clock.observe(node_id, self.true + error, self.now)


def test_a_leader_starts_at_the_lower_median_of_a_quorum() -> None:
    bench = Bench(wall_error=4000)
    bench.hear("B", 0)
    bench.clock.take_office(0, 2)
    assert bench.clock.now_ms() == bench.true


@pytest.mark.parametrize("error", [YEAR, -YEAR])
def test_one_clock_a_year_off_does_not_matter(error: int) -> None:
    for own, others in ((error, (0, 0)), (0, (error, 0))):
        bench = Bench(wall_error=own)
        for node_id, other in zip("BC", others, strict=True):
            bench.hear(node_id, other)
        bench.clock.take_office(bench.true - 10, 2)
        assert abs(bench.clock.now_ms() - bench.true) <= 10


@pytest.mark.parametrize("error", [YEAR, 5000])
def test_slow_answers_are_enough_against_a_wrong_clock_in_a_new_log(error: int) -> None:
    bench = Bench(wall_error=error)
    asked_at = bench.now
    bench.now += 0.5
    bench.clock.observe("B", bench.true, asked_at)
    bench.now += 0.5
    bench.clock.take_office(0, 2)
    assert bench.true - 1000 <= bench.clock.now_ms() <= bench.true


def test_it_never_starts_below_the_last_entry() -> None:
    bench = Bench()
    bench.hear("B", 0)
    bench.clock.take_office(bench.true + 5000, 2)
    assert bench.clock.now_ms() == bench.true + 5000


def test_a_step_of_more_than_a_day_needs_a_quorum_that_agrees() -> None:
    bench = Bench(wall_error=2000)
    old = bench.true - 2 * MAX_STEP_MS
    bench.hear("B", 0)
    bench.clock.take_office(old, 2)
    assert bench.clock.now_ms() == old
    bench.hear("C", 2100)
    bench.clock.steer(2)
    assert bench.clock.now_ms() == bench.true + 2000


def test_afterwards_it_leans_towards_the_median_by_a_tenth_at_most() -> None:
    for error in (60_000, -60_000):
        bench = Bench()
        bench.hear("B", 0)
        bench.clock.take_office(0, 2)
        bench.hear("B", error)
        bench.hear("C", error)
        bench.wall_error = error
        start, last = bench.now, bench.clock.now_ms()
        for _ in range(100):
            bench.now += 0.1
            bench.clock.steer(2)
            assert bench.clock.now_ms() >= last
            last = bench.clock.now_ms()
        elapsed = (bench.now - start) * 1000
        assert last - (TRUE + start * 1000) == pytest.approx(elapsed * (1.1 if error > 0 else 0.9), rel=0.01)


def test_a_guess_follows_the_leader_and_never_falls_below_a_seen_entry() -> None:
    bench = Bench(wall_error=-YEAR)
    bench.clock.follow(bench.true, bench.true)
    bench.now += 1.0
    assert bench.clock.now_ms() == bench.true
    bench.clock.entry_seen(bench.true + 77)
    assert bench.clock.now_ms() == bench.true + 77


def test_a_node_knows_that_its_own_clock_is_off() -> None:
    bench = Bench(wall_error=1500)
    assert not bench.clock.own_clock_is_off(2), "alone it cannot know"
    bench.clock.follow(bench.true, bench.true)
    assert bench.clock.own_clock_is_off(2)
    bench.wall_error = 500
    assert not bench.clock.own_clock_is_off(2)


def test_an_answer_that_took_long_says_nothing_about_a_clock() -> None:
    bench = Bench()
    bench.clock.observe("B", bench.true - 3000, bench.now - 3.0)
    assert bench.clock.median_ms(2) is None
    bench.clock.observe("B", bench.true - 100, bench.now - 0.2)
    assert bench.clock.median_ms(2) == bench.true


def test_leaving_and_taking_office_never_goes_back() -> None:
    bench = Bench(wall_error=-50_000)
    bench.clock.take_office(bench.true, 1)
    bench.now += 3.0
    before = bench.clock.now_ms()
    bench.clock.entry_seen(before)
    bench.clock.leave_office()
    bench.clock.take_office(0, 1)
    assert bench.clock.now_ms() >= before
