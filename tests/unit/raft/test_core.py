"""Single rules of the core, each in the shortest schedule that shows it."""

import logging
from typing import Any

import pytest

from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import NotLeader, Overloaded, ProtocolError, RaftError, RaftFault, UnknownOutcome
from kvorum_raft.pysyncobj_fixes import CANDIDATE, FOLLOWER, LEADER
from kvorum_raft.seams import Applied
from tests.simulation.world import LIMITS, SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


@pytest.fixture
def world() -> World:
    world = World(SafeNode).start()
    world.mesh()
    return world


class Outcome:
    def __init__(self) -> None:
        self.applied: Applied | None = None
        self.error: RaftError | None = None

    def __call__(self, applied: Applied | None, error: RaftError | None) -> None:
        self.applied, self.error = applied, error

    @property
    def open(self) -> bool:
        return self.applied is None and self.error is None


def _sent(world: World, source: str, target: str) -> list[pb.Envelope]:
    return [pb.Envelope.FromString(message) for message in world.links.queues[source, target]]


def _bodies(world: World, source: str, target: str) -> list[str | None]:
    return [envelope.WhichOneof("body") for envelope in _sent(world, source, target)]


def _receive(node: SafeNode, source: str, envelope: pb.Envelope) -> None:
    node.transport.deliver(source, envelope)


# -- terms and votes are durable before anything of the new term leaves


def test_a_candidate_asks_for_votes_only_when_its_own_is_durable(world: World) -> None:
    world.auto_sync = False
    node = world.nodes["A"]
    node.campaign()
    world.clock.now += 0.01
    for other in "BC":
        _receive(node, other, pb.Envelope(term=1, pre_vote_reply=pb.PreVoteReply(granted=True, attempt=1)))
    assert node.core.state == CANDIDATE
    assert _bodies(world, "A", "B") == ["pre_vote"]
    _receive(node, "B", pb.Envelope(term=1, vote=pb.Vote(granted=True)))
    assert node.core.state == CANDIDATE, "one vote and its own, which is not durable"
    node.sync()
    assert node.core.state == LEADER
    assert _bodies(world, "A", "B")[1] == "request_vote"


def test_a_vote_leaves_when_it_is_durable_and_goes_to_one_candidate(world: World) -> None:
    world.auto_sync = False
    node = world.nodes["A"]
    ask = pb.Envelope(term=5, request_vote=pb.RequestVote(last_index=9, last_term=4))
    _receive(node, "B", ask)
    assert _sent(world, "A", "B") == []
    node.sync()
    assert [envelope.vote.granted for envelope in _sent(world, "A", "B")] == [True]
    _receive(node, "C", ask)
    assert [envelope.vote.granted for envelope in _sent(world, "A", "C")] == [False]
    _receive(node, "B", ask)
    assert [envelope.vote.granted for envelope in _sent(world, "A", "B")] == [True, True]


def test_a_restart_remembers_term_and_vote(world: World) -> None:
    node = world.nodes["A"]
    _receive(node, "B", pb.Envelope(term=5, request_vote=pb.RequestVote(last_index=9, last_term=4)))
    node.sync()
    world.nodes["A"] = again = SafeNode("A", world, node.disk, node.machine)
    world.disconnect("A", "C")
    world.connect("A", "C")
    _receive(again, "C", pb.Envelope(term=5, request_vote=pb.RequestVote(last_index=9, last_term=4)))
    assert [envelope.vote.granted for envelope in _sent(world, "A", "C")] == [False]


def test_the_same_vote_twice_is_one_vote(world: World) -> None:
    five = World(SafeNode, "ABCDE").start()
    five.mesh()
    node = five.nodes["A"]
    node.campaign()
    for other in "BC":
        _receive(node, other, pb.Envelope(term=1, pre_vote_reply=pb.PreVoteReply(granted=True, attempt=1)))
    node.sync()
    for _ in range(3):
        _receive(node, "B", pb.Envelope(term=1, vote=pb.Vote(granted=True)))
    assert node.core.state == CANDIDATE
    _receive(node, "X", pb.Envelope(term=1, vote=pb.Vote(granted=True)))
    assert node.core.state == CANDIDATE, "not a member"
    _receive(node, "D", pb.Envelope(term=1, vote=pb.Vote(granted=True)))
    assert node.core.state == LEADER


def test_a_shorter_log_gets_no_vote(world: World) -> None:
    world.elect("A")
    world.pump(5)
    node = world.nodes["B"]
    node.core._contact = float("-inf")
    _receive(node, "C", pb.Envelope(term=9, request_vote=pb.RequestVote(last_index=0, last_term=0)))
    node.sync()
    assert not _sent(world, "B", "C")[-1].vote.granted


# -- stickiness, pre-vote


def test_a_node_that_hears_a_leader_supports_nobody_else(world: World) -> None:
    world.elect("A")
    world.pump(3)
    term = world.nodes["B"].term
    world.links.queues["B", "C"].clear()
    _receive(world.nodes["B"], "C", pb.Envelope(term=term + 1, pre_vote=pb.PreVote(last_index=99, last_term=99)))
    assert not _sent(world, "B", "C")[-1].pre_vote_reply.granted
    _receive(world.nodes["B"], "C", pb.Envelope(term=99, request_vote=pb.RequestVote(last_index=99, last_term=99)))
    assert world.nodes["B"].term == term


def test_a_pre_vote_changes_nothing(world: World) -> None:
    node = world.nodes["A"]
    node.campaign()
    assert (node.term, node.core.state) == (0, FOLLOWER)
    _receive(world.nodes["B"], "A", _sent(world, "A", "B")[0])
    assert world.nodes["B"].term == 0
    assert world.nodes["B"].journal.seq == 0


def test_old_answers_to_an_earlier_attempt_do_not_count(world: World) -> None:
    node = world.nodes["A"]
    node.campaign()
    node.campaign()
    for other in "BC":
        _receive(node, other, pb.Envelope(term=1, pre_vote_reply=pb.PreVoteReply(granted=True, attempt=1)))
    assert node.core.state == FOLLOWER


def test_an_empty_folder_answers_nobody(world: World) -> None:
    node = world.nodes["A"]
    node.core.configuration = None
    for body in (
        pb.Envelope(term=1, pre_vote=pb.PreVote()),
        pb.Envelope(term=1, request_vote=pb.RequestVote()),
        pb.Envelope(term=1, append=pb.Append()),
    ):
        _receive(node, "B", body)
    assert _sent(world, "A", "B") == []
    assert node.term == 0


# -- acknowledgements and commit


def test_a_follower_acknowledges_what_is_durable(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    follower = world.nodes["B"]
    before = follower.journal.durable_index
    leader.propose("x", lambda ok: None)
    leader.core.tick()
    world.deliver("A", "B")
    assert not any(envelope.append_reply.match_index > before for envelope in _sent(world, "B", "A"))
    follower.sync()
    assert _sent(world, "B", "A")[-1].append_reply.match_index == before + 1


def test_a_round_is_answered_before_the_entries_are_durable_if_a_read_waits(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    follower = world.nodes["B"]
    before = follower.journal.durable_index
    leader.propose("x", lambda ok: None)
    leader.core.read_index(lambda index, error: None)
    leader.core.tick()
    world.deliver("A", "B")
    (answer, *_) = _sent(world, "B", "A")
    assert answer.append_reply.success
    assert answer.append_reply.match_index == before
    assert answer.append_reply.round == leader.core.rounds.round


def test_a_follower_with_a_slow_disk_still_answers_heartbeats(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    before = world.nodes["B"].journal.durable_index
    leader.propose("x", lambda ok: None)
    leader.core.tick()
    world.deliver("A", "B")
    assert _sent(world, "B", "A") == []
    world.clock.now += 0.11
    leader.core.tick()
    world.deliver("A", "B")
    (answer,) = _sent(world, "B", "A")
    assert answer.append_reply.round == leader.core.rounds.round
    assert answer.append_reply.match_index == before


def test_a_leader_counts_itself_only_when_durable(world: World) -> None:
    world.disconnect("A", "C")
    world.disconnect("B", "C")
    leader = world.elect("A", "AB")
    world.pump(3, ids="AB")
    world.auto_sync = False
    outcome = Outcome()
    leader.core.propose(b"x", outcome)
    leader.core.tick()
    world.deliver("A", "B")
    world.nodes["B"].sync()
    world.deliver("B", "A")
    leader.core.tick()
    assert outcome.open, "the follower has it, the leader's own disk does not"
    leader.sync()
    leader.core.tick()
    assert outcome.applied is not None


def test_only_what_a_step_can_use_asks_for_one(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    core = leader.core
    assert not core.needs_step()
    outcome = Outcome()
    core.propose(b"x", outcome)
    assert core.needs_step(), "it is to be sent"
    core.tick()
    assert not core.needs_step()
    for follower in "BC":
        world.deliver("A", follower)
        world.nodes[follower].sync()
        world.deliver(follower, "A")
    assert not core.needs_step(), "a quorum has it, but this node could not apply it"
    core.tick()
    assert outcome.open
    leader.sync()
    assert core.needs_step()
    core.tick()
    assert outcome.applied is not None
    assert not core.needs_step()


def test_the_second_answer_asks_for_no_step(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    leader.core.propose(b"x", Outcome())
    leader.core.tick()
    leader.sync()
    assert not leader.core.needs_step()
    for follower in "BC":
        world.deliver("A", follower)
        world.nodes[follower].sync()
    world.deliver("B", "A")
    assert leader.core.needs_step()
    leader.core.tick()
    world.deliver("C", "A")
    assert not leader.core.needs_step()
    leader.core.read_index(lambda index, error: None)
    assert leader.core.needs_step(), "a read waits for a round"


def test_a_follower_that_can_be_sent_more_asks_for_a_step(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.disconnect("A", "C")
    leader.core.propose(b"x", Outcome())
    world.pump(3, ids="AB")
    assert not leader.core.needs_step()
    world.connect("A", "C")
    assert not leader.core.needs_step(), "it is asked first what it has"
    world.deliver("A", "C")
    world.nodes["C"].sync()
    world.deliver("C", "A")
    assert leader.core.needs_step()


def test_a_follower_needs_a_step_for_what_it_may_apply(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    follower = world.nodes["B"]
    follower.core.tick()
    assert not follower.core.needs_step()
    world.auto_sync = False
    leader.core.propose(b"x", Outcome())
    leader.core.tick()
    leader.sync()
    world.deliver("A", "B")
    follower.core.tick()
    follower.sync()
    world.deliver("B", "A")
    assert not follower.core.needs_step()
    leader.core.tick()
    world.clock.now += 0.11
    leader.core.tick()
    world.deliver("A", "B")
    assert follower.core.needs_step()
    follower.core.tick()
    assert not follower.core.needs_step()


def test_entries_of_earlier_terms_are_committed_by_one_of_the_own_term_only(world: World) -> None:
    world.disconnect("A", "B")
    world.disconnect("A", "C")
    leader = world.nodes["A"]
    leader.journal.append(make(Kind.COMMAND, 1, 0, 0, b"old"))
    leader.core._SyncObj__onBecomeLeader()
    leader.core._SyncObj__raftCurrentTerm = 7
    for progress in leader.core._progress.values():
        progress.match_index = 1
    leader.sync()
    leader.core._advance_commit()
    assert leader.core.commit_index == 0


def test_stale_reads_of_a_deposed_leader_are_never_served(world: World) -> None:
    old = world.elect("A")
    world.pump(3)
    world.disconnect("A", "B")
    world.disconnect("A", "C")
    answers: list[Any] = []
    old.core.read_index(lambda index, error: answers.append(error or index))
    new = world.nodes["B"]
    for other in "BC":
        world.nodes[other].core._contact = float("-inf")
    new.campaign()
    world.pump(4, dt=0.02, ids="BC")
    assert new.leads
    new.propose("newer", lambda ok: None)
    world.pump(2, dt=0.02, ids="BC")
    old.core.tick()
    assert answers == []
    world.connect("A", "B")
    world.pump(3)
    assert [type(answer) for answer in answers] == [NotLeader]


# -- whoever waits is told the truth


def test_losing_leadership_leaves_the_outcome_unknown(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    for other in "BC":
        world.disconnect("A", other)
    outcome = Outcome()
    leader.core.propose(b"x", outcome)
    world.clock.now += 1.5
    leader.core.tick()
    assert leader.core.state == FOLLOWER
    assert isinstance(outcome.error, UnknownOutcome)
    with pytest.raises(NotLeader):
        leader.core.propose(b"y", outcome)


def test_too_many_uncommitted_bytes_are_refused(world: World) -> None:
    leader = world.elect("A")
    with pytest.raises(Overloaded):
        for _ in range(1000):
            leader.core.propose(b"x" * 1000, Outcome())
    assert leader.core.uncommitted_bytes <= LIMITS.uncommitted
    world.pump(200)
    assert leader.core.uncommitted_bytes == 0


# -- faults


def test_a_leader_that_contradicts_committed_entries_is_a_fault(world: World) -> None:
    leader = world.elect("A")
    leader.propose("x", lambda ok: None)
    world.pump(5)
    follower = world.nodes["B"]
    term, last = follower.term, follower.last_index
    with pytest.raises(RaftFault, match="contradicts"):
        _receive(follower, "C", pb.Envelope(term=term + 1, append=pb.Append(prev_index=last, prev_term=term + 1)))
    other = make(Kind.COMMAND, last, term + 1, 10**14, b"other").record
    append = pb.Append(prev_index=last - 1, prev_term=follower.journal.term_at(last - 1), entries=[other])
    with pytest.raises(RaftFault, match="would replace"):
        _receive(follower, "C", pb.Envelope(term=term + 2, append=append))


def test_two_leaders_in_one_term_are_a_fault(world: World) -> None:
    leader = world.elect("A")
    with pytest.raises(RaftFault, match="two leaders"):
        _receive(leader, "B", pb.Envelope(term=leader.term, append=pb.Append()))


@pytest.mark.parametrize(
    "append",
    [
        pb.Append(entries=[b"nothing"]),
        pb.Append(entries=[make(Kind.COMMAND, 2, 1, 5, b"gap").record]),
        pb.Append(entries=[make(Kind.COMMAND, 1, 9, 5, b"newer term").record]),
        pb.Append(entries=[make(Kind.COMMAND, 1, 1, 5, b"").record, make(Kind.COMMAND, 2, 1, 4, b"older").record]),
    ],
)
def test_nonsense_changes_nothing(world: World, append: pb.Append) -> None:
    node = world.nodes["A"]
    with pytest.raises(ProtocolError):
        _receive(node, "B", pb.Envelope(term=1, append=append))
    assert node.last_index == 0


def test_an_acknowledgement_of_what_does_not_exist_is_nonsense(world: World) -> None:
    leader = world.elect("A")
    reply = pb.AppendReply(success=True, match_index=10**6, round=leader.core.rounds.round)
    with pytest.raises(ProtocolError):
        _receive(leader, "B", pb.Envelope(term=leader.term, append_reply=reply))


def test_an_acknowledgement_of_an_older_term_counts_for_nothing(world: World) -> None:
    """Defect S4: without a term in it, one that was delayed over an election would count a phantom replica."""
    older = world.elect("A").term
    world.elect("B")
    leader = world.elect("A")
    assert leader.term > older
    index = leader.core.propose(b"not replicated", Outcome())
    leader.core.tick()
    leader.sync()
    late = pb.AppendReply(success=True, match_index=index, prev_index=index, round=leader.core.rounds.round)
    before = leader.core.commit_index
    for other in "BC":
        _receive(leader, other, pb.Envelope(term=older, append_reply=late))
    leader.core.tick()
    assert leader.core.match_index("B") < index
    assert leader.core.commit_index == before < index
    _receive(leader, "B", pb.Envelope(term=leader.term, append_reply=late))
    leader.core.tick()
    assert leader.core.commit_index == index, "the same in its own term does count"


# -- slow disks and late ticks


def test_a_leader_whose_disk_hangs_steps_down_and_does_not_campaign(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.auto_sync = False
    leader.propose("x", lambda ok: None)
    leader.core.tick()
    for _ in range(8):
        world.clock.now += 0.08
        for node_id in "BC":
            world.nodes[node_id].core.tick()
        leader.core.tick()
        for a, b in world.pairs():
            world.deliver(a, b)
        for node_id in "BC":
            world.nodes[node_id].sync()
    assert leader.core.state == FOLLOWER
    leader._held = False
    before = leader.core.counters["pre_votes"]
    leader.core._SyncObj__raftElectionDeadline = 0.0
    leader.core.tick()
    assert leader.core.counters["pre_votes"] == before
    leader.sync()
    leader.core._SyncObj__raftElectionDeadline = 0.0
    leader.core.tick()
    assert leader.core.counters["pre_votes"] == before + 1


def test_a_late_tick_judges_no_timer_before_the_input_was_read(world: World) -> None:
    world.elect("A")
    world.pump(3)
    follower = world.nodes["B"]
    follower.core._SyncObj__raftElectionDeadline = 0.0
    follower.core.tick(judge=False)
    assert follower.core.counters["pre_votes"] == 0
    world.clock.now += 0.11
    world.nodes["A"].core.tick()
    world.deliver("A", "B")
    follower.core.tick()
    assert follower.core.counters["pre_votes"] == 0


def test_a_leader_alone_steps_down_within_the_longest_election_timeout(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    for other in "BC":
        world.disconnect("A", other)
    for _ in range(10):
        world.clock.now += 0.11
        leader.core.tick()
    assert leader.core.state == FOLLOWER


def test_answers_that_lay_in_a_socket_prove_no_contact(world: World) -> None:
    leader = world.elect("A")
    world.pump(3)
    world.clock.now += 0.11
    leader.core.tick()
    world.deliver("A", "B")
    world.deliver("A", "C")
    world.clock.now += 1.5
    world.deliver("B", "A")
    world.deliver("C", "A")
    leader.core.tick()
    assert leader.core.state == FOLLOWER


# -- the beginning of a cluster


def test_the_first_payload_is_the_first_command_of_the_log_and_comes_once() -> None:
    world = World(lambda node_id, world: SafeNode(node_id, world, first_payload=lambda cluster_id: b"first"))
    world.start().mesh()
    world.elect("A")
    world.pump(5)
    node = world.nodes["B"]
    kinds = [node.journal.entry(index).kind for index in range(1, node.last_index + 1)]
    assert kinds == [Kind.CONFIGURATION, Kind.COMMAND]
    for other in "BC":
        world.nodes[other].core._contact = float("-inf")
    world.elect("B")
    world.pump(5)
    assert [value for _, value in world.nodes["C"].applied] == ["first"]


def test_a_leader_whose_log_lacks_the_first_payload_adds_it() -> None:
    world = World(lambda node_id, world: SafeNode(node_id, world, first_payload=lambda cluster_id: b"first"))
    world.start()
    leader = world.nodes["A"]
    configuration = world.nodes["B"].core.configuration
    leader.journal.append(
        make(Kind.CONFIGURATION, 1, 0, 5, type(configuration)(b"c" * 16, configuration.members).encode())
    )
    leader.core._configure()
    world.mesh()
    world.elect("A")
    world.pump(5)
    kinds = [world.nodes["C"].journal.entry(index).kind for index in range(1, leader.last_index + 1)]
    assert kinds == [Kind.CONFIGURATION, Kind.NO_OP, Kind.COMMAND]


@pytest.mark.parametrize(
    "envelope",
    [
        pb.Envelope(term=(1 << 64) - 1, stale=pb.Stale()),
        pb.Envelope(term=(1 << 64) - 1, append=pb.Append()),
        pb.Envelope(term=(1 << 64) - 1, pre_vote=pb.PreVote(last_index=1 << 60, last_term=1 << 60)),
        pb.Envelope(term=1, pre_vote_reply=pb.PreVoteReply(granted=True, attempt=1, current_term=(1 << 64) - 1)),
    ],
    ids=lambda envelope: envelope.WhichOneof("body"),
)
def test_a_term_that_no_election_can_have_reached_is_neither_adopted_nor_stored(
    world: World, envelope: pb.Envelope
) -> None:
    node = world.nodes["A"]
    before = node.core.term
    with pytest.raises(ProtocolError, match="far beyond term"):
        _receive(node, "B", envelope)
    assert node.core.term == node.core.journal.term == before
    _receive(node, "B", pb.Envelope(term=before + (1 << 32), stale=pb.Stale()))
    assert node.core.term == before + (1 << 32)


def test_nonsense_in_its_own_term_does_not_stop_a_leader(world: World) -> None:
    """Only a sound append of its own term proves that there is another leader, which is a fault."""
    node = world.nodes["A"]
    world.elect("A")
    term = node.core.term
    with pytest.raises(ProtocolError):
        _receive(node, "B", pb.Envelope(term=term, append=pb.Append(entries=[b"damaged"])))
    assert node.core.state == LEADER
    with pytest.raises(RaftFault, match="two leaders in term"):
        _receive(node, "B", pb.Envelope(term=term, append=pb.Append()))
