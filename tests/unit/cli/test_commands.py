"""The commands on an embedded folder, and what goes wrong."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kvorum import errors, sync
from kvorum.cli.group import kvorum
from kvorum.cli.session import Options, database_options, runs


class Shell:
    """Runs commands on one database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, status: int = 0) -> Result:
        result = CliRunner(env={"KVORUM_URL": self.url}).invoke(kvorum, words)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    def json(self, *words: str, status: int = 0) -> list[object]:
        return [json.loads(line) for line in self(*words, "--json", status=status).stdout.splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(str(tmp_path / "data.kv"))


def error_line(result: Result) -> str:
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvorum: ")
    assert "Traceback" not in result.output
    return line


def test_set_get_delete(shell: Shell) -> None:
    stamp = shell("set", '["users", {"int": "1"}]', '{"name": "Ada", "raw": {"$b64": "AQI="}}').stdout.strip()
    assert len(stamp) == 20
    assert shell.json("get", '["users", {"int": "1"}]') == [
        {
            "key": ["users", {"int": "1"}],
            "value": {"name": "Ada", "raw": {"$b64": "AQI="}},
            "versionstamp": stamp,
        }
    ]
    table = shell("get", '["users", {"int": "1"}]').stdout
    for text in ("Key", "Value", "Versionstamp", '["users", {"int": "1"}]', stamp):
        assert text in table
    shell("delete", '["users", {"int": "1"}]')
    gone = shell("get", '["users", {"int": "1"}]', status=1)
    assert error_line(gone) == 'kvorum: not found: ["users", {"int": "1"}]'
    assert gone.stdout == ""


def test_several_keys_and_an_absent_one(shell: Shell) -> None:
    shell("set", '["a"]', "1")
    found = shell("get", '["a"]', '["b"]', status=1)
    assert "absent" in found.stdout
    assert error_line(found) == 'kvorum: not found: ["b"]'
    rows = shell.json("get", '["a"]', '["b"]', status=1)
    assert [row["versionstamp"] is None for row in rows] == [False, True]  # type: ignore[index]


def test_python_notation(shell: Shell) -> None:
    shell("set", "('a', 1, b'x')", "{'n': [1, None], 'raw': b'y'}", "--py")
    assert "('a', 1, b'x')" in shell("list", "--py").stdout
    assert "{'n': [1, None], 'raw': b'y'}" in shell("get", "('a', 1, b'x')", "--py").stdout
    assert shell.json("list")[0]["key"] == ["a", {"int": "1"}, {"b64": "eA=="}]  # type: ignore[index]


def test_a_printed_key_can_be_pasted_back(shell: Shell) -> None:
    shell("set", '["a b", 1.5, {"int": "-3"}]', "null")
    (row,) = shell.json("list")
    assert isinstance(row, dict)
    assert shell.json("get", json.dumps(row["key"])) == [row]


def test_p13_conditions_of_writes(shell: Shell) -> None:
    """P13: "exists" and "not newer than" checks -> supported in client and CLI."""
    first = shell("set", '["k"]', "1", "--if-absent").stdout.strip()
    refused = shell("set", '["k"]', "2", "--if-absent", status=1)
    assert error_line(refused) == 'kvorum: check failed: ["k"] does not meet --if-absent; nothing was changed'
    second = shell("set", '["k"]', "2", "--if-version", first).stdout.strip()
    shell("set", '["k"]', "3", "--if-version", first, status=1)
    shell("set", '["k"]', "3", "--if-not-newer", first, status=1)
    shell("set", '["k"]', "3", "--if-not-newer", second)
    shell("set", '["other"]', "3", "--if-exists", status=1)
    shell("delete", '["other"]', "--if-exists", status=1)
    shell("delete", '["k"]', "--if-exists")
    assert shell.json("set", '["k"]', "3", "--if-exists", status=1) == [{"ok": False, "versionstamp": None}]
    assert "cannot be combined" in error_line(shell("set", '["k"]', "1", "--if-exists", "--if-absent", status=2))


def test_p26_an_option_that_is_not_given_is_as_none_in_python(shell: Shell) -> None:
    """P26 · `undefined` selector parts behave differently per client → `list(prefix, start=None, end=None)` → same
    result."""
    for number in range(3):
        shell("set", f'["x", {number}]', str(number))
    with sync.open_kv(shell.url) as kv:
        entries = kv.list(("x",), start=None, end=None, cursor=None, limit=None).page()
    listed = shell.json("list", '["x"]')
    assert [row["value"] for row in listed] == [entry.value for entry in entries] == [0, 1, 2]  # type: ignore[index]
    assert shell.json("list", '["x"]', "--cursor", "") == listed
    for nothing in ("null", "undefined", ""):
        # Nor is it taken for a key, or for nothing: a variable that was not set must not widen what is listed.
        line = error_line(shell("list", '["x"]', "--start", nothing, status=2))
        assert "a key is" in line


def test_list_by_prefix_range_limit_cursor_and_backwards(shell: Shell) -> None:
    for name in ("a", "b", "c", "d"):
        shell("set", f'["x", "{name}"]', f'"{name}"')
    shell("set", '["y"]', "0")

    def keys(*words: str) -> list[object]:
        return [row["key"][-1] for row in shell.json("list", *words)]  # type: ignore[index]

    assert keys() == ["a", "b", "c", "d", "y"]
    assert keys('["x"]') == ["a", "b", "c", "d"]
    assert keys('["x"]', "--reverse") == ["d", "c", "b", "a"]
    assert keys("--start", '["x", "b"]', "--end", '["x", "d"]') == ["b", "c"]
    page = shell("list", '["x"]', "--limit", "3")
    note = page.stderr.strip()
    assert note.startswith("more follows: --cursor ")
    assert keys('["x"]', "--cursor", note.split()[-1]) == ["d"]
    assert shell("list", '["x"]', "--limit", "4").stderr == ""


def test_expiry(shell: Shell) -> None:
    shell("set", '["k"]', "1", "--expire-in", "1h")
    assert "duration" in shell("set", '["k"]', "1", "--expire-in", "soon", status=2).stderr


def test_p19_touch_prolongs_and_get_tells_how_long_is_left(shell: Shell) -> None:
    """P19: cannot prolong or inspect TTL -> touch(+60 s) -> remaining about 60 s, value and versionstamp unchanged."""
    stamp = shell("set", '["k"]', "1", "--expire-in", "5s").stdout.strip()
    shell("touch", '["k"]', "--expire-in", "60s")
    (row,) = shell.json("get", '["k"]', "--expiry")
    assert isinstance(row, dict)
    left = row.pop("expires_in_ms")
    assert row == {"key": ["k"], "value": 1, "versionstamp": stamp}
    assert 50_000 < left <= 60_000
    table = shell("get", '["k"]', '["l"]', "--expiry", status=1).stdout
    assert "Expires in" in table and "0:00:5" in table
    shell("touch", '["k"]', "--never")
    assert shell.json("get", '["k"]', "--expiry")[0]["expires_in_ms"] is None  # type: ignore[index]
    assert "never" in shell("get", '["k"]', "--expiry").stdout
    assert shell.json("touch", '["l"]', "--never", status=1) == [{"ok": False}]
    assert error_line(shell("touch", '["l"]', "--expire-in", "1s", status=1)) == 'kvorum: not found: ["l"]'
    for words in ((), ("--never", "--expire-in", "1s")):
        assert "either --expire-in or --never" in error_line(shell("touch", '["k"]', *words, status=2))
    assert "must be above zero" in error_line(shell("touch", '["k"]', "--expire-in", "0s", status=2))
    assert "is not a duration" in shell("touch", '["k"]', "--expire-in", "-1s", status=2).stderr


def test_count_keys_only_and_delete_below(shell: Shell) -> None:
    for key in ('["x"]', '["x", "a"]', '["x", "b"]', '["y"]'):
        stamp = shell("set", key, "1").stdout.strip()
    assert shell("count").stdout == "4\n"
    assert shell("count", '["x"]').stdout == "2\n"
    assert shell.json("count", "--start", '["x", "b"]', "--end", '["y"]') == [{"count": 1}]
    assert shell.json("list", "--keys-only")[-1] == {"key": ["y"], "versionstamp": stamp}
    assert "Value" not in shell("list", "--keys-only").stdout
    assert "cannot be combined" in error_line(shell("delete", '["x"]', "--prefix", "--if-exists", status=2))
    assert shell("delete", '["x"]', "--prefix").stdout == "2\n"
    assert shell.json("delete", '["x"]', "--prefix") == [{"deleted": 0}]
    assert [row["key"] for row in shell.json("list", "--keys-only")] == [["x"], ["y"]]  # type: ignore[index]
    assert shell("delete", "[]", "--prefix").stdout == "2\n"


def test_watch_prints_the_entries_at_once(shell: Shell) -> None:
    stamp = shell("set", '["k"]', "1").stdout.strip()
    assert shell("watch", '["k"]', '["l"]', "--count", "1").stdout.splitlines() == [
        f'["k"]  1  {stamp}',
        '["l"]  absent',
    ]
    (entries,) = shell.json("watch", '["k"]', "--count", "1")
    assert entries == [{"key": ["k"], "value": 1, "versionstamp": stamp}]


def test_watch_prefix_goes_on_after_a_versionstamp(shell: Shell) -> None:
    before = shell("set", '["p", "a"]', "1").stdout.strip()
    first = shell("set", '["p", "b"]', '{"x": 2}').stdout.strip()
    shell("set", '["q"]', "1")
    second = shell("delete", '["p", "a"]', "--json").stdout
    words = ("watch", '["p"]', "--prefix", "--since", before, "--count", "2")
    lines = shell(*words).stdout.splitlines()
    assert lines[0] == f'set    ["p", "b"]  {{"x": 2}}  {first}'
    assert lines[1].startswith('delete ["p", "a"]  ')
    assert lines[1][-20:] in second
    assert shell(*words, "--keys-only").stdout.splitlines()[0] == f'set    ["p", "b"]  {first}'
    rows = shell.json(*words)
    assert rows[0] == {
        "versionstamp": first,
        "complete": True,
        "changes": [{"kind": "set", "key": ["p", "b"], "value": {"x": 2}}],
    }
    line = error_line(shell("watch", '["p"]', "--prefix", "--since", "0" * 20, status=2))
    assert "list what there is" in line and "kv.follow does both" in line
    line = error_line(shell("watch", '["p"]', "--prefix", "--since", "ffffffffffff00000000", status=2))
    assert "no versionstamp of this database" in line
    assert "one key" in error_line(shell("watch", '["p"]', '["q"]', "--prefix", status=2))
    assert "goes with --prefix" in error_line(shell("watch", '["p"]', "--since", before, status=2))
    assert "versionstamp" in error_line(shell("watch", '["p"]', "--prefix", "--since", "x", status=2))


def test_enqueue_and_listen(shell: Shell) -> None:
    for number in range(3):
        assert len(shell("enqueue", f'{{"job": {number}}}').stdout.strip()) == 20
    assert shell.json("listen", "--count", "2") == [{"job": 0}, {"job": 1}]
    assert shell("listen", "--count", "1").stdout == '{"job": 2}\n'


def test_status_of_a_folder(shell: Shell) -> None:
    shell("set", '["k"]', "1")
    (row,) = shell.json("status")
    assert isinstance(row, dict)
    assert row["applied_index"] >= 1
    assert "Applied" in shell("status").stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("get", "k"), "a key is written as JSON"),
        (("get", '"k"'), "a key is a JSON array"),
        (("set", '["k"]', "text"), "double quotes"),
        (("set", '["k"]', '{"$u64": "x"}'), "$u64"),
        (("set", '["k"]', "1", "--if-version", "zz"), "versionstamp"),
        (("list", '["x"]', "--start", '["y"]'), "not in the keyspace"),
        (("get", *[f'["{number}"]' for number in range(11)]), "MAX_READ_RANGES"),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(words: tuple[str, ...], problem: str, shell: Shell) -> None:
    shell("set", '["other"]', "1")
    assert problem in error_line(shell(*words, status=2))


def test_no_database_named_is_status_2() -> None:
    result = CliRunner(env={"KVORUM_URL": None}).invoke(kvorum, ["get", '["k"]'])
    assert result.exit_code == 2
    assert "--url" in error_line(result)


def test_reading_creates_no_database(shell: Shell) -> None:
    for words in (
        ("get", '["k"]'),
        ("list",),
        ("count",),
        ("touch", '["k"]', "--never"),
        ("delete", '["k"]'),
        ("delete", "--prefix", '["k"]'),
        ("watch", '["k"]'),
        ("watch", "--prefix", '["k"]'),
        ("listen",),
        ("status",),
    ):
        line = error_line(shell(*words, status=3))
        assert "there is no database at" in line
        assert "the first write does" in line
    assert not Path(shell.url).exists()


def test_an_unreachable_cluster_is_status_3_and_named(tmp_path: Path) -> None:
    shell = Shell("kvorum://127.0.0.1:1,127.0.0.1:2")
    line = error_line(shell("get", '["k"]', "--timeout", "300ms", status=3))
    assert "127.0.0.1:1: connection refused" in line and "127.0.0.1:2: connection refused" in line
    status = shell("status", "--timeout", "300ms", status=3)
    assert "no answer" in status.stdout
    assert "knows a leader" in status.stderr


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(kvorum, ["--help"])
    for name in ("get", "set", "touch", "delete", "list", "count", "watch", "enqueue", "listen", "status", "node"):
        assert f"\n  {name} " in result.output
        assert CliRunner().invoke(kvorum, [name, "--help"]).exit_code == 0
    assert CliRunner().invoke(kvorum, ["gett"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument("x"), 2),
        (errors.LimitExceeded("MAX_CHECKS", 100, 101), 2),
        (errors.TypeMismatch("x"), 2),
        (errors.WrongCluster("x"), 2),
        (errors.Compacted("00000000000000010000"), 2),
        (ModuleNotFoundError("needs the extra"), 2),
        (errors.StaleLease("x"), 1),
        (errors.DeadlineExceeded("x"), 3),
        (errors.ConnectFailed("x"), 3),
        (errors.NoSpace("x"), 3),
        (errors.DatabaseLocked("x"), 3),
        (errors.DatabaseCorrupt("x"), 3),
        (PermissionError(13, "denied"), 3),
        (errors.OutcomeUnknown("line\nbreak"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_status_and_one_line(error: BaseException, status: int) -> None:
    @click.command()
    @database_options
    @runs
    async def failing(options: Options) -> int | None:
        raise error

    result = CliRunner().invoke(failing, ["--url", "x"])
    assert result.exit_code == status
    assert len(result.stderr.splitlines()) == (0 if status == 130 else 1)


def test_a_missing_extra_is_named() -> None:
    program = "import sys; sys.modules['click'] = None; from kvorum.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr == 'kvorum: the command line needs the extra "cli": pip install "kvorum[cli]"\n'


@pytest.mark.parametrize(
    ("words", "module", "status"),
    [
        (("get", '["k"]', "--url", "data.kv"), "lmdb", 2),
        (("backup", "verify", "none.bak"), "lmdb", 2),
        (("backup", "save", "none.bak", "--url", "kvorum://127.0.0.1:9"), "lmdb", 2),
        (("pitr", "list", "."), "lmdb", 2),
        (("pitr", "restore", ".", "--latest", "--data-dir", "made"), "lmdb", 2),
        (("doctor", "--config", "n1.toml"), "cryptography", 2),
        (("node", "--node-id", "n1", "--data-dir", "made"), "lmdb", 78),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_what_needs_the_extra_of_nodes_says_so(
    words: tuple[str, ...], module: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "n1.toml").write_text('node_id = "n1"\ndata_dir = "data"\ntls_cert = "n1.pem"\ntls_key = "n1.key"\n')
    (tmp_path / "data.kv").mkdir()
    program = f"import sys; sys.modules[{module!r}] = None; from kvorum.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (status, "")
    (line,) = done.stderr.splitlines()
    assert 'pip install "kvorum[node]"' in line
