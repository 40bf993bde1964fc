"""watch_prefix and follow, on every kind of database and with both clients."""

import asyncio
from typing import Any

import pytest

import kvorum
from kvorum.errors import Compacted, InvalidArgument, InvalidKey
from tests.integration.api.conftest import Open

PATIENCE = 60.0


async def take(watch: Any, commits: int) -> list[kvorum.Changes]:
    async with asyncio.timeout(PATIENCE):
        return [await anext(watch) for _ in range(commits)]


def short(events: list[kvorum.Changes]) -> list[list[tuple[str, object, object]]]:
    """Kind, last part of the key, value of each change of each commit."""
    return [[(change.kind, change.key[-1], change.value) for change in event.changes] for event in events]


async def test_every_change_below_a_prefix_commit_by_commit(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch_prefix((space,))
    began = await watch.ready()
    first = await kv.set((space, "a"), 1)
    await kv.set((space,), "not below")
    await kv.set((space + "2", "a"), "another")
    second = await kv.atomic().set((space, "b"), {"x": 2}).delete((space, "a")).commit()
    for number in range(5):
        await kv.set((space, "c"), number)
    await kv.delete((space, "nothing"))
    await kv.set((space, "d"), "soon gone", expire_in=20)
    events = await take(watch, 9)
    assert short(events) == [
        [("set", "a", 1)],
        [("set", "b", {"x": 2}), ("delete", "a", None)],
        *([("set", "c", number)] for number in range(5)),
        [("set", "d", "soon gone")],
        [("expire", "d", None)],
    ]
    assert [event.versionstamp for event in events[:2]] == [first.versionstamp, second.versionstamp]
    assert all(change.versionstamp == event.versionstamp for event in events for change in event.changes)
    assert all(event.complete for event in events)
    assert began < first.versionstamp
    assert watch.resume is not None and watch.resume >= events[-1].versionstamp
    await watch.aclose()


async def test_a_watch_goes_on_where_another_one_stopped(open_client: Open, space: str) -> None:
    kv = await open_client()
    watch = kv.watch_prefix((space,))
    await watch.ready()
    for number in range(10):
        await kv.set((space, number), number)
    seen = await take(watch, 4)
    place = watch.resume
    await watch.aclose()
    await kv.delete((space, 9))
    again = kv.watch_prefix((space,), since=place, keys_only=True)
    seen += await take(again, 7)
    assert [(change.kind, change.key[1]) for event in seen for change in event.changes] == [
        *(("set", number) for number in range(10)),
        ("delete", 9),
    ]
    assert seen[5].changes[0].value is None, "keys only"
    await again.aclose()


async def test_ranges_and_what_is_no_range(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch_prefix(start=(space, "b"), end=(space, "d"))
    await watch.ready()
    for name in "abcd":
        await kv.set((space, name), 1)
    assert short(await take(watch, 2)) == [[("set", "b", 1)], [("set", "c", 1)]]
    await watch.aclose()
    for wrong, error in (
        (kv.watch_prefix, InvalidKey),
        (lambda: kv.watch_prefix(start=("b",), end=("b",)), InvalidArgument),
        (lambda: kv.watch_prefix((space,), since="yesterday"), InvalidArgument),
    ):
        with pytest.raises(error):
            wrong()


async def test_a_place_that_was_never_reached_is_an_error_and_spoils_nothing(kv: kvorum.Kv, space: str) -> None:
    """What a client takes for the newest state that it has seen, it asks of every later read."""
    await kv.set((space, "a"), 1)
    watch = kv.watch_prefix((space,), since="f" * 20)
    with pytest.raises(InvalidArgument, match="is no versionstamp of this database"):
        await take(watch, 1)
    await watch.aclose()
    assert (await kv.get((space, "a"), consistency="eventual", timeout=10_000)).value == 1


async def test_p54_a_place_that_is_gone_is_an_error_that_names_the_oldest(kv: kvorum.Kv, space: str) -> None:
    """P54: no client loops on it."""
    await kv.set((space, "a"), 1)
    watch = kv.watch_prefix((space,), since="0" * 20)
    with pytest.raises(Compacted) as caught:
        await take(watch, 1)
    oldest = caught.value.oldest
    assert oldest > "0" * 20
    await watch.aclose()
    watch = kv.watch_prefix((space,), since=oldest)
    assert short(await take(watch, 1)) == [[("set", "a", 1)]]
    await watch.aclose()


async def test_p54_follow_lists_and_watches_without_a_gap(kv: kvorum.Kv, space: str) -> None:
    """P54: what it says, put together, is what there is, although it is written to all the while."""
    for number in range(1_500):  # two pages
        if number % 300 == 0:
            operation = kv.atomic()
        operation.set((space, number % 1_200), number)
        if number % 300 == 299:
            await operation.commit()
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await kv.atomic().set((space, number % 1_300), -number).delete((space, (7 * number) % 1_300)).commit()

    writing = asyncio.create_task(write())
    follower = kv.follow((space,))
    copy: dict[Any, object] = {}
    stamps: list[str] = []
    async with asyncio.timeout(PATIENCE):
        async for event in follower:
            assert not stamps or event.versionstamp > stamps[-1]
            stamps.append(event.versionstamp)
            if isinstance(event, kvorum.Listing):
                assert not copy, "one listing is enough"
                copy = {entry.key: entry.value for entry in event.entries}
                continue
            for change in event.changes:
                if change.kind == "set":
                    copy[change.key] = change.value
                else:
                    del copy[change.key]  # KeyError: it was told of what it did not have
            if len(stamps) == 100:
                stop.set()
                await writing
                await kv.set((space, "end"), "end")
            if ((space, "end")) in copy:
                break
    await follower.aclose()
    assert copy == {entry.key: entry.value for entry in await kv.list((space,), batch_size=1_000).page()}
    assert len(copy) > 1_000


async def test_marks_of_progress_come_if_they_are_asked_for(cluster_url: str, space: str) -> None:
    """Every three seconds, so this is not asked of everybody."""
    async with kvorum.open_kv(cluster_url) as kv:
        await marks(kv, space)


async def marks(kv: kvorum.Kv, space: str) -> None:
    watch = kv.watch_prefix((space, "quiet"), progress=True)
    began = await watch.ready()
    (first,) = await take(watch, 1)
    assert (first.changes, first.versionstamp) == ((), began)
    done = await kv.set((space, "other"), 1)
    (mark,) = await take(watch, 1)
    assert mark.changes == ()
    assert mark.versionstamp >= done.versionstamp
    assert watch.resume == mark.versionstamp
    await watch.aclose()


async def test_closing_the_client_ends_its_range_watches(open_client: Open, space: str) -> None:
    kv = await open_client()
    watch, follower = kv.watch_prefix((space,)), kv.follow((space,))
    await watch.ready()
    assert await asyncio.wait_for(anext(follower), PATIENCE) is not None
    waiting = [asyncio.create_task(_end_of(one)) for one in (watch, follower)]
    await kv.close()
    assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE) == [0, 0]


async def _end_of(watch: Any) -> int:
    return sum([1 async for _ in watch])
