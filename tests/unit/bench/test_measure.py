"""What callers are said to have seen."""

import asyncio

import pytest

from bench import measure
from bench.measure import between, clock, figures, quantile


class Clock:
    """Goes on by a millisecond each time that it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


async def test_calls_that_are_never_answered_are_counted_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "clock", Clock())
    monkeypatch.setattr(measure, "PATIENCE", 0.0)
    cancelled: list[int] = []

    async def call(caller: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(caller)
            raise

    row = await between(call, 3, 0.0, 0.05)
    assert (row["given_up"], row["calls"], row["rate"]) == (3, 0, 0.0)
    assert sorted(cancelled) == [0, 1, 2]
    assert row["p50_ms"] > 0


async def test_a_call_that_fails_ends_the_run_at_once() -> None:
    async def call(caller: int) -> None:
        if caller:
            await asyncio.Event().wait()
        raise ValueError("refused")

    begin = clock()
    with pytest.raises(ValueError, match="refused"):
        await between(call, 2, begin, begin + 3_600.0)


async def test_only_what_began_and_was_answered_in_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "clock", time := Clock())

    async def call(caller: int) -> None:
        time.now += 0.009

    row = await between(call, 1, 0.1, 0.2)
    # Each call takes 10 ms and one more until the next begins: about nine of them in the 100 ms that count.
    assert row["calls"] in (8, 9, 10)
    assert row["p50_ms"] == pytest.approx(10.0)


def test_figures_are_of_sorted_times() -> None:
    times = [at / 1000 for at in range(1, 101)]
    assert quantile(times, 0.5) == 0.051
    assert quantile(times, 1.0) == 0.1
    assert quantile([], 0.5) == 0.0
    assert figures(times, 50, 2.0) == {"rate": 25.0, "calls": 50, "p50_ms": 51.0, "p99_ms": 100.0, "max_ms": 100.0}
