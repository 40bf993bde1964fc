"""Watches of ranges on a node: what comes, when it comes, and what a slow reader costs."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node import range_watches
from kvorum_node.api import outbox, stream
from kvorum_node.api import watches as stream_watches
from kvorum_node.range_watches import EVENT_CHANGES, MARK_INTERVAL, MOST_CHANGES, SLICE_CHANGES, RangeWatch
from kvorum_node.ranges import Ranges
from kvorum_node.store import DATA_VERSION
from kvorum_node.store.history import Bounds
from kvorum_raft.seams import Member
from tests.unit.node.harness import Node

Told = tuple[int, str, bytes, bytes]
KINDS = {pb.CHANGE_KIND_SET: "set", pb.CHANGE_KIND_DELETE: "delete", pb.CHANGE_KIND_EXPIRE: "expire"}
ALL = (b"a", b"z")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "state")
    yield made
    made.close()


def stamp(index: int, number: int = 0xFFFF) -> bytes:
    return index.to_bytes(8, "big") + number.to_bytes(2, "big")


def entry(*commits: dict[bytes, bytes | None], data_version: int = DATA_VERSION) -> bytes:
    """The payload of an entry of commits that set keys, or delete those of None."""
    batch = pb.Batch(data_version=data_version)
    group = batch.commands.add().writes
    for seq, commit in enumerate(commits, 1):
        op = pb.AtomicWrite()
        for key, value in commit.items():
            if value is None:
                op.mutations.add(key=key, type=pb.MUTATION_TYPE_DELETE)
            else:
                op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES)
        group.writes.add(seq=seq, op=op.SerializeToString())
    return batch.SerializeToString()


class Watcher:
    """Takes events while it has `room`; None = always."""

    def __init__(
        self,
        node: Node,
        bounds: tuple[bytes, bytes] = ALL,
        since: bytes = b"",
        *,
        keys_only: bool = False,
        room: int | None = None,
        settle: bool = True,
    ) -> None:
        self.node = node
        self.room = room
        self.events: list[pb.WatchEvent] = []
        self.stalled: list[RangeWatch] = []
        hub = node.service.ranges
        self.watch = hub.add(bounds, since, keys_only=keys_only, deliver=self._deliver, has_room=self._has_room)
        hub.begin(self.watch)
        if settle:
            node.timers.settle()

    def _deliver(self, watch: RangeWatch, event: pb.WatchEvent) -> None:
        self.events.append(event)
        if self.room is not None and not event.error:
            self.room -= 1

    def _has_room(self, watch: RangeWatch) -> bool:
        if self.room is None or self.room > 0:
            return True
        self.stalled.append(watch)
        return False

    def make_room(self, room: int | None) -> None:
        self.room = room
        stalled, self.stalled = self.stalled, []
        self.node.service.ranges.resume(stalled)
        self.node.timers.settle()

    @property
    def told(self) -> list[Told]:
        return [
            (
                int.from_bytes(change.entry.versionstamp[:8], "big"),
                KINDS[change.kind],
                change.entry.key,
                change.entry.value,
            )
            for event in self.events
            for change in event.changes
        ]

    @property
    def through(self) -> bytes:
        return self.events[-1].through


def test_a_watch_is_told_what_changes_in_its_range_from_when_it_began(node: Node) -> None:
    node.consensus.apply(entry({b"k": b"before"}))
    watcher = Watcher(node, (b"k", b"m"))
    assert [(event.through, len(event.changes)) for event in watcher.events] == [(stamp(1), 0)]
    node.consensus.apply(entry({b"k": b"1", b"m": b"no"}, {b"l": b"2", b"k": None}))
    node.consensus.apply(entry({b"j": b"no"}, {b"k": None}))
    node.timers.settle()
    assert watcher.told == [(2, "set", b"k", b"1"), (2, "set", b"l", b"2"), (2, "delete", b"k", b"")]
    assert watcher.through == stamp(3)
    node.service.ranges.remove(watcher.watch)
    node.consensus.apply(entry({b"k": b"3"}))
    node.timers.settle()
    assert len(watcher.told) == 3
    assert node.service.ranges.statistics()["range_watches"] == 0


def test_keys_only(node: Node) -> None:
    watcher = Watcher(node, keys_only=True)
    node.consensus.apply(entry({b"k": b"1"}, {b"k": None}))
    node.timers.settle()
    assert watcher.told == [(1, "set", b"k", b""), (1, "delete", b"k", b"")]
    assert watcher.events[-1].changes[0].entry.encoding == pb.VALUE_ENCODING_UNSPECIFIED


@pytest.mark.parametrize("number", range(6))
def test_a_watch_goes_on_anywhere(node: Node, number: int) -> None:
    """Also in the middle of an entry."""
    node.consensus.apply(entry(*({b"k": b"%d" % at} for at in range(5))))
    watcher = Watcher(node, since=stamp(1, number) if number < 5 else stamp(1))
    assert [told[3] for told in watcher.told] == [b"%d" % at for at in range(number + 1, 5)]
    node.consensus.apply(entry({b"k": b"new"}))
    node.timers.settle()
    assert watcher.told[-1][3] == b"new"
    assert len(watcher.told) == len(set(watcher.told))


def test_a_place_that_was_never_reached_is_refused(node: Node) -> None:
    """It could be waited for in vain only: a watch begins behind a barrier."""
    node.consensus.apply(entry({b"k": b"0"}))
    watcher = Watcher(node, since=stamp(1))
    wrong = [Watcher(node, since=since) for since in (stamp(2, 0), b"\xff" * 10)]
    node.consensus.apply(entry({b"k": b"1"}))
    node.timers.settle()
    assert [told[0] for told in watcher.told] == [2]
    for refused in wrong:
        (event,) = refused.events
        assert "is no versionstamp of this database" in event.error
        assert not event.retryable
        assert not event.oldest
        assert not event.through


def test_a_commit_comes_in_one_event_and_whole_commits_share_one(node: Node) -> None:
    watcher = Watcher(node, room=1)
    for number in range(3):
        node.consensus.apply(entry(*({b"k%d" % key: b"%d" % number for key in range(90)} for _ in range(2))))
    watcher.make_room(None)
    events = [event for event in watcher.events if event.changes]
    assert [len(event.changes) for event in events] == [270, 270]
    for event in events:
        assert event.through >= event.changes[-1].entry.versionstamp
    assert events[0].through < events[1].changes[0].entry.versionstamp
    assert len(watcher.told) == 540


def test_a_very_large_commit_comes_in_parts_and_says_so(node: Node) -> None:
    watcher = Watcher(node, room=1)
    node.consensus.apply(entry({b"first": b""}, {b"k%05d" % at: b"v" for at in range(2_500)}, {b"last": b""}))
    watcher.make_room(None)
    events = [event for event in watcher.events if event.changes]
    assert [bool(event.through) for event in events] == [True, False, False, True, True]
    assert [len(event.changes) for event in events] == [1, MOST_CHANGES, MOST_CHANGES, 2_500 - 2 * MOST_CHANGES, 1]
    assert [told[2] for told in watcher.told] == [b"first", *(b"k%05d" % at for at in range(2_500)), b"last"]


def test_whoever_has_no_room_costs_nothing_and_misses_nothing(node: Node) -> None:
    slow, fast = Watcher(node, room=1), Watcher(node)
    for number in range(50):
        node.consensus.apply(entry({b"k": b"%d" % number}))
        node.timers.settle()
    assert len(fast.told) == 50
    assert slow.told == []
    assert len(slow.stalled) == 1
    slow.make_room(1)
    slow.make_room(None)
    assert slow.told == fast.told
    assert node.service.ranges.statistics()["range_watches_waiting"] == 0


def test_far_behind_is_caught_up_with_in_slices(node: Node) -> None:
    for number in range(40):
        node.consensus.apply(entry(*({b"k%d" % at: b"%d" % number} for at in range(100))))
    watchers = [Watcher(node, since=stamp(1), settle=False) for _ in range(3)]
    turns = 0
    while node.service.ranges.statistics()["range_watches_waiting"]:
        before = sum(len(watcher.told) for watcher in watchers)
        node.service.ranges._serve()
        turns += 1
        assert sum(len(watcher.told) for watcher in watchers) - before <= SLICE_CHANGES + EVENT_CHANGES
    assert turns > 10
    assert all(len(watcher.told) == 3_900 for watcher in watchers)
    assert watchers[0].told == watchers[2].told


@pytest.mark.parametrize("most", [60, 16_384])
def test_an_entry_looks_at_few_ranges_however_many_hold_its_keys(
    node: Node, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(range_watches, "MAX_LOOKED", most)
    overlapping = [Watcher(node, (b"a", b"b%02d" % number)) for number in range(40)]
    same = [Watcher(node, (b"a", b"b00")) for _ in range(40)]
    other = Watcher(node, (b"q", b"r"))
    looked, find = [0], Ranges.holding

    def holding(ranges: Ranges[RangeWatch], key: bytes) -> Iterator[dict[RangeWatch, None]]:
        for watches in find(ranges, key):
            looked[0] += len(watches)
            yield watches

    monkeypatch.setattr(Ranges, "holding", holding)
    node.consensus.apply(entry({b"a%03d" % number: b"" for number in range(100)}))
    node.timers.settle()
    if most == 60:
        assert looked[0] == 160, "those of two keys, and then no more"
    for watcher in overlapping + same:
        assert [key for _, _, key, _ in watcher.told] == [b"a%03d" % number for number in range(100)]
    assert not other.told
    node.consensus.apply(entry({b"q": b"1"}))
    node.timers.settle()
    assert other.told == [(2, "set", b"q", b"1")]


def test_watches_of_ranges_that_are_touched_already_are_not_asked_again(node: Node) -> None:
    """A thousand watches of one prefix, and a thousand keys of it in one entry."""
    watchers = [Watcher(node) for _ in range(3)]
    asked: list[RangeWatch] = []
    hub = node.service.ranges
    touch_all = hub._touch_all

    def spy(watches: Iterable[RangeWatch], before: bytes) -> None:
        watches = list(watches)
        asked.extend(watches)
        touch_all(watches, before)

    hub._touch_all = spy  # type: ignore[method-assign]
    hub.applied(1, [b"k%03d" % number for number in range(1_000)])
    assert asked == [watcher.watch for watcher in watchers]


def test_a_quiet_watch_moves_on_and_is_told_so_now_and_then(node: Node) -> None:
    watcher = Watcher(node, (b"k", b"l"))
    for number in range(10):
        node.consensus.apply(entry({b"other": b"%d" % number}))
    node.timers.settle()
    assert len(watcher.events) == 1
    node.timers.advance(MARK_INTERVAL)
    assert [event.through for event in watcher.events] == [stamp(0), stamp(10)]
    node.timers.advance(3 * MARK_INTERVAL)
    assert len(watcher.events) == 2, "nothing has changed since"
    node.consensus.apply(entry({b"k": b"v"}))
    node.timers.settle()
    assert [told[0] for told in watcher.told] == [11]


# ---- what is not kept any more


@pytest.fixture
def short(node: Node) -> Node:
    """A node that keeps three entries."""
    node.store._commands._bounds = Bounds(1 << 20, 3)
    return node


def test_p54_a_place_that_is_gone_ends_the_watch_with_the_oldest_one(short: Node) -> None:
    """P54, the node's part: an explicit error, once, which says from where on one can go on."""
    for number in range(8):
        short.consensus.apply(entry({b"k": b"%d" % number}))
    gone = Watcher(short, since=stamp(2))
    (last,) = gone.events
    assert last.error
    assert not last.retryable
    assert last.oldest == stamp(5)
    assert short.service.ranges.statistics()["range_watches_compacted"] == 1
    kept = Watcher(short, since=last.oldest)
    assert [told[0] for told in kept.told] == [6, 7, 8]


def test_p55_a_delete_at_the_edge_of_what_is_kept_is_told(short: Node) -> None:
    """P55, the node's part: trimmed up to just before the delete, whoever may go on gets it; one entry later, nobody
    may who has not seen it."""
    short.consensus.apply(entry({b"k": b"v"}))
    short.consensus.apply(entry({b"k": None}))
    for _ in range(2):
        short.consensus.apply(entry({b"other": b"v"}))
    with short.store.snapshot() as snapshot:
        assert snapshot.oldest == stamp(1), "the delete is the first that is kept"
    assert Watcher(short, since=stamp(1)).told[0] == (2, "delete", b"k", b"")
    assert Watcher(short, since=stamp(1, 0)).events[-1].error
    short.consensus.apply(entry({b"other": b"v"}))
    assert Watcher(short, since=stamp(1)).events[-1].oldest == stamp(2)
    assert [told[0] for told in Watcher(short, since=stamp(2)).told] == [3, 4, 5]


def test_a_slow_watch_that_falls_out_of_the_history_is_told(short: Node) -> None:
    slow, quiet = Watcher(short, (b"k", b"l"), room=1), Watcher(short, (b"x", b"y"))
    short.consensus.apply(entry({b"k": b"v"}))
    for number in range(8):
        short.consensus.apply(entry({b"other": b"%d" % number}))
    short.timers.settle()
    slow.make_room(None)
    assert slow.events[-1].oldest == stamp(6)
    short.consensus.apply(entry({b"x": b"v"}))
    short.timers.settle()
    assert quiet.told == [(10, "set", b"x", b"v")], "who has missed nothing has lost nothing"


# ---- snapshots, leaders, versions


def test_an_installed_snapshot_brings_its_history(node: Node) -> None:
    """E1: watches read on in it from where they stand."""
    node.consensus.depose(Member("n2", "n2:7403", "n2:7401"))
    watcher, quiet = Watcher(node), Watcher(node, (b"x", b"y"))
    node.consensus.apply(entry({b"k": b"1"}))
    node.consensus.install(entry({b"k": b"2"}), entry({b"k": None}, {b"x": b"3"}))
    node.timers.settle()
    assert [told[:3] for told in watcher.told] == [
        (1, "set", b"k"), (2, "set", b"k"), (3, "delete", b"k"), (3, "set", b"x"),
    ]  # fmt: skip
    assert quiet.told == [(3, "set", b"x", b"3")]


def test_rows_that_were_read_before_a_snapshot_are_not_those_of_the_state(node: Node) -> None:
    """A replica in the minority is replaced (A6): its rows had the same names, and other contents."""
    watcher = Watcher(node)
    node.consensus.apply(entry({b"k": b"1"}))
    node.timers.settle()
    hub = node.service.ranges
    hub._cache = {name: [(b"k", b"\x03" + stamp(1, 0) + b"wrong")] for name in hub._cache}
    assert hub._cache
    node.service.ranges.installed()
    again = Watcher(node, since=stamp(0))
    assert watcher.told == again.told == [(1, "set", b"k", b"1")]


def test_an_installed_snapshot_that_does_not_reach_back_ends_watches(short: Node) -> None:
    short.consensus.depose(Member("n2", "n2:7403", "n2:7401"))
    watcher = Watcher(short)
    short.consensus.install(*(entry({b"k": b"%d" % number}) for number in range(9)))
    short.timers.settle()
    assert watcher.events[-1].oldest == stamp(6)


def test_a_node_without_a_leader_ends_range_watches(node: Node) -> None:
    """E2."""
    watcher = Watcher(node)
    node.consensus.depose(None)
    node.timers.advance(3.5)
    assert watcher.events[-1].retryable
    assert "leader" in watcher.events[-1].error


def test_a_watch_of_a_cluster_that_is_not_upgraded_yet(node: Node) -> None:
    """No history: what is quiet may stay quiet, what would miss something is told at once."""
    old = entry({b"k": b"1"}, data_version=1)
    node.consensus.apply(old)
    watcher, quiet = Watcher(node), Watcher(node, (b"x", b"y"))
    assert not watcher.events[0].error
    assert Watcher(node, since=stamp(0)).events[-1].oldest == stamp(1)
    node.consensus.apply(old)
    node.timers.settle()
    assert watcher.events[-1].oldest == stamp(2)
    node.consensus.apply(entry({b"x": b"1"}))
    node.timers.settle()
    assert quiet.told == [(3, "set", b"x", b"1")], "from the first entry that writes history on"


async def test_the_service_begins_a_watch_behind_a_barrier(node: Node) -> None:
    events: list[pb.WatchEvent] = []
    watch = node.service.watch_range(
        ALL, b"", keys_only=False, deliver=lambda _, event: events.append(event), has_room=lambda _: True
    )
    node.timers.settle()
    assert events == []
    passed = asyncio.Event()
    node.service.barrier.wait(lambda error: passed.set())  # in the same round
    await asyncio.wait_for(passed.wait(), 60)
    assert watch.open
    node.timers.settle()
    assert len(events) == 1
    await node.service.barrier.stop()


async def test_watches_that_are_stopped_while_nobody_reads_are_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watches, "MAX_WATCHES", 10)
    one = stream.Stream(node.service, "n1", None)
    one._outbox.put(b"\x22", bytes(2 * outbox.FRAME_TARGET))
    its = one._watches
    for number in range(100):
        its.start(pb.StartWatch(id=number, start=b"a", end=b"z"))
        node.service.ranges.begin(its._ranges[number])
        node.timers.settle()
        its.stop(number)
    assert 0 < len(its._stalled_ranges) <= 20
    one.close()
    await node.service.barrier.stop()
