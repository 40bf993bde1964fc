"""Gaps in the service, the next leader, and the plot."""

from xml.etree import ElementTree

import pytest

from chaos.history import Effect, Operation, Outcome
from chaos.nemesis import Struck
from chaos.observer import Observer
from chaos.report import MOST_OFF, Report
from chaos.timeline import Timeline
from kvorum._proto import kvorum_pb2 as pb

SECOND = 1_000_000_000


def write(at: float, outcome: Outcome = "ok") -> Operation:
    return Operation(0, "set", 0, int(at * SECOND), outcome, effects=(Effect("a", "set", 1),))


def timeline(*operations: Operation) -> Timeline:
    struck = [Struck("leader", 101.0, 102.0, 103.0), Struck("all", 106.0, 107.0, 109.0)]
    return Timeline.of(operations, struck, 100.0, 110.0)


def test_the_longest_time_without_an_acknowledged_write_by_kind() -> None:
    line = timeline(*map(write, (100.5, 100.9, 103.0, 105.9, 106.2, 108.0)), write(101.5, "unknown"))
    assert line.gaps() == {"leader": pytest.approx(2.1), "all": pytest.approx(1.8)}
    assert line.longest_gap(majority=True) == pytest.approx(2.1)
    assert line.longest_gap(majority=False) == pytest.approx(1.8)
    assert line.worst(3) == [(pytest.approx(2.1), pytest.approx(0.9), "leader")]
    assert timeline().gaps() == {"leader": 2.0, "all": 3.0}


def test_the_plot_is_a_picture_of_calls_and_faults() -> None:
    read = Operation(0, "get", 0, 104 * SECOND, "ok", reads=("a",))
    picture = timeline(write(101.0), write(102.0, "not applied"), read).svg("a < b")
    root = ElementTree.fromstring(picture)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["leader", "all"]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polygon"))) == 3
    assert "a &lt; b" in picture


def answer(node: str, leader: str, term: int, *, time_ms: int = 0) -> pb.StatusResponse:
    role = "leader" if node == leader else "follower"
    status = pb.StatusResponse(node_id=node, role=role, term=term, time_ms=time_ms, leader=pb.Leader(node_id=leader))
    if role == "leader":
        for other in {"n1", "n2", "n3"} - {node}:
            status.peers.add(node_id=other, voter=True)
    return status


def test_a_leader_counts_from_when_a_majority_says_so() -> None:
    observer = Observer([])
    for moment, number, status in (
        (1.0, 0, answer("n1", "n1", 1)),
        (1.1, 1, answer("n2", "n1", 1)),
        (5.0, 1, answer("n2", "n2", 2)),
        (5.1, 0, answer("n1", "n1", 1)),  # the old one, which nobody follows any more
        (5.3, 2, answer("n3", "n2", 2)),
    ):
        observer.hear(number, status, moment, 0.0)
    assert [(office.since, office.node, office.term) for office in observer.offices] == [(1.1, "n1", 1), (5.3, "n2", 2)]
    assert observer.after(4.5, 9.0) == pytest.approx(0.8)
    assert observer.after(4.5, 5.0) is None
    assert observer.after(5.3, 9.0) is None


def test_a_time_that_goes_back_or_is_far_off_is_a_problem() -> None:
    observer = Observer([])
    observer.hear(1, answer("n2", "n1", 1), 1.0, 1_000.0)
    for time_ms in (1_000_000, 999_000, int((1_000 + MOST_OFF + 1) * 1_000)):
        observer.hear(0, answer("n1", "n1", 1, time_ms=time_ms), 1.0, 1_000.0)
    report = Report()
    report.judge_times(timeline(write(100.5)), observer)
    assert len(report.problems) == 2
    assert report.times()
