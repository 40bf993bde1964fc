"""Checkpoints, the cut of the log and snapshots, in short schedules on kvorum's core with its real files."""

import logging
from pathlib import Path

import pytest
from pysyncobj.node import Node

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


def test_the_log_is_cut_behind_what_a_slow_follower_was_sent(world: World) -> None:
    """Its window is full, its connection stands: when it answers at last, what it needs next is gone."""
    leader, slow = world.nodes["A"], world.nodes["C"]
    propose(leader, range(60), set())
    world.pump(40, ids="AB")
    assert leader.core._progress[Node("C")].in_flight[0] > 0
    world.deliver("A", "C")
    slow.tick()
    compact(world, "A", "AB")
    assert leader.journal.base_index > slow.last_index
    world.deliver("C", "A")
    world.pump(60)
    assert leader.leads
    assert slow.applied == leader.applied
