"""The installed `kvorum` command on three real nodes."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import DevCluster

COMMAND = Path(sys.executable).with_name("kvorum")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    three = DevCluster(tmp_path_factory.mktemp("command-line"))
    three.start_all()
    yield three
    three.stop()


def run(cluster: DevCluster, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KVORUM_URL": cluster.url}
    done = subprocess.run([COMMAND, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_a_session_at_the_shell(cluster: DevCluster) -> None:
    stamp = run(cluster, "set", '["users", {"int": "1"}]', '{"name": "Ada"}', "--if-absent").stdout.strip()
    run(cluster, "set", '["users", {"int": "1"}]', "0", "--if-absent", status=1)
    expected = {"key": ["users", {"int": "1"}], "value": {"name": "Ada"}, "versionstamp": stamp}
    assert json.loads(run(cluster, "get", '["users", {"int": "1"}]', "--json").stdout) == expected
    assert json.loads(run(cluster, "list", '["users"]', "--json").stdout) == expected
    assert json.loads(run(cluster, "watch", '["users", {"int": "1"}]', "--count", "1", "--json").stdout) == [expected]
    run(cluster, "enqueue", '{"job": 1}')
    assert run(cluster, "listen", "--count", "1").stdout == '{"job": 1}\n'
    run(cluster, "delete", '["users", {"int": "1"}]')
    assert run(cluster, "get", '["users", {"int": "1"}]', status=1).stderr.startswith("kvorum: not found: ")
    assert run(cluster, "get", "users", status=2).stderr.startswith("kvorum: a key is written as JSON")


def test_a_watch_shows_what_another_process_writes(cluster: DevCluster) -> None:
    environment = {**os.environ, "KVORUM_URL": cluster.url}
    watch = subprocess.Popen(
        [COMMAND, "watch", '["watched"]', "--count", "2", "--json"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())[0]["versionstamp"] is None
        run(cluster, "set", '["watched"]', "42")
        assert json.loads(watch.stdout.readline())[0]["value"] == 42
        assert watch.wait(timeout=60) == 0
    finally:
        watch.kill()
        watch.communicate()


def test_status_names_every_node_and_one_leader(cluster: DevCluster) -> None:
    rows = [json.loads(line) for line in run(cluster, "status", "--json").stdout.splitlines()]
    assert [row["node"] for row in rows] == ["n1", "n2", "n3"]
    assert [row["role"] for row in rows].count("leader") == 1
    table = run(cluster, "status").stdout
    assert all(name in table for name in ("n1", "n2", "n3", "leader"))


def test_without_a_majority_it_is_unavailable_and_says_so(cluster: DevCluster) -> None:
    leader = cluster.leader()
    others = [number for number in range(3) if number != leader]
    for number in (leader, others[0]):
        cluster.kill(number)
    try:
        done = run(cluster, "set", '["k"]', "1", "--timeout", "1s", status=3)
        assert "not applied" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        for number in (leader, others[0]):
            cluster.start(number)


def test_doctor_finds_a_sound_cluster_sound_and_a_dead_node(cluster: DevCluster) -> None:
    # A busy machine may be slow to sync, which is a warning here or a failure; what is looked for is not.
    done = subprocess.run(
        [COMMAND, "doctor", "--config", str(cluster.config(0)), "--json"],
        env={**os.environ, "KVORUM_URL": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    states = {(row["check"], row["where"]): row["state"] for row in rows}
    assert done.returncode == ("FAIL" in states.values()), done.stdout + done.stderr
    for check in ("node", "clock", "free space", "readers", "open files", "map"):
        for node in ("n1", "n2", "n3"):
            assert (check, node) in states, (check, node)
    for check in ("leader", "versions", "cluster id", "content", "clock", "members"):
        assert states[check, "cluster"] == "ok"
    assert [state for (check, _), state in states.items() if check == "port"] == ["ok"] * 3
    assert ("disk sync", str(cluster.data_dir(0))) in states
    (follower, *_) = [number for number in range(3) if number != cluster.leader()]
    cluster.kill(follower)
    try:
        done = run(cluster, "doctor", status=1)
        assert f"FAIL: node ({cluster.client_address(follower)}): start it" in done.stdout
        assert f"start n{follower + 1}" in done.stdout
    finally:
        cluster.start(follower)


def test_top_once_and_as_json(cluster: DevCluster) -> None:
    table = run(cluster, "top", "--once").stdout
    assert "leader n" in table
    assert all(name in table for name in ("n1", "n2", "n3", "commits/s"))
    (line,) = run(cluster, "top", "--once", "--json").stdout.splitlines()
    shown = json.loads(line)
    assert len(shown["nodes"]) == 3
    assert shown["leader"] in ("n1", "n2", "n3")


def test_top_on_a_terminal_survives_the_leader_and_ends_with_q(cluster: DevCluster) -> None:
    first, second = cluster.leader(), -1
    with terminal() as (ours, theirs):
        before = termios.tcgetattr(theirs)
        top = subprocess.Popen(
            [COMMAND, "top", "--every", "200ms"],
            env={**os.environ, "KVORUM_URL": cluster.url, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        try:
            screen = Screen(ours)
            screen.wait_for(f"leader n{first + 1}")
            cluster.kill(first)
            second = cluster.leader()
            assert second != first
            screen.wait_for(f"leader n{second + 1}")
            screen.wait_for("no answer")
            os.write(ours, b"q")
            assert top.wait(timeout=60) == 0
            assert top.stderr is not None
            assert top.stderr.read() == b""
            assert termios.tcgetattr(theirs) == before
        finally:
            top.kill()
            top.communicate()
            cluster.start(first)


LISTENS = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""Runs a program as a terminal would: what runs in a shell's background does not hear of Ctrl-C."""


def test_top_ends_with_ctrl_c(cluster: DevCluster) -> None:
    with terminal() as (ours, theirs):
        before = termios.tcgetattr(theirs)
        top = subprocess.Popen(
            [sys.executable, "-c", LISTENS, COMMAND, "top"],
            env={**os.environ, "KVORUM_URL": cluster.url, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        try:
            Screen(ours).wait_for("leader n")
            top.send_signal(signal.SIGINT)
            assert top.wait(timeout=60) == 130
            assert top.stderr is not None
            assert top.stderr.read() == b""
            assert termios.tcgetattr(theirs) == before
        finally:
            top.kill()
            top.communicate()


def test_top_without_a_node_says_so(cluster: DevCluster) -> None:
    done = subprocess.run(
        [COMMAND, "top", "--once", "--url", "kvorum://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "connection refused" in done.stdout


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a pseudo-terminal that is wide enough."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


class Screen:
    """What a program has drawn on a terminal since it was last looked at."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait_for(self, text: str) -> None:
        """Read until it is drawn. Errors: AssertionError after a minute without anything new."""
        drawn = b""
        while text.encode() not in drawn:
            ready, _, _ = select.select([self._descriptor], [], [], 60)
            assert ready, f"{text!r} was not drawn: {drawn[-2_000:]!r}"
            drawn = drawn[-20_000:] + os.read(self._descriptor, 65_536)


def test_bench_on_a_cluster(cluster: DevCluster) -> None:
    before = run(cluster, "count").stdout
    done = run(cluster, "bench", "--seconds", "0.2", "--callers", "1,8", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["call"], row["errors"]) for row in rows] == [("set", 0), ("get", 0)] * 2
    assert run(cluster, "count").stdout == before
