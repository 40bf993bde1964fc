"""Writes the dashboard, `dashboards/kvorum.json`, from the panels below; `--check` only compares.

Run as `python deploy/grafana/build.py`. Change the panels here, not the JSON; what is edited in Grafana is lost with
its container.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "dashboards" / "kvorum.json"
SOURCE: Final = {"type": "prometheus", "uid": "kvorum-prometheus"}
WIDTH: Final = 24
HEIGHT: Final = 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. `queries` are (PromQL, legend); `$job` and `$instance` are chosen above the charts."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    text: str = ""
    kind: str = "timeseries"
    width: int = 8


JOB: Final = '{job="$job"}'
NODE: Final = '{job="$job", instance=~"$instance"}'
LEGEND: Final = "{{instance}}"


def rate(metric: str, by: str = "instance", where: str = NODE) -> str:
    """A counter's rate, in sums."""
    return f"sum by ({by}) (rate({metric}{where}[$__rate_interval]))"


def quantile(metric: str, by: str = "instance", q: float = 0.99) -> str:
    """Of a histogram."""
    return f"histogram_quantile({q}, {rate(metric + '_bucket', f'{by}, le')})"


ROWS: Final[dict[str, list[Panel]]] = {
    "Cluster": [
        Panel("Nodes up", [(f"sum(up{JOB})", "")], kind="stat", width=4),
        Panel(
            "Leaders", [(f"sum(kvorum_raft_is_leader{JOB})", "")], kind="stat", width=4, text="One, but for elections."
        ),
        Panel(
            "Leader changes in an hour",
            [(f"max(increase(kvorum_raft_leader_changes_total{JOB}[1h]))", "")],
            kind="stat",
            width=4,
        ),
        Panel(
            "Operations/s",
            [(f"sum(rate(kvorum_kv_ops_total{JOB}[$__rate_interval]))", "")],
            "ops",
            kind="stat",
            width=4,
        ),
        Panel("Keys", [(f"max(kvorum_storage_keys{JOB})", "")], kind="stat", width=4),
        Panel("Messages", [(f"max(kvorum_storage_messages{JOB})", "")], kind="stat", width=4),
        Panel("Who leads", [(f"kvorum_raft_is_leader{NODE}", LEGEND)], text="1: that node leads."),
        Panel("Term", [(f"kvorum_raft_term{NODE}", LEGEND)]),
        Panel("Log entries that followers lack", [(f"kvorum_raft_follower_lag_entries{NODE}", "{{peer}}")]),
    ],
    "Operations": [
        Panel("Operations/s", [(rate("kvorum_kv_ops_total", "op"), "{{op}}")], "ops"),
        Panel(
            "Answers that are not ok",
            [
                (
                    rate("kvorum_kv_ops_total", "op, code", '{job="$job", instance=~"$instance", code!="ok"}'),
                    "{{op}} {{code}}",
                )
            ],
            "ops",
        ),
        Panel(
            "Latency in the node, p50 and p99",
            [
                (quantile("kvorum_kv_op_seconds", "op", 0.5), "{{op}} p50"),
                (quantile("kvorum_kv_op_seconds", "op"), "{{op}} p99"),
            ],
            "s",
            text="Without the network and the client.",
        ),
        Panel(
            "From log to commit, p99", [(quantile("kvorum_raft_commit_seconds"), LEGEND)], "s", text="On the leader."
        ),
        Panel("Applying an entry, p99", [(quantile("kvorum_raft_apply_seconds"), LEGEND)], "s"),
        Panel("Operations that wait for an entry", [(f"kvorum_raft_proposals_pending{NODE}", LEGEND)]),
        Panel("Watches", [(f"kvorum_kv_watchers{NODE}", LEGEND)]),
        Panel("Clients' streams", [(f"kvorum_api_streams{NODE}", LEGEND)]),
        Panel("Answers that clients have not taken", [(f"kvorum_api_unread_bytes{NODE}", LEGEND)], "bytes"),
        Panel("Requests that have come only in part", [(f"kvorum_api_unfinished_bytes{NODE}", LEGEND)], "bytes"),
        Panel("Slow operations/s", [(rate("kvorum_api_slow_operations_total"), LEGEND)], "ops"),
    ],
    "Disks and network": [
        Panel(
            "Log syncs, p50 and p99",
            [
                (quantile("kvorum_storage_fsync_seconds", q=0.5), LEGEND + " p50"),
                (quantile("kvorum_storage_fsync_seconds"), LEGEND + " p99"),
            ],
            "s",
        ),
        Panel("Round trips to peers, p99", [(quantile("kvorum_raft_peer_rtt_seconds", "peer"), "{{peer}}")], "s"),
        Panel("Event loop lag, p99", [(quantile("kvorum_process_loop_lag_seconds"), LEGEND)], "s"),
        Panel(
            "Disk used",
            [(f"1 - kvorum_storage_disk_free_bytes{NODE} / kvorum_storage_disk_bytes{NODE}", LEGEND)],
            "percentunit",
        ),
        Panel("State", [(f"kvorum_storage_used_bytes{NODE}", LEGEND)], "bytes"),
        Panel("Log behind the newest checkpoint", [(f"kvorum_storage_replay_bytes{NODE}", LEGEND)], "bytes"),
        Panel("Bytes between peers", [(rate("kvorum_raft_peer_sent_bytes_total"), LEGEND)], "Bps"),
        Panel("CPU", [(rate("kvorum_process_cpu_seconds_total"), LEGEND)], "percentunit"),
        Panel("Memory", [(f"kvorum_process_resident_memory_bytes{NODE}", LEGEND)], "bytes"),
    ],
    "Queues": [
        Panel("Messages that are queued", [(f"topk(10, max by (queue) (kvorum_queue_queued{JOB}))", "{{queue}}")]),
        Panel("In consumers' hands", [(f"topk(10, max by (queue) (kvorum_queue_leased{JOB}))", "{{queue}}")]),
        Panel(
            "Age of the oldest",
            [(f"topk(10, max by (queue) (kvorum_queue_oldest_age_seconds{JOB}))", "{{queue}}")],
            "s",
        ),
        Panel("Sent/s", [(f"topk(10, {rate('kvorum_queue_enqueued_total', 'queue', JOB)})", "{{queue}}")], "ops"),
        Panel("Done/s", [(f"topk(10, {rate('kvorum_queue_acked_total', 'queue', JOB)})", "{{queue}}")], "ops"),
        Panel(
            "Failed and lost attempts/s",
            [
                (f"topk(10, {rate('kvorum_queue_retried_total', 'queue', JOB)})", "{{queue}} failed"),
                (f"topk(10, {rate('kvorum_queue_redeliveries_total', 'queue', JOB)})", "{{queue}} lost"),
            ],
            "ops",
        ),
        Panel("Delay of deliveries, p99", [(quantile("kvorum_queue_delivery_delay_seconds"), LEGEND)], "s"),
        Panel("Dead letters", [(f"topk(10, max by (queue) (kvorum_queue_dead{JOB}))", "{{queue}}")]),
        Panel("Consumers", [(f"topk(10, max by (queue) (kvorum_queue_consumers{JOB}))", "{{queue}}")]),
    ],
    "Trouble": [
        Panel("Clock offset", [(f"kvorum_raft_clock_offset_seconds{NODE}", LEGEND)], "s"),
        Panel(
            "Differing or rebuilt states",
            [
                (f"kvorum_raft_state_mismatches_total{NODE}", LEGEND + " differ"),
                (f"kvorum_storage_state_rebuilt{NODE}", LEGEND + " rebuilt"),
            ],
        ),
        Panel("Nonsense on the peer port/s", [(rate("kvorum_raft_peer_bad_inputs_total"), LEGEND)], "ops"),
    ],
}


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto", "refId": chr(ord("A") + at)}
        for at, (query, legend) in enumerate(panel.queries)
    ]
    height = HEIGHT if panel.kind == "timeseries" else HEIGHT // 2
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"h": height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if panel.title != "Clock offset" else None},
            "overrides": [],
        },
        "options": {},
        "targets": targets,
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y = 0
    for title, panels in ROWS.items():
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
            }
        )
        y += 1
        x = height = 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            made = _panel(len(found) + 1, panel, x, y)
            found.append(made)
            x, height = x + panel.width, made["gridPos"]["h"]
        y += height
    return found


def _variable(name: str, query: str, *, many: bool) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": many,
        "includeAll": many,
        "current": {"text": "All", "value": "$__all"} if many else {"text": "kvorum", "value": "kvorum"},
    }


def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    return {
        "uid": "kvorum",
        "title": "kvorum",
        "tags": ["kvorum"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                _variable("job", "label_values(kvorum_build_info, job)", many=False),
                _variable("instance", 'label_values(kvorum_build_info{job="$job"}, instance)', many=True),
            ]
        },
        "panels": _panels(),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    made = json.dumps(dashboard(), indent=1) + "\n"
    if not parser.parse_args().check:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(made)
    elif not FILE.exists() or FILE.read_text() != made:
        print(f"{FILE} is not what build.py says: run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
