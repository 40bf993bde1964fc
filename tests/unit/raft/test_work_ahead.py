"""What a leader works out before it is committed: nobody sees it, and it is given up with the office."""

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft.errors import DiskFull, RaftFault
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from tests.simulation.machine import Machine
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world() -> World:
    world = World(SafeNode).start()
    world.mesh()
    return world


class Begun:
    """Counts how often a machine began to apply an entry, and how often it was given up."""

    def __init__(self, machine: Machine) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.given_up: list[int] = []
        self._apply = machine.apply
        machine.apply = self._begin  # type: ignore[method-assign]

    def _begin(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        self.entries.append((index, payload))
        try:
            return (yield from self._apply(index, time_ms, payload))
        except GeneratorExit:
            self.given_up.append(index)
            raise


class Answer:
    """To a proposal."""

    ok: bool | None = None

    def __call__(self, ok: bool) -> None:
        self.ok = ok


def _steps(node: SafeNode, count: int = 4) -> None:
    for _ in range(count):
        node.core.tick()


def test_an_entry_is_worked_out_once_and_shown_when_it_is_committed(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    begun, before, answer = Begun(leader.machine), leader.machine.state_hash(), Answer()
    index = leader.last_index + 1
    world.auto_sync = False
    leader.propose("x", answer)
    _steps(leader)
    assert begun.entries == [(index, b"x")]
    assert (leader.machine.state_hash(), leader.applied_index, answer.ok) == (before, index - 1, None)
    leader.sync()
    _steps(leader)
    assert (leader.machine.state_hash(), leader.applied_index, answer.ok) == (before, index - 1, None)
    world.auto_sync = True
    world.pump(4)
    assert begun.entries == [(index, b"x")]
    assert (leader.applied_index, answer.ok) == (index, True)


def test_it_is_shown_only_when_it_is_durable_here(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    leader.propose("x", Answer())
    index = leader.last_index
    _steps(leader)
    for follower in "BC":
        world.deliver("A", follower)
        world.nodes[follower].sync()
        world.deliver(follower, "A")
    _steps(leader)
    assert (leader.core.commit_index, leader.applied_index) == (index, index - 1)
    leader.sync()
    _steps(leader, 1)
    assert leader.applied_index == index


def test_a_follower_works_nothing_out(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    begun = Begun(world.nodes["B"].machine)
    leader.propose("x", Answer())
    leader.core.tick()
    world.deliver("A", "B")
    _steps(world.nodes["B"])
    assert world.nodes["B"].last_index == leader.last_index
    assert leader.last_index not in [index for index, _ in begun.entries]


def test_what_waits_to_be_committed_asks_for_no_steps_and_keeps_no_checkpoint_back(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    leader.propose("x", Answer())
    assert leader.last_index % 7, "the machine needs one slice"
    assert not leader.core.tick()
    assert not leader.core.needs_step()
    assert not leader.core.applying


def test_the_next_one_is_worked_out_as_soon_as_the_answers_to_one_may_leave(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    begun, answer = Begun(leader.machine), Answer()
    world.auto_sync = False
    leader.propose("x", answer)
    leader.core.tick()
    world.deliver("A", "B")
    world.nodes["B"].sync()
    world.deliver("B", "A")
    leader.sync()
    leader.propose("y", Answer())
    assert leader.core.tick()
    assert (answer.ok, begun.entries) == (True, [(leader.last_index - 1, b"x")])
    assert not leader.core.tick()
    assert begun.entries[1:] == [(leader.last_index, b"y")]


def _deposed(world: World) -> tuple[SafeNode, Begun, int]:
    """A leader that has worked out an entry which nobody else has, and is cut off from the others, who go on."""
    leader = world.elect("A")
    world.pump(3)
    begun = Begun(leader.machine)
    for other in "BC":
        world.disconnect("A", other)
    leader.propose("lost", Answer())
    index = leader.last_index
    _steps(leader)
    assert begun.entries == [(index, b"lost")]
    successor = world.elect("B", "BC")
    successor.propose("other", Answer())
    world.pump(3, ids="BC")
    assert successor.applied_index > index
    return leader, begun, index


def test_it_is_given_up_with_the_office(world: World) -> None:
    leader, begun, index = _deposed(world)
    world.mesh()
    world.pump(8)
    assert begun.given_up == [index]
    assert (index, "lost") not in leader.applied
    assert leader.machine.state_hash() == world.nodes["B"].machine.state_hash()


def test_a_leader_that_keeps_it_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafeSyncObj, "_give_up_work_ahead", lambda self: None)
    _deposed(world)
    world.mesh()
    with pytest.raises(RaftFault, match=r"was worked out, and another one is in its place"):
        world.pump(8)


def test_it_is_begun_anew_by_a_leader_that_is_elected_again(world: World) -> None:
    """The entry is still in its log then, and is committed with the first one of the new term."""
    leader = world.elect("A")
    world.pump(3)
    for other in "BC":
        world.disconnect("A", other)
    leader.propose("again", Answer())
    index = leader.last_index
    leader.tick()
    leader.core.step_down("a test")
    begun = Begun(leader.machine)
    _steps(leader)
    assert begun.entries == [], "it leads no more"
    world.mesh()
    world.elect("A")
    world.pump(8)
    assert [entry for entry, _ in begun.entries][:2] == [index, index + 1]
    assert (index, "again") in leader.applied
    assert {node.machine.state_hash() for node in world.nodes.values()} == {leader.machine.state_hash()}


@pytest.mark.parametrize("error", [ValueError("broken"), DiskFull("no room")])
def test_what_goes_wrong_is_a_fault_when_it_is_committed(world: World, error: Exception) -> None:
    leader = world.elect("A")
    world.pump(3)
    tried = 0

    def apply(index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        nonlocal tried
        tried += 1
        raise error
        yield

    leader.machine.apply = apply
    world.auto_sync = False
    leader.propose("x", Answer())
    _steps(leader)
    assert tried == 1, "it is not tried again and again"
    world.auto_sync = True
    with pytest.raises(type(error) if isinstance(error, DiskFull) else RaftFault, match=r"broken|no room"):
        world.pump(3)
    assert tried == 2


def test_a_machine_that_does_not_wait_is_a_fault(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)

    def apply(index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        leader.machine._index = index
        yield from ()

    leader.machine.apply = apply
    world.auto_sync = False
    leader.propose("x", Answer())
    with pytest.raises(RaftFault, match="which is not committed"):
        _steps(leader)


def test_it_is_given_up_when_the_node_stops(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    begun = Begun(leader.machine)
    world.auto_sync = False
    leader.propose("x", Answer())
    _steps(leader)
    leader.core.stop("a test")
    assert begun.given_up == [leader.last_index]


def test_a_checkpoint_is_of_what_is_committed(tmp_path: Path) -> None:
    world = World(SafeNode, folder=tmp_path, checkpoint_bytes=1).start()
    world.mesh()
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    leader.propose("x", Answer())
    _steps(leader)
    applied = leader.applied_index
    leader.snapshots.checkpointer.force()
    world.clock.now += 10
    leader.snapshots.tick()
    leader.jobs.run()
    assert leader.checkpoints.newest is not None
    assert leader.checkpoints.newest.base.index == applied
