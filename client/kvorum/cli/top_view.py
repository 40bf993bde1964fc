"""What `kvorum top` shows, made of two looks at a cluster. No I/O: this is data in, data out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import kvorum
from kvorum._proto import kvorum_pb2 as pb

RATES: Final[Mapping[str, str]] = {
    "commits_per_s": "proposer_commits",
    "entries_per_s": "proposer_entries",
    "reads_per_s": "reads_served",
    "lists_per_s": "lists_served",
    "log_syncs_per_s": "log_transactions",
    "messages_per_s": "queue_granted",
    "http_reads_per_s": "kv_connect_reads",
    "http_writes_per_s": "kv_connect_writes",
}
"""Rate → the counter that it is made of, summed over the nodes."""
_GAUGES: Final[Mapping[str, str]] = {
    "keys": "keys",
    "messages": "messages",
    "clients": "sessions_connected",
    "disk_free_bytes": "disk_free_bytes",
    "loop_lag_worst": "loop_lag_worst",
}
"""Figures of a node, as they are."""


@dataclass(frozen=True)
class Look:
    """`at` is monotonic seconds; `nodes` has an answer, or why there was none, for each address; `queues` is None if
    they could not be asked for."""

    at: float
    nodes: Mapping[str, pb.StatusResponse | str]
    queues: Sequence[kvorum.QueueStats] | None

    @property
    def answers(self) -> list[pb.StatusResponse]:
        return [answer for answer in self.nodes.values() if isinstance(answer, pb.StatusResponse)]


@dataclass(frozen=True)
class NodeRow:
    """One node; `lag` are entries of the newest commit that it has not applied. Rates are those of the node alone."""

    address: str
    node: str
    role: str
    term: int
    applied: int
    lag: int
    rates: Mapping[str, float]
    figures: Mapping[str, float]
    version: str
    problem: str = ""


@dataclass(frozen=True)
class View:
    """All of it."""

    leader: str
    term: int
    rows: Sequence[NodeRow]
    rates: Mapping[str, float]
    queues: Sequence[kvorum.QueueStats] | None


def view(before: Look | None, now: Look) -> View:
    """`before`: the look to take rates from; a node that has started anew meanwhile counts from its start."""
    answers = now.answers
    newest = max((answer.commit_index for answer in answers), default=0)
    leading = max((answer for answer in answers if answer.leader.node_id), key=lambda answer: answer.term, default=None)
    rows = [_row(address, before, now, newest) for address in now.nodes]
    rates = {name: sum(row.rates.get(name, 0.0) for row in rows) for name in RATES}
    leader, term = (leading.leader.node_id, leading.term) if leading is not None else ("", 0)
    return View(leader, term, rows, rates, now.queues)


def _row(address: str, before: Look | None, now: Look, newest: int) -> NodeRow:
    answer = now.nodes[address]
    if isinstance(answer, str):
        return NodeRow(address, "?", "no answer", 0, 0, 0, {}, {}, "", answer)
    earlier = None if before is None else before.nodes.get(address)
    return NodeRow(
        address,
        answer.node_id,
        answer.role,
        answer.term,
        answer.applied_index,
        max(0, newest - answer.applied_index),
        _rates(earlier, answer, now.at - (before.at if before is not None else now.at)),
        {name: answer.statistics[figure] for name, figure in _GAUGES.items() if figure in answer.statistics},
        answer.version,
    )


def _rates(earlier: pb.StatusResponse | str | None, answer: pb.StatusResponse, seconds: float) -> dict[str, float]:
    if not isinstance(earlier, pb.StatusResponse) or seconds <= 0:
        return {}
    rates = {}
    for name, counter in RATES.items():
        if counter in answer.statistics:
            past, present = earlier.statistics.get(counter, 0.0), answer.statistics[counter]
            # A counter that is smaller than it was began anew.
            rates[name] = (present - past if present >= past else present) / seconds
    return rates


def as_json(shown: View, queue_json: Callable[[kvorum.QueueStats], object]) -> dict[str, object]:
    """The view as JSON data."""
    return {
        "leader": shown.leader or None,
        "term": shown.term,
        "rates": {name: round(rate, 1) for name, rate in shown.rates.items()},
        "nodes": [
            {"address": row.address, "error": row.problem}
            if row.problem
            else {
                "address": row.address,
                "node": row.node,
                "role": row.role,
                "term": row.term,
                "applied_index": row.applied,
                "lag": row.lag,
                "version": row.version,
                "rates": {name: round(rate, 1) for name, rate in row.rates.items()},
                **row.figures,
            }
            for row in shown.rows
        ],
        "queues": None if shown.queues is None else [queue_json(stats) for stats in shown.queues],
    }
