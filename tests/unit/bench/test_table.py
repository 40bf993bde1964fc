"""Medians, ratios and what the table says."""

from typing import Any

import pytest

from bench import table
from bench.table import ratio
from bench.workloads import HEADLINES, OPTIONAL, PEERS, QUICK, WORKLOADS


def row(system: str, number: int, rate: float, *, workload: str = "set", callers: int = 256) -> dict[str, Any]:
    names = ("leader", "follower 2", "follower 3", "client")
    return {
        "workload": workload,
        "callers": callers,
        "system": system,
        "round": number,
        "rate": rate,
        "value": rate * WORKLOADS[workload].per_call,
        "unit": WORKLOADS[workload].unit,
        "p50_ms": 1_000 / rate,
        "p99_ms": 2_000 / rate,
        "seconds": 2.0,
        "cpu_s": dict(zip(names, (0.9, 0.4, 0.2, 0.8), strict=True)),
        "memory": {name: {"peak_mib": 80.0 + at, "anonymous_mib": 40.0} for at, name in enumerate(names)},
    }


def rounds(workload: str, callers: int, pairs: list[tuple[float, float]]) -> list[dict[str, Any]]:
    peer = WORKLOADS[workload].peer
    return [
        row(system, number, rate, workload=workload, callers=callers)
        for number, (ours, theirs) in enumerate(pairs)
        for system, rate in (("kvorum", ours), (peer, theirs))
    ]


def test_a_ratio_is_the_median_of_pairs_and_not_that_of_medians() -> None:
    # Each round under another load: 10, 2 and 3 times as fast.
    rows = rounds("set", 256, [(1_000.0, 100.0), (4_000.0, 2_000.0), (600.0, 200.0)])
    assert ratio(rows, "etcd", "rate") == (3.0, 3)


def test_a_run_whose_partner_failed_makes_no_pair() -> None:
    rows = [*rounds("set", 256, [(100.0, 50.0)]), row("kvorum", 1, 900.0)]
    assert ratio(rows, "etcd", "rate") == (2.0, 1)
    assert ratio(rows[:1], "etcd", "rate") == (None, 0)


def test_of_a_latency_less_is_better() -> None:
    (line,) = table.lines(rounds("list", 1, [(1.0, 4.0)]))
    assert line.ratio == pytest.approx(4.0)
    assert line.better is False
    (line,) = table.lines(rounds("watch", 1, [(4.0, 1.0)]))
    assert line.better is True


def test_headlines_have_the_ratio_of_their_figure() -> None:
    rows = rounds("set", 1, [(100.0, 400.0)]) + rounds("queue-push-256", 256, [(300.0, 100.0)])
    found = table.headlines(rows)
    assert found["set_1_p50_vs_etcd"] == pytest.approx(4.0)
    assert found["queue_vs_jetstream"] == pytest.approx(3.0)
    assert found["set_256_vs_etcd"] is None
    assert found.keys() == HEADLINES.keys()


def test_what_each_server_used_is_shown_the_busiest_first() -> None:
    rows = rounds("set", 256, [(10.0, 10.0), (10.0, 10.0)])
    # Another one leads in the second round.
    rows[2]["cpu_s"] = {"follower 1": 0.2, "leader": 0.7, "follower 3": 0.6, "client": 0.8}
    (line,) = table.lines(rows)
    assert line.kvorum is not None
    usage = line.kvorum.usage
    assert usage.cpu_s == pytest.approx((0.8, 0.5, 0.2))
    assert (usage.client_cpu_s, usage.peak_mib, usage.anonymous_mib) == (0.8, (82.0, 81.0, 80.0), 40.0)
    assert "0.80 0.50 0.20 + 0.80" in table.text([line])
    assert "82 81 80 (40)" in table.text([line])


def test_a_client_that_is_its_own_server_is_shown_with_its_memory() -> None:
    rows = rounds("deno-set", 1, [(10.0, 10.0)])
    rows[1]["cpu_s"], rows[1]["memory"] = {"client": 0.5}, {"client": {"peak_mib": 70.0, "anonymous_mib": 30.0}}
    (line,) = table.lines(rows)
    assert line.peer is not None
    assert (line.peer.usage.cpu_s, line.peer.usage.peak_mib) == ((), (70.0,))


def test_a_missing_peer_is_said_and_durability_shown() -> None:
    text = table.text(table.lines([row("kvorum", 0, 5_000.0), *rounds("queue-push-256", 256, [(30.0, 10.0)])]))
    (own,) = [line for line in text.splitlines() if line.startswith("set @256")]
    assert "etcd not to be had" in own
    (queue,) = [line for line in text.splitlines() if line.startswith("queue-push-256 @256")]
    assert "without an fsync" in queue
    assert "3.00" in queue


def test_every_workload_can_be_measured_and_every_headline_is_one() -> None:
    for workload in WORKLOADS.values():
        assert workload.peer in {*PEERS, ""}
        assert workload.durability or not workload.peer, "what the peer promises has to be said"
    points = [(name, callers) for name, callers, _ in HEADLINES.values()]
    for name, callers in (*points, *QUICK):
        assert callers in WORKLOADS[name].callers
    assert set(OPTIONAL) <= WORKLOADS.keys()
