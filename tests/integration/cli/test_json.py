"""`--json` of every command on a live cluster: what standard output holds, and with which exit status.

docs/cli.md says: with --json every line of standard output is one JSON document; what went wrong is told by the exit
status and a line on standard error.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvorum.cli.group import kvorum
from kvorum_node.backup.targets import open_target
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.test_pitr import has_begun, reaches
from tests.unit.cli.test_interface import EVERY, NO_JSON

NOBODY = "kvorum://127.0.0.1:9"
NEVER: dict[str, tuple[str, ...]] = {
    "kvorum get": ('["a"]',),
    "kvorum set": ('["a"]', "1"),
    "kvorum touch": ('["a"]', "--never"),
    "kvorum delete": ('["a"]',),
    "kvorum watch": ('["a"]', "--count", "1"),
    "kvorum enqueue": ("1",),
    "kvorum listen": ("--count", "1"),
    "kvorum queue cancel": ("jobs", "00000000000000010000-0"),
    "kvorum queue requeue": ("jobs", "--all"),
    "kvorum queue reschedule": ("jobs", "00000000000000010000-0"),
    "kvorum queue send": ("jobs", "1"),
    "kvorum topic send": ("news", "1"),
    "kvorum topic subscribe": ("news", "jobs"),
    "kvorum topic unsubscribe": ("news", "jobs"),
    "kvorum schedule set": ("daily", "0 6 * * *", "1", "--queue", "jobs"),
    "kvorum schedule remove": ("daily",),
    "kvorum auth token create": ("app", "--read", "[]"),
    "kvorum cluster add": ("n4", "--peer-address", "127.0.0.1:9", "--client-address", "127.0.0.1:9"),
    "kvorum cluster replace": ("n4", "--peer-address", "127.0.0.1:9", "--client-address", "127.0.0.1:9"),
    "kvorum cluster set-time": ("now",),
    "kvorum bench": ("--seconds", "0.1", "--callers", "1"),
    "kvorum top": ("--once",),
    "kvorum backup save": ("none.bak",),
}
"""Arguments of the commands that take others than one name, which these all do."""
NAMED = {"kvorum queue", "kvorum topic", "kvorum auth token", "kvorum cluster"}


def arguments(name: str) -> tuple[str, ...]:
    """Such that the command is right as it stands."""
    if name in NEVER:
        return NEVER[name]
    takes = [one for one in EVERY[name].params if one.param_type_name == "argument" and one.required]
    return ("n1",) if name.rpartition(" ")[0] in NAMED and takes else ()


def documents(result: Result) -> list[Any]:
    """Each line of standard output as what it is in JSON, which knows no NaN."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is no JSON: {result.stdout}")

    return [json.loads(line, parse_constant=refuse) for line in result.stdout.split("\n")[:-1]]


class Shell:
    """Types commands with --json, and remembers which."""

    def __init__(self, url: str, token: str = "") -> None:
        self._runner = CliRunner(env={"KVORUM_URL": url, "KVORUM_TOKEN": token or None})
        self.typed: set[str] = set()

    def several(self, *words: str, status: int = 0) -> list[Any]:
        """What it prints, line by line."""
        (name,) = [one for one in EVERY if words[: one.count(" ")] == tuple(one.split()[1:])]
        self.typed.add(name)
        result = self._runner.invoke(kvorum, [*words, "--json"])
        assert result.exit_code == status, (words, result.output, result.exception)
        return documents(result)

    def one(self, *words: str, status: int = 0) -> Any:
        """The same of a command that prints one document."""
        (found,) = self.several(*words, status=status)
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    folder = tmp_path_factory.mktemp("json")
    (folder / "archive").mkdir()
    with BackedUp(folder, archive=str(folder / "archive"), archive_every_s=1) as started:
        started.archive, started.target = str(folder / "archive"), open_target(folder / "archive")
        wait_for(lambda: has_begun(started))
        yield started


def test_every_command_on_a_live_cluster(cluster: BackedUp, tmp_path: Path) -> None:
    shell = Shell(cluster.url)
    _keys(shell)
    _queues(shell)
    _topics_and_schedules(shell)
    _tokens(shell, cluster.url)
    _looks(shell, cluster)
    _certificates(shell, tmp_path)
    _backups(shell, cluster, tmp_path)
    _members(shell, cluster)
    assert set(EVERY) - shell.typed == set(NO_JSON)


def _keys(shell: Shell) -> None:
    stamp = shell.one("set", '["a", 1]', '"x\\u202e\\u0007"')["versionstamp"]
    assert shell.one("get", '["a", 1]') == {"key": ["a", 1.0], "value": "x\u202e\x07", "versionstamp": stamp}
    assert [one["value"] for one in shell.several("get", '["a", 1]', '["none"]', status=1)] == ["x\u202e\x07", None]
    assert shell.one("set", '["a", 1]', "2", "--if-absent", status=1) == {"ok": False, "versionstamp": None}
    assert shell.one("touch", '["a", 1]', "--expire-in", "1h") == {"ok": True}
    assert shell.one("touch", '["none"]', "--never", status=1) == {"ok": False}
    assert 0 < shell.one("get", '["a", 1]', "--expiry")["expires_in_ms"] <= 3_600_000
    shell.one("set", '["a", 2]', '{"$float": "NaN"}')
    assert [one["value"] for one in shell.several("list", '["a"]')] == ["x\u202e\x07", {"$float": "NaN"}]
    assert len(shell.several("list", '["a"]', "--limit", "1", "--keys-only")) == 1
    assert shell.several("list", '["none"]') == []
    assert shell.one("count", '["a"]') == {"count": 2}
    assert [one["key"] for one in shell.one("watch", '["a", 1]', '["a", 2]', "--count", "1")] == [["a", 1], ["a", 2]]
    (seen,) = shell.several("watch", '["a"]', "--prefix", "--since", stamp, "--count", "1")
    assert seen["complete"] and seen["changes"]
    assert shell.one("delete", '["a"]', "--prefix", "--dry-run") == {"dry_run": True, "would_delete": 2}
    assert shell.one("delete", '["none"]', "--if-exists", status=1)["ok"] is False
    assert shell.one("delete", '["a"]', "--prefix") == {"deleted": 2}


def _queues(shell: Shell) -> None:
    assert shell.one("enqueue", '{"job": 1}')["ok"] is True
    assert shell.one("listen", "--count", "1") == {"job": 1}
    assert shell.one("queue", "define", "jobs", "--max-attempts", "1", "--backoff", "") == {"queue": "jobs"}
    first, second, third = (one["id"] for one in shell.several("queue", "send", "jobs", "1", "2", "3"))
    assert [one["id"] for one in shell.several("queue", "peek", "jobs")] == [first, second, third]
    assert shell.one("queue", "peek", "jobs", "--id", second)["value"] == 2
    assert shell.several("queue", "peek", "jobs", "--id", f"{first[:-1]}9", status=1) == []
    assert [one["value"] for one in shell.several("queue", "receive", "jobs", "--max", "2", "--keep")] == [1, 2]
    wait_for(lambda: len(shell.several("queue", "dead", "jobs")) == 2)
    assert shell.one("queue", "requeue", "jobs", "--all") == {"count": 2}
    assert shell.one("queue", "reschedule", "jobs", third, "--delay", "1h") == {"id": third, "rescheduled": True}
    assert shell.one("queue", "cancel", "jobs", third) == {"id": third, "cancelled": True}
    assert shell.one("queue", "cancel", "jobs", third, status=1) == {"id": third, "cancelled": False}
    assert shell.one("queue", "reschedule", "jobs", third, status=1) == {"id": third, "rescheduled": False}
    assert shell.one("queue", "pause", "jobs") == {"queue": "jobs", "paused": True}
    assert shell.one("queue", "resume", "jobs") == {"queue": "jobs", "paused": False}
    assert {one["queue"] for one in shell.several("queue", "list", "--counts")} == {"", "jobs"}
    assert shell.one("queue", "stats", "jobs")["messages"] == 2
    assert shell.one("queue", "purge", "jobs", "--dry-run")["would_delete"] == 2
    assert shell.one("queue", "purge", "jobs") == {"count": 2}
    assert shell.several("queue", "receive", "jobs", "--wait", "0", status=1) == []
    assert shell.one("queue", "remove", "jobs", "--dry-run")["would_delete"] == 0
    assert shell.one("queue", "remove", "jobs") == {"count": 0}


def _topics_and_schedules(shell: Shell) -> None:
    assert shell.one("topic", "define", "news", "--retention", "1h") == {"topic": "news"}
    assert shell.one("topic", "subscribe", "news", "jobs") == {"count": 0}
    assert shell.one("topic", "send", "news", "1")["versionstamp"]
    assert shell.one("topic", "list")["queues"] == ["jobs"]
    assert shell.one("topic", "remove", "news", "--dry-run")["retained"] == 1
    assert shell.several("topic", "remove", "none", "--dry-run", status=1) == []
    assert shell.one("topic", "unsubscribe", "news", "jobs") == {"topic": "news", "queue": "jobs"}
    assert shell.one("topic", "remove", "news") == {"topic": "news"}
    assert shell.one("schedule", "set", "daily", "0 6 * * *", "1", "--queue", "jobs") == {"name": "daily"}
    assert shell.one("schedule", "list")["cron"] == "0 6 * * *"
    assert shell.one("schedule", "remove", "daily", "--dry-run")["dry_run"] is True
    assert shell.several("schedule", "remove", "none", "--dry-run", status=1) == []
    assert shell.one("schedule", "remove", "daily") == {"name": "daily"}


def _tokens(shell: Shell, url: str) -> None:
    boss = shell.one("auth", "token", "create", "boss", "--admin", "--read", "[]", "--write", "[]")
    assert shell.one("auth", "token", "show", "boss")["admin"] is True
    rotated = shell.one("auth", "token", "rotate", "boss")
    assert (rotated["id"], rotated["token"] != boss["token"]) == (boss["id"], True)
    secured = Shell(url, rotated["token"])
    assert shell.one("auth", "on") == {"on": True}
    assert shell.one("auth", "whoami")["known"] is False
    assert secured.one("auth", "whoami")["token"]["name"] == "boss"
    assert shell.several("get", '["a"]', status=2) == []
    assert secured.one("auth", "off") == {"on": False}
    assert shell.one("auth", "token", "revoke", "boss", "--dry-run")["token"] == boss["id"]
    assert shell.one("auth", "token", "revoke", "boss", "--keep") == {"token": "boss", "disabled": True}
    assert shell.one("auth", "token", "enable", "boss") == {"token": "boss", "disabled": False}
    assert [one["name"] for one in shell.several("auth", "token", "list")] == ["boss"]
    assert shell.one("auth", "token", "revoke", "boss") == {"token": "boss", "disabled": False}
    shell.typed |= secured.typed


def _looks(shell: Shell, cluster: BackedUp) -> None:
    assert [one["node"] for one in shell.several("status")] == ["n1", "n2", "n3"]
    assert {one["check"] for one in shell.several("doctor", status=_doctors(shell))} >= {"leader", "members"}
    assert len(shell.one("top", "--once", "--every", "200ms")["nodes"]) == 3
    assert [one["errors"] for one in shell.several("bench", "--seconds", "0.1", "--callers", "1")] == [0, 0]
    assert len(shell.one("cluster", "members")["members"]) == 3
    assert shell.several("cluster", "remove", "n9", "--dry-run", status=1) == []
    assert shell.one("cluster", "remove", "n1", "--dry-run")["voters_left"] == 2
    assert shell.one("cluster", "set-time", "now", "--dry-run")["dry_run"] is True
    assert shell.one("cluster", "transfer")["ok"] is True
    cluster.leader()


def _doctors(shell: Shell) -> int:
    """A busy machine may be slow to sync, which is a failure here or none."""
    result = CliRunner(env=dict(shell._runner.env)).invoke(kvorum, ["doctor", "--json"])
    return int("FAIL" in {one["state"] for one in documents(result)})


def _certificates(shell: Shell, folder: Path) -> None:
    made = str(folder / "certs")
    assert shell.one("certs", "ca", made)["certificate"] == f"{made}/ca.pem"
    assert shell.one("certs", "node", made, "--id", "n1", "--host", "localhost")["key"] == f"{made}/n1.key"
    assert shell.one("certs", "client", made, "--name", "app")["certificate"] == f"{made}/app.pem"
    both = folder / "both.pem"
    both.write_bytes((folder / "certs/ca.pem").read_bytes() + (folder / "certs/n1.pem").read_bytes())
    assert len(shell.several("certs", "show", str(both))) == 2
    assert shell.several("certs", "ca", made, status=2) == []


def _backups(shell: Shell, cluster: BackedUp, folder: Path) -> None:
    file, archive = str(folder / "db.bak"), cluster.archive
    place = ("--node-id", "n1", "--peer-address", "127.0.0.1:9", "--client-address", "127.0.0.1:9")
    shell.one("set", '["kept"]', "1")
    saved = shell.one("backup", "save", file)
    assert shell.several("backup", "save", file, status=2) == []
    assert shell.one("backup", "show", file)["content_hash"] == saved["content_hash"]
    assert shell.one("backup", "verify", file)["verified"] is True
    made = shell.one("backup", "restore", file, "--data-dir", str(folder / "made"), *place)
    assert (made["node"], made["content_hash"]) == ("n1", saved["content_hash"])
    assert shell.several("backup", "restore", file, "--data-dir", str(folder / "made"), *place, status=2) == []
    bookmark = shell.one("pitr", "bookmark")["bookmark"]
    shell.one("delete", '["kept"]')
    applied = cluster.status(cluster.leader()).applied_index
    wait_for(lambda: reaches(cluster, applied))
    assert shell.one("pitr", "list", archive)["bases"]
    checked = shell.one("pitr", "verify", archive)
    assert (checked["problems"], checked["gaps"]) == ([], [])
    back = ("pitr", "restore", archive, "--to", bookmark)
    assert shell.one(*back, "--data-dir", str(folder / "then"), "--embedded")["bookmark"] == bookmark
    into = (*back, "--prefix", '["kept"]', "--into", cluster.url)
    assert shell.one(*into, "--dry-run")["done"] is False
    assert shell.one(*into)["done"] is True


def _members(shell: Shell, cluster: BackedUp) -> None:
    number = cluster.new_node()
    assert shell.one("cluster", "add", "n4", *cluster.place(number)) == {"ok": True, "node": "n4", "voter": False}
    wait_for(lambda: cluster.members()["n4"]["connected"] and cluster.members()["n4"]["lag"] == 0)
    assert shell.one("cluster", "promote", "n4") == {"ok": True, "node": "n4", "voter": True}
    cluster.kill(number)
    cluster.wipe(number)
    cluster.start(number)
    replaced = shell.one("cluster", "replace", "n4", *cluster.place(number), "--promote", "--timeout", "60s")
    assert replaced == {"ok": True, "node": "n4", "voter": True}
    assert shell.one("cluster", "remove", "n4") == {"ok": True, "node": "n4"}
    cluster.terminate(number)
    cluster.nodes -= 1
    ahead = str(time.time_ns() // 1_000_000 + 30_000)  # the cluster's clock may be a little ahead of this one
    assert shell.one("cluster", "set-time", ahead)["unix_ms"] == int(ahead)
    listed = shell.one("cluster", "quarantine", "999999", "1", "--data-dir", str(cluster.data_dir(number)))
    assert listed["skipped"] == [[999999, 1]]
    assert shell.several("cluster", "quarantine", "999999", "1", "--data-dir", str(cluster.data_dir(0)), status=2) == []


# ---- what went wrong


@pytest.mark.parametrize("name", sorted(set(EVERY) - set(NO_JSON)))
def test_wrong_usage_prints_nothing_but_an_error(name: str) -> None:
    result = CliRunner(env={"KVORUM_URL": NOBODY}).invoke(kvorum, [*name.split()[1:], "--json", "--no-such-option"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--no-such-option" in result.stderr


def asks_a_cluster(name: str) -> bool:
    return "--url" in {flag for option in EVERY[name].params for flag in option.opts}


@pytest.mark.parametrize("name", [name for name in EVERY if asks_a_cluster(name)])
def test_without_an_answer_there_is_nothing_or_json(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*name.split()[1:], *arguments(name), "--json", "--timeout", "300ms", "--url", NOBODY]
    result = CliRunner().invoke(kvorum, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == (1 if name == "kvorum doctor" else 3), result.output
    told = documents(result)
    assert bool(told) == (name in ("kvorum doctor", "kvorum status", "kvorum top")), told
    assert result.stderr.startswith("kvorum: ") or told
    assert list(tmp_path.iterdir()) == []


OFFLINE: Sequence[tuple[str, ...]] = (
    ("backup", "show", "none.bak"),
    ("backup", "verify", "none.bak"),
    ("backup", "restore", "none.bak", "--embedded", "--data-dir", "made"),
    ("pitr", "restore", ".", "--latest", "--embedded", "--data-dir", "made"),
    ("pitr", "verify", "."),
    ("pitr", "list", "."),
    ("certs", "show", "none.pem"),
    ("certs", "node", "none", "--id", "n1"),
    ("cluster", "quarantine", "1", "1", "--data-dir", "."),
)


@pytest.mark.parametrize("words", OFFLINE, ids=" ".join)
def test_files_that_are_none_print_nothing_but_a_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(kvorum, [*words, "--json"])
    assert result.exit_code in (2, 3) and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvorum: ")


def test_a_backup_on_standard_output_is_told_of_on_standard_error(cluster: BackedUp) -> None:
    result = CliRunner(env={"KVORUM_URL": cluster.url}).invoke(kvorum, ["backup", "save", "-", "--json"])
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout_bytes) > json.loads(result.stderr)["size"]
