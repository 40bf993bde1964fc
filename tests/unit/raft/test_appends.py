"""What is said to followers: one message for all that get the same, no answer to what asks nothing."""

import logging

import pytest

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.appends import AppendHeader
from kvorum_raft.entry import Kind, make
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


def _appends(world: World, target: str) -> list[pb.Append]:
    messages = [pb.Envelope.FromString(message) for message in world.links.queues["A", target]]
    return [envelope.append for envelope in messages if envelope.WhichOneof("body") == "append"]


def _replies(world: World, source: str) -> list[pb.AppendReply]:
    messages = [pb.Envelope.FromString(message) for message in world.links.queues[source, "A"]]
    return [envelope.append_reply for envelope in messages if envelope.WhichOneof("body") == "append_reply"]


def _propose(world: World, value: bytes) -> None:
    world.nodes["A"].core.propose(value, lambda applied, error: None)
    world.nodes["A"].tick()


def _all_have(world: World, value: bytes) -> None:
    """The entry is on all disks, and the leader has committed it and heard so from both."""
    _propose(world, value)
    for other in "BC":
        world.deliver("A", other)
        world.nodes[other].sync()
        world.deliver(other, "A")
    world.nodes["A"].tick()


def test_a_header_becomes_the_message_that_it_describes() -> None:
    entries = [make(Kind.COMMAND, 8, 3, 70, b"eight"), make(Kind.NO_OP, 9, 4, 71, b"")]
    envelope = AppendHeader(4, 7, 3, 2, 6, 11, True, 1_700_000_000_000, 2).message(1_700_000_000_001, entries)
    assert envelope == pb.Envelope(
        term=4,
        append=pb.Append(
            prev_index=7,
            prev_term=3,
            commit_index=6,
            round=11,
            urgent=True,
            time_ms=1_700_000_000_000,
            median_ms=1_700_000_000_001,
            checkpoint_turn=2,
            entries=[entry.record for entry in entries],
        ),
    )


def test_an_append_of_zeros_is_an_append() -> None:
    assert AppendHeader(1, 0, 0, 0, 0, 0, False, 0, 0).message(0, []).WhichOneof("body") == "append"


def test_each_follower_gets_what_it_lacks(world: World) -> None:
    world.disconnect("A", "C")
    _all_have(world, b"one")
    world.connect("A", "C")
    for _ in range(2):  # the probe and its answer
        world.deliver("A", "C")
        world.deliver("C", "A")
    world.deliver("A", "B")
    world.links.queues["A", "B"].clear()
    last = world.nodes["A"].last_index
    _propose(world, b"two")
    to_b = [append.prev_index + len(append.entries) for append in _appends(world, "B") if append.entries]
    to_c = [append.prev_index + len(append.entries) for append in _appends(world, "C") if append.entries]
    assert max(to_b) == max(to_c) == last + 1
    assert min(append.prev_index for append in _appends(world, "B") if append.entries) == last
    assert min(append.prev_index for append in _appends(world, "C") if append.entries) == last - 1


def test_the_same_message_of_a_later_time_carries_that_time(world: World) -> None:
    node = world.nodes["A"].core
    progress = next(iter(node._progress.values()))
    target = next(iter(node._progress))
    for _ in range(2):
        node._send_append(target, progress, [])
        world.clock.now += 0.05
    first, second = _appends(world, target.id)[-2:]
    assert second.time_ms - first.time_ms >= 50
    assert second.median_ms > first.median_ms


def test_a_notice_of_a_commit_is_not_answered(world: World) -> None:
    _all_have(world, b"x")
    commit = world.nodes["A"].core.commit_index
    assert world.nodes["B"].core.commit_index < commit
    world.clock.now += 0.003
    world.nodes["A"].tick()
    notices = _appends(world, "B")
    assert [(len(append.entries), append.commit_index) for append in notices] == [(0, commit)]
    world.deliver("A", "B")
    world.nodes["B"].tick()
    assert world.nodes["B"].core.applied_index == commit
    assert _replies(world, "B") == []


def test_a_busy_leader_waits_longer_for_an_entry_that_tells_of_the_commit(world: World) -> None:
    world.clock.now += 0.03
    _all_have(world, b"alone")
    assert world.nodes["A"].core._notice_due == pytest.approx(world.clock.now + 0.002)
    world.clock.now += 0.01
    _all_have(world, b"soon after")
    world.clock.now += 0.003
    world.nodes["A"].tick()
    assert _appends(world, "B") == []
    world.clock.now += 0.004
    world.nodes["A"].tick()
    assert [append.commit_index for append in _appends(world, "B")] == [world.nodes["A"].core.commit_index]


@pytest.mark.parametrize("size", [3_000, 8_000])
def test_followers_hear_at_once_of_a_commit_that_takes_long_to_apply(world: World, size: int) -> None:
    _all_have(world, b"before")  # the leader is busy
    for other in "BC":
        world.deliver("A", other)
    _all_have(world, b"x" * size)
    commit = world.nodes["A"].core.commit_index
    told = [[append.commit_index for append in _appends(world, other)] for other in "BC"]
    assert told == ([[commit], [commit]] if size > 4_096 else [[], []])
    assert (world.nodes["A"].core._notice_due is None) == (size > 4_096)


def test_no_notice_of_a_long_commit_if_an_entry_carries_it(world: World) -> None:
    leader = world.nodes["A"].core
    _propose(world, b"x" * 8_000)
    for other in "BC":
        world.deliver("A", other)
        world.nodes[other].sync()
        world.deliver(other, "A")
    _propose(world, b"next")
    for other in "BC":
        assert [(len(append.entries), append.commit_index) for append in _appends(world, other)] == [
            (1, leader.commit_index)
        ]


def test_a_step_ends_with_an_entry_that_somebody_waits_for(world: World) -> None:
    leader = world.nodes["A"]
    answered: list[int] = []
    for number in range(3):
        leader.core.propose(b"%d" % number, lambda applied, error: answered.append(applied.index if applied else 0))
    leader.tick()
    for other in "BC":
        world.deliver("A", other)
        world.nodes[other].sync()
    leader.sync()
    for other in "BC":
        world.deliver(other, "A")
    assert answered == []
    steps = []
    while leader.core.tick():
        steps.append(len(answered))
        assert len(steps) < 9
    steps.append(len(answered))
    assert steps == [1, 2, 3], "the first is not kept waiting for the others"


def test_a_notice_is_answered_if_the_round_was_not(world: World) -> None:
    _all_have(world, b"x")
    world.nodes["B"].core._said_last = (world.nodes["A"].core.rounds.round - 1, world.nodes["B"].last_index)
    world.clock.now += 0.003
    world.nodes["A"].tick()
    world.deliver("A", "B")
    assert [reply.round for reply in _replies(world, "B")] == [world.nodes["A"].core.rounds.round]


def test_a_round_is_answered_though_nothing_is_new(world: World) -> None:
    _all_have(world, b"x")
    world.clock.now += 0.11
    world.nodes["A"].tick()
    world.deliver("A", "B")
    replies = _replies(world, "B")
    assert replies[-1].round == world.nodes["A"].core.rounds.round
    assert replies[-1].match_index == world.nodes["A"].last_index


def test_a_probe_is_answered_within_a_round_that_was(world: World) -> None:
    """The leader has lost its connection and forgotten where the follower stands."""
    _all_have(world, b"x")
    number = world.nodes["A"].core.rounds.round
    world.links.up.discard(("A", "B"))
    world.nodes["A"].transport.connected("B", False)
    world.links.up.add(("A", "B"))
    world.nodes["A"].transport.connected("B", True)
    assert world.nodes["A"].core.rounds.round == number
    assert [append.commit_index for append in _appends(world, "B")] == [world.nodes["A"].core.commit_index]
    world.deliver("A", "B")
    assert [reply.match_index for reply in _replies(world, "B")] == [world.nodes["A"].last_index]


def test_an_answer_that_could_not_be_sent_is_given_to_the_notice(world: World) -> None:
    _propose(world, b"x")
    world.links.up.discard(("B", "A"))
    world.deliver("A", "B")
    world.nodes["B"].sync()
    world.deliver("A", "C")
    world.nodes["C"].sync()
    world.deliver("C", "A")
    world.links.up.add(("B", "A"))
    world.nodes["A"].tick()
    world.clock.now += 0.003
    world.nodes["A"].tick()
    world.deliver("A", "B")
    assert [reply.match_index for reply in _replies(world, "B")] == [world.nodes["A"].last_index]


def test_office_ends_with_the_configuration_that_proved_it(world: World) -> None:
    """C is the only one who answers, and is taken out."""
    world.disconnect("A", "B")
    for _ in range(20):
        world.clock.now += 0.1
        world.nodes["A"].tick()
        world.deliver("A", "C")
        world.nodes["C"].tick()
        world.deliver("C", "A")
    assert world.nodes["A"].leads
    answers: list[bool] = []
    world.nodes["A"].remove("C", answers.append)
    world.nodes["A"].tick()
    assert not world.nodes["A"].leads


def test_a_follower_syncs_and_answers_before_it_applies(world: World) -> None:
    _all_have(world, b"one")
    follower = world.nodes["B"].core
    applied = follower.applied_index
    _propose(world, b"two")  # tells of the commit of the one before
    world.deliver("A", "B")
    follower.tick()
    assert follower.commit_index > applied
    assert follower.applied_index == applied  # the log's writer comes first
    assert follower.needs_step()
    follower.tick()
    assert follower.applied_index == follower.commit_index


def test_a_follower_that_gets_entry_after_entry_applies_all_the_same(world: World) -> None:
    _all_have(world, b"one")
    follower = world.nodes["B"].core
    for value in (b"two", b"three"):  # and no sync comes to an end
        _propose(world, value)
        world.deliver("A", "B")
        follower.tick()
    assert follower.applied_index == follower.commit_index


def test_a_follower_that_is_behind_applies_at_once(world: World) -> None:
    leader, follower = world.nodes["A"].core, world.nodes["B"].core
    for number in range(4):
        leader.propose(b"%d" % number, lambda applied, error: None)
    _all_have(world, b"the fifth")
    applied = follower.applied_index
    _propose(world, b"the sixth")
    world.deliver("A", "B")
    assert follower.commit_index > applied + 2
    follower.tick()
    assert follower.applied_index > applied
