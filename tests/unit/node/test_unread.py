"""What clients have not taken: how much of it there may be, and whose go first."""

import pytest

from kvorum_node.unread import AHEAD, AT_ONCE, LOOK, PATIENCE, SHARE, SHORT_PATIENCE, SMALL, TINY, Holding, Unread
from tests.unit.node.harness import VirtualTimers

MEGABYTE = 1_048_576
LIMIT = 128 * MEGABYTE


class Bench:
    def __init__(self, limit: int = LIMIT) -> None:
        self.timers = VirtualTimers()
        self.unread = Unread(limit, self.timers)
        self.ended: list[str] = []
        self.why = ""

    def call(self, name: str, *, sends: int = 0, waiting: int = 0, taken: int = 0) -> Holding:
        """One that has taken so much, and of which gRPC has so much."""

        def end(why: str) -> None:
            self.ended.append(name)
            self.why = why

        holding = Holding(self.unread, end)
        self.unread.open(holding)
        holding.sends(taken, 0, self.timers.time())
        holding.sent(waiting)
        if sends:
            holding.sends(sends, waiting, self.timers.time())
        return holding


def test_what_is_held_is_what_waits_and_twice_what_grpc_has() -> None:
    bench = Bench()
    first, second = bench.call("first", sends=100, waiting=7), bench.call("second", waiting=1_000)
    assert bench.unread.held == 207 + 1_000
    first.sent(3)
    second.over()
    assert bench.unread.held == 3
    third = bench.call("third", sends=50)
    third.over()
    assert bench.unread.held == 103, "gRPC has it still"
    for holding in (first, second, third):
        holding.close()
    assert (bench.unread.held, bench.unread._holdings) == (0, {})


def test_a_call_may_have_a_part_of_what_is_free() -> None:
    bench = Bench()
    new = bench.call("new")
    assert new.ahead == AHEAD
    bench.call("large", waiting=64 * MEGABYTE)
    assert new.ahead == 2 * MEGABYTE, "a sixteenth of what is free of three quarters"
    for number in range(1_000):
        greedy = bench.call(f"{number}")
        greedy.count(max(0, greedy.ahead))
        assert bench.unread.held < bench.unread.common
    assert 0 <= new.ahead < TINY and not new.is_full


def test_the_last_quarter_is_for_those_that_have_taken_something() -> None:
    bench = Bench()
    bench.call("large", waiting=bench.unread.common)
    new, known = bench.call("new", taken=SMALL), bench.call("known", taken=SMALL + 1)
    assert (new.is_full, known.is_full) == (True, False)
    assert (new.ahead, known.ahead) == (0, 32 * MEGABYTE // SHARE)
    known.count(32 * MEGABYTE)
    assert known.is_full


def test_an_answer_that_is_made_is_kept_if_there_is_room_or_nobody_needs_it() -> None:
    bench = Bench()
    holding = bench.call("one")
    assert holding.takes(AHEAD, 0), "nothing is held"
    bench.call("large", waiting=LIMIT // 2 + 1)
    assert [holding.takes(size, 100_000) for size in (100_000, 100_001)] == [True, False]
    assert [holding.takes(size, -1) for size in (TINY, TINY + 1)] == [True, False]


def test_who_stands_still_for_longest_goes_first_and_no_more_than_need_to() -> None:
    bench = Bench()
    size = 6 * MEGABYTE
    calls = []
    for number in range(6):
        calls.append(bench.call(f"{number}", sends=size))
        bench.timers.advance(0.1)
    bench.timers.advance(PATIENCE)
    assert bench.ended == ["0"], "72 MiB were held, and 64 are half"
    assert "128" not in bench.why and f"{LIMIT:,}" in bench.why and "unread_answers_mb" in bench.why
    calls[1].sent(0)
    calls[1].sends(size, 0, bench.timers.time())  # its client reads
    bench.call("more", sends=size)
    bench.timers.advance(LOOK)
    assert bench.ended == ["0", "2"], "what has ended is on its way out"
    assert bench.unread.statistics()["unread_ended"] == 2


def test_nobody_has_to_go_while_half_is_free() -> None:
    bench = Bench()
    for number in range(5):
        bench.call(f"{number}", sends=6 * MEGABYTE)
    bench.timers.advance(1_000)
    assert bench.ended == []


def test_patience_is_short_when_little_is_left() -> None:
    bench = Bench()
    for number in range(4):
        bench.call(f"{number}", sends=12 * MEGABYTE)
        bench.timers.advance(0.01)
    bench.timers.advance(SHORT_PATIENCE + LOOK)
    assert bench.ended == [], "96 MiB are three quarters"
    bench.call("large", waiting=1)
    bench.timers.advance(LOOK)
    assert bench.ended == ["0", "1"], "until half is free"


def test_many_are_ended_over_some_turns_of_the_loop() -> None:
    bench = Bench()
    for number in range(1_000):
        bench.call(f"{number}", sends=MEGABYTE // 10)
    bench.timers.advance(SHORT_PATIENCE)
    assert len(bench.ended) in (0, AT_ONCE)
    bench.timers.advance(PATIENCE)
    assert len(bench.ended) == 680, "as many as are needed"


def test_what_waits_is_told_when_something_is_free() -> None:
    bench = Bench()
    large, waiting = bench.call("large", waiting=LIMIT), bench.call("waiting")
    told: list[bool] = []

    def free() -> None:
        told.append(waiting.is_full)

    bench.unread.wait(waiting, free)
    bench.timers.advance(10.0)
    assert told == []
    large.close()
    bench.timers.advance(LOOK)
    bench.timers.advance(10.0)
    assert told == [False], "once"
    bench.unread.wait(waiting, free)
    waiting.close()
    bench.timers.advance(10.0)
    assert told == [False], "it has gone"


@pytest.mark.parametrize("limit", [64 * MEGABYTE, LIMIT])
def test_a_refusal_names_the_limit(limit: int) -> None:
    bench = Bench(limit)
    bench.call("large", waiting=limit + 5)
    text = bench.unread.refusal()
    assert f"{limit + 5:,} bytes" in text and f"{limit:,} (MAX_UNREAD_SIZE, unread_answers_mb)" in text
    assert "try again" in text
    assert bench.unread.statistics()["unread_refused"] == 1
