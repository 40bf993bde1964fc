"""docs/performance.md and its plots, from the results of a run: no figure in it is written by hand."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench import plots, table
from bench.etcd_cluster import SETTINGS as ETCD
from bench.nats_cluster import SETTINGS as NATS
from bench.table import Line, System
from bench.workloads import WORKLOADS

PLOTS: Final = "performance"
GOOD_ROUNDS: Final = 5
QUIET: Final = 1.0
"""Load average before a run, at most, for figures that shall mean something."""
HEAD: Final = """# Performance

Made by `scripts/bench --docs`: change the source (`bench/page.py`), not this page. Every figure is measured, kvorum and
the other system in turn, in one run on one machine. `scripts/bench --quick` prints the headline ratios within a minute.
"""
METHOD: Final = """## Method

- **Both systems run all the time, and are measured in turn**: A B, B A, A B … A ratio is kvorum's figure to that of the
  run beside it, and the median over all pairs. What disturbs the machine disturbs both; compare figures of one run
  only.
- **Servers and clients share the machine**, over 127.0.0.1. So a rate is limited by the processor time that clients and
  all servers need together, and on a larger machine the figures differ.
- **Each system has its own usual client in Python**: aetcd, nats-py, and kvorum's own, in one process each, all with
  uvloop. A *caller* awaits its answer before it calls again; with 256 callers there are 256 calls in flight. The first
  half second (of queues: second) of a run does not count.
- **Data is on a disk**, never in memory; `scripts/bench` refuses a memory file system.
- **After each run that writes all nodes of kvorum are killed at once with SIGKILL**, started again, and what they have
  is compared with what had been acknowledged: each key must hold the value that was acknowledged last, or one that was
  written later; each sum at least what was added; and no acknowledged message may be there again. SIGKILL does not take
  what the kernel has already got: that an answer waits for the disk is tested by power cuts (`scripts/chaos --disks
  loop`).
- CPU seconds and memory are the kernel's account of each process (`/proc`).
"""
COSTS: Final = """## What sets the rates

Servers and clients share the cores, so a rate is at most what a call costs in processor time, all processes together.
Beside the ratio of the rates stands that of these costs: what the ratio would be if both systems kept all cores busy
all the time. The busiest server, as a rule the leader, comes first.
"""
COSTLY: Final = 64
"""Callers up to which the way of each call limits, and not processor time."""
GUARD: Final = """## What keeps it so

`tests/unit/bench` counts what the interpreter does for one operation (instructions of its bytecode, and calls) in the
codec, in applying an entry and in making and reading frames, and fails when that grows by a quarter. Counts do not
depend on the machine, nor on what else it does. `python -m bench.costs` shows them, `--record` accepts them.
"""
MEANING: Final = {
    "set_256_vs_etcd": "sets a second, 256 callers, to etcd's",
    "get_256_vs_etcd": "linearizable gets a second, 256 callers, to etcd's",
    "set_1_p50_vs_etcd": "median time of a set, 1 caller, to etcd's (less is better)",
    "mixed_256_vs_etcd": "90 % gets, 10 % sets a second, 256 callers, to etcd's",
    "queue_vs_jetstream": "messages a second, sent, handled and acknowledged one by one, 256 in flight, to JetStream's",
}
PARTS: Final = (
    ("Keys and values", ("keys",), "Three nodes."),
    ("Queues", ("queue",), "Three nodes; one process sends, one handles. " + NATS),
    (
        "Deno",
        ("deno",),
        "The same Deno program with three nodes, over KV Connect with one of them (whichever leads at first), and with"
        " Deno's own file.",
    ),
    (
        "Number of nodes",
        ("nodes-1", "nodes-3", "nodes-5"),
        "All on the same machine, which more nodes do not make faster.",
    ),
    ("Number of keys", ("keys-10k", "keys-1M", "keys-5M"), "So many keys are there, and are written in turn."),
)


def _table(rows: Sequence[Sequence[str]]) -> str:
    def shown(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"

    return shown(rows[0]) + shown(["---"] * len(rows[0])) + "".join(shown(row) for row in rows[1:])


def _summary(found: dict[str, Any]) -> str:
    rows = [["ratio", "", "what"]]
    for name, value in table.headlines(found["rows"]).items():
        rows.append([f"`{name}`", "not measured" if value is None else f"{value:.2f}", MEANING[name]])
    return _table(rows)


def _conditions(found: dict[str, Any]) -> str:
    machine = found["machine"]
    numbers = {name: re.search(r"\d+(\.\d+)+", what) for name, what in found["versions"].items()}
    versions = ", ".join(f"{name} {number[0]}" for name, number in numbers.items() if number)
    missing = "".join(
        f"\nNot to be had, and so not measured: {name} ({why}).\n" for name, why in found["missing"].items()
    )
    pairs = f"{found['rounds']} pair" + "s" * (found["rounds"] != 1)
    return (
        f"{_trial(found)}Measured on {found['made']}: {machine['cores']} cores ({machine['cpu']}),"
        f" {machine['memory_gib']} GiB, Linux"
        f" {machine['kernel']}, Python {machine['python']}; an fdatasync of 512 bytes takes"
        f" {machine['fdatasync_p50_ms']} ms (median); load of the machine before it began:"
        f" {machine['load_at_start']:.1f}. Runs of"
        f" {found['seconds']:g} s, {pairs}. The whole took {found['took_s'] / 60:.0f} minutes."
        f"\n\nBeside it: {versions or 'nothing'}.\n{missing}"
    )


def _trial(found: dict[str, Any]) -> str:
    """Why these figures are not to be relied on; empty if they are."""
    reasons = []
    if found["rounds"] < GOOD_ROUNDS:
        reasons.append(f"of fewer than {GOOD_ROUNDS} pairs")
    if found["machine"]["load_at_start"] > QUIET:
        reasons.append("on a machine that was busy with other work")
    return f"**A trial of the tool, {' and '.join(reasons)}: not to be relied on.** " if reasons else ""


def _losing(lines: Sequence[Line]) -> str:
    """Where the others are better, all of it."""
    worse = [line for line in lines if line.better is False]
    if not worse:
        return "Nowhere in this run.\n"
    parts = []
    for line in worse:
        what = {"rate": "rate", "p50_ms": "median time", "p99_ms": "99th percentile"}[line.workload.figure]
        parts.append(
            f"- **{line.workload.title}**, {_callers(line)}: {what} {line.ratio:.2f} of {line.workload.peer}'s"
            f" (durability of {line.workload.peer}, against kvorum's: {line.workload.durability}).\n"
        )
    return "".join(parts)


def _callers(line: Line) -> str:
    if line.workload.part == "queue":
        return f"{line.callers:,} in flight"
    return f"{line.callers:,} caller" + "s" * (line.callers != 1)


def _part(lines: Sequence[Line], parts: Sequence[str], intro: str, title: str) -> str:
    own = [line for line in lines if line.workload.part in parts]
    if not own:
        return f"## {title}\n\nNot measured in this run.\n"
    notes = {line.workload.name: line.workload.note for line in own if line.workload.note}
    titles = {line.workload.name: line.workload.title for line in own}
    words = "".join(f"- `{name}`: {what}. {notes.get(name, '')}".rstrip() + "\n" for name, what in titles.items())
    return f"## {title}\n\n{intro}\n\n{_table([table.COLUMNS, *(table.cells(line) for line in own)])}\n{words}"


def _costs(lines: Sequence[Line], cores: int) -> str:
    """What a call costs each system, of those workloads that are limited by it."""
    rows = [["", "CPU of a call, µs: servers + client(s)", "in all, µs", "share of the cores", "ratio", "of costs"]]
    for line in lines:
        ours, theirs = line.kvorum, line.peer
        if ours is None or theirs is None or line.workload.figure != "rate" or line.callers <= COSTLY:
            continue
        costs = [_cost(line, one) for one in (ours, theirs)]
        sums = [sum(servers) + clients for servers, clients in costs]
        if not all(sums):
            continue
        shares = [
            cost * 1e-6 * one.value / line.workload.per_call / cores
            for cost, one in zip(sums, (ours, theirs), strict=True)
        ]
        rows.append(
            [
                f"{line.workload.name} @{line.callers}",
                " | ".join(" ".join(f"{each:,.0f}" for each in servers) + f" + {own:,.0f}" for servers, own in costs),
                " | ".join(f"{cost:,.0f}" for cost in sums),
                " | ".join(f"{100 * share:.0f} %" for share in shares),
                "–" if line.ratio is None else f"{line.ratio:.2f}",
                f"{sums[1] / sums[0]:.2f}",
            ]
        )
    return COSTS + "\n" + (_table(rows) if len(rows) > 1 else "Not measured in this run.\n")


def _cost(line: Line, one: System) -> tuple[list[float], float]:
    """Microseconds of processor time that one call takes: each server's, and the clients'."""
    calls = one.value / line.workload.per_call * line.seconds
    return [1e6 * cpu / calls for cpu in one.usage.cpu_s], 1e6 * one.usage.client_cpu_s / calls


def _crashes(found: dict[str, Any]) -> str:
    crashes = found["crashes"]
    writes, keys, there = (sum(row[name] for row in crashes) for name in ("writes", "keys", "there"))
    return (
        f"All nodes were killed {len(crashes)} times, after {writes:,} acknowledged writes in all. Of {keys:,} keys,"
        f" sums and messages that were looked at, {there:,} were as acknowledged or newer; {keys - there:,} were not.\n"
    )


def _restarts(found: dict[str, Any]) -> str:
    rows = [["keys", "system", "all servers killed: until a read is answered, s", "one node: until it follows, s"]]
    for row in found["restarts"]:
        rows.append(
            [row["workload"], row["system"], f"{row['all_s']:.2f}", f"{row['one_s']:.2f}" if "one_s" in row else "–"]
        )
    return _table(rows) if len(rows) > 1 else "Not measured in this run.\n"


def _failures(found: dict[str, Any]) -> str:
    if not found["failures"]:
        return ""
    return "## What failed\n\n" + "".join(f"- {failure}\n" for failure in found["failures"]) + "\n"


def render(found: dict[str, Any]) -> str:
    """The page."""
    lines = table.lines(found["rows"])
    sections = [
        HEAD,
        _summary(found),
        f"![ratios]({PLOTS}/ratios.svg)\n",
        _conditions(found),
        f"## Where others are better\n\n{_losing(lines)}",
        METHOD + f"- etcd: {ETCD}\n",
        f"In the tables: {table.LEGEND}\n",
    ]
    for title, parts, intro in PARTS:
        sections.append(_part(lines, parts, intro, title))
        if parts == ("keys",):
            sections.append(f"![sets and gets a second]({PLOTS}/rates.svg)\n\n![latencies]({PLOTS}/latencies.svg)\n")
    sections.append(_costs(lines, found["machine"]["cores"]))
    sections += [f"## After a kill\n\n{_crashes(found)}", f"## Restarts\n\n{_restarts(found)}", _failures(found), GUARD]
    return "\n".join(section for section in sections if section)


def pictures(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each plot."""
    lines = {(line.workload.name, line.callers): line for line in table.lines(found["rows"])}
    callers = WORKLOADS["set"].callers
    for file, title, up, what in (
        ("rates", "Calls a second by number of callers", "1/s", "value"),
        ("latencies", "Median time of a call by number of callers", "ms", "p50_ms"),
    ):
        series: list[plots.Series] = []
        for name in ("set", "get"):
            for system in ("kvorum", "peer"):
                row = [getattr(getattr(lines.get((name, count)), system, None), what, None) for count in callers]
                series.append((f"{name}, {'etcd' if system == 'peer' else system}", row))
        yield f"{file}.svg", plots.curves(title, [f"{count:,}" for count in callers], series, "callers", up)
    bars = [
        (f"{name} @{count}", line.ratio if line.workload.figure == "rate" else 1 / line.ratio)
        for (name, count), line in lines.items()
        if line.ratio
    ]
    yield (
        "ratios.svg",
        plots.ratios(
            "kvorum to its peer, with so many callers (of times the reciprocal)",
            bars,
            "peer is faster",
            "kvorum is faster",
        ),
    )


def write(found: dict[str, Any], docs: Path) -> None:
    """The page, and its plots beside it."""
    (docs / PLOTS).mkdir(exist_ok=True)
    (docs / "performance.md").write_text(render(found))
    for name, text in pictures(found):
        (docs / PLOTS / name).write_text(text)
