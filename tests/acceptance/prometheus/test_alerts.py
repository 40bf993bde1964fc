"""Each alert against series that are made for it: promtool says when it fires, and that it does not otherwise."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from .server import DEPLOY, promtool

A, B, C = ('{job="kvorum", instance="n%d:7402"}' % number for number in (1, 2, 3))  # noqa: UP031  # braces are PromQL's
STEADY = "x240"
"""Samples beyond the first, one each 15 s: an hour."""


@dataclass
class Case:
    """`fires` and `silent` are series, a metric's name with labels to values in promtool's notation; `labels` are those
    of the alert that fires besides its severity."""

    fires: dict[str, str]
    silent: dict[str, str]
    at: str
    labels: dict[str, str] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    """Series that are there in both."""


def _q(name: str, queue: str = "mail", instance: int = 1) -> str:
    return f'{name}{{job="kvorum", instance="n{instance}:7402", queue="{queue}"}}'


def _le(end: str) -> str:
    return f'kvorum_storage_fsync_seconds_bucket{{job="kvorum", instance="n1:7402", le="{end}"}}'


N1 = {"job": "kvorum", "instance": "n1:7402"}
JOB = {"job": "kvorum"}
QUEUE = {"job": "kvorum", "queue": "mail"}
CASES = {
    "KvorumNoLeader": Case(
        # Two are killed: the third one comes to know nobody. What one of them said last lingers.
        {f"kvorum_raft_has_leader{A}": f"1 1 1 0{STEADY}", f"up{B}": f"1 1 0{STEADY}"},
        {f"kvorum_raft_has_leader{A}": f"1 1 1 0{STEADY}", f"up{B}": f"1{STEADY}"},
        "90s",
        JOB,
        {f"kvorum_raft_has_leader{B}": f"1{STEADY}", f"up{A}": f"1{STEADY}"},
    ),
    "KvorumNodeDown": Case({f"up{A}": f"1 0{STEADY}"}, {f"up{A}": f"1 0 0 1{STEADY}"}, "2m", N1),
    "KvorumNodeWithoutLeader": Case(
        {f"kvorum_raft_has_leader{A}": f"1 0{STEADY}"}, {f"kvorum_raft_has_leader{A}": f"1 0 0 1{STEADY}"}, "2m", N1
    ),
    "KvorumLeaderChanges": Case(
        {f"kvorum_raft_leader_changes_total{A}": "1x20 2x20 3x20 4x20 5x20 6x20"},
        {f"kvorum_raft_leader_changes_total{A}": "1x20 2x20 3x80"},
        "30m",
        JOB,
    ),
    "KvorumFollowerBehind": Case(
        {'kvorum_raft_follower_lag_entries{job="kvorum", instance="n1:7402", peer="n3"}': f"0+2000{STEADY}"},
        {'kvorum_raft_follower_lag_entries{job="kvorum", instance="n1:7402", peer="n3"}': f"900{STEADY}"},
        "10m",
        {"job": "kvorum", "peer": "n3"},
    ),
    "KvorumSlowLogSync": Case(
        {_le("0.1"): f"0+90{STEADY}", _le("0.25"): f"0+100{STEADY}", _le("+Inf"): f"0+100{STEADY}"},
        {_le("0.1"): f"0+995{STEADY}", _le("0.25"): f"0+1000{STEADY}", _le("+Inf"): f"0+1000{STEADY}"},
        "15m",
        N1,
    ),
    "KvorumDiskSpace": Case(
        {f"kvorum_storage_disk_free_bytes{A}": f"15{STEADY}"},
        {f"kvorum_storage_disk_free_bytes{A}": f"25{STEADY}"},
        "10m",
        N1,
        {f"kvorum_storage_disk_bytes{A}": f"100{STEADY}"},
    ),
    "KvorumMapSpace": Case(
        {f"kvorum_storage_used_bytes{A}": f"85{STEADY}"},
        {f"kvorum_storage_used_bytes{A}": f"75{STEADY}"},
        "10m",
        N1,
        {f"kvorum_storage_map_bytes{A}": f"100{STEADY}"},
    ),
    "KvorumGrowthRefused": Case(
        {f"kvorum_storage_space_low{A}": f"0 1{STEADY}"}, {f"kvorum_storage_space_low{A}": f"0{STEADY}"}, "1m", N1
    ),
    "KvorumStateMismatch": Case(
        {f"kvorum_raft_state_mismatches_total{A}": f"0x10 1{STEADY}"},
        {f"kvorum_raft_state_mismatches_total{A}": f"2{STEADY}"},
        "10m",
        N1,
    ),
    "KvorumStateRebuilt": Case(
        {f"kvorum_storage_state_rebuilt{A}": f"1{STEADY}"},
        {f"kvorum_storage_state_rebuilt{A}": f"0{STEADY}"},
        "10m",
        N1,
        {f"kvorum_process_start_time_seconds{A}": f"0{STEADY}"},
    ),
    "KvorumDamage": Case(
        {f"kvorum_storage_corruptions_total{A}": f"0 1{STEADY}"},
        {f"kvorum_storage_corruptions_total{A}": f"0{STEADY}"},
        "1m",
        N1,
    ),
    "KvorumUnreadAnswers": Case(
        {f"kvorum_api_unread_bytes{A}": f"10 60{STEADY}"},
        {f"kvorum_api_unread_bytes{A}": f"10 60 90 20{STEADY}"},
        "3m",
        N1,
        {f"kvorum_api_unread_limit_bytes{A}": f"100{STEADY}"},
    ),
    "KvorumArchiveFails": Case(
        {f"kvorum_archive_failing_seconds{A}": f"0+15{STEADY}"},
        {f"kvorum_archive_failing_seconds{A}": "0+15x15 0x200"},
        "10m",
        N1,
    ),
    "KvorumOldMessages": Case(
        {_q("kvorum_queue_oldest_age_seconds"): f"0+15{STEADY}"},
        {_q("kvorum_queue_oldest_age_seconds"): "0+15x15 0x200"},
        "10m",
        QUEUE,
    ),
    "KvorumDeadLetters": Case(
        {_q("kvorum_queue_died_total"): f"7x20 8{STEADY}"},
        # Another node leads, and tells of the same ones.
        {_q("kvorum_queue_died_total"): "7x60 stale", _q("kvorum_queue_died_total", instance=2): f"_x60 7{STEADY}"},
        "16m",
        QUEUE,
    ),
    "KvorumClockOffset": Case(
        {f"kvorum_raft_clock_offset_seconds{A}": f"-0.7{STEADY}"},
        {f"kvorum_raft_clock_offset_seconds{A}": f"-0.3{STEADY}"},
        "5m",
        N1,
    ),
    "KvorumCertificateExpires": Case(
        {f"kvorum_tls_cert_expiry_seconds{A}": f"1209000-15{STEADY}"},
        {f"kvorum_tls_cert_expiry_seconds{A}": f"1300000-15{STEADY}"},
        "5m",
        N1,
    ),
}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def verdict(folder: Path, name: str, series: dict[str, str], at: str, labels: dict[str, str] | None) -> None:
    """Raises AssertionError unless the alert fires with these labels at that time; None: unless it does not."""
    bare = [{key: value for key, value in rule.items() if key != "annotations"} for rule in rules()]
    (folder / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "kvorum", "rules": bare}]}))
    expected = [{"exp_labels": labels}] if labels is not None else []
    test = {
        "interval": "15s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": expected}],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "evaluation_interval": "15s", "tests": [test]}))
    promtool("test", "rules", file)


def test_configuration_and_rules_are_valid() -> None:
    # Not more than its syntax: the certificates are made by compose.yaml.
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", DEPLOY / "prometheus.yml")
    assert f"{len(rules())} rules found" in promtool("check", "rules", DEPLOY / "alerts.yml")
    assert (DEPLOY / "alerts.yml").name in yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]


def test_every_alert_has_a_case() -> None:
    assert [rule["alert"] for rule in rules()] == list(CASES)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.parametrize("name", CASES)
def test_it_fires(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    severity = next(rule["labels"]["severity"] for rule in rules() if rule["alert"] == name)
    verdict(tmp_path, name, case.more | case.fires, case.at, case.labels | {"severity": severity})


@pytest.mark.parametrize("name", CASES)
def test_it_is_silent(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    verdict(tmp_path, name, case.more | case.silent, case.at, None)


def test_no_node_at_all_is_no_leader_either(tmp_path: Path) -> None:
    verdict(tmp_path, "KvorumNoLeader", {f"up{A}": f"0{STEADY}"}, "2m", {"job": "kvorum", "severity": "critical"})


def test_the_first_dead_letters_of_a_queue(tmp_path: Path) -> None:
    """A counter that is 1 when it is first seen has not increased."""
    series = {_q("kvorum_queue_dead"): f"_x10 1{STEADY}", _q("kvorum_queue_died_total"): f"_x10 1{STEADY}"}
    verdict(tmp_path, "KvorumDeadLetters", series, "5m", QUEUE | {"severity": "warning"})
    verdict(tmp_path, "KvorumDeadLetters", series, "30m", None)


def test_a_rebuilt_state_is_told_for_an_hour(tmp_path: Path) -> None:
    case = CASES["KvorumStateRebuilt"]
    verdict(tmp_path, "KvorumStateRebuilt", case.more | {f"kvorum_storage_state_rebuilt{A}": "1x400"}, "70m", None)
