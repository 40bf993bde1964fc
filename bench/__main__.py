"""kvorum beside what people would pick instead: `scripts/bench [--quick]`. See docs/performance.md for the method."""

import argparse
import contextlib
import json
import math
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import page, pairs, peers, table
from bench.peers import CACHE, ROOT
from bench.raft_micro import on_memory
from bench.workloads import HEADLINES, OPTIONAL, PEERS, QUICK, WORKLOADS

QUICK_SECONDS: Final = 0.8
QUICK_ROUNDS: Final = 3
QUICK_LIMIT: Final = 32.0
"""Seconds after which a quick run begins no further rounds; what is left then takes up to 25 more."""


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Errors: SystemExit."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the headline ratios, within 60 s once the peers are there"
    )
    parser.add_argument("--workloads", default="", help=f"some only, with commas: {', '.join(WORKLOADS)}")
    parser.add_argument("--callers", default="", help="with so many callers only, e.g. 1,256")
    parser.add_argument("--seconds", type=float, help="of each run (default 2)")
    parser.add_argument("--rounds", type=int, help="pairs of runs (default 5)")
    parser.add_argument("--limit", type=float, help="seconds after which only first rounds are begun")
    parser.add_argument("--only", action="store_true", help="kvorum alone, without its peers")
    parser.add_argument(
        "--dir", type=Path, default=ROOT, help="parent of the data, on a real disk (default: the project)"
    )
    parser.add_argument("--json", type=Path, help=f"the results (default: a new file in {CACHE}/results)")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md and its pictures from this run")
    parser.add_argument("--from", dest="results", type=Path, help="with --docs: from the results of an earlier run")
    options = parser.parse_args(arguments)
    if options.results and not options.docs:
        parser.error("--from needs --docs")
    if unknown := set(filter(None, options.workloads.split(","))) - WORKLOADS.keys():
        parser.error(f"unknown workloads: {', '.join(sorted(unknown))}")
    if on_memory(options.dir):
        parser.error(f"{options.dir} is on a memory file system, where a sync costs nothing: choose a folder on a disk")
    return options


def points_of(options: argparse.Namespace) -> list[pairs.Point]:
    """What is asked for."""
    if options.quick and not options.workloads:
        return [(WORKLOADS[name], callers) for name, callers in QUICK]
    names = options.workloads.split(",") if options.workloads else [name for name in WORKLOADS if name not in OPTIONAL]
    wanted = {int(part) for part in options.callers.split(",")} if options.callers else None
    return [
        (WORKLOADS[name], callers)
        for name in names
        for callers in WORKLOADS[name].callers
        if wanted is None or callers in wanted
    ]


def machine(folder: Path) -> dict[str, Any]:
    """Where it ran, and how fast that syncs: most of a write's time with one caller."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(200):
            file.write(bytes(512))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return {
        "cores": os.cpu_count(),
        "cpu": found[1].strip() if found else platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "fdatasync_p50_ms": round(sorted(times)[100] * 1e3, 3),
        "load_at_start": os.getloadavg()[0],
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for, as it is written to the file."""
    points = points_of(options)
    needed = sorted({name for one, _ in points if one.peer and not options.only for name in PEERS[one.peer]})
    begun = time.monotonic()
    found = peers.install(needed) if needed else peers.Peers()
    if options.only:
        found.missing = dict.fromkeys(peers.NAMES, "left out by --only")
    installing = time.monotonic() - begun
    for name, why in found.missing.items():
        print(f"peer not to be had: {name}: {why}", flush=True)
    begun = time.monotonic()
    seconds = options.seconds or (QUICK_SECONDS if options.quick else 2.0)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else 5)
    results = pairs.Results()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-", dir=options.dir, ignore_cleanup_errors=True) as folder:
        facts = machine(Path(folder))
        print(json.dumps(facts), flush=True)
        until = begun + (options.limit or (QUICK_LIMIT if options.quick else math.inf))
        try:
            pairs.run(pairs.Plan(Path(folder), found, rounds, seconds, results, not options.quick, until), points)
        except KeyboardInterrupt:  # what was measured until then is worth having
            results.failures.append("interrupted: the rest was not measured")
    return {
        "made": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": facts,
        "versions": peers.versions(found),
        "missing": found.missing,
        "seconds": seconds,
        "rounds": rounds,
        "took_s": round(time.monotonic() - begun, 1),
        "installing_s": round(installing, 1),
        "rows": results.rows,
        "crashes": results.crashes,
        "restarts": results.restarts,
        "failures": results.failures,
    }


def report(found: dict[str, Any]) -> None:
    """The table, what was lost, and the headlines."""
    print("\n" + table.text(table.lines(found["rows"])))
    writes, keys, there = (sum(row[name] for row in found["crashes"]) for name in ("writes", "keys", "there"))
    print(
        f"\n{len(found['crashes'])} times all nodes were killed (-9), after {writes:,} acknowledged writes in all:"
        f" {there:,} of {keys:,} keys and messages were as acknowledged, or newer"
    )
    for row in found["restarts"]:
        print(f"restart: {json.dumps(row)}")
    for name, why in found["missing"].items():
        print(f"peer not to be had: {name}: {why}")
    for failure in found["failures"]:
        print(f"FAILED {failure}")
    for name, value in table.headlines(found["rows"]).items():
        if value is not None:
            print(f"ratio {name} {value:.2f}")
        elif any(row["workload"] == HEADLINES[name][0] for row in found["rows"]):
            print(f"ratio {name} missing")
    print(f"took {found['took_s']} s, and {found['installing_s']} s to look for the peers")


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 if something failed, or an acknowledged write was missing."""
    options = options_of(arguments)
    if options.results:
        found = json.loads(options.results.read_text())
    else:
        with contextlib.suppress(BrokenPipeError):
            print("kvorum beside its peers, each run in turn on this machine", flush=True)
        found = measured(options)
        file = options.json or CACHE / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        report(found)
        print(f"written: {file}")
    if options.docs:
        page.write(found, ROOT / "docs")
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
