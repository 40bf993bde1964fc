"""The judges of duties: a run on a sound database is fine, and each thing that must not be seen is noticed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest

import kvorum
from chaos.duties.deed import Deed, Duty, export, load, told
from chaos.duties.doing import ACCOUNTS, START, Duties, final
from chaos.duties.judge import SOONEST, judge, proves
from tests.unit.chaos.moments import stamp

S = [str(stamp(number)) for number in range(20)]
SECOND = 1_000_000_000


def problems(*deeds: Deed) -> dict[Duty, list[str]]:
    """Of the duties that have any."""
    return {duty: found for duty, found in judge(deeds).items() if found}


def deed(duty: Duty, what: str, begin: int, end: int, **more: object) -> Deed:
    return replace(Deed(duty, 0, what, begin, end, "ok"), **more)  # type: ignore[arg-type]


@pytest.fixture
async def kv() -> AsyncIterator[kvorum.Kv]:
    async with kvorum.open_kv(":memory:") as kv:
        yield kv


async def test_what_duties_see_of_a_sound_database_is_valid(kv: kvorum.Kv, tmp_path: Path) -> None:
    deeds: list[Deed] = []
    stop = asyncio.Event()
    both = [Duties(kv, process, Random(process), deeds, thinking=0.002) for process in range(2)]
    watching = [asyncio.create_task(duties.watch()) for duties in both]
    working = asyncio.gather(*(duties.run(stop) for duties in both))
    while len(deeds) < 3_000 or proves(deeds):
        assert not working.done()
        await asyncio.sleep(0.01)
    stop.set()
    await working
    await asyncio.gather(*(duties.come_to_an_end() for duties in both))
    await final(kv, deeds, 5_000)
    await kv.close()
    await asyncio.gather(*watching)
    assert problems(*deeds) == {}
    assert {one.duty for one in deeds} == set(get_args(Duty))
    export(deeds, tmp_path / "deeds")
    assert list(load(tmp_path / "deeds")) == deeds
    last = next(one for one in reversed(deeds) if one.duty == "counter" and one.what == "read")
    for planted, duty in (
        (replace(last, numbers=(last.numbers[0] - 1,)), "counter"),
        (deed("bank", "read", 1, 2, numbers=(START,) * (ACCOUNTS - 1) + (START - 1,)), "bank"),
    ):
        assert duty in problems(*deeds, planted)


def test_nothing_proves_nothing() -> None:
    assert len(proves([])) == 10
    assert told([deed("bank", "read", 1, 2)]) == "ok 1, not applied 0, unknown 0"


def test_accounts_that_are_overdrawn() -> None:
    balances = (-1, START + 1, *(START,) * (ACCOUNTS - 2))
    assert list(problems(deed("bank", "read", 1, 2, numbers=balances))) == ["bank"]


ADD = deed("counter", "add", 10, 20, stamp=S[1])


@pytest.mark.parametrize(
    ("deeds", "fine"),
    [
        ([ADD, deed("counter", "read", 21, 30, numbers=(1,))], True),
        ([ADD, deed("counter", "read", 21, 30, numbers=(0,))], False),
        ([ADD, deed("counter", "read", 15, 30, numbers=(0,))], True),
        ([ADD, deed("counter", "read", 1, 5, numbers=(1,))], False),
        ([replace(ADD, outcome="unknown"), deed("counter", "read", 21, 30, numbers=(0,))], True),
        ([replace(ADD, outcome="not applied"), deed("counter", "read", 21, 30, numbers=(1,))], False),
        (
            [
                replace(ADD, outcome="unknown"),
                deed("counter", "read", 21, 30, numbers=(1,)),
                deed("counter", "read", 31, 40, numbers=(0,)),
            ],
            False,
        ),
    ],
)
def test_a_counter(deeds: list[Deed], fine: bool) -> None:
    assert (problems(*deeds) == {}) is fine


IN = deed("set", "add", 10, 20, stamp=S[1], token="g", names=("x",))


@pytest.mark.parametrize(
    ("deeds", "fine"),
    [
        ([IN, deed("set", "read", 21, 30, token="g", names=("x",))], True),
        ([IN, deed("set", "read", 21, 30, token="g")], False),
        ([IN, deed("set", "read", 21, 30, token="other")], True),
        ([IN, deed("set", "read", 1, 5, token="g", names=("x",))], False),
        ([replace(IN, outcome="not applied", stamp=""), deed("set", "read", 21, 30, token="g", names=("x",))], False),
        ([deed("set", "read", 21, 30, token="g", names=("y",))], False),
        (
            [
                replace(IN, outcome="unknown", stamp=""),
                deed("set", "read", 21, 30, token="g", names=("x",)),
                deed("set", "read", 31, 40, token="g"),
            ],
            False,
        ),
    ],
)
def test_a_set(deeds: list[Deed], fine: bool) -> None:
    assert (problems(*deeds) == {}) is fine


TAKEN = deed("lock", "take", 0, 10, stamp=S[1])
WRITTEN = deed("lock", "write", 11, 12, token=S[1], stamp=S[2])
LATE = int((SOONEST + 1) * SECOND)
AGAIN = deed("lock", "take", LATE, LATE + 10, stamp=S[3])


@pytest.mark.parametrize(
    ("deeds", "fine"),
    [
        ([TAKEN, WRITTEN, AGAIN], True),
        # the former owner writes although somebody else has taken it
        ([TAKEN, AGAIN, replace(WRITTEN, stamp=S[4])], False),
        ([TAKEN, AGAIN, replace(WRITTEN, outcome="unknown", stamp="")], True),
        ([WRITTEN], False),
        ([TAKEN, replace(TAKEN, invoked=LATE, returned=LATE)], False),
        # taken again before the lease was over, or released
        ([TAKEN, replace(AGAIN, invoked=20, returned=30)], False),
        ([TAKEN, deed("lock", "release", 11, 12, token=S[1], stamp=S[2]), replace(AGAIN, returned=30)], True),
        ([TAKEN, WRITTEN, deed("lock", "read", 50, 60, numbers=(1,))], True),
        ([TAKEN, WRITTEN, deed("lock", "read", 50, 60, numbers=(2,))], False),
        ([TAKEN, WRITTEN, deed("lock", "read", 50, 60, numbers=(0,))], False),
    ],
)
def test_a_lock(deeds: list[Deed], fine: bool) -> None:
    assert (problems(*deeds) == {}) is fine


OPEN = deed("watch", "open", 0, 0)
SIGHT = deed("watch", "see", 21, 21, stamp=S[1], numbers=(1,))
READY = deed("watch", "ready", 1, 1, stamp=S[0])
TOLD = deed("watch", "told", 25, 25, stamp=S[1], names=("x",))
SECOND_ADD = replace(ADD, stamp=S[2], invoked=22, returned=23)


@pytest.mark.parametrize(
    ("deeds", "fine"),
    [
        ([OPEN, ADD, SIGHT], True),
        ([OPEN, ADD], False),
        ([OPEN, ADD, SECOND_ADD, SIGHT], False),
        ([OPEN, ADD, SECOND_ADD, replace(SIGHT, stamp=S[2], numbers=(2,), returned=24), SIGHT], False),
        ([OPEN, ADD, replace(SIGHT, numbers=(2,))], False),
        ([OPEN, ADD, deed("counter", "read", 5, 30, stamp=S[1], numbers=(0,)), SIGHT], False),
        ([READY, IN, TOLD], True),
        ([READY, IN], False),
        ([READY, IN, TOLD, TOLD], False),
        ([READY, IN, replace(TOLD, stamp=S[2])], False),
        ([READY, IN, TOLD, replace(TOLD, stamp=S[2], names=("y",))], False),
        ([READY, replace(IN, outcome="not applied", stamp=""), TOLD], False),
        ([READY, replace(IN, outcome="unknown", stamp=""), TOLD], True),
        # x is left out, though something later is told
        ([READY, IN, replace(IN, stamp=S[2], names=("z",)), replace(TOLD, stamp=S[2], names=("z",))], False),
    ],
)
def test_watches(deeds: list[Deed], fine: bool) -> None:
    assert (problems(*deeds) == {}) is fine
