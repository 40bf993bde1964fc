"""Ctrl-C and SIGTERM, at moments that are named, not timed: no traceback, the status that docs/cli.md says, and no
half-made file that looks whole."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum_node.backup.targets import open_target
from kvorum_node.dev_cluster import DevCluster
from tests.integration.backup.conftest import BackedUp, wait_for
from tests.integration.backup.test_pitr import has_begun, reaches

PROGRAM = """
import importlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in the foreground of a terminal
number, place, entry, *words = sys.argv[1:]
module, _, function = place.partition(":")
def look(frame, event, argument):
    if event == "call" and frame.f_code.co_qualname == function and frame.f_globals["__name__"] == module:
        sys.setprofile(None)
        os.kill(os.getpid(), int(number))
sys.setprofile(look)
sys.argv = [entry, *words]
sys.exit(importlib.import_module(entry).main())
"""
"""Runs a command line, and sends it a signal when a function is called for the first time; `module:<module>` is when
the module is being imported."""
LISTENS = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""Runs a program as a terminal would: what runs in a shell's background does not hear of Ctrl-C."""
COMMAND = Path(sys.executable).with_name("kvorum")
BOTH = pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])


def at(place: str, how: int, *words: str, entry: str = "kvorum_command", cwd: Path) -> int:
    """The exit status of a command that got the signal there, and said nothing of it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(how)), place, entry, *words],
        cwd=cwd,
        env={**os.environ, "KVORUM_URL": str(cwd / "data.kv")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", ""), place
    return done.returncode


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database of some 10 MB, and a backup of it."""
    folder = tmp_path_factory.mktemp("interrupts")

    async def fill() -> None:
        async with kvorum.open_kv(folder / "data.kv") as kv:
            for number in range(160):
                await kv.set(("k", number), os.urandom(60_000))

    asyncio.run(fill())
    command(folder, "backup", "save", "whole.bak")
    return folder


def command(folder: Path, *words: str) -> str:
    """What an undisturbed command prints."""
    environment = {**os.environ, "KVORUM_URL": str(folder / "data.kv")}
    done = subprocess.run(
        [COMMAND, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- while Python imports


@BOTH
@pytest.mark.parametrize(
    "module", ["kvorum", "kvorum.errors", "kvorum.cli", "click", "kvorum.cli.group", "rich", "kvorum.cli.entries"]
)
def test_before_the_commands_own_work_it_ends_as_every_program(module: str, how: signal.Signals, filled: Path) -> None:
    assert at(f"{module}:<module>", how, "get", '["k", 1]', cwd=filled) == -how


@BOTH
@pytest.mark.parametrize("module", ["kvorum_node.embedded", "lmdb", "kvorum_node.store"])
def test_what_a_command_imports_in_its_work(module: str, how: signal.Signals, filled: Path) -> None:
    assert at(f"{module}:<module>", how, "get", '["k", 1]', cwd=filled) == 128 + how


@BOTH
def test_a_node_before_it_serves(how: signal.Signals, tmp_path: Path) -> None:
    DevCluster(tmp_path).write_configs()
    words = ("node", "--config", "n1.toml")
    assert at("kvorum.cli.node:<module>", how, *words, cwd=tmp_path) == -how
    assert at("kvorum_node.assembly:<module>", how, *words, cwd=tmp_path) == 0
    assert not (tmp_path / "n1" / "raft").exists()


@BOTH
def test_a_node_while_it_starts(how: signal.Signals, tmp_path: Path) -> None:
    DevCluster(tmp_path).write_configs()
    words = ("node", "--config", "n1.toml")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(how)), "kvorum_node.assembly:Replica._start", "kvorum_command", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "ended" in done.stderr.splitlines()[-1]


# ---- in the middle of files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@BOTH
@pytest.mark.parametrize(
    "place",
    [
        "kvorum_node.backup.commands:save_folder",
        "kvorum_node.backup.saving:spool",
        "kvorum_raft.copier:PipeCopier.pause",
        "kvorum_node.backup.files:NewFile.write",
        "kvorum_node.backup.files:NewFile.keep",
    ],
)
def test_half_a_backup_leaves_nothing(place: str, how: signal.Signals, filled: Path) -> None:
    before = names(filled)
    assert at(place, how, "backup", "save", "half.bak", cwd=filled) == 128 + how
    assert names(filled) == before


@BOTH
@pytest.mark.parametrize("place", ["kvorum_node.backup.files:NewFile.write", "kvorum_node.backup.files:check_state"])
def test_half_a_look_leaves_nothing(place: str, how: signal.Signals, filled: Path) -> None:
    before = names(filled)
    assert at(place, how, "backup", "verify", "whole.bak", cwd=filled) == 128 + how
    assert names(filled) == before


NODE = ("--node-id", "n1", "--peer-address", "127.0.0.1:9", "--client-address", "127.0.0.1:9")


RESTORING = (
    ("kvorum_node.backup.files:unpack", signal.SIGTERM, ("node", "embedded")),
    ("kvorum_node.backup.files:NewFile.write", signal.SIGINT, ("node", "embedded")),
    ("kvorum_node.backup.files:check_state", signal.SIGINT, ("node", "embedded")),
    ("kvorum_node.backup.restoring:adopted", signal.SIGTERM, ("node", "embedded")),
    ("kvorum_node.backup.restoring:_refound", signal.SIGINT, ("node", "embedded")),
    ("kvorum_node.backup.restoring:_delete", signal.SIGINT, ("node", "embedded")),
    ("kvorum_raft.founding:found", signal.SIGINT, ("node",)),
    ("kvorum_raft.founding:_write_log", signal.SIGTERM, ("node",)),
    ("kvorum_node.backup.restoring:_make_embedded", signal.SIGINT, ("embedded",)),
)


@pytest.mark.parametrize(
    ("place", "how", "made"), [(place, how, made) for place, how, kinds in RESTORING for made in kinds]
)
def test_half_a_restore_is_nobodys_folder(
    place: str, how: signal.Signals, made: str, filled: Path, tmp_path: Path
) -> None:
    words = ("backup", "restore", str(filled / "whole.bak"), "--data-dir", "made")
    words += NODE if made == "node" else ("--embedded",)
    assert at(place, how, *words, cwd=tmp_path) == 128 + how
    assert names(tmp_path) in ([], ["made"])
    assert not (tmp_path / "made").exists() or names(tmp_path / "made") == []
    command(tmp_path, *words)


@BOTH
def test_half_a_certificate(how: signal.Signals, tmp_path: Path) -> None:
    assert at("kvorum.certificates:make_ca", how, "certs", "ca", "certs", cwd=tmp_path) == 128 + how
    assert not (tmp_path / "certs").exists()


# ---- commands that go on until they are interrupted


class Running:
    """A command on a cluster: `with Running(url, "watch", …) as watch`."""

    def __init__(self, url: str, *words: str, cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENS, COMMAND, *words],
            cwd=cwd,
            env={**os.environ, "KVORUM_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """The next one on standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ends(self, how: signal.Signals) -> str:
        """By the signal, with its status and without a word; returns the rest of what it has printed."""
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (128 + how, "")
        return out


@BOTH
@pytest.mark.parametrize(
    "words",
    [
        ("watch", '["interrupted"]'),
        ("top", "--json", "--every", "200ms"),
        ("queue", "stats", "interrupted", "--watch", "--every", "200ms"),
    ],
    ids=" ".join,
)
def test_what_goes_on_until_it_is_interrupted(words: tuple[str, ...], how: signal.Signals, cluster_url: str) -> None:
    command_on(cluster_url, "set", '["interrupted", 1]', "1")
    with Running(cluster_url, *words) as running:
        assert running.line()
        running.ends(how)


@BOTH
def test_a_listener_gives_back_what_it_has_not_printed(how: signal.Signals, cluster_url: str) -> None:
    name = f"interrupted-{how.name}"
    with Running(cluster_url, "listen", "--queue", name) as running:
        command_on(cluster_url, "enqueue", "1", "--queue", name)
        assert running.line() == "1\n"
        running.ends(how)
    command_on(cluster_url, "enqueue", "2", "--queue", name)
    # Within less than a lease: nothing of this queue is in the hands of a consumer that is gone.
    assert json.loads(command_on(cluster_url, "queue", "receive", name, "--json"))["value"] == 2


@BOTH
def test_a_measurement_takes_its_keys_away(how: signal.Signals, cluster_url: str) -> None:
    prefix = '["kvorum-bench"]'
    with Running(cluster_url, "bench", "--callers", "4", "--seconds", "60") as running:
        assert running.process.stderr is not None
        assert "this writes up to" in running.process.stderr.readline()
        wait_for(lambda: json.loads(command_on(cluster_url, "count", prefix, "--json"))["count"])
        running.ends(how)
    assert json.loads(command_on(cluster_url, "count", prefix, "--json")) == {"count": 0}


@BOTH
@pytest.mark.parametrize("kind", ["folder", "cluster"])
def test_a_backup_whose_reader_has_stopped(kind: str, how: signal.Signals, filled: Path, large: str) -> None:
    """It cannot be written on, and its end does not wait for that."""
    with Running(str(filled / "data.kv") if kind == "folder" else large, "backup", "save", "-") as running:
        assert running.process.stdout is not None
        assert os.read(running.process.stdout.fileno(), 1)
        descriptor = os.dup(running.process.stdout.fileno())  # nobody reads on, and the pipe stays open
        try:
            running.process.stdout.close()
            running.process.stdout = None
            running.ends(how)
        finally:
            os.close(descriptor)


@pytest.fixture(scope="module")
def large(shared_cluster: DevCluster) -> str:
    """The URL of a cluster with more than fits into a pipe."""

    async def fill() -> None:
        async with kvorum.open_kv(shared_cluster.url) as kv:
            for number in range(40):
                await kv.set(("large", number), os.urandom(60_000))

    asyncio.run(fill())
    return shared_cluster.url


def command_on(url: str, *words: str) -> str:
    done = subprocess.run(
        [COMMAND, *words],
        env={**os.environ, "KVORUM_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- moments of an archive


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackedUp]:
    folder = tmp_path_factory.mktemp("archived")
    (folder / "archive").mkdir()
    with BackedUp(folder, archive=str(folder / "archive"), archive_every_s=1) as cluster:
        cluster.archive, cluster.target = str(folder / "archive"), open_target(folder / "archive")
        wait_for(lambda: has_begun(cluster))
        for number in range(5):
            cluster.kvorum("set", f'["k", {number}]', "1")
        applied = cluster.status(cluster.leader()).applied_index
        wait_for(lambda: reaches(cluster, applied))
        yield cluster


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("kvorum_node.backup.catalog:open_catalog", signal.SIGTERM),
        ("kvorum_node.backup.files:check_state", signal.SIGINT),
        ("kvorum_node.backup.replaying:Replay.apply", signal.SIGINT),
        ("kvorum_node.backup.replaying:Replay.apply", signal.SIGTERM),
        ("kvorum_node.backup.restoring:_refound", signal.SIGINT),
    ],
)
def test_half_a_moment_is_nobodys_folder(place: str, how: signal.Signals, archived: BackedUp, tmp_path: Path) -> None:
    words = ("pitr", "restore", archived.archive, "--latest", "--data-dir", "made", *NODE)
    assert at(place, how, *words, cwd=tmp_path) == 128 + how
    assert names(tmp_path) in ([], ["made"])
    assert not (tmp_path / "made").exists() or names(tmp_path / "made") == []
    command(tmp_path, *words)


@BOTH
@pytest.mark.parametrize(
    "place",
    [
        "kvorum_node.backup.files:check_state",
        "kvorum_node.backup.replaying:Replay.apply",
        "kvorum_node.backup.prefixes:PutBack.run",
        "kvorum_node.backup.prefixes:PutBack._commit",
    ],
)
def test_half_a_prefix_leaves_no_scratch(place: str, how: signal.Signals, archived: BackedUp, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("pitr", "restore", archived.archive, "--latest", "--prefix", '["k"]', "--into", archived.url)
    assert at(place, how, *words, "--scratch", str(scratch), cwd=tmp_path) == 128 + how
    assert names(scratch) == []


# ---- the nodes of scripts/cluster


@BOTH
@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("grpc:<module>", lambda how: -how),
        ("kvorum_node.dev_cluster:DevCluster.write_configs", lambda how: 128 + how),
        ("kvorum_node.dev_cluster:DevCluster.leader", lambda how: 128 + how),
        ("kvorum_node.dev_command:_greet", lambda how: 128 + how),
    ],
    ids=["importing", "before the first", "while they start", "all run"],
)
def test_no_node_stays_that_nobody_waits_for(
    place: str, status: Callable[[int], int], how: signal.Signals, tmp_path: Path
) -> None:
    cluster = DevCluster(tmp_path / "cluster")
    cluster.write_configs()
    try:
        words = ("--dir", str(cluster.base_dir), "up")
        assert at(place, how, *words, entry="kvorum_node.dev", cwd=tmp_path) == status(how)
        assert [(cluster.pid(number), cluster.held(number)) for number in range(3)] == [(0, False)] * 3
    finally:
        cluster.stop()


@BOTH
def test_a_node_that_ran_before_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "cluster")
    cluster.start_all()
    try:
        cluster.kill(1)
        running = [cluster.pid(number) for number in (0, 2)]
        place = "kvorum_node.dev_cluster:DevCluster._check_alive"
        words = ("--dir", str(cluster.base_dir), "start", "2")
        assert at(place, how, *words, entry="kvorum_node.dev", cwd=tmp_path) == 128 + how
        assert [cluster.pid(number) for number in (0, 2)] == running
        assert (cluster.pid(1), cluster.held(1)) == (0, False)
    finally:
        cluster.stop()
