"""Who is let in: names, folders, generations; and how a new cluster agrees on its folders."""

import dataclasses
import itertools
import random
from collections import Counter

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


def test_a_leader_may_ask_whether_a_new_address_leads_to_itself() -> None:
    """Otherwise nobody could tell the cluster that the leader has moved (`scripts/sim` found it: nothing else could be
    changed then). A connection, and another process with a copy of the folder, are refused as ever."""
    me = _me()
    assert ids.judge(me, _hello(me.identity, meeting=True), None, 0) is None
    assert _code(ids.judge(me, _hello(me.identity), None, 0)) == "WRONG_NODE"
    copy = me.identity.next_start(RNG.randbytes)
    assert _code(ids.judge(me, _hello(copy, meeting=True), None, 0)) == "WRONG_NODE"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol_min": 2, "protocol_max": 3}, "PROTOCOL"),
        ({"cluster_id": b"d" * 16}, "FOREIGN"),
        ({"target": "C"}, "WRONG_NODE"),
        ({"node_id": "D"}, "WRONG_NODE"),
        ({"node_id": "A"}, "WRONG_NODE"),
        ({"incarnation": b"x" * 16, "formed": False}, "EMPTIED"),
        ({"incarnation": b"x" * 16, "cluster_id": b""}, "FOREIGN"),
        ({"incarnation": b"x"}, "PROTOCOL"),
        ({"generation_ids": b""}, "PROTOCOL"),
        ({"generation_ids": b"123"}, "PROTOCOL"),
    ],
)
def test_who_is_not(changes: dict[str, object], code: str) -> None:
    assert _code(ids.judge(_me(), _hello(_identity("B"), **changes), None, 0)) == code


def _formed_elsewhere(**changes: object) -> pb.Hello:
    """A folder of the same cluster that is not in A's configuration."""
    return _hello(_identity("D"), **{"peer_address": "d:1", **changes})


def test_an_old_configuration_does_not_decide() -> None:
    """Else {A, B, C} + D, E with A behind stands still when B and C die."""
    assert ids.judge(_me(), _formed_elsewhere(), None, 0) is None
    # Also under a member's name: it may have been replaced since.
    assert ids.judge(_me(), _formed_elsewhere(node_id="B"), None, 0) is None
    assert _code(ids.judge(_me(), _formed_elsewhere(cluster_id=b"d" * 16), None, 0)) == "FOREIGN"
    assert _code(ids.judge(_me(), _formed_elsewhere(cluster_id=b""), None, 0)) == "FOREIGN"
    assert _code(ids.judge(_me(), _formed_elsewhere(formed=False), None, 0)) == "WRONG_NODE"
    assert _code(ids.judge(_me(), _formed_elsewhere(peer_address=""), None, 0)) == "WRONG_NODE"


def _unaware() -> ids.Self:
    """Stored the formation, and was away when the cluster's first entry was committed."""
    return dataclasses.replace(_me(), identity=_identity("A", cluster_id=b""))


def test_who_does_not_know_its_clusters_id_lets_the_other_side_judge() -> None:
    assert ids.judge(_unaware(), _formed_elsewhere(), None, 0) is None
    assert ids.judge(_me(formed=False), _formed_elsewhere(), None, 0) is None
    assert _code(ids.judge(_unaware(), _formed_elsewhere(cluster_id=b""), None, 0)) == "FOREIGN"
    assert _code(ids.judge(_me(formed=False), _formed_elsewhere(cluster_id=b""), None, 0)) == "WRONG_NODE"


@pytest.mark.parametrize(
    ("node_id", "joining", "known", "code", "text"),
    [
        ("B", False, True, "EMPTIED", "has forgotten what it promised"),
        ("B", False, False, "BUSY", "emptied while the cluster was formed"),
        ("B", True, True, "BUSY", "run `kvorum cluster replace`"),
        ("D", False, True, "WRONG_NODE", "join = true"),
        ("D", True, True, "BUSY", "run `kvorum cluster add`"),
    ],
)
def test_an_empty_folder_that_nobody_named(node_id: str, joining: bool, known: bool, code: str, text: str) -> None:
    hello = _hello(_identity("X"), node_id=node_id, formed=False, joining=joining, cluster_id=b"")
    reject = ids.judge(_me() if known else _unaware(), hello, None, 0)
    assert reject is not None
    assert _code(reject) == code
    assert text in reject.text


def test_an_empty_folder_that_the_configuration_names_is_let_in() -> None:
    for joining in (True, False):
        hello = _hello(_identity("B"), formed=False, joining=joining, cluster_id=b"")
        assert ids.judge(_me(), hello, None, 0) is None


def test_a_removed_folder_is_refused_whatever_else_it_is() -> None:
    me = dataclasses.replace(_me(), removed=frozenset({b"B" * 16, b"D" * 16}))
    for hello in (_hello(_identity("B")), _formed_elsewhere(), _formed_elsewhere(formed=False, joining=True)):
        assert _code(ids.judge(me, hello, None, 0)) == "REMOVED"


def test_a_joining_folder_lets_in_whoever_has_a_cluster() -> None:
    me = dataclasses.replace(_me(formed=False), joining=True, listed=frozenset("A"))
    assert ids.judge(me, _formed_elsewhere(), None, 0) is None
    assert ids.judge(me, _formed_elsewhere(cluster_id=b"d" * 16), None, 0) is None
    for changes in ({"cluster_id": b""}, {"formed": False}, {"joining": True, "formed": False}):
        assert _code(ids.judge(me, _formed_elsewhere(**changes), None, 0)) == "BUSY"
    assert _code(ids.judge(me, _formed_elsewhere(node_id="A"), None, 0)) == "WRONG_NODE"


@pytest.mark.parametrize(
    ("own", "theirs", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (2, 5), 3),
        ((2, 5), (1, 3), 3),
        ((1, 1), (1, 9), 1),
        ((3, 4), (1, 2), None),
        ((1, 2), (3, 4), None),
        ((1, 1), (0, 0), None),
    ],
)
def test_both_sides_agree_on_the_newest_common_protocol(
    own: tuple[int, int], theirs: tuple[int, int], agreed: int | None
) -> None:
    hello = _hello(_identity("B"), protocol_min=theirs[0], protocol_max=theirs[1])
    assert ids.negotiated(own, hello) == agreed
    assert ids.negotiated(theirs, pb.Hello(protocol_min=own[0], protocol_max=own[1])) == agreed
    me = dataclasses.replace(_me(), protocols=own)
    assert _code(ids.judge(me, hello, None, 0)) == ("" if agreed else "PROTOCOL")


def test_a_folder_whose_list_does_not_reach_back_is_not_condemned() -> None:
    """It may be sound: the one who judges was away for more than a thousand of its starts."""
    identity = _identity("B", 5)
    kept = ids.admission_of(_hello(identity), 0)
    for _ in range(ids.GENERATIONS_KEPT):
        identity = identity.next_start(RNG.randbytes)
    assert _code(ids.judge(_me(), _hello(identity), kept, 0)) == "BUSY"


def _anything(rng: random.Random) -> pb.Hello:
    """A hello whose fields are good, strange or absurd."""
    names = ["A", "B", "D", "", "x" * 200, "B\nB", "\u202eB", "ß"]
    blobs = [b"", b"B" * 16, b"x" * 16, b"short", b"1" * 8, rng.randbytes(16), b"1" * 8 * 1001]
    places = ["", "b:1", "b", ":1", "[::1]:5", "b:99999", "b:²", "b:" + "9" * 5000, "b" * 400 + ":1", "a\x00b:1"]
    numbers = [0, 1, 2, 5, 2**31, 2**32 - 1]
    hello = _hello(_identity("B"), target=rng.choice(["A", *names]))
    for name, values in (
        ("protocol_min", numbers),
        ("protocol_max", numbers),
        ("data_version", numbers),
        ("generation", [*numbers, 2**64 - 1]),
        ("durable_index", [*numbers, 2**64 - 1]),
        ("cluster_id", [*blobs, CLUSTER]),
        ("incarnation", blobs),
        ("generation_ids", blobs),
        ("node_id", names),
        ("peer_address", places),
        ("client_address", places),
        ("formed", [True, False]),
        ("joining", [True, False]),
        ("meeting", [True, False]),
    ):
        if rng.random() < 0.25:
            setattr(hello, name, rng.choice(values))
    hello.listed.extend(rng.sample(names, rng.randrange(3)))
    return hello


def test_whatever_a_hello_holds_it_is_judged_and_nothing_is_raised() -> None:
    rng = random.Random(7)
    known, unaware, forming = _me(), _unaware(), _me(formed=False)
    removed = dataclasses.replace(_me(), removed=frozenset({b"x" * 16}))
    joiner = dataclasses.replace(_me(formed=False), joining=True)
    kept = [None, ids.admission_of(_hello(_identity("B", 3)), 50), ids.Admission(b"B" * 16, 2**64 - 1, b"", 0)]
    codes = Counter[str]()
    for _ in range(20_000):
        me = rng.choice([known, unaware, removed, joiner, forming])
        reject = ids.judge(me, _anything(rng), rng.choice(kept), rng.choice([0, 70, 2**63]))
        codes[_code(reject)] += 1
        if reject is not None:
            assert reject.text
            assert reject.text.isprintable(), "it goes to a log and to an operator as one line"
            assert len(reject.text) < 500
    assert codes.keys() == {"", "PROTOCOL", "FOREIGN", "EMPTIED", "ROLLED_BACK", "WRONG_NODE", "BUSY", "REMOVED"}


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
    assert node.may_adopt(full, from_log=False)
    assert not node.may_adopt({**full, "A": b"x" * 16}, from_log=False)
    assert not node.may_adopt({"A": b"a" * 16, "B": b"b" * 16}, from_log=False)
    # A log's configuration may be a later one; that it names this folder says that it began with it.
    assert node.may_adopt({**full, "D": b"d" * 16}, from_log=True)
    assert not node.may_adopt({**full, "A": b"x" * 16, "D": b"d" * 16}, from_log=True)
