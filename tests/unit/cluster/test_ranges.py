"""Range watches of the cluster client, without a node: what is kept, dropped, stopped and begun again."""

import asyncio
from typing import Any

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.ranges import MAX_KEPT, RangeWatch
from kvorum.cluster.watches import Watches


def stamp(number: int) -> bytes:
    return number.to_bytes(10, "big")


def event(watch_id: int, through: int | None, *changes: int | tuple[int, bytes], size: int = 1) -> pb.WatchEvent:
    """Changes are versionstamps, or those and keys."""
    made = pb.WatchEvent(id=watch_id, through=b"" if through is None else stamp(through))
    for change in changes:
        at, key = change if isinstance(change, tuple) else (change, b"k")
        entry = pb.KvEntry(key=key, versionstamp=stamp(at), value=bytes(size))
        made.changes.add(kind=pb.CHANGE_KIND_SET, entry=entry)
    return made


def registered(watches: Watches, newest: bytes = b"") -> list[pb.StartWatch]:
    frame = pb.ClientFrame()
    watches.fill(frame, newest, 100)
    return list(frame.watches)


def stopped(watches: Watches) -> list[int]:
    frame = pb.ClientFrame()
    watches.fill(frame, b"", 100)
    return list(frame.stop_watches)


async def taken(watch: RangeWatch) -> list[tuple[int, bytes]]:
    """Everything that is there now."""
    found = []
    while watch._kept:
        found += [
            (int.from_bytes(change.entry.versionstamp, "big"), change.entry.key)
            for change in (await watch.next()).changes
        ]
    return found


@pytest.fixture
async def watches() -> Watches:
    return Watches(asyncio.get_running_loop())


@pytest.fixture
def watch(watches: Watches) -> RangeWatch:
    made = watches.start_range((b"a", b"z"), b"", keys_only=True)
    (start,) = registered(watches, stamp(3))
    assert (start.id, start.start, start.end, start.since, start.keys_only) == (1, b"a", b"z", b"", True)
    assert start.min_versionstamp == stamp(3)
    return made


async def test_events_are_kept_in_order_and_marks_replace_each_other(watches: Watches, watch: RangeWatch) -> None:
    watches.events([event(1, 3), event(1, 4), event(1, 6, 5, 6), event(1, 8), event(1, 9), event(1, 11, 11)])
    events = [await watch.next() for _ in range(len(watch._kept))]
    assert [(int.from_bytes(one.through, "big"), len(one.changes)) for one in events] == [
        (4, 0),
        (6, 2),
        (9, 0),
        (11, 1),
    ]
    waiting = asyncio.ensure_future(watch.next())
    await asyncio.sleep(0)
    watches.events([event(1, 12, 12)])
    assert len((await waiting).changes) == 1


async def test_after_a_reconnect_it_goes_on_behind_what_it_has(watches: Watches, watch: RangeWatch) -> None:
    watches.events([event(1, 5, 4, 5)])
    watches.connection_lost()
    watches.events([event(1, 9, 9)])  # of the old stream
    (start,) = registered(watches, stamp(7))
    assert (start.since, start.min_versionstamp) == (stamp(5), stamp(7))
    watches.events([event(1, 5), event(1, 8, 6, 8)])
    assert await taken(watch) == [(4, b"k"), (5, b"k"), (6, b"k"), (8, b"k")]
    watches.connection_lost()
    assert registered(watches)[0].since == stamp(8)


async def test_what_comes_twice_all_the_same_is_told_once(watches: Watches, watch: RangeWatch) -> None:
    watches.events([event(1, 5, 4, 5), event(1, 4, 4), event(1, 6, 5, 6)])
    assert await taken(watch) == [(4, b"k"), (5, b"k"), (6, b"k")]


@pytest.mark.parametrize("again", [1, 2, 5])
async def test_a_commit_that_was_cut_by_a_reconnect_goes_on_where_it_was(
    watches: Watches, watch: RangeWatch, again: int
) -> None:
    """The node begins it anew, and may cut it otherwise."""
    commit = [(6, b"k%d" % number) for number in range(6)]
    watches.events([event(1, 5, 5), event(1, None, *commit[:2]), event(1, None, commit[2])])
    for _ in range(2):  # and again
        watches.connection_lost()
        assert registered(watches)[0].since == stamp(5)
        watches.events([event(1, 5), event(1, None, *commit[:again])])
    watches.events([event(1, None, *commit[again:5]), event(1, 7, commit[5], 7)])
    assert await taken(watch) == [(5, b"k"), *commit, (7, b"k")]
    assert watch.through == stamp(7)


async def test_a_reader_that_lags_stops_its_watch_until_it_has_caught_up(watches: Watches, watch: RangeWatch) -> None:
    number = 0
    while not watch.paused:
        number += 1
        watches.events([event(1, number, number, size=100_000)])
    assert number == MAX_KEPT // 100_000 + 1
    assert watches.has_stops
    assert stopped(watches) == [1]
    watches.events([event(1, number + 1, number + 1)])  # was on its way
    assert not watches.expecting
    fetched = 0
    while not watches.resume(watch):
        fetched += len((await watch.next()).changes)
    assert 0 < len(watch._kept) < 4
    (start,) = registered(watches)
    assert (start.id, start.since) == (2, stamp(number)), "under another number, behind what it has"
    watches.events([event(1, number + 2, number + 2), event(2, number + 1, number + 1)])
    assert fetched + len(await taken(watch)) == number + 1
    assert not watches.resume(watch)


async def test_a_commit_whose_parts_are_too_large_to_be_kept_is_got_over(watches: Watches, watch: RangeWatch) -> None:
    """Each part stops the watch, and the node begins the commit anew each time."""
    parts = [event(1, None, (6, b"1"), size=MAX_KEPT), event(1, None, (6, b"2"), size=MAX_KEPT), event(1, 6, (6, b"3"))]
    watches.events([event(1, 5)])
    found: list[tuple[int, bytes]] = []
    for round_ in range(3):
        for part in parts:
            part.id = watch.id
        watches.events(parts)
        assert watch.paused == (round_ < 2)
        found += await taken(watch)
        if watches.resume(watch):
            assert registered(watches)[0].since == stamp(5)
            watches.events([event(watch.id, 5)])
    assert found == [(6, b"1"), (6, b"2"), (6, b"3")]
    assert watch.through == stamp(6)


async def test_a_watch_that_is_stopped_while_it_rests(watches: Watches, watch: RangeWatch) -> None:
    watches.events([event(1, 1, 1, size=MAX_KEPT)])
    assert watch.paused
    watches.connection_lost()
    assert registered(watches) == []
    watches.stop(watch)
    await watch.next()
    assert not watches.resume(watch)
    assert registered(watches) == []


async def test_ends(watches: Watches, watch: RangeWatch) -> None:
    watches.events([event(1, 5, 5), pb.WatchEvent(id=1, error="the node stops", retryable=True)])
    assert watches.has_refused
    watches.retry_refused()
    assert registered(watches)[0].since == stamp(5)
    watches.events([pb.WatchEvent(id=1, error="gone", oldest=stamp(9))])
    assert len((await watch.next()).changes) == 1
    with pytest.raises(errors.Compacted) as caught:
        await watch.next()
    assert caught.value.oldest == stamp(9).hex()
    other: Any = watches.start_range((b"a", b"b"), stamp(1), keys_only=False)
    registered(watches)
    watches.events([pb.WatchEvent(id=other.id, error="what is this?")])
    with pytest.raises(errors.InvalidArgument, match="what is this"):
        await other.next()
    third = watches.start_range((b"a", b"b"), stamp(1), keys_only=False)
    registered(watches)
    watches.events([event(third.id, 2, 2, size=MAX_KEPT)])
    watches.end_all(lambda: errors.Closed(outcome=None))
    assert len((await third.next()).changes) == 1
    with pytest.raises(errors.Closed):
        await third.next()
