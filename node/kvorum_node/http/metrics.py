"""/metrics: what `status` and `statistics` tell, in Prometheus' text format; on the leader also how queues stand.

A collector of our own in a registry of our own: figures are taken when they are asked for, nothing is counted twice.
Queues are shown as they were at the leader's last look, a few seconds ago: the largest ones each, all together in
sums. Other nodes show none, so that a sum over nodes counts each message once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvorum._proto import kvorum_pb2 as pb
from kvorum_raft.seams import Status

from .message import Response

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "kvorum_"
MAX_QUEUES: Final = 100
"""Queues that are shown each: those with the most messages, dead letters included."""
_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")


class Figures(Collector):
    """`status` is the consensus layer's, `statistics` those of all parts of the node, `queues` what the leader has seen
    of them, `now_ms` the cluster's time."""

    def __init__(
        self,
        status: Callable[[], Status],
        statistics: Callable[[], Mapping[str, float]],
        *,
        queues: Callable[[], Sequence[pb.QueueInfo]] = tuple,
        now_ms: Callable[[], int] = int,
    ) -> None:
        self._status = status
        self._statistics = statistics
        self._queues = queues
        self._now_ms = now_ms

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
        queues = self._queues()
        if queues:
            yield from _sums(queues)
            largest = sorted(queues, key=lambda info: (-info.messages - info.dead, info.name))[:MAX_QUEUES]
            yield from _each(largest, self._now_ms())


def _sums(queues: Sequence[pb.QueueInfo]) -> Iterator[Metric]:
    for name, what in (("messages", "messages, dead letters aside"), ("dead", "dead letters")):
        total = sum(getattr(info, name) for info in queues)
        yield GaugeMetricFamily(f"{PREFIX}queues_{name}", f"{what}, of all queues", value=total)
    for name, what in _COUNTERS:
        total = sum(getattr(info, name) for info in queues)
        yield CounterMetricFamily(f"{PREFIX}queues_{name}", f"{what}, of all queues", value=total)


_COUNTERS: Final = (
    ("sent", "messages sent"),
    ("done", "messages acknowledged, or handed out at most once"),
    ("failed", "attempts that failed"),
)


def _each(queues: Sequence[pb.QueueInfo], now_ms: int) -> Iterator[Metric]:
    messages = GaugeMetricFamily(
        PREFIX + "queue_messages", "messages of a queue, dead letters aside", labels=("queue", "state")
    )
    dead = GaugeMetricFamily(PREFIX + "queue_dead", "dead letters of a queue", labels=("queue",))
    age = GaugeMetricFamily(
        PREFIX + "queue_oldest_age_seconds", "for how long the first ready message has been due", labels=("queue",)
    )
    consumers = GaugeMetricFamily(
        PREFIX + "queue_connected_consumers", "consumers of a queue that are connected", labels=("queue",)
    )
    for info in queues:
        messages.add_metric((info.name, "leased"), info.leased)
        messages.add_metric((info.name, "queued"), info.messages - info.leased)
        dead.add_metric((info.name,), info.dead)
        age.add_metric((info.name,), max(0, now_ms - info.oldest_ms) / 1000 if info.oldest_ms else 0.0)
        consumers.add_metric((info.name,), info.consumers)
    yield from (messages, dead, age, consumers)
    for name, what in _COUNTERS:
        family = CounterMetricFamily(f"{PREFIX}queue_{name}", f"{what}, of a queue", labels=("queue",))
        for info in queues:
            family.add_metric((info.name,), getattr(info, name))
        yield family


class Metrics:
    """The page."""

    def __init__(self, figures: Figures) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(figures)

    def page(self) -> Response:
        """All of it."""
        return Response(200, CONTENT_TYPE, (generate_latest(self._registry),))
