"""Who is let in: names, folders, generations; and how a new cluster agrees on its folders."""

import itertools
import random

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.errors import ConfigurationError, RaftFault, Refused
from kvorum_raft.forming import Forming
from kvorum_raft.seams import Member

LISTED = frozenset({"A", "B", "C"})
CLUSTER = b"c" * 16
RNG = random.Random(1)


def _identity(node_id: str, starts: int = 1, cluster_id: bytes = CLUSTER) -> ids.Identity:
    identity = ids.Identity(node_id, node_id.encode() * 16, cluster_id)
    for _ in range(starts):
        identity = identity.next_start(RNG.randbytes)
    return identity


def _me(*, formed: bool = True) -> ids.Self:
    voters = [cf.Voter(Member(one, f"{one}:1", ""), one.encode() * 16) for one in sorted(LISTED)]
    configuration = cf.make(CLUSTER, voters) if formed else None
    return ids.Self(_identity("A", cluster_id=CLUSTER if formed else b""), configuration, LISTED)


def _hello(identity: ids.Identity, **changes: object) -> pb.Hello:
    hello = pb.Hello(
        protocol_min=1,
        protocol_max=1,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        generation=identity.generation,
        generation_ids=identity.generation_ids,
        formed=True,
        durable_index=100,
        target="A",
    )
    for name, value in changes.items():
        setattr(hello, name, value)
    return hello


def _code(reject: pb.Reject | None) -> str:
    return "" if reject is None else pb.Reject.Code.Name(reject.code)


def test_a_member_with_its_own_folder_is_let_in() -> None:
    assert ids.judge(_me(), _hello(_identity("B")), None, 0) is None
    assert ids.judge(_me(), _hello(_identity("B", cluster_id=b""), formed=False), None, 0) is None
    assert ids.judge(_me(formed=False), _hello(_identity("B", cluster_id=b""), formed=False), None, 0) is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol_min": 2, "protocol_max": 3}, "PROTOCOL"),
        ({"cluster_id": b"d" * 16}, "FOREIGN"),
        ({"target": "C"}, "WRONG_NODE"),
        ({"node_id": "D"}, "WRONG_NODE"),
        ({"node_id": "A"}, "WRONG_NODE"),
        ({"incarnation": b"x" * 16, "formed": False}, "EMPTIED"),
        ({"incarnation": b"x" * 16}, "FOREIGN"),
        ({"incarnation": b"x"}, "PROTOCOL"),
        ({"generation_ids": b""}, "PROTOCOL"),
        ({"generation_ids": b"123"}, "PROTOCOL"),
    ],
)
def test_who_is_not(changes: dict[str, object], code: str) -> None:
    assert _code(ids.judge(_me(), _hello(_identity("B"), **changes), None, 0)) == code


def test_generations_go_on_and_never_back() -> None:
    first = _identity("B", 5)
    kept = ids.admission_of(_hello(first), 0)
    again, later = first, first.next_start(RNG.randbytes).next_start(RNG.randbytes)
    assert ids.judge(_me(), _hello(again), kept, 0) is None
    assert ids.judge(_me(), _hello(later), kept, 0) is None
    assert _code(ids.judge(_me(), _hello(_identity("B", 3)), kept, 0)) == "ROLLED_BACK"
    assert _code(ids.judge(_me(), _hello(_identity("B", 5)), kept, 0)) == "ROLLED_BACK"
    # An old copy that was started so often that its number is higher than ever.
    assert _code(ids.judge(_me(), _hello(_identity("B", 50)), kept, 0)) == "ROLLED_BACK"


def test_a_log_shorter_than_what_it_acknowledged_is_rolled_back() -> None:
    hello = _hello(_identity("B"), durable_index=10)
    assert ids.judge(_me(), hello, ids.admission_of(hello, 10), 0) is None
    assert _code(ids.judge(_me(), hello, ids.admission_of(hello, 0), 11)) == "ROLLED_BACK"
    assert _code(ids.judge(_me(), hello, ids.admission_of(hello, 11), 0)) == "ROLLED_BACK"


def test_the_list_of_generations_is_bounded() -> None:
    identity = _identity("B", ids.GENERATIONS_KEPT + 10)
    assert identity.generation == ids.GENERATIONS_KEPT + 10
    assert len(identity.generation_ids) == ids.GENERATIONS_KEPT * ids.GENERATION_ID_SIZE
    assert ids.judge(_me(), _hello(identity), None, 0) is None


def test_identity_round_trip_and_its_refusals() -> None:
    identity = _identity("B", 3)
    assert ids.decode_identity(identity.encode()) == identity
    admission = ids.admission_of(_hello(identity), 7)
    assert ids.decode_admission(admission.encode()) == admission
    with pytest.raises(Refused, match="belongs to node B, not to node A"):
        ids.started(identity.encode(), "A", RNG.randbytes)
    future = pb.Identity(format=2, node_id="B").SerializeToString()
    with pytest.raises(ConfigurationError, match="has format 2"):
        ids.decode_identity(future)
    with pytest.raises(RaftFault):
        ids.decode_identity(b"\xff\xff")
    assert ids.started(None, "A", RNG.randbytes).generation == 1


def test_configurations_are_checked() -> None:
    voter = pb.Voter(node_id="A", incarnation=b"a" * 16)
    with pytest.raises(ConfigurationError, match="format 2"):
        cf.from_message(pb.Configuration(format=2, voters=[voter]))
    for wrong in (
        pb.Configuration(format=1),
        pb.Configuration(format=1, voters=[voter, voter]),
        pb.Configuration(format=1, voters=[pb.Voter(node_id="A", incarnation=b"a")]),
        pb.Configuration(format=1, cluster_id=b"c", voters=[voter]),
    ):
        with pytest.raises(ValueError, match="configuration"):
            cf.from_message(wrong)


def _formings(incarnations: dict[str, bytes]) -> dict[str, Forming]:
    return {node_id: Forming(node_id, incarnation, LISTED) for node_id, incarnation in incarnations.items()}


def test_three_empty_folders_agree() -> None:
    incarnations = {one: one.encode() * 16 for one in "ABC"}
    nodes = _formings(incarnations)
    for one, other in itertools.permutations("ABC", 2):
        assert not nodes[one].agreed()
        assert nodes[one].saw(other, incarnations[other])
        assert not nodes[one].saw(other, incarnations[other])
    for one, other in itertools.permutations("ABC", 2):
        nodes[one].reported(other, incarnations[other], nodes[other].seen)
    assert all(node.agreed() for node in nodes.values())


def test_having_seen_everybody_is_not_enough() -> None:
    incarnations = {one: one.encode() * 16 for one in "ABC"}
    nodes = _formings(incarnations)
    for other in "BC":
        nodes["A"].saw(other, incarnations[other])
    nodes["A"].reported("B", incarnations["B"], nodes["A"].seen)
    assert not nodes["A"].agreed()
    nodes["A"].reported("C", incarnations["C"], {"A": incarnations["A"], "C": incarnations["C"]})
    assert not nodes["A"].agreed()


def test_a_replaced_folder_never_comes_back_and_its_report_is_void() -> None:
    node = Forming("A", b"a" * 16, LISTED)
    node.saw("B", b"1" * 16)
    node.saw("C", b"c" * 16)
    full = node.seen
    node.reported("B", b"1" * 16, full)
    node.reported("C", b"c" * 16, full)
    assert node.agreed()
    node.saw("B", b"2" * 16)
    assert not node.agreed()
    assert not node.saw("B", b"1" * 16)
    node.reported("B", b"1" * 16, full)
    assert not node.agreed()


def test_a_stored_set_is_adopted_only_if_it_names_this_folder() -> None:
    node = Forming("A", b"a" * 16, LISTED)
    full = {"A": b"a" * 16, "B": b"b" * 16, "C": b"c" * 16}
    assert node.may_adopt(full)
    assert not node.may_adopt({**full, "A": b"x" * 16})
    assert not node.may_adopt({"A": b"a" * 16, "B": b"b" * 16})
