"""What a review of the whole consensus layer found: each in the shortest schedule that shows it."""

import asyncio
import errno
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pysyncobj.node import Node

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig
from kvorum_raft.entry import HEADER_SIZE, Kind, make
from kvorum_raft.errors import ProtocolError
from kvorum_raft.isolation import Isolation
from kvorum_raft.node import RaftNode
from kvorum_raft.pysyncobj_fixes import LEADER
from kvorum_raft.seams import Applied, Member
from kvorum_raft.waiters import StateWaiters
from tests.simulation.machine import Machine
from tests.simulation.scenarios import propose
from tests.simulation.scenarios_snapshots import compact
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(SafeNode, folder=tmp_path).start()
    world.mesh()
    world.elect("A")
    world.pump(4)
    return world


def _behind(world: World) -> None:
    """C is away until its next entry is gone from A's log, and comes back."""
    for other in "AB":
        world.disconnect("C", other)
    propose(world.nodes["A"], range(40), set())
    world.pump(30, ids="AB")
    compact(world, "A", "AB")
    assert world.nodes["A"].journal.base_index > world.nodes["C"].last_index
    for other in "AB":
        world.connect("C", other)


# ---------------------------------------------------------------------- the log is cut, whoever stays away


def test_a_follower_that_dies_while_it_gets_a_snapshot_does_not_stop_the_cutting_of_the_log(world: World) -> None:
    leader = world.nodes["A"]
    _behind(world)
    world.nodes["A"].tick()
    while not leader.snapshots._sender._transfers:
        world.clock.now += 0.11
        leader.tick()
        for a, b in ("AC", "CA"):
            world.deliver(a, b)
        world.nodes["C"].core.tick()  # its disk does nothing: the transfer has begun and does not end
    for other in "AB":
        world.disconnect("C", other)
    for _ in range(700):  # more than a minute, after which a transfer is to be forgotten
        world.clock.now += 0.1
        for node_id in "AB":
            world.nodes[node_id].tick()
        for a, b in ("AB", "BA"):
            world.deliver(a, b)
    for _ in range(3):
        propose(leader, range(20), set(), letter="later")
        world.pump(10, ids="AB")
        leader.compact()
    assert leader.leads
    assert leader.journal.base_index == leader.snapshots._cutter._goal, "nothing is cut while this leader leads"


def test_what_was_in_the_log_at_the_start_counts_for_the_next_checkpoint(tmp_path: Path) -> None:
    """A node that is restarted now and then, with a good state, must make checkpoints all the same."""
    world = World(SafeNode, folder=tmp_path, checkpoint_bytes=6_000).start()
    world.mesh()
    world.elect("A")
    world.pump(4)
    for part in range(8):
        propose(world.nodes["A"], range(part * 20, part * 20 + 20), set())
        world.pump(20)
        for node_id in "BCA":
            world.restart(node_id)
        world.mesh()
        world.elect("A")
        world.pump(4)
    least = world.nodes["B"].last_index * HEADER_SIZE
    assert least > 5_000, "a third of what lets it begin even if its turn does not come"
    assert world.nodes["B"].checkpoints.newest is not None, f"more than {least} bytes of log, and no checkpoint"


def test_a_follower_catches_up_behind_its_snapshot_though_the_log_is_cut(world: World) -> None:
    """While the snapshot travelled, newer checkpoints were made. What follows behind it in the log is what the follower
    needs next, and must not be cut before it could be sent: else a follower whose transfer lasts longer than two
    checkpoints gets one snapshot after the other, as long as writes go on."""
    leader, follower = world.nodes["A"], world.nodes["C"]
    _behind(world)

    def turn(number: int) -> None:
        propose(leader, range(2), set(), letter=f"w{number}.")
        world.clock.now += 0.02
        for node_id in "ABC":
            world.nodes[node_id].tick()
        for a, b in world.pairs():
            world.deliver(a, b)

    run = follower.jobs.run
    follower.jobs.run = lambda count=None: 0  # its disk is slow
    for number in range(300):
        turn(number)
        if number % 60 == 59:
            leader.snapshots.checkpointer.force()
    follower.jobs.run = run
    for number in range(60):
        turn(number)
    assert follower.core.counters["installs"] == 1, "it needs another snapshot at once"


# ---------------------------------------------------------------------- faults in what the background reports


def test_a_state_that_cannot_be_adopted_is_a_fault(world: World) -> None:
    """Results of background jobs enter the core in the loop, outside of `RaftNode._guard`: what they raise must not
    end in the loop's exception handler while the node goes on."""
    follower = world.nodes["C"]
    faults: list[Exception] = []
    follower.snapshots._fault = faults.append

    def adopt(prepared: Any) -> None:
        raise OSError(errno.EIO, "the folder cannot be synced")

    follower.machine.adopt = adopt
    follower.core.hollow = True  # its log is whole: nothing is to be written before the state is adopted
    compact(world, "A", "AB")
    escaped: list[Exception] = []
    run = follower.jobs.run

    def caught(count: int | None = None) -> int:
        try:
            return int(run(count))
        except OSError as error:
            escaped.append(error)
            return 0

    follower.jobs.run = caught
    world.pump(60)
    assert not escaped, "in a real node asyncio logs it, and the node goes on with half a state"
    assert faults


def test_a_disk_that_fails_while_a_state_is_prepared_is_a_fault(world: World) -> None:
    """Rules A7: EIO is never tried again."""
    follower = world.nodes["C"]
    faults: list[Exception] = []
    follower.snapshots._fault = faults.append
    tried = 0

    def prepare(file: Path, pause: Callable[[int], None] | None = None) -> Any:
        nonlocal tried
        tried += 1
        raise OSError(errno.EIO, "a sync failed")

    follower.machine.prepare = prepare
    _behind(world)
    world.pump(300)
    assert tried == 1
    assert faults


def test_a_snapshot_that_found_no_room_is_given_up_when_a_newer_one_is_the_state(world: World) -> None:
    leader, follower = world.nodes["A"], world.nodes["C"]
    prepare = follower.machine.prepare
    asked: list[str] = []

    def full(file: Path, pause: Callable[[int], None] | None = None) -> Any:
        asked.append(file.parent.name)
        if asked[0] == file.parent.name:
            raise OSError(errno.ENOSPC, "no space left")
        return prepare(file, pause)

    follower.machine.prepare = full
    _behind(world)
    world.pump(30)
    assert len(asked) == 1
    propose(leader, range(9), set(), letter="more")
    world.pump(4)
    compact(world, "A", "AB")
    leader.snapshots._sender.forget(Node("C"))  # as a new leader would, which has another file
    world.pump(60)
    assert follower.core.counters["installs"] == 1
    asked.clear()
    asked.append("")
    world.pump(600)
    assert asked == [""], "it is tried every ten seconds, for ever"


# ---------------------------------------------------------------------- a leader without a state


@pytest.mark.parametrize("hollow", ["AC", "AB"])
def test_a_leader_without_a_state_passes_its_log_on_to_somebody_who_has_one(world: World, hollow: str) -> None:
    """Two that lack their states, the third is sound: it must lead in the end, whatever the nodes are called."""
    for node_id in hollow:
        world.nodes[node_id].core.hollow = True
    sound = next(one for one in "BC" if one not in hollow)
    for _ in range(100):
        world.pump(1)
    assert world.nodes[sound].leads


# ---------------------------------------------------------------------- learners count nowhere


def test_the_clocks_of_learners_count_nowhere() -> None:
    """Rules B4, D1: two of three voters are there with sound clocks, and three learners whose clocks are wrong."""
    world = World(SafeNode, "ABCDEF", founders="ABC").start()
    world.mesh()
    leader = world.elect("A", "ABC")
    world.pump(4, ids="ABC")
    for node_id in "DEF":
        world.wall_offset_ms[node_id] = 2 * 3_600_000
        leader.add(node_id, lambda ok: None)
        world.mesh()
        world.pump(10)
    world.mesh()
    assert leader.members == set("ABCDEF")
    for other in "ABDEF":
        world.disconnect("C", other)
    world.pump(600, ids="ABDEF")  # C's clock is too old to count
    world.nodes["B"].core._waited_for_clock = True  # it takes its own clock for the wrong one
    leader = world.elect("B", "ABDEF")
    world.pump(6, ids="ABDEF")
    ahead = leader.core.entry_clock.now_ms() - world.wall_ms("B")
    assert ahead < 60_000, f"the cluster's time is {ahead / 1000:.0f} s ahead of all voters' clocks"


# ---------------------------------------------------------------------- what a peer may send


def _follower() -> tuple[World, SafeNode]:
    world = World(SafeNode).start()
    world.mesh()
    world.elect("A")
    world.pump(4)
    return world, world.nodes["B"]


def _append(node: SafeNode, *records: bytes) -> pb.Envelope:
    journal = node.journal
    body = pb.Append(prev_index=journal.last_index, prev_term=journal.last_term, round=1, entries=records)
    return pb.Envelope(term=node.term, append=body)


def test_an_entry_of_a_newer_format_ends_the_connection_and_not_the_process() -> None:
    """`RaftNode._guard` ends the process for everything but ProtocolError."""
    _, node = _follower()
    record = bytearray(make(Kind.COMMAND, node.last_index + 1, node.term, 1 << 41, b"x").record)
    record[0] = 2
    header, payload = record[:28], record[32:]
    record[28:32] = zlib.crc32(payload, zlib.crc32(header)).to_bytes(4, "big")
    with pytest.raises(ProtocolError):
        node.core._SyncObj__onMessageReceived(Node("A"), _append(node, bytes(record)))


@pytest.mark.parametrize("payload", [b"\xff\xff", b"", cf.Configuration(b"x" * 16, ()).encode()])
def test_a_configuration_that_is_none_ends_the_connection_and_not_the_process(payload: bytes) -> None:
    _, node = _follower()
    before = node.last_index
    record = make(Kind.CONFIGURATION, before + 1, node.term, 1 << 41, payload).record
    with pytest.raises(ProtocolError):
        node.core._SyncObj__onMessageReceived(Node("A"), _append(node, record))
    assert node.last_index == before


def test_an_entry_that_is_older_than_the_one_before_it_is_not_stored() -> None:
    """The next start would take the log for damaged."""
    _, node = _follower()
    assert node.journal.entry(node.last_index).time_ms > 5
    record = make(Kind.COMMAND, node.last_index + 1, node.term, 5, b"x").record
    with pytest.raises(ProtocolError):
        node.core._SyncObj__onMessageReceived(Node("A"), _append(node, record))


def test_an_entry_of_a_time_that_no_message_can_carry_is_not_stored() -> None:
    """Whoever has it in its log could not send a single heartbeat as a leader, nor could anybody after it."""
    _, node = _follower()
    record = make(Kind.COMMAND, node.last_index + 1, node.term, 1 << 63, b"x").record
    with pytest.raises(ProtocolError):
        node.core._SyncObj__onMessageReceived(Node("A"), _append(node, record))


def test_nonsense_of_a_newer_term_does_not_depose_the_leader() -> None:
    """`_receive_append`: "first: nonsense proves nothing about another leader"."""
    world, _ = _follower()
    leader = world.nodes["A"]
    envelope = _append(leader, b"no record")
    envelope.term += 1
    with pytest.raises(ProtocolError):
        leader.core._SyncObj__onMessageReceived(Node("B"), envelope)
    assert leader.core.state == LEADER


def test_a_snapshot_of_a_later_term_than_its_leaders_is_nonsense(world: World) -> None:
    """Its base would be stored with a term beyond the node's own, which the next start takes for damage."""
    leader, follower = world.nodes["A"], world.nodes["C"]
    compact(world, "A", "ABC")
    message = leader.checkpoints.newest.message()
    message.base.term, message.base.index = follower.term + 7, follower.last_index + 100
    envelope = pb.Envelope(term=follower.term, snapshot_offer=pb.SnapshotOffer(manifest=message))
    with pytest.raises(ProtocolError):
        follower.core._SyncObj__onMessageReceived(Node("A"), envelope)


def test_a_configuration_with_too_many_members_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of 4 MiB holds two million empty members."""
    message = pb.Configuration(format=1, voters=[pb.Voter() for _ in range(200_000)])
    made = 0

    class Counted(Member):
        __slots__ = ()

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            return super().__new__(cls)

    monkeypatch.setattr("kvorum_raft.configuration.Member", Counted)
    with pytest.raises(ValueError, match=r"members|voters"):
        cf.from_message(message)
    assert made <= cf.MAX_MEMBERS + 1


def test_a_late_or_repeated_failure_of_a_follower_forces_no_checkpoint(world: World) -> None:
    """Of a snapshot that is not being sent: who says so could make the leader write checkpoint after checkpoint."""
    leader = world.nodes["A"]
    compact(world, "A", "ABC")
    made = leader.checkpoints_made
    for _ in range(5):
        reply = pb.SnapshotReply(file_hash=bytes(32), failed=True)
        leader.core._SyncObj__onMessageReceived(Node("B"), pb.Envelope(term=leader.term, snapshot_reply=reply))
        world.pump(6)
    assert leader.checkpoints_made == made


# ---------------------------------------------------------------------- those who wait


async def test_readers_that_gave_up_are_forgotten() -> None:
    """A state that does not move (no leader, a snapshot on its way) while clients ask, time out and ask again."""
    waiters = StateWaiters(65_536)
    for _ in range(10_000):
        future = waiters.wait(10)
        future.cancel()
        await asyncio.sleep(0)
    assert len(waiters) < 1000


# ---------------------------------------------------------------------- the loop is never held up


def test_a_prepared_state_that_is_not_wanted_is_deleted_off_the_loop(world: World) -> None:
    """Deleting a file of a GiB takes a third of a second."""
    follower = world.nodes["C"]
    prepare = follower.machine.prepare
    discarded_in: list[bool] = []
    in_job = False

    def prepared(file: Path, pause: Callable[[int], None] | None = None) -> Any:
        state = prepare(file, pause)
        discard = state.discard

        def noted() -> None:
            discarded_in.append(in_job)
            discard()

        state.discard = noted
        return state

    submit = follower.jobs.submit

    def submitted(job: Any, done: Any) -> None:
        def work() -> Any:
            nonlocal in_job
            in_job = True
            try:
                return job()
            finally:
                in_job = False

        submit(work, done)

    follower.machine.prepare = prepared
    follower.jobs.submit = submitted
    follower.core.install = lambda *_: False  # it has caught up by other means
    _behind(world)
    world.pump(12)
    assert discarded_in
    assert all(discarded_in)


def test_a_listener_that_fails_does_not_keep_readers_waiting(tmp_path: Path) -> None:
    """What `on_applied` callbacks raise is logged, one by one, as for `on_installed`."""

    async def scenario() -> None:
        node = RaftNode(RaftConfig("A", [Member("A", "a:1", "a:2")], tmp_path), Machine())
        node._comparing = SimpleNamespace(applied=lambda index: None)  # type: ignore[assignment]
        heard: list[int] = []

        def fails(applied: Applied) -> None:
            raise KeyError("a defect elsewhere")

        node.on_applied(fails)
        node.on_applied(lambda applied: heard.append(applied.index))
        waiting = node._waiters.wait(5)
        with Isolation("A"):  # as the core calls it
            node.applied(Applied(5, 1, None))
        assert heard == [5]
        assert waiting.done()

    asyncio.run(scenario())


def test_a_leader_whose_disk_gets_slow_hands_leadership_over(world: World) -> None:
    """Rules A9: an election timeout without a leader is what it would cost otherwise."""
    leader = world.nodes["A"]
    world.auto_sync = False
    propose(leader, range(2), set())
    for _ in range(12):
        world.clock.now += 0.08
        for node_id in "ABC":
            world.nodes[node_id].tick()
        for node_id in "BC":
            world.nodes[node_id].sync()
        for a, b in world.pairs():
            world.deliver(a, b)
    assert not leader.leads
    assert leader.core.counters["transfers"] == 1
    assert any(world.nodes[node_id].leads for node_id in "BC")


def test_a_content_hash_counts_only_if_it_comes_from_the_members_own_folder(tmp_path: Path) -> None:
    """A replaced folder that still runs under the name of its successor must not help to say who is right."""
    node = RaftNode(RaftConfig("A", [Member("A", "a:1", "a:2")], tmp_path), Machine())
    delivered: list[pb.Envelope] = []
    node._running = True
    node._stepper = SimpleNamespace(messages=0, ask=lambda: None)  # type: ignore[assignment]
    node._admissions = SimpleNamespace(is_member_folder=lambda *_: False)  # type: ignore[assignment]
    node._transport = SimpleNamespace(deliver=lambda _, envelope: delivered.append(envelope))  # type: ignore[assignment]
    node.received(Node("B"), b"o" * 16, pb.Envelope(state_hash=pb.StateHash(index=256, content_hash=bytes(16))))
    assert not delivered
