"""Checkpoints, the cut of the log and snapshots, in short schedules on kvorum's core with its real files."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pysyncobj.node import Node

from tests.simulation.scenarios import propose, require_acked
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


class _Steps:
    """The small steps of one node's disks, one at a time; the power goes after so many of them."""

    def __init__(self, world: World, node_id: str, before_power_cut: int) -> None:
        self._world, self._node_id, self._left = world, node_id, before_power_cut
        self.cut = False

    def step(self) -> None:
        node = self._world.nodes[self._node_id]
        node.tick()
        acts: list[Callable[[int], Any]] = [node.sync, node.jobs.run]
        for act in acts:
            if self._left == 0:
                self._left -= 1
                self.cut = True
                self._world.restart(self._node_id, power_cut=True)
                self._world.mesh()
                return
            self._left -= bool(node.disk.pending or len(node.jobs) or self._left < 0)
            act(1)


def test_a_node_makes_one_when_applying_has_taken_long(world: World) -> None:
    """However little log that was; and one that has much to apply does that first."""
    node = world.nodes["B"]
    propose(world.nodes["A"], range(5), set())
    world.pump(8)
    node.core.apply_seconds.observe(1.9)
    world.pump(40)
    assert node.checkpoints.newest is None
    node.core.apply_seconds.observe(0.2)
    world.pump(40)
    assert node.checkpoints.newest is not None
    assert world.nodes["C"].checkpoints.newest is None


@pytest.mark.parametrize("steps", range(26))
def test_a_power_cut_at_any_step_of_a_checkpoint_and_of_the_cut_loses_nothing(world: World, steps: int) -> None:
    acked: set[str] = set()
    for part in range(2):
        propose(world.nodes["A"], range(part * 10, part * 10 + 10), acked)
        world.pump(8)
    victim = world.nodes["B"]
    world.auto_sync = False
    disk = _Steps(world, "B", steps)
    for round_ in range(3):
        world.nodes["B"].snapshots.checkpointer.force()
        propose(world.nodes["A"], range(20 + round_ * 3, 23 + round_ * 3), acked)
        for _ in range(14):
            world.clock.now += 0.06
            disk.step()
            for node_id in "AC":
                world.nodes[node_id].tick()
                world.nodes[node_id].sync()
            for a, b in world.pairs():
                world.deliver(a, b)
    assert disk.cut, "the schedule is too short"
    world.auto_sync = True
    world.pump(20)
    restarted = world.nodes["B"]
    assert restarted is not victim
    assert restarted.applied == world.nodes["A"].applied
    require_acked(restarted, acked)


@pytest.mark.parametrize("steps", range(16))
def test_a_power_cut_at_any_step_of_an_installation_loses_nothing(world: World, steps: int) -> None:
    acked: set[str] = set()
    propose(world.nodes["A"], range(5), acked)
    world.pump(6)
    for other in "AB":
        world.disconnect("C", other)
    propose(world.nodes["A"], range(5, 40), acked)
    world.pump(30, ids="AB")
    compact(world, "A", "AB")
    assert world.nodes["A"].journal.base_index > world.nodes["C"].last_index
    world.auto_sync = False
    disk = _Steps(world, "C", steps)
    for other in "AB":
        world.connect("C", other)
    for _ in range(60):
        world.clock.now += 0.06
        disk.step()
        for node_id in "AB":
            world.nodes[node_id].tick()
            world.nodes[node_id].sync()
        for a, b in world.pairs():
            world.deliver(a, b)
    assert disk.cut, "the schedule is too short"
    world.auto_sync = True
    world.pump(60)
    assert world.nodes["C"].applied == world.nodes["A"].applied
    require_acked(world.nodes["C"], acked)


@pytest.mark.parametrize("leader", "AC")
def test_nodes_make_their_checkpoints_one_after_the_other(world: World, leader: str) -> None:
    if not world.nodes[leader].leads:
        world.elect(leader)
    propose(world.nodes[leader], range(5), set())
    world.pump(6)
    world.auto_sync = False
    for node in world.nodes.values():
        node.snapshots.checkpointer.note_bytes(2 * world.checkpoint_bytes)
    order: list[str] = []
    for round_ in range(120):
        world.pump(1)
        for node in world.nodes.values():
            node.sync()
            node.jobs.run(round_ % 4 == 0)
        busy = [name for name, node in world.nodes.items() if node.snapshots.checkpointer.busy]
        assert len(busy) <= 1
        order += [name for name in busy if name not in order]
    assert sorted(order) == ["A", "B", "C"] and order[-1] == leader
    assert all(node.checkpoints_made == 1 for node in world.nodes.values())


def test_one_whose_turn_does_not_come_begins_when_its_log_is_too_long(world: World) -> None:
    """Its neighbour's disk is so slow that the neighbour's checkpoint does not end."""
    propose(world.nodes["A"], range(5), set())
    world.pump(6)
    world.auto_sync = False

    def go_on(rounds: int) -> set[str]:
        for _ in range(rounds):
            world.pump(1)
            for node in world.nodes.values():
                node.sync()
        return {name for name, node in world.nodes.items() if node.snapshots.checkpointer.busy}

    for node in world.nodes.values():
        node.snapshots.checkpointer.note_bytes(world.checkpoint_bytes)
    assert go_on(60) == {"B"}
    world.nodes["C"].snapshots.checkpointer.note_bytes(2 * world.checkpoint_bytes)
    assert go_on(10) == {"B", "C"}
