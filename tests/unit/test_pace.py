"""The bounds of `tests.pace` bite, and leave out what is the machine's."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.pace import TURNS, Pace, Witness


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_witness_tells_of_what_comes_later_and_of_nothing_else() -> None:
    async with Witness(0):
        await turns(TURNS // 2)
    with pytest.raises(AssertionError, match="more than 0 s"):
        async with Witness(0):
            await turns(3 * TURNS)
    with pytest.raises(ValueError, match="of the block"):
        async with Witness(0):
            await turns(3 * TURNS)
            raise ValueError("of the block")


def test_waiting_for_a_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 104.0])
    waits: Iterator[dict[tuple[int, str], int]] = iter(
        [{(1, "1"): 5 * 10**9}, {(1, "1"): 6 * 10**9, (1, "2"): 10**8, (2, "2"): 10**9 // 2}]
    )
    monkeypatch.setattr("tests.pace.time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(Pace, "_waits", lambda self: next(waits))
    assert Pace().seconds() == 4.0 - 1.0 - 0.5


def test_a_process_that_is_gone_or_was_never_there_waits_for_nothing() -> None:
    assert Pace(lambda: [0, 2**31 - 1]).seconds() >= 0.0
