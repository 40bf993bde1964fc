"""`kvorum backup` and `kvorum pitr` on files and folders: what they print, and their exit statuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.backup import candidates
from kvorum.cli.group import kvorum
from kvorum.errors import InvalidArgument


def shell(*words: str | Path, status: int = 0, stdin: bytes | None = None) -> Result:
    result = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, [str(word) for word in words], input=stdin)
    assert result.exit_code == status, (result.output, result.stderr, result.exception)
    assert "Traceback" not in result.output
    return result


def line(result: Result) -> str:
    (last,) = result.stderr.splitlines()[-1:]
    assert last.startswith("kvorum: ")
    return last


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "app.kv"
    for number in range(3):
        shell("set", f'["n", {number}]', number, "--url", folder)  # type: ignore[arg-type]
    return folder


def test_saved_shown_verified_restored(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "app.bak"
    told = json.loads(shell("backup", "save", file, "--url", database, "--json").stdout)
    assert told["file"] == str(file)
    shown = json.loads(shell("backup", "show", file, "--json").stdout)
    assert {**shown, "file": str(file)} == told
    assert json.loads(shell("backup", "verify", file, "--json").stdout)["verified"] is True
    assert told["content_hash"] in shell("backup", "verify", file).stdout
    made = json.loads(shell("backup", "restore", file, "--embedded", "--data-dir", tmp_path / "b.kv", "--json").stdout)
    assert (made["keys"], made["content_hash"], made["bookmark"]) == (3, told["content_hash"], told["bookmark"])
    assert made["cluster"] != told["cluster"]
    rows = shell("list", "[]", "--url", tmp_path / "b.kv", "--json").stdout.splitlines()
    assert [json.loads(row)["value"] for row in rows] == [0, 1, 2]


def test_through_pipes(database: Path, tmp_path: Path) -> None:
    data = shell("backup", "save", "-", "--url", database).stdout_bytes
    assert data.startswith(b"KVORUMB\x01")
    assert json.loads(shell("backup", "verify", "-", "--json", stdin=data).stdout)["verified"] is True
    shell("backup", "restore", "-", "--embedded", "--data-dir", tmp_path / "b.kv", stdin=data)
    refused = shell("backup", "verify", "-", status=2, stdin=data[:-1])
    assert "damaged" in line(refused)


def test_wrong_files_and_words(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "app.bak"
    shell("backup", "save", file, "--url", database)
    assert "is there already" in line(shell("backup", "save", file, "--url", database, status=2))
    shell("backup", "save", file, "--url", database, "--overwrite")
    notes = tmp_path / "notes.txt"
    notes.write_text("something else")
    for verb in ("show", "verify"):
        assert "no backup of kvorum" in line(shell("backup", verb, notes, status=2))
        told = line(shell("backup", verb, tmp_path / "none", status=2))
        assert told.endswith(f"{tmp_path / 'none'}: No such file or directory"), told
    assert "no embedded database" in line(shell("backup", "save", tmp_path / "x", "--url", tmp_path, status=3))
    restore = ("backup", "restore", file)
    assert "--config, or --data-dir, --node-id" in line(shell(*restore, status=2))
    assert "--data-dir" in line(shell(*restore, "--embedded", status=2))
    assert "has no node" in line(shell(*restore, "--embedded", "--node-id", "n1", status=2))
    assert "not empty" in line(shell(*restore, "--embedded", "--data-dir", database, status=2))
    place = ("--data-dir", tmp_path / "n1", "--node-id", "n1", "--peer-address", "0.0.0.0:1", "--client-address", "h:2")
    assert "0.0.0.0" in line(shell(*restore, *place, status=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["app.bak", "app.kv", "notes.txt"]


def test_archives_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "holds no archive" in line(shell("pitr", "list", tmp_path / "there", status=3))
    assert "is no archive" in line(shell("pitr", "verify", tmp_path / "there", status=2))
    restore = ("pitr", "restore", tmp_path / "there")
    assert "say how far" in line(shell(*restore, status=2))
    assert "say how far" in line(shell(*restore, "--latest", "--to", "0" * 20, status=2))
    assert "20 hexadecimal digits" in line(shell(*restore, "--to", "12", status=2))
    assert "is no archive" in line(shell(*restore, "--latest", status=2))
    assert "belong together" in line(shell(*restore, "--latest", "--prefix", "[]", status=2))
    assert "belong together" in line(shell(*restore, "--latest", "--dry-run", status=2))


def test_which_node_is_asked() -> None:
    def member(node_id: str, *, voter: bool = True, connected: bool = True, lag: int = 0) -> pb.MemberStatus:
        return pb.MemberStatus(node_id=node_id, voter=voter, connected=connected, lag=lag)

    members = [
        member("leader"),
        member("learner", voter=False),
        member("behind", lag=50_000),
        member("gone", connected=False),
        member("near", lag=12),
    ]
    view = pb.MembersResponse(leader=pb.Leader(node_id="leader"), members=members)
    assert [one.node_id for one in candidates(view, None)] == ["near", "behind", "leader", "learner"]
    assert [one.node_id for one in candidates(view, "gone")] == ["gone"]
    with pytest.raises(InvalidArgument, match="nobody is not a member"):
        candidates(view, "nobody")
