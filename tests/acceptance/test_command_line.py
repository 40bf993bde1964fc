"""The installed `kvorum` command on three real nodes."""

import json
import os
import subprocess
import sys
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
        assert watch.wait(timeout=20) == 0
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
