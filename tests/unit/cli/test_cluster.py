"""`kvorum cluster …` against nodes of a made-up cluster."""

import asyncio
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvorum import errors
from kvorum.cli import admin
from kvorum.cli.cluster import parse_moment
from kvorum.cli.group import kvorum
from kvorum_node import quarantine
from kvorum_raft.errors import ChangePending, NotLeader, UnknownOutcome
from kvorum_raft.seams import Member, PeerView
from tests.unit.node.fake_admin import FakeNode

N2 = Member("n2", "n2.example:7403", "n2.example:7401")
N4 = Member("n4", "n4.example:7403", "n4.example:7401")
PLACE = ("--peer-address", "n4.example:7403", "--client-address", "n4.example:7401")


async def shell(*nodes: FakeNode | str, words: tuple[str, ...], status: int = 0) -> Result:
    """Run `kvorum cluster WORDS` in a thread, so that the nodes can answer."""
    url = "kvorum://" + ",".join(node if isinstance(node, str) else node.address for node in nodes)
    runner = CliRunner(env={"KVORUM_URL": url})
    result = await asyncio.to_thread(runner.invoke, kvorum, ["cluster", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def error_line(result: Result) -> str:
    line = result.stderr.splitlines()[-1]
    assert line.startswith("kvorum: ")
    assert "Traceback" not in result.output
    return line


async def test_members_as_a_table_and_as_json() -> None:
    peers = (PeerView(N2, False, 990), PeerView(N4, True, 400, learner=True, snapshot=(1 << 20, 4 << 20)))
    async with FakeNode("n1", peers=peers) as node:
        table = (await shell(node, words=("members",))).stdout
        (text,) = (await shell(node, words=("members", "--json"))).stdout.splitlines()
    rows = [line.split() for line in table.splitlines() if line.split() and line.split()[0] in "│┃"]
    assert "n1" in table
    assert len(rows) >= 3, table
    for part in ("leader", "voter", "learner", "NO", "600", "25 % of 4.0 MiB", "n4.example:7401"):
        assert part in table
    view = json.loads(text)
    assert (view["leader"], view["leader_address"]) == ("n1", node.address)
    assert [(row["node"], row["voter"], row["connected"], row["lag"]) for row in view["members"]] == [
        ("n1", True, True, 0),
        ("n2", True, False, 10),
        ("n4", False, True, 600),
    ]


async def test_the_leader_is_asked_even_if_only_a_follower_is_known() -> None:
    async with FakeNode("n1", peers=(PeerView(N2, True, 5),)) as leader, FakeNode("n3", leader=leader.member) as other:
        (text,) = (await shell(other, words=("members", "--json"))).stdout.splitlines()
        assert json.loads(text)["asked"] == "n1"
        await shell(other, words=("remove", "n2"))
    assert leader.administration.asked == [("remove", "n2")]
    assert other.administration.asked == []


async def test_a_leader_whose_advertised_address_cannot_be_reached_is_asked_where_it_answered() -> None:
    async with FakeNode("n1") as leader:
        leader.advertised = "127.0.0.1:9"
        async with FakeNode("n3", leader=leader.member) as other:
            await shell(other, leader, words=("remove", "n2"))
            await shell(leader, other, words=("remove", "n4"))
            alone = await shell(other, words=("remove", "n5", "--timeout", "1s"), status=3)
            assert "no node that answers leads" in error_line(alone)
    assert leader.administration.asked == [("remove", "n2"), ("remove", "n4")]
    assert other.administration.asked == []


async def test_without_a_leader_the_members_are_shown_and_nothing_is_changed() -> None:
    async with FakeNode("n1", peers=(PeerView(N2, True, 5),)) as node:
        node.leaderless = True
        shown = await shell(node, words=("members", "--timeout", "1s"), status=3)
        assert "n2" in shown.stdout
        assert error_line(shown) == "kvorum: there is no leader; this is what node n1 knows"
        refused = await shell(node, words=("remove", "n2", "--timeout", "1s"), status=3)
        assert "not done" in error_line(refused)
        assert node.administration.asked == []


async def test_nothing_is_changed_in_either_of_two_clusters() -> None:
    """After a restore, say: both have a node n1 that leads, and the addresses are of both."""
    async with FakeNode("n1") as old, FakeNode("n1", cluster=b"n" * 16) as new, FakeNode("n2", cluster=b"") as empty:
        for words in (("members",), ("promote", "n2"), ("remove", "n2"), ("remove", "n2", "--dry-run"), ("transfer",)):
            line = error_line(await shell(old, new, words=words, status=2))
            assert "of different clusters" in line
            assert f"{old.address}: {old.cluster.hex()}" in line and f"{new.address}: {new.cluster.hex()}" in line
        assert old.administration.asked == new.administration.asked == []
        # one that waits to be let in is of none yet
        await shell(old, empty, words=("promote", "n2"))


async def test_a_change_follows_leadership_that_moves_meanwhile() -> None:
    async with FakeNode("n2") as successor, FakeNode("n1") as node:
        successor.other_leader = node.member

        class Moves:
            async def remove(self, node_id: str) -> None:
                node.other_leader, successor.other_leader = successor.member, None
                raise NotLeader("deposed")

        node.administration.remove = Moves().remove  # type: ignore[method-assign]
        await shell(node, successor, words=("remove", "n3"))
    assert successor.administration.asked == [("remove", "n3")]


async def test_errors_are_one_line_and_a_status() -> None:
    async with FakeNode("n1") as node:
        node.administration.failures = [
            ValueError("node n9 is not a member"),
            ChangePending("another change is not committed yet"),
            UnknownOutcome("leadership was lost"),
        ]
        assert error_line(await shell(node, words=("remove", "n9"), status=2)) == "kvorum: node n9 is not a member"
        assert "try again in a moment" in error_line(await shell(node, words=("remove", "n2"), status=3))
        unknown = error_line(await shell(node, words=("remove", "n2"), status=4))
        assert unknown.startswith("kvorum: unknown outcome: ")
        assert "kvorum cluster members" in unknown
    gone = await shell(node.address, words=("remove", "n2", "--timeout", "300ms"), status=3)
    assert "no node answers" in error_line(gone)


async def test_a_transfer_to_a_stranger_names_the_members() -> None:
    async with FakeNode("n1", peers=(PeerView(N2, True, 5), PeerView(N4, True, 5, learner=True))) as node:
        node.administration.failures = [ValueError(f"node {name} is not a voter") for name in ("2", "n4")]
        told = error_line(await shell(node, words=("transfer", "2"), status=2))
        assert told == "kvorum: node 2 is not a voter: the members are n1, n2, n4"
        assert error_line(await shell(node, words=("transfer", "n4"), status=2)) == "kvorum: node n4 is not a voter"


async def test_an_embedded_database_has_no_members(tmp_path: Path) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, kvorum, ["cluster", "members", "--url", str(tmp_path)])
    assert result.exit_code == 2
    assert "embedded" in error_line(result)


async def test_add_says_what_comes_next() -> None:
    async with FakeNode("n1", peers=(PeerView(N4, True, 0, learner=True),)) as node:
        done = await shell(node, words=("add", "n4", *PLACE))
        assert done.stdout == "node n4 is a learner; when it has caught up: kvorum cluster promote n4\n"
        assert node.administration.asked == [("add", N4)]


@pytest.mark.parametrize(("command", "asked"), [("add", "add"), ("replace", "replace")])
async def test_promote_waits_until_the_learner_has_caught_up(command: str, asked: str) -> None:
    learner = PeerView(N4, False, 0, learner=True)
    async with FakeNode("n1", peers=(learner,)) as node:
        node.last_index = 5_000
        steps = [
            replace(learner, connected=True, snapshot=(1 << 20, 2 << 20)),
            replace(learner, connected=True, match_index=2_000),
            replace(learner, connected=True, match_index=4_900),
        ]
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            # A command looks once for the leader before each change: two looks at the beginning and at the end.
            if looks > 2 and steps:
                node.peers = (steps.pop(0),)

        node.on_status = look
        # The leader may find it too far behind once more: that is no reason to give up.
        node.administration.on_call = lambda what: (
            node.administration.failures.append(ValueError("it lacks 1,100 entries")) if what == asked else None
        )
        done = await shell(node, words=(command, "n4", *PLACE, "--promote", "--timeout", "20s"))
    assert done.stdout == "node n4 is a voter\n"
    assert node.administration.asked == [(asked, N4), ("promote", "n4")]
    shown = done.stderr.splitlines()
    assert "node n4: it gets a snapshot, 50 % of 2.0 MiB" in shown
    assert "node n4: it lacks 3,000 entries" in shown
    assert "node n4: it lacks 1,100 entries" in shown


async def test_a_learner_that_does_not_catch_up_in_time_stays_one() -> None:
    async with FakeNode("n1", peers=(PeerView(N4, False, 0, learner=True),)) as node:
        late = await shell(node, words=("add", "n4", *PLACE, "--promote", "--timeout", "2s"), status=3)
        assert "the leader is not connected to it" in error_line(late)
        assert "kvorum cluster promote n4" in error_line(late)
        assert node.administration.asked == [("add", N4)]


async def test_a_wait_for_a_learner_outlives_nodes_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "SILENCE", 0.0)
    learner = PeerView(N4, False, 0, learner=True)
    async with FakeNode("n1", peers=(learner,)) as node:
        looks = 0

        def look() -> None:
            # One look finds the leader, one sees the learner, three fail; then it can be promoted.
            nonlocal looks
            looks += 1
            if 2 < looks <= 5:
                raise RuntimeError("this node does not answer")
            if looks > 5:
                node.peers = (replace(learner, connected=True, match_index=node.last_index),)

        node.on_status = look
        done = await shell(node, words=("add", "n4", *PLACE, "--promote", "--timeout", "20s"))
    assert done.stdout == "node n4 is a voter\n"
    assert node.administration.asked == [("add", N4), ("promote", "n4")]
    assert "this node does not answer" in done.stderr


def answers(node: FakeNode, looks: list[bool]) -> None:
    """Whether it answers the next looks; it does all those after them."""

    def look() -> None:
        if looks and not looks.pop(0):
            raise RuntimeError("this node does not answer")

    node.on_status = look


async def test_a_member_is_let_in_also_if_nothing_can_be_asked_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "SILENCE", 0.0)
    async with FakeNode("n1", peers=(PeerView(N4, True, 0, learner=True),)) as node:
        answers(node, [True, False])
        done = await shell(node, words=("add", "n4", *PLACE))
        assert done.stdout == "node n4 is let in; whether as a learner: kvorum cluster members\n"
        answers(node, [True, False])
        (text,) = (await shell(node, words=("add", "n4", *PLACE, "--json"))).stdout.splitlines()
    assert json.loads(text) == {"ok": True, "node": "n4", "voter": None}


async def test_what_was_seen_once_is_shown_also_if_the_last_look_fails() -> None:
    async with FakeNode("n1", peers=(PeerView(N2, True, 5),)) as node:
        node.leaderless = True
        answers(node, [True] + [False] * 99)
        shown = await shell(node, words=("members", "--timeout", "1s"), status=3)
    assert "n2" in shown.stdout
    assert error_line(shown) == "kvorum: there is no leader; this is what node n1 knows"


async def test_transfer_and_set_time() -> None:
    async with FakeNode("n1") as node:
        assert (await shell(node, words=("transfer",))).stdout == "node n2 leads\n"
        assert (await shell(node, words=("transfer", "n3"))).stdout == "node n3 leads\n"
        done = await shell(node, words=("set-time", "2027-01-31T12:00:00+01:00", "--ahead"))
        assert done.stdout == "the cluster's time is 2027-01-31T11:00:00.000+00:00\n"
        assert "time zone" in error_line(await shell(node, words=("set-time", "2027-01-31T12:00:00"), status=2))
    assert node.administration.asked == [("transfer", None), ("transfer", "n3"), ("set_time", 1_801_393_200_000)]


async def test_the_time_does_not_jump_ahead_by_a_slip_of_the_pen() -> None:
    async with FakeNode("n1") as node:
        far = error_line(await shell(node, words=("set-time", "2127-01-31T12:00:00+00:00"), status=2))
        assert "never goes back" in far
        assert "--ahead" in far
    assert node.administration.asked == []


def test_moments() -> None:
    assert parse_moment("now", 5) == 5
    assert parse_moment("1801393200000", 5) == 1_801_393_200_000
    assert parse_moment("2027-01-31T11:00:00Z", 5) == 1_801_393_200_000
    for bad in ("", "soon", "-5", "1969-12-31T00:00:00Z", "2027-01-31"):
        with pytest.raises(errors.InvalidArgument):
            parse_moment(bad, 5)


# ---- quarantine


def node_folder(tmp_path: Path) -> Path:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "LOCK").touch()
    return tmp_path


def run_quarantine(folder: Path, *numbers: int, status: int = 0) -> Result:
    words = ["cluster", "quarantine", *map(str, numbers), "--data-dir", str(folder)]
    result = CliRunner().invoke(kvorum, words)
    assert result.exit_code == status, result.output
    return result


def test_quarantine_keeps_a_list(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    assert quarantine.read(folder) == frozenset()
    run_quarantine(folder, 712, 3)
    run_quarantine(folder, 712, 3)
    shown = run_quarantine(folder, 9, 0).stdout
    assert "9/0, 712/3" in shown
    assert quarantine.read(folder) == {(9, 0), (712, 3)}
    assert json.loads((folder / "QUARANTINE").read_text()) == [[9, 0], [712, 3]]


def test_quarantine_refuses_a_running_node_and_what_is_no_folder_of_one(tmp_path: Path) -> None:
    assert "is not the folder of a node" in error_line(run_quarantine(tmp_path, 1, 0, status=2))
    folder = node_folder(tmp_path)
    descriptor = os.open(folder / "raft" / "LOCK", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert "stop it first" in error_line(run_quarantine(folder, 1, 0, status=2))
    finally:
        os.close(descriptor)
    assert not (folder / "QUARANTINE").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[[1]]", "[[1, -1]]", "[[true, 1]]", "[[1, 1.5]]", "\xe9"])
def test_a_damaged_list_is_refused(tmp_path: Path, text: str) -> None:
    folder = node_folder(tmp_path)
    (folder / "QUARANTINE").write_bytes(text.encode("latin-1"))
    with pytest.raises(quarantine.QuarantineError):
        quarantine.read(folder)
    run_quarantine(folder, 1, 0, status=2)
    assert (folder / "QUARANTINE").read_bytes() == text.encode("latin-1")


async def test_a_dry_removal_says_what_would_be_left() -> None:
    async with FakeNode("n1", peers=(PeerView(N2, False, 5), PeerView(N4, True, 5, learner=True))) as node:
        text = (await shell(node, words=("remove", "n2", "--dry-run"))).stdout
        assert text == "would remove voter n2; 1 voters would be left, 1 of them connected, 1 needed\n"
        text = (await shell(node, words=("remove", "n1", "--dry-run"))).stdout
        assert text == "would remove leader n1; 1 voters would be left, 0 of them connected, 1 needed\n"
        (line,) = (await shell(node, words=("remove", "n4", "--dry-run", "--json"))).stdout.splitlines()
        assert json.loads(line) == {
            "dry_run": True,
            "node": "n4",
            "voter": False,
            "leads": False,
            "voters_left": 2,
            "connected_left": 1,
        }
        unknown = error_line(await shell(node, words=("remove", "n9", "--dry-run"), status=1))
        assert "the members are n1, n2, n4" in unknown
        assert node.administration.asked == []
