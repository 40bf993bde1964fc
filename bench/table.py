"""Runs in pairs become lines: medians, ratios, and what each node used."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.sides import CLIENT
from bench.workloads import HEADLINES, WORKLOADS, Workload

KVORUM: Final = "kvorum"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one system: the median of its runs."""

    cpu_s: tuple[float, ...]
    """Of each server while it was measured, the busiest one of each run first: as a rule the leader."""
    client_cpu_s: float
    peak_mib: tuple[float, ...]
    """Largest resident set of each server, the largest first, mapped files included."""
    anonymous_mib: float
    """The same of the largest one, without them."""


@dataclass(frozen=True, slots=True)
class System:
    """What was found of one system."""

    value: float
    """In the workload's unit."""
    p50_ms: float
    p99_ms: float
    usage: Usage


@dataclass(frozen=True, slots=True)
class Line:
    """One workload with so many callers."""

    workload: Workload
    callers: int
    kvorum: System | None
    peer: System | None
    pairs: int
    ratio: float | None
    """kvorum's figure to the peer's, the median over the pairs; see `Workload.figure`."""
    seconds: float

    @property
    def better(self) -> bool | None:
        """Whether kvorum is at least as good."""
        if self.ratio is None:
            return None
        return self.ratio >= 1 if self.workload.figure == "rate" else self.ratio <= 1


def _usage(rows: Sequence[Row]) -> Usage:
    cpus = [_servers(row["cpu_s"]) for row in rows]
    memory = [{name: used["peak_mib"] for name, used in row["memory"].items()} for row in rows]
    own = [{name: used["anonymous_mib"] for name, used in row["memory"].items()} for row in rows]
    return Usage(
        tuple(statistics.median(place) for place in zip(*cpus, strict=True)),
        statistics.median(sum(cpu for name, cpu in row["cpu_s"].items() if _is_client(name)) for row in rows),
        tuple(max(place) for place in zip(*(_servers(used) or [used[CLIENT]] for used in memory), strict=True)),
        max(max(_servers(used) or [used[CLIENT]]) for used in own),
    )


def _servers(figures: dict[str, float]) -> list[float]:
    """Those of servers, the largest first; none where the client is its own server."""
    return sorted((figure for name, figure in figures.items() if not _is_client(name)), reverse=True)


def _is_client(name: str) -> bool:
    return name in (CLIENT, "producer", "consumer")


def _system(rows: Sequence[Row]) -> System | None:
    if not rows:
        return None
    value, p50, p99 = (statistics.median(row[what] for row in rows) for what in ("value", "p50_ms", "p99_ms"))
    return System(value, p50, p99, _usage(rows))


def ratio(rows: Iterable[Row], peer: str, figure: str) -> tuple[float | None, int]:
    """The median over the pairs, and their number. The two of a round ran side by side, under the same load."""
    rounds: dict[int, dict[str, float]] = {}
    for row in rows:
        rounds.setdefault(row["round"], {})[row["system"]] = row[figure]
    pairs = [found[KVORUM] / found[peer] for found in rounds.values() if found.get(KVORUM) and found.get(peer)]
    return (statistics.median(pairs) if pairs else None), len(pairs)


def lines(rows: Sequence[Row]) -> list[Line]:
    """In the order of the workloads."""
    found: list[Line] = []
    for workload in WORKLOADS.values():
        for callers in workload.callers:
            own = [row for row in rows if row["workload"] == workload.name and row["callers"] == callers]
            if own:
                found.append(_line(workload, callers, own))
    return found


def _line(workload: Workload, callers: int, rows: Sequence[Row]) -> Line:
    ours = _system([row for row in rows if row["system"] == KVORUM])
    theirs = _system([row for row in rows if row["system"] == workload.peer])
    relation, pairs = ratio(rows, workload.peer, workload.figure)
    return Line(workload, callers, ours, theirs, pairs, relation, rows[0]["seconds"])


def headlines(rows: Sequence[Row]) -> dict[str, float | None]:
    """The ratios that have names; None: not measured."""
    found: dict[str, float | None] = {}
    for name, (workload, callers, figure) in HEADLINES.items():
        own = [row for row in rows if row["workload"] == workload and row["callers"] == callers]
        found[name] = ratio(own, WORKLOADS[workload].peer, figure)[0]
    return found


# ---- text

COLUMNS: Final = ("", "kvorum", "peer", "ratio", "p50 ms", "p99 ms", "CPU s", "peak MiB", "durability of the peer")


LEGEND: Final = (
    "Of two figures with a bar, kvorum's is the first. CPU s: of each server, the busiest first, + of the client(s),"
    " while it was measured. Peak MiB: largest resident set of each server since it was started, mapped files included"
    " (and of the largest, memory of its own). Ratio: the median of so many pairs of runs."
)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _both(line: Line, show: Any) -> str:
    return " | ".join("–" if one is None else show(one) for one in (line.kvorum, line.peer))


def cells(line: Line) -> list[str]:
    """One row of the table; of figures with a bar kvorum's is the first. See `LEGEND`."""
    workload = line.workload

    def cpu(one: System) -> str:
        return " ".join(f"{each:.2f}" for each in one.usage.cpu_s) + f" + {one.usage.client_cpu_s:.2f}"

    def memory(one: System) -> str:
        return " ".join(f"{each:.0f}" for each in one.usage.peak_mib) + f" ({one.usage.anonymous_mib:.0f})"

    peer = "no peer"
    if workload.peer:
        peer = f"{workload.peer} " + (
            "not to be had" if line.peer is None else _amount(line.peer.value) + workload.unit
        )
    what = "" if workload.figure == "rate" else f" ({workload.figure.removesuffix('_ms')}, less is better)"
    return [
        f"{workload.name} @{line.callers}",
        "–" if line.kvorum is None else _amount(line.kvorum.value) + workload.unit,
        peer,
        "–" if line.ratio is None else f"{line.ratio:.2f} of {line.pairs}{what}",
        _both(line, lambda one: f"{one.p50_ms:.2f}"),
        _both(line, lambda one: f"{one.p99_ms:.2f}"),
        _both(line, cpu),
        _both(line, memory),
        workload.durability or "–",
    ]


def text(found: Sequence[Line]) -> str:
    """The table for a terminal."""
    rows = [list(COLUMNS), *(cells(line) for line in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*shown, LEGEND])
