"""Runs a trial of queues: `python -m chaos.queues [--seconds 600] [--seed 0]`.

Three nodes, producers, and consumers that acknowledge each message in the commit that has its effect; consumers and
leaders are killed meanwhile. The last line is `queues: messages N redeliveries N consumer kills N leader kills N
violations N …`; the exit status is 1 if anything is wrong.
"""

import argparse
import asyncio
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from ..beginning import begin
from .history import load
from .trial import Options, Report, Trial

SHOWN: Final = 20


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/queue-chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long there are kills")
    parser.add_argument("--seed", type=int, default=None, help="for all choices (default: from the clock)")
    parser.add_argument("--messages", type=int, default=None, help="sends at most (default: 370 a second)")
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--consumer-kills", type=int, default=None, help="default: one in 5.4 seconds")
    parser.add_argument("--leader-kills", type=int, default=None, help="default: one in 27 seconds")
    parser.add_argument("--thinking", type=float, default=0.005, help="seconds that handling takes, on average")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="judge the history of an earlier run again")
    parser.add_argument("--dir", type=Path, default=None, help="where the folder of the run is made")
    parser.add_argument("--keep", action="store_true", help="keep the folder after a success too")
    options = parser.parse_args(arguments)
    if min(options.seconds, options.thinking, options.producers, options.consumers) <= 0:
        parser.error("numbers must be positive")
    return options


def _show(report: Report) -> None:
    print(", ".join(f"{name} {count}" for name, count in sorted(report.counts.items())))
    if report.waits:
        middle = report.waits[len(report.waits) // 2]
        print(f"what lost consumers held came again after {middle:.2f} s (median), at most {report.waits[-1]:.2f} s")
    for problem in report.problems:
        print(f"problem: {problem}")
    for kind, count in Counter(violation.kind for violation in report.violations).items():
        print(f"violations: {kind} {count}")
    for violation in report.violations[:SHOWN]:
        print(f"violation: {violation}")


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns 0 if nothing is wrong, 1 otherwise."""
    options = _parse(arguments)
    if options.judge is not None:
        report = Report()
        report.judge(load(options.judge))
        _show(report)
        print(report.line)
        return 1 if report.violations else 0
    seed, folder, say = begin(options, "queues")
    say(f"seed {seed}, folder {folder}")
    seconds = options.seconds
    todo = Options(
        folder=folder,
        seconds=seconds,
        seed=seed,
        messages=round(370 * seconds) if options.messages is None else options.messages,
        producers=options.producers,
        consumers=options.consumers,
        consumer_kills=round(seconds / 5.4) if options.consumer_kills is None else options.consumer_kills,
        leader_kills=round(seconds / 27) if options.leader_kills is None else options.leader_kills,
        thinking=options.thinking,
    )
    try:
        report = asyncio.run(Trial(todo, say).run())
    except KeyboardInterrupt:
        print("queues: interrupted", flush=True)
        return 130
    _show(report)
    if report.problems or report.violations:
        lines = [*report.problems, *map(str, report.violations), report.line]
        (folder / "problems.txt").write_text("\n".join(lines) + "\n")
        print(f"history and logs are in {folder}")
    elif not options.keep:
        shutil.rmtree(folder)
    print(report.line)
    return 1 if report.problems or report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
