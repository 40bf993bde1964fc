"""Removals and hand-overs in whole nodes under virtual time: what those who wait for them are told."""

import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft import RaftNode
from kvorum_raft.errors import UnknownOutcome
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from kvorum_raft.seams import Member
from tests.simulation.whole.clock import Clock
from tests.simulation.whole.judge import Judge
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.network import Network


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


class Cluster:
    """Three machines without clients."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        network = Network(self.clock, random.Random("network"))
        self.judge = Judge(self.clock, random.Random("judge"))
        members = [Member(name, f"{name}:1", f"{name}:2") for name in "ABC"]
        self.machines = [
            Machine(one.node_id, self.clock, network, members, folder / one.node_id, "members", self.judge)
            for one in members
        ]
        for machine in self.machines:
            machine.platter.base = 0.002
            machine.start()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = self.clock.now + 20.0
        while not condition():
            assert self.clock.now < end, f"no {what} within 20 s"
            self.clock.run_until(self.clock.now + 0.001)

    def leader(self) -> Machine:
        """When all have what it has."""
        self.until(lambda: sum(machine.leads for machine in self.machines) == 1 and self._level(), "leader")
        return next(machine for machine in self.machines if machine.leads)

    def _level(self) -> bool:
        return len({machine.durable_index() for machine in self.machines}) == 1

    def until_refused(self, machine: Machine) -> None:
        """It has heard that it was removed, and its process has ended."""
        self.judge.may_be_refused.add(machine.name)
        self.until(lambda: not machine.up, "end of the removed node")
        assert self.judge.counters["folders refused"] == 1

    def batch(self) -> bytes:
        """An entry without any command."""
        return pb.Batch(data_version=1).SerializeToString()

    def close(self) -> None:
        for machine in self.machines:
            machine.kill()
        self.clock.drop_everything()
        for machine in self.machines:
            machine.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()
    assert not made.judge.findings


def _core(machine: Machine) -> SafeSyncObj:
    core = machine.process.core if machine.process is not None else None
    assert core is not None
    return core


def _ask(machine: Machine, question: Callable[[RaftNode], object]) -> list[Exception | None]:
    """What an operator is answered by that node."""
    answers: list[Exception | None] = []
    assert machine.process is not None
    machine.process.ask(question, answers.append)
    return answers


def test_a_leader_that_is_refused_before_it_has_applied_its_own_removal_says_that_it_is_done(cluster: Cluster) -> None:
    leader = cluster.leader()
    # Its disk stands still, so that it cannot apply what the others have synced, committed and applied.
    leader.platter.stalled_until = cluster.clock.now + 5.0
    answers = _ask(leader, partial(RaftNode.remove, node_id=leader.name))
    cluster.until_refused(leader)
    assert cluster.clock.now < leader.platter.stalled_until
    assert answers == [None]


def test_whoever_else_waits_on_a_leader_that_is_refused_is_told_that_it_does_not_know(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.platter.stalled_until = cluster.clock.now + 5.0
    write = _ask(leader, lambda node: node.propose(cluster.batch()))
    removal = _ask(leader, partial(RaftNode.remove, node_id=leader.name))
    core = _core(leader)
    cluster.until(lambda: core.commit_index == core.journal.last_index, "commit")
    # The others apply that and refuse this node; what it takes from now on comes nowhere.
    late = _ask(leader, lambda node: node.propose(cluster.batch()))
    change = _ask(leader, partial(RaftNode.remove, node_id=next(name for name in "ABC" if name != leader.name)))
    cluster.until_refused(leader)
    assert removal == [None]
    for answers in (write, late, change):
        assert [type(answer) for answer in answers] == [UnknownOutcome]
        assert "members tell what was done" in str(answers[0])


def test_a_hand_over_by_a_leader_that_is_refused_meanwhile_is_not_said_to_be_done(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.platter.stalled_until = cluster.clock.now + 5.0
    core = _core(leader)
    removal = _ask(leader, partial(RaftNode.remove, node_id=leader.name))
    cluster.until(lambda: core.commit_index == core.journal.last_index, "commit")
    other = next(machine for machine in cluster.machines if machine is not leader)
    _core(other)._take_over = lambda node: None  # type: ignore[method-assign]
    transfer = _ask(leader, partial(RaftNode.transfer, node_id=other.name))
    cluster.until_refused(leader)
    assert removal == [None]
    assert [type(answer) for answer in transfer] == [UnknownOutcome]


def test_a_hand_over_that_comes_to_nothing_is_announced_both_times(cluster: Cluster) -> None:
    """Whoever proposes by itself (sweeps, leases) stops when it is refused, and must hear when to begin again."""
    leader = cluster.leader()
    deaf = next(machine for machine in cluster.machines if machine is not leader)
    assert leader.process is not None and leader.process.raft is not None
    heard: list[bool] = []
    leader.process.raft.on_leadership(heard.append)
    _core(deaf)._take_over = lambda node: None  # type: ignore[method-assign]
    answers = _ask(leader, partial(RaftNode.transfer, node_id=deaf.name))
    cluster.until(lambda: heard == [False, True], "both announcements")
    assert [type(answer) for answer in answers] == [UnknownOutcome]
    write = _ask(leader, lambda node: node.propose(cluster.batch()))
    cluster.until(lambda: bool(write), "answer")
    assert write == [None]
