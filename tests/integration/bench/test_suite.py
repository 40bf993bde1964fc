"""`scripts/bench` with real nodes, without its peers."""

import json
from pathlib import Path

import pytest

from bench import __main__ as program


def test_nodes_are_measured_killed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    names = ("set", "get", "queue-push-256")
    options = ["--only", "--workloads", ",".join(names), "--callers", "256", "--seconds", "0.3", "--rounds", "1"]
    assert program.main([*options, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert {row["workload"] for row in found["rows"]} == set(names)
    assert {row["system"] for row in found["rows"]} == {"kvorum"}
    for row in found["rows"]:
        assert row["rate"] > 0
        assert {name.split()[0] for name in row["cpu_s"]} >= {"leader", "follower"}
        assert min(used["peak_mib"] for used in row["memory"].values()) > 1
    assert [crash["after"].split(",")[0] for crash in found["crashes"]] == [*("set", "queue-push-256")]
    for crash in found["crashes"]:
        assert 0 < crash["keys"] == crash["there"] <= crash["writes"]
    said = capsys.readouterr().out
    assert "etcd not to be had" in said
    assert "peer not to be had: etcd: left out by --only" in said
    assert "ratio set_256_vs_etcd missing" in said
