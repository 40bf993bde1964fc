"""Changes of the members, hand-over of leadership, jumps of the clock: each rule in the shortest schedule that shows
it."""

import logging

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ChangePending, NotLeader, RaftError, UnknownOutcome
from kvorum_raft.pysyncobj_fixes import FOLLOWER
from kvorum_raft.seams import Applied, Member
from tests.simulation.world import SafeNode, World


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "kvorum.raft")


class Outcome:
    def __init__(self) -> None:
        self.calls: list[RaftError | None] = []

    def __call__(self, *arguments: Applied | RaftError | None) -> None:
        error = arguments[-1]
        assert error is None or isinstance(error, RaftError)
        self.calls.append(error)

    @property
    def done(self) -> bool:
        return self.calls == [None]


def _member(node_id: str) -> Member:
    return Member(node_id, f"{node_id}:1", f"{node_id}:2")


def _in_force(node: SafeNode) -> cf.Configuration:
    assert node.core.configuration is not None
    return node.core.configuration


def _world(ids: str, founders: str) -> World:
    world = World(SafeNode, ids, founders=founders).start()
    world.mesh()
    world.elect(founders[0], founders)
    world.pump(4, ids=founders)
    return world


def _change(node: SafeNode, configuration: cf.Configuration) -> Outcome:
    outcome = Outcome()
    node.core.change(configuration, outcome)
    return outcome


def _learning(world: World, leader: SafeNode, node_id: str) -> Outcome:
    """The node is added, and the leader has a connection to it."""
    outcome = _change(leader, _in_force(leader).with_learner(_member(node_id), node_id.encode() * 16))
    world.connect(leader.node_id, node_id)
    world.pump(8)
    world.mesh()
    world.pump(2)
    return outcome


def _promoted(world: World, leader: SafeNode, node_id: str) -> None:
    first = _learning(world, leader, node_id)
    second = _change(leader, _in_force(leader).with_promoted(node_id))
    world.pump(8)
    assert first.done and second.done


def test_a_learner_gets_the_log_and_counts_nowhere() -> None:
    world = _world("ABCD", "ABC")
    leader = world.nodes["A"]
    outcome = _learning(world, leader, "D")
    assert outcome.done
    assert world.nodes["D"].last_index == leader.last_index
    before = leader.core.commit_index
    leader.propose("x", lambda ok: None)
    world.pump(4, ids="AD")
    assert leader.core.commit_index == before, "the leader and a learner are no majority of three voters"
    world.nodes["D"].core._SyncObj__raftElectionDeadline = 0.0
    world.nodes["D"].core._contact = float("-inf")
    world.nodes["D"].core.tick()
    assert world.nodes["D"].core.counters["pre_votes"] == 0, "a learner does not campaign"


def test_a_learners_vote_does_not_count_but_is_given() -> None:
    world = _world("ABCD", "ABC")
    leader = world.nodes["A"]
    _learning(world, leader, "D")
    candidate, learner = world.nodes["B"], world.nodes["D"]
    for node in (candidate, learner):
        node.core._contact = float("-inf")
    world.clock.now += 3
    candidate.campaign()
    world.deliver("B", "D")
    learner.sync()
    world.deliver("D", "B")
    assert learner.core.counters["pre_votes"] == 0
    assert candidate.core.state == FOLLOWER
    assert candidate.core._pre_votes == {"B"}


def test_one_change_at_a_time() -> None:
    world = _world("ABCDE", "ABC")
    leader = world.nodes["A"]
    _change(leader, _in_force(leader).with_learner(_member("D"), b"D" * 16))
    with pytest.raises(ChangePending):
        _change(leader, _in_force(leader).with_learner(_member("E"), b"E" * 16))
    world.pump(8)
    assert not _change(leader, _in_force(leader).with_learner(_member("E"), b"E" * 16)).calls


def test_a_new_leader_finds_an_uncommitted_change_in_its_log_and_takes_no_other() -> None:
    world = _world("ABCDE", "ABC")
    leader = world.nodes["A"]
    _change(leader, _in_force(leader).with_learner(_member("D"), b"D" * 16))
    world.nodes["A"].tick()
    world.deliver("A", "B")
    world.disconnect("A", "B")
    world.disconnect("A", "C")
    other = world.nodes["B"]
    for node_id in "BC":
        world.nodes[node_id].core._contact = float("-inf")
    world.elect("B", "BC")
    assert _in_force(other).find("D") is not None
    world.pump(4, ids="BC")
    assert not _change(other, _in_force(other).with_learner(_member("E"), b"E" * 16)).calls, "committed by now"


def test_no_change_before_the_leader_has_committed_in_its_term() -> None:
    world = World(SafeNode, "ABC").start()
    world.mesh()
    world.elect("A")
    world.pump(8)
    for node_id in "BC":
        world.nodes[node_id].core._contact = float("-inf")
    for node_id in "ABC":
        world.nodes[node_id].hold_election()
    world.clock.now += 3
    other = world.nodes["B"]
    other.campaign()
    for _ in range(3):
        world.deliver("B", "C")
        world.nodes["C"].sync()
        world.deliver("C", "B")
        other.sync()
        if other.leads:
            break
    assert other.leads
    with pytest.raises(NotLeader):
        _change(other, _in_force(other).without("C"))


def test_with_two_voters_left_both_are_needed() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    outcome = _change(leader, _in_force(leader).without("C"))
    world.pump(8)
    assert outcome.done
    assert _in_force(world.nodes["B"]).voters == {"A", "B"}
    assert _in_force(leader).removed == (b"C" * 16,)
    before = leader.core.commit_index
    leader.propose("x", lambda ok: None)
    world.pump(4, ids="AC")
    assert leader.core.commit_index == before
    world.pump(4, ids="AB")
    assert leader.core.commit_index == before + 1


def test_a_removed_leader_commits_without_itself_answers_and_lets_another_one_lead() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    outcome = _change(leader, _in_force(leader).without("A"))
    world.pump(8, dt=0.02)
    assert outcome.done
    assert leader.core.state == FOLLOWER
    leaders = [node_id for node_id in "BC" if world.nodes[node_id].leads]
    assert len(leaders) == 1, "asked to take over, it did not wait for an election timeout"
    done: list[bool] = []
    world.nodes[leaders[0]].propose("x", done.append)
    world.pump(4, ids="BC")
    assert done == [True]


def test_a_removed_leader_does_not_count_itself() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    _change(leader, _in_force(leader).without("A"))
    before = leader.core.commit_index
    world.pump(4, ids="AB")
    assert leader.core.commit_index == before, "B alone is no majority of {B, C}"
    world.pump(3, ids="ABC")
    assert leader.core.commit_index > before


def _removing_itself(world: World, *, committed: bool) -> tuple[SafeNode, Outcome, Outcome]:
    """A leader whose disk stands still, with what is told of a write and of its own removal, which the others have
    synced."""
    leader = world.nodes["A"]
    world.auto_sync = False
    write = Outcome()
    leader.core.propose(b"x", write)
    outcome = _change(leader, _in_force(leader).without("A"))
    leader.journal.flush()
    leader.tick()
    for other in "BC":
        world.deliver("A", other)
        world.nodes[other].sync()
        if committed:
            world.deliver(other, "A")
    leader.tick()
    assert (leader.core.commit_index == leader.last_index) == committed
    assert not (write.calls or outcome.calls), "what its disk lacks is not applied"
    return leader, write, outcome


def _kinds(outcome: Outcome) -> list[type[RaftError] | None]:
    return [None if error is None else type(error) for error in outcome.calls]


@pytest.mark.parametrize("end", ["stop", "step_down"])
def test_a_change_that_is_committed_is_done_though_it_is_not_applied_when_leadership_ends(end: str) -> None:
    leader, write, outcome = _removing_itself(_world("ABC", "ABC"), committed=True)
    getattr(leader.core, end)("the test ends it")
    assert outcome.done
    assert _kinds(write) == [UnknownOutcome], "its result is not known"


@pytest.mark.parametrize("end", ["stop", "step_down"])
def test_a_change_of_which_no_commit_is_known_is_unknown_when_leadership_ends(end: str) -> None:
    leader, write, outcome = _removing_itself(_world("ABC", "ABC"), committed=False)
    getattr(leader.core, end)("the test ends it")
    assert _kinds(outcome) == _kinds(write) == [UnknownOutcome]


def test_a_refusal_proves_the_removal_that_it_names_and_nothing_else() -> None:
    leader, write, outcome = _removing_itself(_world("ABC", "ABC"), committed=False)
    leader.core.refused_as_removed()
    assert outcome.done
    assert not write.calls, "another leader may have committed another removal"
    leader.core.stop("refused")
    assert outcome.done
    assert _kinds(write) == [UnknownOutcome]


def test_a_refusal_proves_no_later_change() -> None:
    world = _world("ABCD", "ABCD")
    leader, _, outcome = _removing_itself(world, committed=True)
    later = _change(leader, _in_force(leader).without("D"))
    leader.core.refused_as_removed()
    assert outcome.done
    assert not later.calls
    leader.core.stop("refused")
    assert _kinds(later) == [UnknownOutcome]


def test_a_refusal_proves_nothing_to_who_waits_for_another_change() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    outcome = _change(leader, _in_force(leader).without("C"))
    leader.core.refused_as_removed()
    assert not outcome.calls


def test_a_change_that_is_cut_off_is_not_in_force_any_more() -> None:
    world = _world("ABCD", "ABC")
    leader = world.nodes["A"]
    for other in "BC":
        world.disconnect("A", other)
    outcome = _change(leader, _in_force(leader).without("C"))
    for node_id in "BC":
        world.nodes[node_id].core._contact = float("-inf")
    world.elect("B", "BC")
    world.nodes["B"].propose("y", lambda ok: None)
    world.pump(4, ids="BC")
    world.mesh()
    world.pump(6)
    assert _in_force(leader).voters == {"A", "B", "C"}
    assert [type(error) for error in outcome.calls] == [UnknownOutcome]


def test_four_voters_need_three() -> None:
    world = _world("ABCD", "ABC")
    leader = world.nodes["A"]
    _promoted(world, leader, "D")
    before = leader.core.commit_index
    leader.propose("x", lambda ok: None)
    world.pump(4, ids="AD")
    assert leader.core.commit_index == before
    world.pump(6, ids="ACD")
    assert leader.core.commit_index == before + 1


# -- hand-over


def test_leadership_is_handed_over_without_an_election_timeout() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    leader.propose("x", lambda ok: None)
    outcome = Outcome()
    assert leader.core.transfer("B", outcome) == "B"
    with pytest.raises(NotLeader, match="handed over"):
        leader.propose("y", lambda ok: None)
    began = world.clock.now
    world.pump(6, dt=0.02)
    assert world.nodes["B"].leads
    assert outcome.done
    assert world.clock.now - began < 0.4


def test_a_hand_over_to_somebody_who_cannot_take_over_is_given_up() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    world.disconnect("A", "C")
    outcome = Outcome()
    leader.core.transfer("C", outcome)
    world.pump(12, ids="AB")
    assert [type(error) for error in outcome.calls] == [UnknownOutcome]
    assert leader.leads
    done: list[bool] = []
    leader.propose("x", done.append)
    world.pump(4, ids="AB")
    assert done == [True]


def test_a_hand_over_is_not_done_because_the_leader_goes() -> None:
    for end in ("stop", "step_down"):
        world = _world("ABC", "ABC")
        leader, outcome = world.nodes["A"], Outcome()
        leader.core.transfer("B", outcome)
        leader.tick()
        getattr(leader.core, end)("the test ends it")
        assert _kinds(outcome) == [UnknownOutcome], "B was asked, and nobody has heard of a campaign"


def test_a_hand_over_to_one_is_not_done_because_another_one_campaigns() -> None:
    world = _world("ABC", "ABC")
    leader, outcome = world.nodes["A"], Outcome()
    world.disconnect("A", "B")
    leader.core.transfer("B", outcome)
    leader.tick()
    leader.transport.deliver("C", pb.Envelope(term=leader.term + 1, stale=pb.Stale()))
    assert leader.core.state == FOLLOWER
    assert _kinds(outcome) == [UnknownOutcome]


def test_nobody_takes_over_before_it_has_everything() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    world.auto_sync = False
    for number in range(5):
        leader.propose(f"v{number}", lambda ok: None)
    leader.core.transfer("B", Outcome())
    leader.tick()
    bodies = [pb.Envelope.FromString(message).WhichOneof("body") for message in world.links.queues["A", "B"]]
    assert "timeout_now" not in bodies


def test_only_the_leader_can_make_a_node_campaign() -> None:
    world = _world("ABC", "ABC")
    term = world.nodes["B"].term
    world.nodes["B"].transport.deliver("C", pb.Envelope(term=term, timeout_now=pb.TimeoutNow()))
    assert world.nodes["B"].term == term


def test_leadership_goes_to_voters_only() -> None:
    world = _world("ABCD", "ABC")
    leader = world.nodes["A"]
    _learning(world, leader, "D")
    for node_id in ("D", "A", "X"):
        with pytest.raises(ValueError, match="not a voter"):
            leader.core.transfer(node_id, Outcome())


# -- time


def test_an_operator_can_let_time_jump() -> None:
    world = _world("ABC", "ABC")
    leader = world.nodes["A"]
    later = leader.core.entry_clock.now_ms() + 40 * 86_400_000
    outcome = Outcome()
    leader.core.set_time(later, outcome)
    world.pump(8)
    assert outcome.done
    for node_id in "ABC":
        assert world.nodes[node_id].machine.times[-1] >= later
    for node_id in "BC":
        world.nodes[node_id].core._contact = float("-inf")
    world.elect("B")
    world.pump(8)
    assert world.nodes["B"].machine.times[-1] >= later


def test_a_folder_does_not_count_under_the_name_of_the_one_before_it() -> None:
    """An empty folder that replaces another one goes through the old configurations on its way."""
    world = _world("ABC", "ABC")
    node = world.nodes["B"]
    node.core._incarnation = b"other folder now"
    node.core.configuration = None
    node.core._configured_by = None
    node.core._configure()
    assert node.core.configuration is not None and not node.core.votes
    node.core._contact = float("-inf")
    node.campaign()
    assert node.core.counters["pre_votes"] == 0


def test_a_node_without_a_state_passes_its_log_on_if_nobody_else_can_lead() -> None:
    """Of three, one is down, one was behind, and the one with all committed entries has lost its state."""
    world = _world("ABC", "ABC")
    behind, hollow = world.nodes["B"], world.nodes["C"]
    world.disconnect("A", "B")
    done: list[bool] = []
    world.nodes["A"].propose("committed by A and C", done.append)
    world.pump(5, ids="AC")
    assert done == [True]
    world.disconnect("A", "C")
    hollow.core.hollow = True
    for node in (behind, hollow):
        node._held = False
        node.core._contact = float("-inf")
        node.core._SyncObj__raftElectionDeadline = world.clock.now
    world.pump(200, ids="BC")
    assert behind.leads, "it has got everything, and took over"
    assert hollow.core.counters["transfers"] >= 1
    assert [value for _, value in behind.applied][-1] == "committed by A and C"
