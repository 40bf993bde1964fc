"""What the consensus core measures: commits, applying, round trips, changes of the leader, clocks."""

import logging

import pytest

from kvorum_raft.entry_clock import EntryClock
from kvorum_raft.histogram import SECONDS, Histogram
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world() -> World:
    world = World(SafeNode).start()
    world.mesh()
    world.elect("A")
    world.pump(3)
    return world


def test_a_histogram_counts_by_ends_that_are_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(seconds)
    histogram.observe(2.0, 10)
    histogram.observe(9.0, 0)
    assert histogram.buckets() == [(1.0, 2), (2.0, 14), (float("inf"), 15)]
    assert (histogram.count, histogram.sum) == (15, 27.0)
    assert sorted(SECONDS) == list(SECONDS)


def test_a_commit_lasts_from_the_log_to_the_majority(world: World) -> None:
    leader = world.nodes["A"].core
    before, seconds = leader.commit_seconds.count, leader.commit_seconds.sum
    leader.propose(b"slow", lambda applied, error: None)
    world.clock.now += 0.03
    world.pump(4, dt=0.01)
    assert leader.commit_seconds.count == before + 1
    assert 0.03 <= leader.commit_seconds.sum - seconds <= 0.1
    assert leader.apply_seconds.count == leader.counters["applied"]
    follower = world.nodes["B"].core
    world.pump(3)
    assert follower.commit_seconds.count == 0, "it has proposed nothing"
    assert follower.apply_seconds.count == leader.applied_index


def test_round_trips_are_a_leaders(world: World) -> None:
    world.pump(5)
    leader, follower = world.nodes["A"].core, world.nodes["B"].core
    assert leader.round_trips.keys() == {"B", "C"}
    assert all(trips.count for trips in leader.round_trips.values())
    assert not follower.round_trips
    before = leader.round_trips["C"].count
    world.disconnect("A", "C")
    world.pump(5)
    assert leader.round_trips["C"].count == before


def test_what_is_lost_with_the_office_counts_as_no_commit(world: World) -> None:
    leader = world.nodes["A"].core
    before = leader.commit_seconds.count
    for other in "BC":
        world.disconnect("A", other)
    leader.propose(b"lost", lambda applied, error: None)
    world.elect("B", "BC")
    world.mesh()
    world.pump(10)
    assert leader.state == 0 and leader.commit_seconds.count == before


def test_each_node_counts_the_leaders_that_it_comes_to_know(world: World) -> None:
    assert {node_id: node.core.counters["leader_changes"] for node_id, node in world.nodes.items()} == dict.fromkeys(
        "ABC", 1
    )
    world.elect("B")
    world.pump(3)
    assert all(node.core.counters["leader_changes"] == 2 for node in world.nodes.values())


def test_a_clock_that_is_off_is_told() -> None:
    now = 100.0
    clock = EntryClock("A", lambda: 1_700_000_000_700, lambda: now)
    assert clock.own_offset_ms(2) is None, "a quorum's clocks are not known"
    clock.observe("B", 1_700_000_000_000, now)
    clock.observe("C", 1_700_000_000_000, now)
    assert clock.own_offset_ms(2) == 700
    assert not clock.own_clock_is_off(2)
    clock.follow(1_700_000_002_000, 1_700_000_002_000)
    assert clock.own_offset_ms(2) == pytest.approx(-1_300)
    assert clock.own_clock_is_off(2)
