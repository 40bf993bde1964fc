"""A node that has much to apply could lead, and take nothing until that is done. It leaves office to others."""

import logging
from dataclasses import replace

import pytest

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import RaftError
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world() -> World:
    world = World(SafeNode, "ABC").start()
    world.mesh()
    world.elect("A")
    world.pump(4)
    return world


def _far_behind(node: SafeNode) -> None:
    """However little there is to apply."""
    node.core._limits = replace(node.core._limits, far_behind=-1)
    assert node.core.far_behind


def _without(world: World, gone: str) -> None:
    """This leader is gone, and the elections of the others are due one after the other, as they are named."""
    rest = [node_id for node_id in world.ids if node_id != gone]
    for other in rest:
        world.disconnect(gone, other)
    for number, node_id in enumerate(rest):
        core = world.nodes[node_id].core
        world.nodes[node_id]._held = False
        core._contact = float("-inf")
        core._SyncObj__raftElectionDeadline = world.clock.now + 0.2 * number


def test_others_are_elected_first(world: World) -> None:
    _far_behind(world.nodes["B"])
    _without(world, "A")
    world.pump(6, ids="BC")
    assert world.nodes["C"].leads
    assert world.nodes["B"].core.counters["elections_left"] == 1
    assert world.nodes["B"].core.counters["pre_votes"] == 0


def test_one_leads_if_all_are_far_behind(world: World) -> None:
    for node_id in "BC":
        _far_behind(world.nodes[node_id])
    _without(world, "A")
    world.pump(30, ids="BC")
    assert world.nodes["B"].leads or world.nodes["C"].leads


def test_a_node_alone_waits_for_nobody() -> None:
    world = World(SafeNode, "A").start()
    _far_behind(world.nodes["A"])
    world.nodes["A"].campaign()
    world.pump(2)
    assert world.nodes["A"].leads
    assert world.nodes["A"].core.counters["elections_left"] == 0


def test_one_that_is_elected_all_the_same_passes_its_office_on(world: World) -> None:
    """It had the longest log, say, which the others have got from it by now."""
    behind = world.nodes["B"]
    apply = behind.core._SyncObj__applyLogEntries
    behind.core._SyncObj__applyLogEntries = lambda: False  # it takes long
    _far_behind(behind)
    _without(world, "A")
    world.nodes["C"].hold_election()
    behind.core._waits_for_others = 1
    world.pump(10, ids="BC")
    assert behind.core.counters["elections"] == 1
    assert behind.core.counters["transfers"] == 1
    assert world.nodes["C"].leads
    behind.core._SyncObj__applyLogEntries = apply
    world.pump(4, ids="BC")
    assert behind.applied == world.nodes["C"].applied


def test_it_keeps_its_office_if_the_others_are_behind_as_well(world: World) -> None:
    behind = world.nodes["B"]
    apply = behind.core._SyncObj__applyLogEntries
    behind.core._SyncObj__applyLogEntries = lambda: False
    for node_id in "BC":
        _far_behind(world.nodes[node_id])
    _without(world, "A")
    world.nodes["C"].hold_election()
    behind.core._waits_for_others = 1
    world.pump(10, ids="BC")
    assert behind.core.counters["elections"] == 1
    assert behind.core.counters["transfers"] == 0
    behind.core._SyncObj__applyLogEntries = apply
    world.pump(1, ids="BC")
    assert behind.leads


def test_nobody_hands_over_to_it(world: World) -> None:
    """Also not a leader of a former version, which cannot know."""
    leader, behind = world.nodes["A"], world.nodes["B"]
    _far_behind(behind)
    world.pump(4)
    with pytest.raises(ValueError, match=r"node B .* much to apply"):
        leader.core.transfer("B", lambda error: None)
    told: list[RaftError | None] = []
    assert leader.core.transfer(None, told.append) == "C"
    world.pump(4)
    assert told == [None]
    assert world.nodes["C"].leads
    behind.core._SyncObj__onMessageReceived(
        behind.core._SyncObj__raftLeader, pb.Envelope(term=behind.core.term, timeout_now=pb.TimeoutNow())
    )
    assert behind.core.counters["elections"] == 0


def test_what_is_applied_is_not_behind(world: World) -> None:
    limit = world.nodes["B"].core._limits.far_behind
    node = world.nodes["B"]
    assert not node.core.far_behind
    node.core._SyncObj__raftLastApplied = node.core.journal.last_index - limit
    assert not node.core.far_behind
    node.core._SyncObj__raftLastApplied -= 1
    assert node.core.far_behind
