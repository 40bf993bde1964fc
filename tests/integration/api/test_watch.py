"""watch, on every kind of database and with both clients."""

import asyncio

import pytest

import kvorum
from kvorum.errors import LimitExceeded
from tests.integration.api.conftest import Open

PATIENCE = 60.0


async def values_until(watch: kvorum.Watch, wanted: list[object]) -> list[list[object]]:
    """All emissions up to the one that shows the wanted values."""
    seen: list[list[object]] = []
    async with asyncio.timeout(PATIENCE):
        async for entries in watch:
            seen.append([entry.value for entry in entries])
            if seen[-1] == wanted:
                return seen
    raise AssertionError(f"the watch ended, having shown {seen}")


async def test_the_first_emission_comes_at_once_in_the_order_asked_for(kv: kvorum.Kv, space: str) -> None:
    a, b = (space, "a"), (space, "b")
    stamp = (await kv.set(b, 1)).versionstamp
    watch = kv.watch([b, a, b])
    entries = await asyncio.wait_for(anext(watch), PATIENCE)
    assert entries == [(b, 1, stamp), (a, None, None), (b, 1, stamp)]
    await watch.aclose()


async def test_all_keys_of_a_commit_change_together_and_a_deleted_one_shows_as_absent(
    kv: kvorum.Kv, space: str
) -> None:
    a, b = (space, "a"), (space, "b")
    watch = kv.watch([a, b])
    assert await values_until(watch, [None, None]) == [[None, None]]
    for number in range(50):
        await kv.atomic().set(a, number).set(b, -number).commit()
    seen = await values_until(watch, [49, -49])
    assert all(first == -second for first, second in seen)  # type: ignore[operator]
    assert [pair[0] for pair in seen] == sorted({pair[0] for pair in seen})  # type: ignore[type-var]
    await kv.delete(a)
    assert await values_until(watch, [None, -49]) == [[None, -49]]
    await watch.aclose()


async def test_what_changes_nothing_emits_nothing(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch([(space, "a")])
    await values_until(watch, [None])
    await kv.delete((space, "a"))
    await kv.set((space, "b"), 1)
    await kv.set((space, "a"), "seen")
    assert await values_until(watch, ["seen"]) == [["seen"]]
    await watch.aclose()


async def test_a_raw_watch_emits_for_mutations_that_change_nothing(kv: kvorum.Kv, space: str) -> None:
    key = (space, "a")
    watch = kv.watch([key], raw=True)
    await values_until(watch, [None])
    for _ in range(3):
        await kv.delete(key)
        assert (await asyncio.wait_for(anext(watch), PATIENCE))[0] == (key, None, None)
    await watch.aclose()


@pytest.mark.parametrize("target", ["cluster"], indirect=True)  # a folder has one client at a time
async def test_a_change_by_another_client_is_seen(open_client: Open, space: str) -> None:
    writer, watcher = await open_client(), await open_client()
    watch = watcher.watch([(space,)])
    await values_until(watch, [None])
    await writer.set((space,), "from elsewhere")
    await values_until(watch, ["from elsewhere"])
    await watch.aclose()


async def test_no_keys_end_at_once_and_too_many_are_refused(kv: kvorum.Kv, space: str) -> None:
    assert [entries async for entries in kv.watch([])] == []
    with pytest.raises(LimitExceeded) as error:
        kv.watch([(space, number) for number in range(11)])
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_WATCHED_KEYS", 10, 11)


async def test_closing_a_watch_ends_it_for_the_one_who_waits(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch([(space,)])
    await values_until(watch, [None])
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await asyncio.wait_for(watch.aclose(), PATIENCE)
    assert await asyncio.wait_for(waiting, PATIENCE) is None
    assert [entries async for entries in watch] == []


async def test_closing_the_client_ends_its_watches(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch([(space,)])
    await values_until(watch, [None])
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await asyncio.wait_for(kv.close(), PATIENCE)
    assert await asyncio.wait_for(waiting, PATIENCE) is None
