"""Runs a trial: `python -m chaos [--seconds 60] [--seed 0] [--faults kill,leader,majority,all,pause]`."""

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from .nemesis import FAULTS, parse_faults
from .trial import Options, Report, log_to, trial


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Attacks three nodes, and judges what clients saw.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults may begin (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="for all choices (default: from the clock)")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"some of {','.join(FAULTS)} (default: all)")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--lanes", type=int, default=4, help="sequential callers of each client")
    parser.add_argument("--visitors", type=int, default=2, help="callers that open a client of their own now and then")
    parser.add_argument("--operations", type=int, default=100_000, help="calls at most")
    parser.add_argument("--most-faults", type=int, default=1_000, help="faults at most")
    parser.add_argument("--dir", type=Path, default=None, help="where the folder of the run is made")
    parser.add_argument("--keep", action="store_true", help="keep the folder after a success too")
    options = parser.parse_args(arguments)
    try:
        options.faults = parse_faults(options.faults)
    except ValueError as error:
        parser.error(str(error))
    if (
        options.seconds <= 0
        or options.visitors < 0
        or min(options.clients, options.lanes, options.operations, options.most_faults) < 1
    ):
        parser.error("numbers must be positive")
    return options


def _run(running: Coroutine[Any, Any, Report]) -> Report:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(running)
    return uvloop.run(running)


def _show(report: Report) -> None:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.kinds.items()))
    figures = ", ".join(
        f"{name} {report.figures[name]}"
        for name in ("reconnects", "failed_connections", "sessions", "redeliveries", "duplicate_deliveries")
    )
    print(f"operations by kind: {kinds}")
    print(f"clients: {figures}")
    print(f"whole again after at most {report.slowest:.1f} s; judged in {report.judging:.1f} s")
    for problem in report.problems:
        print(f"problem: {problem}")


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns 0 if nothing is wrong, else 1."""
    options = _parse(arguments)
    seed = time.time_ns() % 1_000_000 if options.seed is None else options.seed
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"kvorum-chaos-{seed}-", dir=options.dir))
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.2f}  {line}", flush=True)

    # The nodes are processes of their own: whoever ends this must leave it the time to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say(f"seed {seed}, folder {folder}")
    logging_handler = log_to(folder / "clients.log")
    try:
        report = _run(
            trial(
                Options(
                    folder=folder,
                    seconds=options.seconds,
                    seed=seed,
                    faults=options.faults,
                    clients=options.clients,
                    lanes=options.lanes,
                    visitors=options.visitors,
                    operations=options.operations,
                    most_faults=options.most_faults,
                ),
                say,
            )
        )
    except KeyboardInterrupt:
        print("chaos: interrupted", flush=True)
        return 130
    finally:
        logging.getLogger("kvorum").removeHandler(logging_handler)
        logging_handler.close()
    _show(report)
    if report.problems:
        (folder / "problems.txt").write_text("\n".join([*report.problems, report.line]) + "\n")
        print(f"history and logs are in {folder}")
    elif not options.keep:
        shutil.rmtree(folder)
    print(report.line)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
