"""The members, and the single steps in which they change."""

import itertools

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ConfigurationError
from kvorum_raft.seams import Member


def _member(node_id: str, port: int = 1) -> Member:
    return Member(node_id, f"{node_id}:{port}", f"{node_id}:{port + 1}")


def _three() -> cf.Configuration:
    return cf.make(b"c" * 16, [cf.Voter(_member(one), one.encode() * 16) for one in "CBA"])


def test_members_are_in_order_and_survive_their_bytes() -> None:
    one = _three().with_learner(_member("D"), b"D" * 16).without("A")
    assert [voter.member.node_id for voter in one.members] == ["B", "C", "D"]
    assert one.voters == {"B", "C"}
    assert one.quorum == 2
    assert cf.decode(one.encode()) == one


def test_any_step_keeps_a_node_common_to_all_majorities() -> None:
    start = _three().with_learner(_member("D"), b"D" * 16)
    steps = [
        start.with_promoted("D"),
        start.without("A"),
        start.with_replaced(_member("B"), b"b" * 16),
        start.with_addresses(_member("C", 7)),
        start.with_learner(_member("E"), b"E" * 16),
    ]
    for after in steps:
        for one in itertools.combinations(sorted(start.voters), start.quorum):
            for two in itertools.combinations(sorted(after.voters), after.quorum):
                assert set(one) & set(two)


def test_a_replaced_folder_is_a_learner_and_the_old_one_never_comes_back() -> None:
    one = _three().with_replaced(_member("B", 5), b"b" * 16)
    found = one.find("B")
    assert found is not None
    assert found.learner and found.incarnation == b"b" * 16 and found.member.peer_address == "B:5"
    assert one.removed == (b"B" * 16,)
    with pytest.raises(ValueError, match="removed"):
        one.without("B").with_learner(_member("B"), b"B" * 16)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda one: one.with_learner(_member("A"), b"x" * 16), "member already"),
        (lambda one: one.with_promoted("A"), "voter already"),
        (lambda one: one.with_promoted("X"), "not a member"),
        (lambda one: one.without("X"), "not a member"),
        (lambda one: one.without("A").without("B").without("C"), "only voter"),
        (lambda one: one.with_addresses(_member("X")), "not a member"),
    ],
)
def test_steps_that_make_no_sense(step: object, words: str) -> None:
    assert callable(step)
    with pytest.raises(ValueError, match=words):
        step(_three())


def test_there_is_a_most() -> None:
    one = cf.make(b"c" * 16, [cf.Voter(_member(f"n{i:02}"), bytes([i]) * 16) for i in range(cf.MAX_MEMBERS)])
    with pytest.raises(ValueError, match="at most 15"):
        one.with_learner(_member("x"), b"x" * 16)


def test_removed_folders_are_bounded() -> None:
    one = _three()
    for number in range(cf.MAX_REMOVED + 5):
        one = one.with_learner(_member("D"), number.to_bytes(16, "big")).without("D")
    assert len(one.removed) == cf.MAX_REMOVED
    assert one.removed[-1] == (cf.MAX_REMOVED + 4).to_bytes(16, "big")
    assert cf.decode(one.encode()) == one


def test_nonsense_is_refused() -> None:
    message = _three().message()
    for voter in message.voters:
        voter.learner = True
    with pytest.raises(ValueError, match="without voters"):
        cf.from_message(message)
    with pytest.raises(ValueError, match="wrong length"):
        cf.from_message(pb.Configuration(format=1, voters=_three().message().voters, removed=[b"short"]))
    with pytest.raises(ConfigurationError, match="format 2"):
        cf.from_message(pb.Configuration(format=2))
