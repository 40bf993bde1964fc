"""A snapshot becomes the state: whoever follows the state looks at it anew (rules E1)."""

from collections.abc import Callable

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.reads import PendingRead
from kvorum_node.watches import SLICE_KEYS, Watch
from kvorum_raft.seams import Member
from tests.unit.node.harness import Node

KEY, OTHER = b"\x02a\x00", b"\x02b\x00"


def batch(*writes: tuple[bytes, bytes | None]) -> bytes:
    """The payload of an entry that sets keys, or deletes those of None."""
    entry = pb.Batch(data_version=1)
    group = entry.commands.add().writes
    for seq, (key, value) in enumerate(writes, 1):
        op = pb.AtomicWrite()
        if value is None:
            op.mutations.add(key=key, type=pb.MUTATION_TYPE_DELETE)
        else:
            op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES)
        group.writes.add(seq=seq, op=op.SerializeToString())
    return entry.SerializeToString()


class Watcher:
    def __init__(self, node: Node, *keys: bytes) -> None:
        self.node = node
        self.events = 0
        self.watch = node.service.hub.add(keys, self._notified)
        self.watch.begin()

    def _notified(self, watch: Watch) -> None:
        self.events += 1

    def take(self) -> list[bytes]:
        return [entry.value for entry in self.node.service.hub.take(self.watch)[0]]


def follower(node: Node) -> Node:
    node.consensus.depose(Member("n2", "n2:7403", "n2:7401"))
    return node


def test_a_watch_hears_of_what_the_snapshot_changed_and_of_nothing_else(node: Node) -> None:
    follower(node)
    node.consensus.apply(batch((KEY, b"old"), (OTHER, b"same")))
    changed, deleted, same, absent = (Watcher(node, key) for key in (KEY, KEY, OTHER, b"\x02c\x00"))
    for watcher in (changed, deleted, same, absent):
        watcher.take()
    node.consensus.install(batch((KEY, b"new")))
    node.timers.settle()
    assert [watcher.events for watcher in (changed, deleted, same, absent)] == [2, 2, 1, 1]
    assert changed.take() == deleted.take() == [b"new"]
    node.consensus.install(batch((KEY, None), (b"\x02c\x00", b"made")))
    node.timers.settle()
    assert [watcher.events for watcher in (changed, deleted, same, absent)] == [3, 3, 1, 2]
    assert changed.take() == [b""]
    assert absent.take() == [b"made"]


def test_a_key_that_was_set_to_what_it_was_is_an_event(node: Node) -> None:
    follower(node)
    node.consensus.apply(batch((KEY, b"v")))
    watcher = Watcher(node, KEY)
    watcher.take()
    node.consensus.install(batch((KEY, b"w")), batch((KEY, b"v")))
    node.timers.settle()
    assert watcher.events == 2


def test_an_event_that_was_not_taken_yet_shows_the_new_state_once(node: Node) -> None:
    follower(node)
    watcher = Watcher(node, KEY)
    node.consensus.install(batch((KEY, b"new")))
    node.timers.settle()
    assert watcher.events == 1
    assert watcher.take() == [b"new"]


def test_many_watches_are_compared_in_slices(node: Node) -> None:
    follower(node)
    keys = [b"\x02" + b"%04d" % number + b"\x00" for number in range(2 * SLICE_KEYS + 10)]
    watchers = [Watcher(node, key) for key in keys]
    for watcher in watchers:
        watcher.take()
    node.consensus.install(
        *[batch(*[(key, b"new") for key in keys[start : start + 100]]) for start in range(0, 522, 100)]
    )
    node.service.hub._compare()
    assert sum(watcher.events for watcher in watchers) == len(keys) + SLICE_KEYS
    node.timers.settle()
    assert all(watcher.events == 2 for watcher in watchers)


def test_a_watch_that_ends_meanwhile_hears_nothing_more(node: Node) -> None:
    follower(node)
    watcher = Watcher(node, KEY)
    watcher.take()
    node.consensus.install(batch((KEY, b"new")))
    node.service.hub.remove(watcher.watch)
    node.timers.settle()
    assert watcher.events == 1


def test_two_snapshots_in_a_row_lose_nothing(node: Node) -> None:
    follower(node)
    watcher, late = Watcher(node, KEY), Watcher(node, OTHER)
    watcher.take()
    late.take()
    node.consensus.install(batch((KEY, b"new")))
    node.consensus.install(batch((OTHER, b"new")))
    node.timers.settle()
    assert (watcher.events, late.events) == (2, 2)


def test_a_read_that_waits_for_a_versionstamp_is_answered(node: Node) -> None:
    follower(node)
    index = node.store.applied_index + 2
    answers: list[pb.ReadResult] = []
    read = pb.Read(id=1, keys=[KEY], consistency=pb.CONSISTENCY_EVENTUAL)
    read.min_versionstamp = index.to_bytes(8, "big") + b"\x00\x00"
    node.service.reads.submit([PendingRead(read, answers.append, lambda job, part: None)])
    node.timers.settle()
    assert answers == []
    node.consensus.install(batch((KEY, b"1")), batch((KEY, b"2")))
    node.timers.settle()
    assert [answer.entries[0].value for answer in answers] == [b"2"]


def test_who_takes_office_after_a_snapshot_sweeps_and_delivers_from_it(node: Node) -> None:
    follower(node)
    entry = pb.Batch(data_version=1)
    op = pb.AtomicWrite()
    op.mutations.add(
        key=KEY, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES, expire_in_ms=1_000
    )
    op.enqueues.add(queue="q", payload=b"m", delay_ms=1_000)
    entry.commands.add().writes.writes.add(seq=1, op=op.SerializeToString())
    node.consensus.install(entry.SerializeToString())
    got: list[pb.Delivery] = []
    request = pb.StartConsumer(id=1, queue="q", credits=5, concurrency=1)
    node.service.delivery.start_consumer(b"", request, got.append)
    node.consensus.elect()
    node.timers.advance(1.1)
    with node.store.snapshot() as snapshot:
        assert snapshot.get(KEY).versionstamp == b""
    assert [delivery.payload for delivery in got] == [b"m"]


def test_a_state_that_is_lost_is_not_read(make_node: Callable[..., Node]) -> None:
    node = follower(make_node())
    node.service.reads._unreadable = lambda: "the state was lost"
    answers: list[pb.ReadResult] = []
    read = pb.Read(id=1, keys=[KEY], consistency=pb.CONSISTENCY_EVENTUAL)
    node.service.reads.submit([PendingRead(read, answers.append, lambda job, part: None)])
    node.timers.settle()
    assert [(answer.status, answer.message) for answer in answers] == [(pb.READ_STATUS_NO_LEADER, "the state was lost")]


def test_a_jump_of_the_clusters_time_makes_what_waits_due(node: Node) -> None:
    op = pb.AtomicWrite()
    op.mutations.add(
        key=KEY, type=pb.MUTATION_TYPE_SET, value=b"v", encoding=pb.VALUE_ENCODING_BYTES, expire_in_ms=3_600_000
    )
    op.enqueues.add(queue="q", payload=b"m", delay_ms=3_600_000)
    got: list[pb.Delivery] = []
    request = pb.StartConsumer(id=1, queue="q", credits=5, concurrency=1)
    node.service.delivery.start_consumer(b"", request, got.append)
    node.write(op)
    node.consensus.jump_ms = 7_200_000
    node.consensus.apply(b"")
    node.timers.settle()
    assert [delivery.payload for delivery in got] == [b"m"]
    with node.store.snapshot() as snapshot:
        assert snapshot.get(KEY).versionstamp == b""
