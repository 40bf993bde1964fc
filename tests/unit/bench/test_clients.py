"""Clients that are measured: what they ask of a store, and whether a lost write is noticed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.kv_ends import CALLS, DIGITS, Job, Runner

JOB = Job("set", keys=20, size=40)


class Memory:
    """A store in this process."""

    overhead = 4

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], str] = {}
        self.versions: dict[tuple[str, int], int] = {}
        self.rivals = 0
        """How often somebody else writes between a read and a swap."""

    async def set(self, space: str, key: int, value: str) -> None:
        self.rows[space, key] = value
        self.versions[space, key] = self.versions.get((space, key), 0) + 1

    async def get(self, space: str, key: int) -> str | None:
        return self.rows.get((space, key))

    get_local = get

    async def read(self, space: str, key: int) -> tuple[str | None, Any]:
        return self.rows.get((space, key)), self.versions.get((space, key), 0)

    async def swap(self, space: str, key: int, version: Any, value: str) -> Any:
        if self.rivals:
            self.rivals -= 1
            self.versions[space, key] = self.versions.get((space, key), 0) + 1
        if self.versions.get((space, key), 0) != version:
            return None
        await self.set(space, key, value)
        return self.versions[space, key]

    async def add(self, space: str, key: int) -> int:
        await self.set(space, key, str(int(self.rows.get((space, key), "0")) + 1))
        return 0

    async def list(self, space: str) -> dict[int, str]:
        return {key: value for (of, key), value in self.rows.items() if of == space}

    async def fill(self, space: str, keys: range, value: Callable[[int], str]) -> None:
        for key in keys:
            await self.set(space, key, value(key))

    async def watch(self, space: str, keys: Sequence[int], seen: Callable[[str], None]) -> None:
        raise NotImplementedError

    async def another(self) -> "Memory":
        return self


async def run(runner: Runner, call: str, times: int, callers: int = 3, **changes: Any) -> None:
    called = await CALLS[call](runner, replace(JOB, call=call, **changes))
    for number in range(times):
        await called(number % callers)


async def check(runner: Runner) -> dict[str, Any]:
    measured = await runner.prepare(Job("check"))
    return await measured(0.0, 0.0)


@pytest.mark.parametrize("call", CALLS)
async def test_each_call_leaves_what_it_was_acknowledged(call: str) -> None:
    runner = Runner(Memory())
    await run(runner, call, 50)
    found = await check(runner)
    assert found["keys"] == found["there"]
    if call not in ("get", "get_local", "list"):
        assert found["writes"] == (5 if call == "mixed" else 50)


@pytest.mark.parametrize("call", ["set", "swap", "contend", "add", "big", "many"])
async def test_a_lost_write_is_noticed(call: str) -> None:
    store = Memory()
    runner = Runner(store)
    await run(runner, call, 50)
    place = next(iter(runner.acknowledged.newest or runner.acknowledged.added))
    older = str(int(store.rows[place][:DIGITS]) - 1)
    store.rows[place] = older.zfill(DIGITS) if len(store.rows[place]) > DIGITS else older
    found = await check(runner)
    assert found["keys"] - found["there"] == 1
    await run(runner, call, 50)
    del store.rows[place]
    found = await check(runner)
    assert found["keys"] - found["there"] == 1


async def test_a_part_of_much_is_read_key_by_key() -> None:
    store = Memory()
    runner = Runner(store)
    await run(runner, "many", 10, keys=1_000)

    async def never(space: str) -> dict[int, str]:
        raise AssertionError("everything was listed")

    store.list = never  # type: ignore[method-assign]
    assert await check(runner) == {"writes": 10, "keys": 10, "there": 10}
    del store.rows["many", 3]
    await run(runner, "many", 1, keys=1_000)
    assert (await check(runner))["there"] == 9


async def test_values_have_their_size_where_they_are_stored() -> None:
    store = Memory()
    await run(Runner(store), "set", 1)
    assert {len(value) + store.overhead for value in store.rows.values()} == {JOB.size}


async def test_contenders_try_again_and_conflicts_are_counted() -> None:
    store = Memory()
    runner = Runner(store)
    store.rivals = 3
    await run(runner, "contend", 1)
    assert runner.conflicts == 3


async def test_reads_notice_that_a_key_is_not_there() -> None:
    store = Memory()
    runner = Runner(store)
    await run(runner, "get", 1)
    store.rows.clear()
    with pytest.raises(RuntimeError, match="not there"):
        await run(runner, "get", 1)
