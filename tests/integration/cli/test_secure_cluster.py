"""`kvorum doctor`, `top` and `bench` on three nodes that speak TLS only, and ask for certificates and tokens."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.tls.secure import SecureNodes

COMMAND = Path(sys.executable).with_name("kvorum")
ROOT = secrets.token_hex(16)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNodes]:
    folder = tmp_path_factory.mktemp("secure")
    token = folder / "root-token"
    token.write_text(ROOT)
    token.chmod(0o600)
    with SecureNodes(folder, clients=True, root_token_file=str(token)) as three:
        assert run(three, "auth", "on").returncode == 0
        yield three


def run(cluster: SecureNodes, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """With certificates and the root token."""
    cert, key = cluster.certificates.pair("app")
    trust = {"KVORUM_CA_FILE": str(cluster.certificates.ca), "KVORUM_CERT_FILE": str(cert), "KVORUM_KEY_FILE": str(key)}
    return call(*words, **{"KVORUM_URL": cluster.url, "KVORUM_TOKEN": ROOT, **trust, **environment})


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, **environment}
    return subprocess.run([COMMAND, *words], env=everything, capture_output=True, text=True, timeout=90, check=False)


def states(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], str]:
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["check"], row["where"]): row["state"] for row in rows}


def test_doctor_with_certificates_and_token(cluster: SecureNodes) -> None:
    found = states(run(cluster, "doctor", "--json"))
    for node in ("n1", "n2", "n3"):
        assert (found["node", node], found["certificate", node]) == ("ok", "ok")
    assert (found["members", "cluster"], found["clock", "cluster"]) == ("ok", "ok")


def test_doctor_on_a_nodes_machine_speaks_as_the_node_does(cluster: SecureNodes) -> None:
    done = call("doctor", "--config", str(cluster.config(0)), "--json", KVORUM_URL="")
    found = states(done)
    certificate = str(cluster.certificates.pair("n1")[0])
    assert found["certificate", certificate] == "ok", done.stdout
    assert [state for (check, _), state in found.items() if check == "port"] == ["ok"] * 3
    assert (found["node", "n2"], found["members", "cluster"]) == ("ok", "ok")


def test_doctor_without_a_token_says_so(cluster: SecureNodes) -> None:
    done = run(cluster, "doctor", "--json", KVORUM_TOKEN="")
    assert done.returncode == 1
    assert "token" in done.stdout
    assert set(states(done).values()) == {"FAIL"}


def test_doctor_without_certificates_says_so(cluster: SecureNodes) -> None:
    done = call("doctor", "--json", KVORUM_URL=cluster.url, KVORUM_TOKEN=ROOT)
    assert done.returncode == 1
    assert "it speaks TLS" in done.stdout


def test_top_and_bench(cluster: SecureNodes) -> None:
    shown = json.loads(run(cluster, "top", "--once", "--json").stdout)
    assert [row["node"] for row in shown["nodes"]] == ["n1", "n2", "n3"]
    assert shown["queues"] == []
    done = run(cluster, "bench", "--seconds", "0.2", "--callers", "4", "--json")
    assert [json.loads(line)["errors"] for line in done.stdout.splitlines()] == [0, 0], done.stderr
    assert run(cluster, "count").stdout == "0\n"


def test_top_without_a_token_says_so(cluster: SecureNodes) -> None:
    done = run(cluster, "top", "--once", KVORUM_TOKEN="")
    assert done.returncode != 0
    assert "token" in done.stdout + done.stderr
