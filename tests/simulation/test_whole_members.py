"""Removals and hand-overs in whole nodes under virtual time: what those who wait for them are told."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kvorum_raft import RaftNode
from kvorum_raft.errors import UnknownOutcome
from kvorum_raft.pysyncobj_fixes import SafeSyncObj
from tests.simulation.whole.machines import Machine
from tests.simulation.whole.trio import Trio


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Trio]:
    made = Trio(tmp_path)
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


def test_a_leader_that_is_refused_before_it_has_applied_its_own_removal_says_that_it_is_done(cluster: Trio) -> None:
    leader = cluster.leader()
    # Its disk stands still, so that it cannot apply what the others have synced, committed and applied.
    leader.platter.stalled_until = cluster.clock.now + 5.0
    answers = _ask(leader, partial(RaftNode.remove, node_id=leader.name))
    cluster.until_refused(leader)
    assert cluster.clock.now < leader.platter.stalled_until
    assert answers == [None]


def test_whoever_else_waits_on_a_leader_that_is_refused_is_told_that_it_does_not_know(cluster: Trio) -> None:
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


def test_a_hand_over_by_a_leader_that_is_refused_meanwhile_is_not_said_to_be_done(cluster: Trio) -> None:
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


def test_a_hand_over_that_comes_to_nothing_is_announced_both_times(cluster: Trio) -> None:
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
