"""Room: when it is short, what is refused then, and what is still taken."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.replica_store import ReplicaStore
from kvorum_node.space import LEAST, PERIOD, SpaceWatch, embedded_reserve, reserve
from kvorum_node.store import Space
from kvorum_raft.errors import DiskFull
from kvorum_raft.faults import exit_code
from tests.unit.node.harness import Node, VirtualTimers

KEY, OTHER = b"\x02a\x00", b"\x02b\x00"
GIB = 1 << 30
HALF_FREE = Space(50 * GIB, 100 * GIB)


class Disk:
    """A file system of 100 GiB."""

    def __init__(self) -> None:
        self.free = 50 * GIB
        self.error: OSError | None = None

    def statvfs(self, folder: Path) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(f_bavail=self.free // 4096, f_blocks=100 * GIB // 4096, f_frsize=4096)


def make(disk: Disk, timers: VirtualTimers, room: Space = HALF_FREE, **more: Any) -> SpaceWatch:
    more.setdefault("least", reserve)
    space = SpaceWatch(Path("/data"), timers, lambda: room, statvfs=disk.statvfs, **more)
    space.start()
    return space


def test_it_is_tight_while_there_is_still_as_much_room_as_is_kept_free() -> None:
    disk, timers = Disk(), VirtualTimers()
    space = make(disk, timers)
    seen = []
    for free in (50 * GIB, 10 * GIB, 10 * GIB - 4096, 5 * GIB, 5 * GIB - 4096, 20 * GIB):
        disk.free = free
        timers.advance(PERIOD)
        seen.append((space.tight(), space.low()))
    assert seen == [(False, False), (False, False), (True, False), (True, False), (True, True), (False, False)]
    space.stop()


def test_it_is_low_below_five_percent_and_says_so_within_200_ms() -> None:
    disk, timers = Disk(), VirtualTimers()
    space = make(disk, timers)
    assert (space.low(), space.problem()) == (False, "")
    disk.free = 5 * GIB
    timers.advance(PERIOD)
    assert not space.low()
    disk.free = 5 * GIB - 4096
    timers.advance(PERIOD)
    assert space.low()
    assert space.problem() == "the disk of /data has 5.0 GiB left, less than the reserve of 5.0 GiB"
    assert space.statistics()["space_shortages"] == 1
    disk.free = 6 * GIB
    timers.advance(PERIOD)
    assert not space.low()
    disk.free = 0
    space.stop()
    timers.advance(1.0)
    assert not space.low()


def test_reserves() -> None:
    assert reserve(100 * GIB) == 5 * GIB
    assert reserve(2 * GIB) == LEAST == GIB
    # An embedded database shares the disk of its host program with everything else.
    assert embedded_reserve(100 * GIB) == 64 << 20
    assert embedded_reserve(100 << 20) == 5 << 20


def test_a_reserve_can_be_set() -> None:
    disk, timers = Disk(), VirtualTimers()
    disk.free = GIB
    assert not make(disk, timers, least=lambda _: GIB).low()
    assert make(disk, timers, least=lambda _: GIB + 1).low()


def test_writes_that_may_use_up_what_is_left_make_it_look_at_once() -> None:
    disk, timers = Disk(), VirtualTimers()
    disk.free = GIB + (80 << 20)
    space = make(disk, timers, least=lambda _: GIB)
    disk.free = 0
    space.spend(9 << 20)
    assert not space.low()
    space.spend(2 << 20)
    assert space.low()


def test_the_room_of_the_map_is_used_up_by_writes_as_well() -> None:
    full = Space(94 << 30, 100 << 30)  # of which the reserve is 5 GiB
    rooms = [full]
    space = SpaceWatch(Path("/data"), VirtualTimers(), lambda: rooms[0], least=reserve, statvfs=Disk().statvfs)
    space.start()
    rooms[0] = Space(96 << 30, 100 << 30)
    space.spend(100 << 20)
    assert not space.low()
    space.spend(100 << 20)
    assert space.low()


def test_what_can_be_used_again_inside_the_files_counts_while_the_disk_is_full() -> None:
    disk, timers = Disk(), VirtualTimers()
    disk.free = GIB - (4 << 20)
    freed = [0]
    space = make(disk, timers, least=lambda _: GIB, reusable=lambda: freed[0])
    assert space.low()
    freed[0] = 4 << 20
    timers.advance(PERIOD)
    assert not space.low()


def test_a_full_map_is_a_shortage_too() -> None:
    disk, timers = Disk(), VirtualTimers()
    assert not make(disk, timers, Space(90 << 30, 100 << 30)).low()
    space = make(disk, timers, Space(96 << 30, 100 << 30))
    assert space.problem() == "the database's map of 100.0 GiB has 4.0 GiB left"


def test_a_disk_that_cannot_be_looked_at_refuses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk, timers = Disk(), VirtualTimers()
    disk.error = OSError(5, "Input/output error")
    space = make(disk, timers)
    timers.advance(10 * PERIOD)
    assert not space.low()
    assert len([record for record in caplog.records if "Input/output error" in record.message]) == 1


# ---- what is refused


def op_of(*kinds: "pb.MutationType", key: bytes = KEY) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    for kind in kinds:
        operand = b"" if kind == pb.MUTATION_TYPE_DELETE else (1).to_bytes(8, "little")
        encoding = pb.VALUE_ENCODING_LE64 if operand else pb.VALUE_ENCODING_UNSPECIFIED
        op.mutations.add(key=key, type=kind, value=operand, encoding=encoding)
    return op


@pytest.fixture
def full(make_node: Callable[..., Node]) -> Node:
    """A node with one number at KEY, a session and a leased message, whose disk is short since."""
    node = make_node()
    node.write(op_of(pb.MUTATION_TYPE_SET))
    node.service.no_space = lambda: "node n2: its disk is nearly full"
    return node


@pytest.mark.parametrize(
    "op",
    [
        op_of(pb.MUTATION_TYPE_SET),
        op_of(pb.MUTATION_TYPE_SUM, key=OTHER),
        op_of(pb.MUTATION_TYPE_MAX, key=OTHER),
        op_of(pb.MUTATION_TYPE_MIN, key=OTHER),
        op_of(pb.MUTATION_TYPE_DELETE, pb.MUTATION_TYPE_SET),
        pb.AtomicWrite(enqueues=[pb.Enqueue(queue="q", payload=b"m")]),
    ],
)
def test_growth_is_refused_and_nothing_of_it_reaches_the_log(full: Node, op: pb.AtomicWrite) -> None:
    before = len(full.consensus.payloads)
    (result,) = full.write(op)
    assert (result.outcome, result.message) == (pb.OUTCOME_NO_SPACE, "node n2: its disk is nearly full")
    assert len(full.consensus.payloads) == before
    full.service.no_space = lambda: ""
    assert [result.outcome for result in full.write(op)] == [pb.OUTCOME_DONE]


@pytest.mark.parametrize(
    "op",
    [
        op_of(pb.MUTATION_TYPE_DELETE),
        op_of(pb.MUTATION_TYPE_SUM),
        op_of(pb.MUTATION_TYPE_MAX),
        pb.AtomicWrite(checks=[pb.Check(key=OTHER)]),
    ],
)
def test_what_does_not_grow_is_taken(full: Node, op: pb.AtomicWrite) -> None:
    assert [result.outcome for result in full.write(op)] == [pb.OUTCOME_DONE]


def test_a_group_is_judged_write_by_write(full: Node) -> None:
    group = pb.WriteGroup()
    group.writes.add(seq=1, op=op_of(pb.MUTATION_TYPE_SET).SerializeToString())
    group.writes.add(seq=2, op=op_of(pb.MUTATION_TYPE_DELETE).SerializeToString())
    answers: dict[int, int] = {}
    full.service.write(group, lambda answer: answers.update({one.seq: one.outcome for one in answer.results}))
    full.timers.settle()
    assert answers == {1: pb.OUTCOME_NO_SPACE, 2: pb.OUTCOME_DONE}


def test_a_program_that_comes_to_delete_gets_a_session(full: Node) -> None:
    session = full.open_session()
    assert [result.outcome for result in full.write(op_of(pb.MUTATION_TYPE_DELETE), session)] == [pb.OUTCOME_DONE]


def test_messages_are_delivered_and_settled_while_space_is_short(make_node: Callable[..., Node]) -> None:
    from tests.unit.node.harness import Receiver

    node = make_node()
    receiver = Receiver(node, node.open_session())
    node.enqueue(b"one")
    node.service.no_space = lambda: "full"
    (delivery,) = receiver.got
    assert node.settle_message(delivery) == pb.OUTCOME_DONE


def test_expired_keys_are_swept_while_space_is_short(node: Node) -> None:
    op = op_of(pb.MUTATION_TYPE_SET)
    op.mutations[0].expire_in_ms = 1_000
    node.write(op)
    node.service.no_space = lambda: "full"
    node.timers.advance(2.0)
    with node.store.snapshot() as snapshot:
        assert snapshot.get(KEY).versionstamp == b""


def test_a_replica_without_room_stops_with_a_fault_of_its_own(tmp_path: Path) -> None:
    store = ReplicaStore.open(tmp_path / "state", durable=False, map_size=1 << 20)
    try:
        with pytest.raises(DiskFull) as caught:
            for index in range(1, 30):
                op = pb.AtomicWrite()
                key = b"\x02%02d\x00" % index
                op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=bytes(60_000), encoding=3)
                entry = pb.Batch(data_version=1)
                entry.commands.add().writes.writes.add(seq=1, op=op.SerializeToString())
                store.apply_now(index, 1, entry.SerializeToString())
        assert exit_code(caught.value) == 73
        assert 0 < store.applied_index < 29
    finally:
        store.close()
