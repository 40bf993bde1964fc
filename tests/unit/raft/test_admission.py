"""What a node remembers of the others' folders, over its own restarts, and how a joining folder behaves."""

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from kvorum_raft import configuration as cf
from kvorum_raft import identity as ids
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.admission import Admissions
from kvorum_raft.config import Limits, RaftConfig
from kvorum_raft.entry import Kind, make
from kvorum_raft.errors import RaftFault, Refused
from kvorum_raft.journal import RaftJournal
from kvorum_raft.pysyncobj_fixes import FOLLOWER, LEADER, SafeSyncObj
from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.seams import Member
from tests.simulation.world import SimDisk

CLUSTER = b"c" * 16
MEMBERS = [Member(one, f"h{one}:1", f"h{one}:2") for one in "ABC"]


def _folder(node_id: str) -> bytes:
    return node_id.encode() * 16


def _configuration(names: str = "ABC", removed: tuple[bytes, ...] = ()) -> cf.Configuration:
    voters = [cf.Voter(Member(one, f"h{one}:1", f"h{one}:2"), _folder(one)) for one in names]
    return cf.make(CLUSTER, voters, removed)


class Core:
    """What Admissions look at."""

    def __init__(self, configuration: cf.Configuration | None) -> None:
        self.configuration = configuration
        self.commit_index = 1_000_000
        self.state = FOLLOWER
        self.matches: dict[str, int] = {}
        self.told_of_removal = 0

    def match_index(self, node_id: str) -> int:
        return self.matches.get(node_id, 0) if self.state == LEADER else 0

    def refused_as_removed(self) -> None:
        self.told_of_removal += 1

    def form(self, configuration: cf.Configuration) -> None:
        self.configuration = configuration


class Fixture:
    """Node A. `restart` keeps what the disk has."""

    def __init__(self, configuration: cf.Configuration | None, *, synced: bool = True, **config: Any) -> None:
        self.disk = SimDisk()
        self.config = RaftConfig("A", config.pop("members", MEMBERS), Path("unused"), **config)
        self.identity = ids.Identity("A", _folder("A"), CLUSTER if configuration else b"", 1, b"gggggggg")
        self.now = 0.0
        self.synced = synced
        self.restart(configuration)

    def restart(self, configuration: cf.Configuration | None) -> None:
        self.core = Core(configuration)
        self.journal = RaftJournal(self.disk, self.disk.stored(), cache=1 << 20, clock=lambda: self.now)
        self.sent: list[pb.Envelope] = []
        self.one = Admissions(
            self.config,
            self.identity,
            self.stored(),
            self.journal,
            cast(SafeSyncObj, self.core),
            QuietLog(logging.getLogger("test"), lambda: self.now),
            self.sent.append,
        )

    def stored(self) -> list[ids.Admission]:
        records = [record for key, record in self.disk.records.items() if key.startswith(ids.ADMISSION_PREFIX)]
        return [ids.decode_admission(record) for record in records if record]

    def sync(self) -> None:
        while self.disk.pending:
            seq = self.disk.write_one()
            self.journal.on_durable(seq)
            self.one.durable(seq)

    def judge(self, hello: pb.Hello) -> str:
        found: list[pb.Reject | None] = []
        self.one.judge(hello, found.append)
        if self.synced:
            self.sync()
        if not found:
            return "waits"
        return "" if found[0] is None else pb.Reject.Code.Name(found[0].code)

    def step(self, seconds: float) -> None:
        self.now += seconds
        self.one.note_acknowledged(self.now)

    def acknowledged(self, node_id: str) -> int:
        self.journal.flush()
        self.sync()
        return next(one.acknowledged_index for one in self.stored() if one.incarnation == _folder(node_id))


def hello(node_id: str, **changes: object) -> pb.Hello:
    found = pb.Hello(
        protocol_min=1,
        protocol_max=1,
        cluster_id=CLUSTER,
        node_id=node_id,
        incarnation=_folder(node_id),
        generation=1,
        generation_ids=b"11111111",
        formed=True,
        durable_index=10**9,
        target="A",
        peer_address=f"h{node_id}:1",
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


# ---- what others acknowledged


def test_a_leader_remembers_what_was_acknowledged_without_a_sync_for_it() -> None:
    one = Fixture(_configuration())
    assert one.judge(hello("B")) == one.judge(hello("C")) == ""
    one.core.state = LEADER
    one.core.matches = {"B": 100, "C": 90}
    one.step(1)
    assert one.disk.pending == one.disk.pending.__class__(), "it goes with the next transaction of the log"
    assert one.acknowledged("B") == 100
    one.core.matches["B"] = 100 + 4095
    one.step(1)
    assert one.acknowledged("B") == 100
    one.core.matches["B"] += 1
    one.step(1)
    assert one.acknowledged("B") == 100 + 4096
    one.core.matches["B"] += 1
    one.step(9)
    assert one.acknowledged("B") == 100 + 4097, "10 s after the last time"
    assert one.acknowledged("C") == 90


def test_only_what_is_committed_counts() -> None:
    one = Fixture(_configuration())
    one.judge(hello("B"))
    one.core.state, one.core.commit_index, one.core.matches = LEADER, 50, {"B": 80}
    one.step(1)
    assert one.acknowledged("B") == 50


@pytest.mark.parametrize("how", ["office lost", "stopped"])
def test_the_rest_is_stored_at_the_end(how: str) -> None:
    one = Fixture(_configuration())
    one.judge(hello("B"))
    one.core.state = LEADER
    one.core.matches = {"B": 100}
    one.step(1)
    one.core.matches = {"B": 101}
    one.step(0.1)
    assert one.acknowledged("B") == 100
    if how == "stopped":
        one.core.matches = {"B": 102}
        one.one.note_acknowledged(one.now, leaving=True)
        assert one.acknowledged("B") == 102
    else:
        one.core.state = FOLLOWER
        one.step(0.1)
        assert one.acknowledged("B") == 101


def test_a_folder_that_lost_entries_is_refused_also_after_the_one_that_knew_has_restarted() -> None:
    one = Fixture(_configuration())
    one.judge(hello("B"))
    one.core.state = LEADER
    one.core.matches = {"B": 100}
    one.step(1)
    one.acknowledged("B")
    one.restart(_configuration())
    assert one.judge(hello("B", durable_index=99)) == "ROLLED_BACK"
    assert one.judge(hello("B", durable_index=100)) == ""
    # A further start of the same folder takes nothing of that away.
    later = {"generation": 2, "generation_ids": b"1111111122222222"}
    assert one.judge(hello("B", durable_index=100, **later)) == ""
    assert one.acknowledged("B") == 100
    one.restart(_configuration())
    assert one.judge(hello("B", durable_index=99, **later)) == "ROLLED_BACK"


def test_what_a_member_acknowledged_says_nothing_about_another_folder_under_its_name() -> None:
    one = Fixture(_configuration())
    one.core.state = LEADER
    one.core.matches = {"B": 100}
    assert one.judge(hello("B", incarnation=b"n" * 16, durable_index=5)) == ""
    assert one.judge(hello("B", durable_index=5)) == "ROLLED_BACK"


def test_a_second_handshake_of_the_same_start_waits_for_the_first_ones_sync() -> None:
    one = Fixture(_configuration(), synced=False)
    assert one.judge(hello("B")) == "waits"
    assert one.judge(hello("B")) == "waits"
    one.sync()
    assert one.judge(hello("B")) == ""


# ---- bounds


def test_members_are_never_forgotten_and_removed_ones_go_first() -> None:
    gone = b"r" * 16
    one = Fixture(_configuration(), limits=Limits(admissions=4))
    for node_id, incarnation in (("X", b"x" * 16), ("R", gone), ("B", _folder("B")), ("C", _folder("C"))):
        assert one.judge(hello(node_id, incarnation=incarnation)) == ""
    one.journal.append(make(Kind.CONFIGURATION, 1, 1, 1, _configuration(removed=(gone,)).encode()))
    for number in range(20):
        assert one.judge(hello("Y", incarnation=bytes([number]) * 16)) == ""
        kept = {admission.incarnation for admission in one.stored()}
        assert len(kept) == 4
        assert {_folder("B"), _folder("C")} <= kept
        assert gone not in kept
        assert (b"x" * 16 in kept) == (number == 0)


def test_with_room_for_members_only_strangers_are_told_to_wait() -> None:
    one = Fixture(_configuration(), limits=Limits(admissions=2))
    assert one.judge(hello("B")) == one.judge(hello("C")) == ""
    assert one.judge(hello("Y")) == "BUSY"
    assert one.judge(hello("B")) == ""


def test_who_only_asks_is_not_remembered() -> None:
    one = Fixture(_configuration())
    assert one.judge(hello("Y", meeting=True)) == ""
    assert one.judge(hello("B", meeting=True, incarnation=b"short")) == "PROTOCOL"
    assert not one.stored()


# ---- tombstones


def test_only_a_committed_removal_refuses() -> None:
    one = Fixture(_configuration())
    one.journal.append(make(Kind.CONFIGURATION, 1, 1, 1, _configuration("AB", (_folder("C"),)).encode()))
    one.core.configuration = _configuration("AB", (_folder("C"),))
    one.core.commit_index = 0
    assert one.judge(hello("C")) == ""
    assert not one.one.unwanted(hello("C"))
    one.core.commit_index = 1
    assert one.judge(hello("C")) == "REMOVED"
    assert one.one.unwanted(hello("C"))
    # A removal that came later and is not committed takes nothing back.
    one.journal.append(make(Kind.CONFIGURATION, 2, 1, 1, _configuration("A", (_folder("C"), _folder("B"))).encode()))
    assert one.judge(hello("C")) == "REMOVED"
    assert one.judge(hello("B")) == ""


@pytest.mark.parametrize("code", ["REMOVED", "EMPTIED", "ROLLED_BACK"])
def test_these_verdicts_last(code: str) -> None:
    fixture = Fixture(_configuration())
    with pytest.raises(Refused, match="refused by node B: why") as caught:
        fixture.one.rejected_by("B", pb.Reject(code=code, text="why"))
    assert caught.value.lasting
    assert fixture.core.told_of_removal == (code == "REMOVED"), "another verdict says nothing about the members"


@pytest.mark.parametrize("code", ["BUSY", "WRONG_NODE", "PROTOCOL", "UNSPECIFIED"])
def test_these_do_not(code: str) -> None:
    Fixture(_configuration()).one.rejected_by("B", pb.Reject(code=code, text="why"))


def test_a_majority_that_is_foreign_ends_a_node_and_strangers_do_not() -> None:
    one = Fixture(_configuration()).one
    foreign = pb.Reject(code=pb.Reject.FOREIGN, text="why")
    for stranger in "XYZ":
        one.rejected_by(stranger, foreign)
    one.rejected_by("B", foreign)
    with pytest.raises(Refused) as caught:
        one.rejected_by("C", foreign)
    assert not caught.value.lasting


# ---- versions


def test_the_common_data_version_is_what_the_oldest_member_knows_or_knew() -> None:
    one = Fixture(_configuration(), data_version=3)
    assert one.one.hello("B").data_version == 3
    assert one.one.common_data_version(_configuration()) == 1
    one.judge(hello("B", data_version=2))
    assert one.one.common_data_version(_configuration("AB")) == 2
    one.judge(hello("C", data_version=4))
    assert one.one.common_data_version(_configuration()) == 2
    assert one.one.common_data_version(_configuration("A")) == 3
    later = {"generation": 2, "generation_ids": b"1111111122222222"}
    one.judge(hello("B", data_version=5, **later))
    assert one.one.common_data_version(_configuration()) == 3
    one.restart(_configuration())
    assert one.one.common_data_version(_configuration()) == 3, "remembered"
    # Another folder under B's name was never heard.
    replaced = cf.make(CLUSTER, [*_configuration("AC").members, cf.Voter(MEMBERS[1], b"n" * 16)])
    assert one.one.common_data_version(replaced) == 1


def test_a_peer_of_an_older_program_that_names_no_version_knows_the_first() -> None:
    one = Fixture(_configuration("AB"), data_version=3)
    one.judge(hello("B", data_version=0))
    assert one.one.common_data_version(_configuration("AB")) == 1


# ---- joining


def _joining() -> Fixture:
    return Fixture(None, join=True, members=MEMBERS[:1])


def test_a_joining_folder_forms_nothing_and_says_so() -> None:
    one = _joining()
    own = one.one.hello("")
    assert own.joining
    assert not own.formed
    assert (own.peer_address, own.client_address) == ("hA:1", "hA:2")
    one.one.try_form()
    assert one.core.configuration is None, "though it lists only itself"
    assert one.one.greeting(hello("B")) is None
    seen = _configuration().message()
    one.one.reported("B", _folder("B"), pb.Formation(seen=seen, stored=True))
    assert one.core.configuration is None
    assert one.judge(hello("B", formed=False, cluster_id=b"")) == "BUSY"
    assert one.judge(hello("B")) == "", "the leader of some cluster"
    assert one.judge(hello("X", cluster_id=b"d" * 16)) == "", "of any cluster: this folder has none"


def test_it_belongs_to_the_first_cluster_that_takes_it_in() -> None:
    one = _joining()
    one.core.configuration = _configuration("B")
    one.one.configured(one.core.configuration, False)
    assert one.one.identity.cluster_id == CLUSTER
    assert not one.one.hello("").joining
    assert one.judge(hello("X", cluster_id=b"d" * 16)) == "FOREIGN"
    assert one.one.unwanted(hello("X", cluster_id=b"d" * 16))
    assert not one.one.unwanted(hello("B"))
    one.journal.flush()
    one.sync()
    assert ids.decode_identity(one.disk.records[ids.IDENTITY_KEY]).cluster_id == CLUSTER
    other = cf.make(b"d" * 16, one.core.configuration.members)
    with pytest.raises(RaftFault, match="has the log of cluster"):
        one.one.configured(other, True)


def test_a_first_configuration_that_is_not_committed_names_no_cluster_yet() -> None:
    one = Fixture(None)
    one.core.configuration = _configuration()
    one.one.configured(one.core.configuration, False)
    assert one.one.identity.cluster_id == b""
    one.one.configured(one.core.configuration, True)
    assert one.one.identity.cluster_id == CLUSTER


def test_only_the_folder_that_is_named_speaks_for_a_member() -> None:
    one = Fixture(_configuration()).one
    assert one.is_member_folder("B", _folder("B"))
    assert not one.is_member_folder("B", b"n" * 16)
    assert not one.is_member_folder("X", _folder("X"))
    assert not Fixture(None).one.is_member_folder("B", _folder("B"))


# ---- forming


def test_a_folder_that_missed_the_formation_learns_it_from_a_later_configuration() -> None:
    """Everybody had reported; C was away when the others stored the set, and they have added D since."""
    one = Fixture(None)
    later = _configuration("ABCD")
    one.one.reported("D", _folder("D"), pb.Formation(seen=later.message(), stored=True))
    assert one.core.configuration is not None
    assert one.core.configuration.incarnations == later.incarnations
    other = cf.make(CLUSTER, [cf.Voter(MEMBERS[0], b"o" * 16), *_configuration("BC").members])
    stranger = Fixture(None)
    stranger.one.reported("B", _folder("B"), pb.Formation(seen=other.message(), stored=True))
    assert stranger.core.configuration is None, "it names another folder of A"


def test_who_never_met_this_folder_before_the_cluster_was_formed_is_let_in_to_tell() -> None:
    one = Fixture(None)
    assert one.judge(hello("D")) == ""
    assert one.judge(hello("D", cluster_id=b"")) == "WRONG_NODE"
    assert one.judge(hello("B", joining=True, formed=False, cluster_id=b"")) == "BUSY"
