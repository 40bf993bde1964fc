"""/metrics: what `status` and `statistics` tell, in Prometheus' text format.

A collector of our own in a registry of our own: figures are taken when they are asked for, nothing is counted twice.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvorum_raft.seams import Status

from .message import Response

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "kvorum_"
_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")


class Figures(Collector):
    """`status` is the consensus layer's, `statistics` those of all parts of the node."""

    def __init__(self, status: Callable[[], Status], statistics: Callable[[], Mapping[str, float]]) -> None:
        self._status = status
        self._statistics = statistics

    def collect(self) -> Iterable[Metric]:
        """One gauge for each figure."""
        status = self._status()
        figures: dict[str, float] = {
            **status.statistics,
            **self._statistics(),
            "term": status.term,
            "is_leader": status.role == "leader",
            "leader_known": status.leader is not None,
            "commit_index": status.commit_index,
            "applied_index": status.applied_index,
            "last_log_index": status.last_log_index,
            "durable_index": status.durable_index,
            "peers_connected": sum(peer.connected for peer in status.peers),
        }
        for name, value in sorted(figures.items()):
            yield GaugeMetricFamily(PREFIX + _ODD.sub("_", name), name.replace("_", " "), value=float(value))


class Metrics:
    """The page."""

    def __init__(self, figures: Figures) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(figures)

    def page(self) -> Response:
        """All of it."""
        return Response(200, CONTENT_TYPE, (generate_latest(self._registry),))
