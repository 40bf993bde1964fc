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
