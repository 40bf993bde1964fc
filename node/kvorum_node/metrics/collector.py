"""A node's figures as Prometheus' metrics, by the table.

A collector of our own in a registry of our own: figures are taken when they are asked for, nothing is counted twice.
Queues are shown as they were at the leader's last look, a few seconds ago: the largest ones each, all together in
sums. Other nodes show none, so that a sum over nodes counts each message once.
"""

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvorum._proto import kvorum_pb2 as pb
from kvorum._version import __version__
from kvorum_raft.histogram import Histogram
from kvorum_raft.seams import Status

from ..store import DATA_VERSION
from .table import DEBUG, FAMILIES, PREFIX, Family

MAX_QUEUES: Final = 100
"""Queues that are shown each: those with the most messages, dead letters included."""
_ODD: Final = re.compile(r"[^a-zA-Z0-9_]")

Labels = tuple[str, ...]
"""The values of a family's labels."""
Histograms = Mapping[str, Mapping[Labels, Histogram]]
"""By family, then by the values of its labels."""
Counts = Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where figures come from; each is asked once for a page."""

    status: Callable[[], Status]
    statistics: Callable[[], Mapping[str, float]] = dict
    """Of all parts of the node but the consensus layer."""
    histograms: Callable[[], Histograms] = dict
    counts: Callable[[], Counts] = dict
    """Counters that have labels."""
    queues: Callable[[], Sequence[pb.QueueInfo]] = tuple
    """What the leader has seen of them."""
    now_ms: Callable[[], int] = int
    """The cluster's time."""


class NodeCollector(Collector):
    """See the module."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        """In the order of the table, then what it does not name."""
        sources = self._sources
        status = sources.status()
        figures = _figures(status, sources.statistics())
        shown: set[str] = set()
        for family in FAMILIES.values():
            if family.source:
                names = family.source.split("+")
                shown.update(names)
                if all(name in figures for name in names):
                    yield _single(family, sum(figures[name] for name in names) * family.factor)
        for name, counts in sources.counts().items():
            yield _labelled(name, counts.items())
        for name, histograms in {**_raft_histograms(status), **sources.histograms()}.items():
            yield _histogram(name, histograms)
        yield from _peers(status)
        yield _labelled("build_info", {(__version__, platform.python_version(), str(DATA_VERSION)): 1}.items())
        queues = sources.queues()
        if queues:
            yield from _sums(queues)
            largest = sorted(queues, key=lambda info: (-info.messages - info.dead, info.name))[:MAX_QUEUES]
            yield from _each(largest, sources.now_ms())
        yield from _debug(figures, shown)


class _Taken(Collector):
    """What was collected already."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterable[Metric]:
        return ()  # no look for names that are there twice: there is one collector


def written(metrics: Sequence[Metric]) -> bytes:
    """The page, with the metrics of this process. Not for the event loop: a thousand lines take some milliseconds, and
    so do a thousand open files."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Taken(metrics))
    ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
    return generate_latest(registry)


def _figures(status: Status, statistics: Mapping[str, float]) -> dict[str, float]:
    return {
        "status.has_leader": status.leader is not None,
        "status.is_leader": status.role == "leader",
        "status.term": status.term,
        "status.commit_index": status.commit_index,
        "status.applied_index": status.applied_index,
        "status.last_log_index": status.last_log_index,
        "status.durable_index": status.durable_index,
        "status.members": len(status.peers) + (status.own is not None),
        **{f"raft.{name}": value for name, value in status.statistics.items()},
        **{f"node.{name}": value for name, value in statistics.items()},
    }


def _debug(figures: Mapping[str, float], shown: set[str]) -> Iterator[Metric]:
    """What has no good name yet. Two parts may have a figure of one name: the node's is the more telling one."""
    known = {name.partition(".")[2] for name in shown if name.startswith("status.")}
    found: dict[str, float] = {}
    for name in sorted(figures):  # node, raft, status: the first one stays
        short = name.partition(".")[2]
        if name not in shown and short not in known:
            found.setdefault(short, figures[name])
    for name, value in sorted(found.items()):
        yield GaugeMetricFamily(PREFIX + DEBUG + _ODD.sub("_", name), f"{name}, not stable", value=float(value))


def _single(family: Family, value: float) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + family.name, family.help, value=float(value))


def _labelled(name: str, values: Iterable[tuple[Labels, float]]) -> Metric:
    family = FAMILIES[name]
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    made = kind(PREFIX + name, family.help, labels=family.labels)
    for labels, value in values:
        made.add_metric(labels, float(value))
    return made


def _histogram(name: str, histograms: Mapping[Labels, Histogram]) -> Metric:
    family = FAMILIES[name]
    made = HistogramMetricFamily(PREFIX + name, family.help, labels=family.labels)
    for labels, histogram in histograms.items():
        total = histogram.sum  # before the counts, so that it never holds more than they do
        made.add_metric(labels, [(_end(end), count) for end, count in histogram.buckets()], total)
    return made


def _end(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)


def _raft_histograms(status: Status) -> dict[str, Mapping[Labels, Histogram]]:
    found: dict[str, Mapping[Labels, Histogram]] = {name: {(): one} for name, one in status.histograms.items()}
    trips: dict[Labels, Histogram] = {
        (peer.member.node_id,): peer.round_trip for peer in status.peers if peer.round_trip is not None
    }
    return {**found, "raft_peer_rtt_seconds": trips} if trips else found


def _peers(status: Status) -> Iterator[Metric]:
    if not status.peers:
        return
    yield _labelled("raft_peer_connected", {(peer.member.node_id,): peer.connected for peer in status.peers}.items())
    if status.role == "leader":
        lags = {(peer.member.node_id,): max(0, status.last_log_index - peer.match_index) for peer in status.peers}
        yield _labelled("raft_follower_lag_entries", lags.items())


_TALLIES: Final = (
    ("queue_enqueued", "sent"),
    ("queue_acked", "done"),
    ("queue_retried", "failed"),
    ("queue_redeliveries", "lost"),
    ("queue_died", "died"),
)


def _sums(queues: Sequence[pb.QueueInfo]) -> Iterator[Metric]:
    for name, what in (
        ("queue_all_messages", "messages"),
        ("queue_all_dead", "dead"),
        ("queue_all_enqueued", "sent"),
        ("queue_all_acked", "done"),
        ("queue_all_retried", "failed"),
    ):
        yield _labelled(name, {(): sum(getattr(info, what) for info in queues)}.items())


def _each(queues: Sequence[pb.QueueInfo], now_ms: int) -> Iterator[Metric]:
    yield _labelled("queue_queued", {(info.name,): info.messages - info.leased for info in queues}.items())
    yield _labelled("queue_leased", {(info.name,): info.leased for info in queues}.items())
    yield _labelled("queue_dead", {(info.name,): info.dead for info in queues}.items())
    ages = {(info.name,): max(0, now_ms - info.oldest_ms) / 1000 if info.oldest_ms else 0.0 for info in queues}
    yield _labelled("queue_oldest_age_seconds", ages.items())
    yield _labelled("queue_consumers", {(info.name,): info.consumers for info in queues}.items())
    for name, what in _TALLIES:
        yield _labelled(name, {(info.name,): getattr(info, what) for info in queues}.items())
