"""The table of metrics, and what is made of it."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.metrics import service as of_service
from kvorum_node.metrics.collector import NodeCollector, Sources, written
from kvorum_node.metrics.table import FAMILIES, SECTIONS
from kvorum_raft.histogram import Histogram
from kvorum_raft.seams import Member, PeerView, Status
from tests.unit.node.harness import Node

PEER = PeerView(Member("n2", "b:1", "b:2"), True, 7, round_trip=Histogram())
LEADER = Status(
    "n1", b"", "leader", 3, Member("n1", "a:1", "a:2"), 9, 9, 10, 10, (PEER,), {"state_alarms": 2.0, "strange (x)": 1.5}
)


def page(sources: Sources) -> str:
    return written(list(NodeCollector(sources).collect())).decode()


def test_names_are_good_ones() -> None:
    """As Prometheus asks for: a base unit at the end, `_total` for counters only (it is added), no name twice."""
    assert len(FAMILIES) == sum(map(len, SECTIONS.values()))
    for family in FAMILIES.values():
        assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", family.name), family.name
        assert not family.name.endswith(("_total", "_ms", "_count", "_sum", "_bucket", "_info")) or (
            family.name == "build_info"
        )
        assert family.help and "\n" not in family.help
        if family.kind == "histogram":
            assert family.name.endswith("_seconds") and not family.source
    sources = [family.source for family in FAMILIES.values() if family.source]
    assert len(set(sources)) == len(sources), "a figure is shown twice"


def test_types_labels_and_values() -> None:
    figures = {"write_conflicts": 4.0, "watches": 2.0, "range_watches": 3.0}
    text = page(Sources(lambda: LEADER, lambda: figures))
    for line in (
        "# TYPE kvorum_kv_conflicts_total counter",
        "kvorum_kv_conflicts_total 4.0",
        "kvorum_kv_watchers 5.0",
        "kvorum_raft_is_leader 1.0",
        "kvorum_raft_state_mismatches_total 2.0",
        'kvorum_raft_peer_connected{peer="n2"} 1.0',
        'kvorum_raft_follower_lag_entries{peer="n2"} 3.0',
        "# TYPE kvorum_raft_peer_rtt_seconds histogram",
        "kvorum_debug_strange__x_ 1.5",
    ):
        assert line in text.splitlines(), line


def test_only_a_leader_knows_lags() -> None:
    follower = Status("n2", b"", "follower", 3, None, 9, 9, 9, 9, (PEER,))
    assert "follower_lag" not in page(Sources(lambda: follower))


def test_a_histogram() -> None:
    seconds = Histogram((0.1, 1.0))
    seconds.observe(0.1)
    seconds.observe(0.5, 3)
    seconds.observe(7.0)
    text = page(Sources(lambda: LEADER, histograms=lambda: {"kv_op_seconds": {("write",): seconds}}))
    found = [line for line in text.splitlines() if line.startswith("kvorum_kv_op_seconds")]
    assert found == [
        'kvorum_kv_op_seconds_bucket{le="0.1",op="write"} 1.0',
        'kvorum_kv_op_seconds_bucket{le="1.0",op="write"} 4.0',
        'kvorum_kv_op_seconds_bucket{le="+Inf",op="write"} 5.0',
        'kvorum_kv_op_seconds_count{op="write"} 5.0',
        'kvorum_kv_op_seconds_sum{op="write"} 8.6',
    ]
    assert seconds.count == 5


def test_prometheus_takes_the_page(tmp_path: Path) -> None:
    """It refuses one that has a family twice, or a value that is no number."""
    node = Node(tmp_path)
    service = node.service
    text = page(
        Sources(
            lambda: LEADER,
            service.statistics,
            histograms=lambda: of_service.histograms(service),
            counts=lambda: of_service.counts(service),
            queues=lambda: [pb.QueueInfo(name="q")],
            now_ms=lambda: 1,
        )
    )
    node.close()
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert {family.name for family in text_string_to_metric_families(text)} >= {"kvorum_kv_ops", "kvorum_build_info"}


def test_whoever_is_not_named_is_debug_only() -> None:
    """Nobody builds a dashboard on a figure that comes and goes: it must be seen from its name."""
    promised = {family.shown for family in FAMILIES.values()}
    text = page(Sources(lambda: LEADER, lambda: {"odd": 1.0}))
    for family in text_string_to_metric_families(text):
        shown = family.name + ("_total" if family.type == "counter" else "")
        assert shown in promised or family.name.startswith("kvorum_debug_"), shown
