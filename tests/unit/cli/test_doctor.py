"""`kvorum doctor`: what is made of nodes' answers, and what is looked at on this machine."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvorum._proto import kvorum_pb2 as pb
from kvorum.certificates import make_ca, make_node
from kvorum.cli import doctor_machine
from kvorum.cli.doctor_cluster import Told, certificate_finding, judge
from kvorum.cli.doctor_machine import (
    check_archive,
    check_folder,
    check_loopback,
    check_port,
    check_sync,
    file_system_of,
    files_finding,
    space_finding,
)
from kvorum.cli.findings import Finding
from kvorum.cli.group import kvorum
from kvorum_node.main import main as node_main

NOW = 1_800_000_000_000
GIB = 1 << 30
SOUND = {
    "disk_free_bytes": 50.0 * GIB,
    "disk_bytes": 100.0 * GIB,
    "map_bytes": 1024.0 * GIB,
    "used_bytes": 1.0 * GIB,
    "log_unsynced_age": 0.0,
    "readers": 3.0,
    "readers_limit": 512.0,
    "files_limit": 65_536.0,
    "loop_lag_worst": 0.003,
}


def told(node: str, *, wall: int = NOW, time: int = NOW, **more: object) -> Told:
    """A sound node's answer, but for what is given; figures by their names."""
    fields = {name: more.pop(name) for name in ("term", "version", "state_hash", "applied_index") if name in more}
    leader = pb.Leader(node_id=str(more.pop("leader", "n1")))
    status = pb.StatusResponse(
        node_id=node,
        cluster_id=bytes(more.pop("cluster", bytes(16))),  # type: ignore[call-overload]
        role="leader" if node == leader.node_id else "follower",
        leader=leader,
        wall_ms=wall,
        time_ms=time,
        statistics={**SOUND, **more},
        **{"term": 3, "version": "1.0", "state_hash": b"x", "applied_index": 9, **fields},  # type: ignore[arg-type]
    )
    return Told(f"{node}.example:7401", status, "", NOW, 2.0)


def members(*, voters: int = 3, away: int = 0, **more: object) -> pb.MembersResponse:
    """The leader's view; the last `away` voters are not connected."""
    view = pb.MembersResponse(node_id="n1", leader=pb.Leader(node_id="n1"), **more)  # type: ignore[arg-type]
    for number in range(1, voters + 1):
        view.members.add(node_id=f"n{number}", voter=True, connected=number <= voters - away)
    return view


def wrong(answers: list[Told], view: pb.MembersResponse | None = None) -> list[Finding]:
    """What is not ok."""
    return [one for one in judge(answers, members() if view is None else view) if one.state != "ok"]


def three(**more: object) -> list[Told]:
    """Two sound nodes, and n2 with what is given."""
    return [told("n1"), told("n2", **more), told("n3")]  # type: ignore[arg-type]


def only(findings: list[Finding]) -> tuple[str, str, str]:
    (one,) = findings
    assert one.todo, "what is not ok says what to do"
    return one.check, one.where, one.state


def test_a_sound_cluster_is_ok() -> None:
    assert wrong(three()) == []
    checks = {one.check for one in judge(three(), members())}
    assert {"node", "leader", "clock", "members", "versions", "free space", "readers", "open files"} <= checks


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"version": "1.1"}, ("versions", "cluster", "warn")),
        ({"cluster": b"y" * 16}, ("cluster id", "cluster", "FAIL")),
        ({"state_hash": b"y"}, ("content", "cluster", "FAIL")),
        ({"leader": "n2"}, ("leader", "cluster", "warn")),
        ({"leader": ""}, ("leader", "cluster", "warn")),
        ({"space_low": 1.0}, ("free space", "n2", "FAIL")),
        ({"disk_free_bytes": 6.0 * GIB}, ("free space", "n2", "warn")),
        ({"used_bytes": 900.0 * GIB}, ("map", "n2", "warn")),
        ({"used_bytes": 1020.0 * GIB}, ("map", "n2", "FAIL")),
        ({"log_unsynced_age": 0.2}, ("log", "n2", "warn")),
        ({"archive_failing_seconds": 9.0}, ("archive", "n2", "FAIL")),
        ({"archive_failing_seconds": 0.0, "archive_gaps": 1.0}, ("archive", "n2", "warn")),
        ({"log_unsynced_age": 0.6}, ("log", "n2", "FAIL")),
        ({"readers": 500.0}, ("readers", "n2", "warn")),
        ({"readers": 512.0}, ("readers", "n2", "FAIL")),
        ({"files_limit": 4_096.0}, ("open files", "n2", "warn")),
        ({"files_limit": 256.0}, ("open files", "n2", "FAIL")),
        ({"loop_lag_worst": 0.3}, ("loop", "n2", "warn")),
        ({"state_alarms": 1.0}, ("content", "n2", "FAIL")),
        ({"checkpoint_failures": 2.0}, ("checkpoints", "n2", "warn")),
        ({"wall": 0}, ("clock", "n2", "warn")),
    ],
)
def test_what_is_wrong_with_one_node_is_found(more: dict[str, object], expected: tuple[str, str, str]) -> None:
    assert only(wrong(three(**more))) == expected


@pytest.mark.parametrize(("off", "state"), [(300, "warn"), (-300, "warn"), (2_000, "FAIL"), (-2_000, "FAIL")])
def test_a_clock_is_judged_against_the_cluster_and_against_the_others(off: int, state: str) -> None:
    found = wrong(three(wall=NOW + off))
    assert [(one.check, one.where, one.state) for one in found] == [("clock", "n2", state), ("clock", "cluster", state)]
    assert f"{off:+,} ms" in found[0].told
    assert "n2" in found[1].told


def test_a_slow_answer_makes_a_clock_uncertain_not_wrong() -> None:
    slow = told("n2", wall=NOW + 400, time=NOW + 400)
    answers = [told("n1"), Told(slow.address, slow.status, "", NOW, 800.0)]
    assert wrong(answers) == []


def test_states_at_different_entries_are_not_compared() -> None:
    answers = [told("n1", applied_index=8, state_hash=b"a"), told("n2", applied_index=9, state_hash=b"b")]
    (content,) = [one for one in judge(answers, members()) if one.check == "content"]
    assert (content.state, "not compared" in content.told) == ("ok", True)


def test_nodes_that_do_not_answer_or_know_no_leader() -> None:
    gone = Told("n3.example:7401", None, "connection refused", 0.0, 0.0)
    assert only(wrong([told("n1"), told("n2"), gone])) == ("node", "n3.example:7401", "FAIL")
    assert [one.state for one in judge([gone], None)] == ["FAIL"]
    leaderless = wrong([told("n1", leader=""), told("n2", leader="")])
    assert ("leader", "cluster", "FAIL") in [(one.check, one.where, one.state) for one in leaderless]


@pytest.mark.parametrize(
    ("view", "state", "text"),
    [
        (members(away=1), "warn", "2 of 3 voters"),
        (members(away=2), "FAIL", "1 of 3 voters"),
        (members(voters=4), "warn", "4 survive no more losses than 3"),
        (members(voters=1), "warn", "no loss is survived"),
        (members(no_space="node n2: its disk is nearly full"), "FAIL", "nearly full"),
    ],
)
def test_members(view: pb.MembersResponse, state: str, text: str) -> None:
    (found,) = wrong(three(), view)
    assert (found.check, found.state) == ("members", state)
    assert text in found.told


def test_learners_and_laggards_are_told() -> None:
    view = members()
    view.members.add(node_id="n4", connected=True, snapshot_sent=1, snapshot_size=4)
    view.members[1].lag = 5_000
    found = wrong(three(), view)
    assert [(one.where, one.state) for one in found] == [("n2", "warn"), ("n4", "warn"), ("n4", "warn")]
    assert "5,000" in found[0].told


@pytest.mark.parametrize(("days", "state"), [(-1, "FAIL"), (3, "warn"), (15, "ok")])
def test_certificates(days: int, state: str) -> None:
    assert certificate_finding("n1", days * 86_400).state == state


# ---- this machine


def test_a_folder_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    findings = check_folder(tmp_path, lambda size: 0)
    assert [one.check for one in findings] == ["data folder", "file system", "disk sync", "free space"]
    assert "FAIL" not in {one.state for one in findings if one.check != "disk sync"}
    assert list(tmp_path.iterdir()) == []
    missing = tmp_path / "not" / "yet"
    assert "will be made" in check_folder(missing, lambda size: 0)[0].told
    assert not missing.parent.exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = check_folder(tmp_path / "file" / "data", lambda size: 0)
    assert (found.check, found.state) == ("data folder", "FAIL")


@pytest.mark.parametrize(("marker", "state"), [("REFUSED", "FAIL"), ("FAULT", "warn"), ("REBUILD", "warn")])
def test_markers_of_a_folder_are_told(tmp_path: Path, marker: str, state: str) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / marker).write_text("")
    assert [one.state for one in check_folder(tmp_path, lambda size: 0) if marker in one.told] == [state]


@pytest.mark.parametrize(("seconds", "state"), [(0.001, "ok"), (0.06, "warn"), (0.6, "FAIL")])
def test_a_slow_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, state: str) -> None:
    monkeypatch.setattr(doctor_machine, "sync_times", lambda folder: [0.0005] * 50 + [seconds])
    found = check_sync(tmp_path)
    assert found.state == state
    assert bool(found.todo) == (state != "ok")


def test_syncs_are_bounded_in_number_and_time(tmp_path: Path) -> None:
    assert len(doctor_machine.sync_times(tmp_path)) <= doctor_machine.SYNCS
    ticks = iter(range(0, 10_000, 3))
    # Each look at this clock is 3 s later: the second sync would begin after the time for all of them.
    assert len(doctor_machine.sync_times(tmp_path, lambda: next(ticks))) == 1


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    found = check_sync(tmp_path)
    assert (found.state, "Input/output error" in found.told) == ("FAIL", True)


@pytest.mark.parametrize(("free", "state"), [(1, "FAIL"), (15, "warn"), (30, "ok")])
def test_space(free: int, state: str) -> None:
    assert space_finding("x", free * GIB, 100 * GIB, 10 * GIB).state == state


@pytest.mark.parametrize(("soft", "state"), [(-1, "ok"), (512, "FAIL"), (1_024, "warn"), (20_000, "ok")])
def test_limits_of_open_files(soft: int, state: str) -> None:
    assert files_finding("x", soft, 100_000).state == state


def test_file_systems_by_the_longest_mount_point() -> None:
    table = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / /data rw - nfs4 host:/x rw\n"
        "3 1 0:3 / /data\\040two rw - tmpfs tmpfs rw\nnonsense\n4 2 0:4 / /data/n1 rw - xfs /dev/sdb rw\n"
    )
    for folder, kind in (
        ("/", "ext4"),
        ("/dat", "ext4"),
        ("/data/n2", "nfs4"),
        ("/data two/x", "tmpfs"),
        ("/data/n1", "xfs"),
    ):
        assert file_system_of(Path(folder), table) == kind
    assert file_system_of(Path("/x"), "") == ""


@pytest.mark.parametrize(
    ("kind", "state"), [("nfs4", "FAIL"), ("fuse.sshfs", "FAIL"), ("tmpfs", "warn"), ("ext4", "ok")]
)
def test_file_systems_are_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, state: str) -> None:
    monkeypatch.setattr(doctor_machine, "_mount_table", lambda: f"1 0 8:1 / / rw - {kind} x rw\n")
    assert doctor_machine.check_file_system(tmp_path).state == state


def test_ports() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert check_port("clients", "127.0.0.1", port, own=False).state == "FAIL"
        assert check_port("clients", "127.0.0.1", port, own=True).state == "ok"
    assert check_port("clients", "127.0.0.1", port, own=False).state == "ok"
    assert check_port("clients", "127.0.0.1", port, own=True).state == "warn"
    assert check_port("clients", "203.0.113.1", 7401, own=False).state == "FAIL"


def test_a_node_that_others_must_reach_does_not_listen_on_loopback() -> None:
    assert [one.state for one in check_loopback(["127.0.0.1"], ["10.0.0.2"])] == ["FAIL"]
    assert check_loopback(["0.0.0.0"], ["10.0.0.2"]) == []
    assert check_loopback(["localhost"], ["127.0.0.1", "::1"]) == []


def test_the_archive_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone,) = check_archive(tmp_path / "none", tmp_path)
    assert (gone.check, gone.state) == ("archive", "FAIL")
    room = shutil.disk_usage(tmp_path)._replace(total=100, free=50)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: room)
    (beside,) = check_archive(tmp_path, tmp_path / "data")
    assert (beside.state, "same file system" in beside.told) == ("warn", True)
    assert [one.state for one in check_archive(tmp_path, Path("/proc/self"))] == ["ok"]
    room = room._replace(free=1)
    (full,) = check_archive(tmp_path, Path("/proc/self"))
    assert (full.state, "archive_keep_days" in full.todo) == ("warn", True)


# ---- the command


def run(*words: str, status: int = 0) -> Result:
    result = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, ["doctor", *words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def rows(result: Result) -> list[dict[str, str]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def write_config(folder: Path, **more: str) -> Path:
    file = folder / "n1.toml"
    settings = {
        "node_id": "n1",
        "data_dir": "data",
        "client_listen": "127.0.0.1:7",
        "peer_listen": "127.0.0.1:9",
        **more,
    }
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    return file


def test_an_embedded_folder(tmp_path: Path) -> None:
    found = rows(run("--url", str(tmp_path / "data.kv"), "--json"))
    assert {row["check"] for row in found} >= {"disk sync", "free space", "open files"}


def test_nothing_to_look_at_is_wrong_usage() -> None:
    assert "--config" in run(status=2).stderr


def test_a_wrong_file_fails_with_its_line(tmp_path: Path) -> None:
    found = rows(run("--config", str(write_config(tmp_path, lease_mss="1")), "--json", status=1))
    assert [(row["check"], row["state"]) for row in found] == [("configuration", "FAIL")]
    assert "lease_mss" in found[0]["told"]


def test_odd_settings_are_told(tmp_path: Path) -> None:
    file = write_config(tmp_path, client_listen="0.0.0.0:7", archive="nowhere", log_level="debug")
    file.write_text(file.read_text() + "insecure = true\nscrub_interval_s = 0\nkv_connect_open = true\n")
    found = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, ["doctor", "--config", str(file), "--json"])
    told = [row["told"] for row in rows(found) if row["state"] != "ok"]
    for part in ("itself only", "insecure", "log_level", "scrub_interval_s", "KV Connect is open", "it is not there"):
        assert any(part in text for text in told), (part, told)


def test_a_node_that_does_not_run_yet(tmp_path: Path) -> None:
    result = run("--config", str(write_config(tmp_path, log_level="debug")), "--timeout", "500ms", status=1)
    assert "FAIL: node (127.0.0.1:7): start it" in result.stdout
    assert "warn: configuration" in result.stdout
    assert "log_level is debug" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("doctor: ")
    assert not (tmp_path / "data").exists()


# ---- certificates of the settings


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_ca(folder, name="test")
    for node in ("n1", "n2"):
        make_node(folder, node_id=node, hosts=["127.0.0.1"])
    return folder


def tls_config(folder: Path, node: str, **more: str) -> Path:
    """n1 with the certificates of a node."""
    files = {
        **{f"{what}_cert": f"certs/{node}.pem" for what in ("tls", "peer")},
        **{f"{what}_key": f"certs/{node}.key" for what in ("tls", "peer")},
        "peer_ca": "certs/ca.pem",
    }
    return write_config(folder, **{**files, **more})


def found_certificates(file: Path) -> list[tuple[str, str]]:
    result = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, ["doctor", "--config", str(file), "--json"])
    return [(row["state"], row["told"]) for row in rows(result) if row["check"] == "certificate"]


def test_sound_certificates(tmp_path: Path, certificates: Path) -> None:
    assert [state for state, _ in found_certificates(tls_config(tmp_path, "n1"))] == ["ok", "ok"]


def test_a_node_that_answers_clear_peers(tmp_path: Path, certificates: Path) -> None:
    result = run("--config", str(tls_config(tmp_path, "n1", peer_tls="prefer")), "--timeout", "500ms", status=1)
    assert "peer_tls is prefer" in result.stdout
    judged = judge([told("n1", peer_clear_connections=2.0), told("n2", peer_clear_connections=0.0), told("n3")], None)
    found = {one.where: one for one in judged if one.check == "peers"}
    assert found.keys() == {"n1", "n2"}
    assert all(one.state == "warn" for one in found.values())
    assert "has 2" in found["n1"].told and "certificates" in found["n1"].todo
    assert "has none" in found["n2"].told and "require" in found["n2"].todo


def test_another_nodes_certificate(tmp_path: Path, certificates: Path) -> None:
    (clients, peers) = found_certificates(tls_config(tmp_path, "n2"))
    assert clients[0] == "ok"
    assert peers[0] == "FAIL"
    assert "kvorum:node:n1" in peers[1]


def test_a_key_of_another_certificate(tmp_path: Path, certificates: Path) -> None:
    found = found_certificates(tls_config(tmp_path, "n1", tls_key="certs/n2.key"))
    assert [state for state, _ in found] == ["FAIL", "ok"]
    assert "the key is not the certificate's" in found[0][1]


def test_a_key_that_others_may_read(tmp_path: Path, certificates: Path) -> None:
    (certificates / "n1.key").chmod(0o644)
    states = [state for state, _ in found_certificates(tls_config(tmp_path, "n1"))]
    assert states == ["ok", "warn", "ok", "warn"]


def odd(folder: Path, **more: str) -> list[str]:
    """What is said of the configuration besides that it can be read."""
    found = rows(run("--config", str(write_config(folder, **more)), "--json", status=1))
    return [row["told"] for row in found if (row["check"], row["state"]) == ("configuration", "warn")]


def test_settings_that_contradict_each_other_or_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = odd(tmp_path)
    (archive,) = set(odd(tmp_path, archive_keep_days="30", archive_every_s="5")) - set(usual)
    assert archive == "archive_every_s and archive_keep_days without archive: nothing is archived"
    (tmp_path / "archive").mkdir()
    assert odd(tmp_path, archive_keep_days="30", archive="archive") == usual
    (both,) = set(odd(tmp_path, kv_connect_open="true", kv_connect_token="x")) - set(usual)
    assert "kv_connect_open" in both and "kv_connect_token" in both and "which counts" in both
    monkeypatch.setenv("KVORUM_COLOUR", "red")
    (variable,) = set(odd(tmp_path)) - set(usual)
    assert "$KVORUM_COLOUR is no setting" in variable


# ---- kvorum node --check-config


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        ({}, 0, "configuration ok: node n1 of n1;"),
        ({"lease_mss": "1"}, 78, "did you mean 'lease_ms'?"),
        ({"tls_cert": "none.crt", "tls_key": "none.key"}, 78, "none.crt"),
    ],
)
def test_check_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str], status: int, text: str
) -> None:
    assert node_main(["--check-config", "--config", str(write_config(tmp_path, **more))]) == status
    said = capsys.readouterr()
    assert text in (said.out if status == 0 else said.err)
    assert not (tmp_path / "data").exists()
