"""Writes docs/metrics.md from the table of metrics; `--check` only compares. Run as `scripts/metrics`."""

from pathlib import Path

from kvorum_node.metrics.table import SECTIONS
from kvorum_raft.histogram import SECONDS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = f"""# Metrics

Made by `scripts/metrics` from `kvorum_node.metrics.table`: change the table, not this page.

Each node shows its own at `GET /metrics` on its HTTP port, in Prometheus' text format, without a token. Names, types,
labels and units of this page are kept from version to version. What is named `kvorum_debug_…` is not: those figures are
for whoever looks into a node, and come and go with the code. `deploy/prometheus` has a configuration and alert rules,
`deploy/grafana` a dashboard.

Counters count since the node's start, but for those of queues, which are part of the replicated state. Times are
seconds, sizes bytes. Histograms have `_bucket`, `_sum` and `_count`, with buckets that end at
{", ".join(f"{end:g}" for end in SECONDS)} seconds. Labels: `peer` is a member's id; `op`, `code` and `route` have few
values each; `queue` has at most 100.

What happens often is counted where it happens together: the writes of one frame, or the reads, were waited for
together and so have one duration, which counts for each of them.
"""


def page() -> str:
    """The whole of docs/metrics.md."""
    parts = [HEAD]
    for heading, families in SECTIONS.items():
        parts.append(f"\n## {heading}\n\n| name | type | labels | |\n| --- | --- | --- | --- |\n")
        for family in families:
            labels = ", ".join(f"`{label}`" for label in family.labels)
            text = family.help + (f" ({family.optional})" if family.optional else "")
            parts.append(f"| `{family.shown}` | {family.kind} | {labels} | {text} |\n")
    return "".join(parts)


if __name__ == "__main__":
    from _page import write

    write(PAGE, page(), "kvorum_node.metrics.table says", "scripts/metrics")
