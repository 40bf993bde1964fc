"""Changes of the members, in short schedules on kvorum's core with its real journal and checkpoints."""

import logging
from pathlib import Path

import pytest

from tests.simulation.scenarios import propose
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(SafeNode, "ABCD", founders="ABC", folder=tmp_path).start()
    world.mesh()
    world.elect("A")
    world.pump(4)
    return world


def test_a_replaced_node_begins_with_nothing(world: World) -> None:
    """The leader must not take what the lost folder acknowledged for what the new, empty one holds."""
    leader = world.nodes["A"]
    propose(leader, range(20), set())
    world.pump(20)
    for other in "ABD":
        world.disconnect("C", other)
    world.wipe("C")
    done: list[bool] = []
    leader.replace("C", done.append)
    world.pump(3, ids="AB")
    assert done == [True]
    assert leader.core.match_index("C") == 0, "nothing has been heard of that folder yet"
    for other in "AB":
        world.connect("C", other)
    world.pump(30, ids="ABC")
    assert world.nodes["C"].applied == leader.applied


def test_a_replaced_node_counts_for_what_it_holds(world: World) -> None:
    """The same to its bitter end: acknowledged by the leader and by a folder that does not exist any more."""
    leader = world.nodes["A"]
    propose(leader, range(20), set())
    world.pump(20)
    for other in "ABD":
        world.disconnect("C", other)
    world.wipe("C")
    for step in (leader.replace, leader.promote):
        step("C", lambda ok: None)
        world.pump(3, ids="AB")
    world.disconnect("A", "B")
    acked: set[str] = set()
    propose(leader, range(20, 25), acked)
    for _ in range(3):
        world.clock.now += 0.11
        leader.tick()
    assert acked == set()


def test_a_leader_that_was_removing_itself_when_it_lost_office_may_campaign_again(tmp_path: Path) -> None:
    """Its log with the uncommitted removal is the longest, so nobody else can win; it must not stay out of elections
    before that entry is committed."""
    world = World(SafeNode, "AB", folder=tmp_path).start()
    world.mesh()
    leader = world.elect("A")
    world.pump(4)
    world.disconnect("A", "B")
    leader.remove("A", lambda ok: None)
    for _ in range(15):
        world.clock.now += 0.11
        leader.tick()
    assert not leader.leads
    assert leader.voters == {"B"}
    world.connect("A", "B")
    for node in world.nodes.values():
        node.release_election()
    for _ in range(60):
        world.pump(1)
        if world.nodes["B"].voters == {"B"} and world.nodes["B"].leads:
            break
    assert world.nodes["B"].leads
