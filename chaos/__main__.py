"""Runs a trial: `python -m chaos [--seconds 60] [--seed 0] [--net namespaces] [--disks loop] [--faults kills,pauses]`.

`--minutes 10` is all of it: every kind of fault that this machine allows, in a network and on disks of the run's own.
What cannot be had is told, and not claimed; of each kind that is claimed there is proof that it did something.

With namespaces and loop disks (root is needed) the run has a network, mounts and process ids of its own, and nothing of
it is left when it has ended, however it ended. Without, it runs on 127.0.0.1 and in plain folders.
"""

import argparse
import asyncio
import shutil
import sys
from pathlib import Path
from typing import Final

from .beginning import begin
from .faults import FAULTS, HITS, KINDS, NEED, Category, Fault, category, parse_faults
from .isolation import INSIDE, CannotIsolate, missing, run_inside, settle
from .nemesis import LONGEST
from .report import Report
from .trial import Options, trial
from .versions import code_of
from .workload import THINKING

SHORTEST: Final = 0.5
"""Seconds that faults must be allowed to last."""


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="chaos", description="Attacks three nodes, and judges what clients saw.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults may begin (default: 60)")
    parser.add_argument("--minutes", type=float, default=None, help="so long, with all that can be had; see above")
    parser.add_argument("--once", action="store_true", help="every kind of fault once, and that is it")
    parser.add_argument("--seed", type=int, default=None, help="for all choices (default: from the clock)")
    parser.add_argument(
        "--faults", default=None, help=f"some of {','.join((*KINDS, *FAULTS))} (default: all that can be had)"
    )
    parser.add_argument("--net", choices=("loopback", "namespaces"), default="loopback")
    parser.add_argument("--disks", choices=("folders", "loop"), default="folders")
    parser.add_argument(
        "--other", type=Path, default=None, help="checkout of another version: nodes begin with it, and change over"
    )
    parser.add_argument("--membership", action="store_true", help="change the members meanwhile: 3 -> 4 -> 3 nodes")
    for name in KINDS:
        parser.add_argument(f"--{name}", type=int, default=None, metavar="N", help=f"at least so many {name}")
    parser.add_argument("--crews", type=int, default=2, help="processes with clients")
    parser.add_argument("--clients", type=int, default=2, help="of each crew")
    parser.add_argument("--lanes", type=int, default=4, help="sequential callers of each client")
    parser.add_argument("--visitors", type=int, default=1, help="callers that open a client of their own now and then")
    parser.add_argument("--thinking", type=float, default=THINKING, help="seconds between two calls of a lane")
    parser.add_argument("--operations", type=int, default=1_000_000, help="calls at most")
    parser.add_argument("--most-faults", type=int, default=1_000, help="faults at most")
    parser.add_argument("--longest", type=float, default=LONGEST, help="seconds of a fault that is no kill, at most")
    parser.add_argument("--dir", type=Path, default=None, help="where the folder of the run is made")
    parser.add_argument("--plot", type=Path, default=None, help="file of the plot (default: in the folder of the run)")
    parser.add_argument("--keep", action="store_true", help="keep the folder after a success too")
    parser.add_argument("--strict", action="store_true", help="fail where network or disks cannot be had as asked for")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        options.faults = None if options.faults is None else parse_faults(options.faults)
    except ValueError as error:
        parser.error(str(error))
    try:
        options.code = "" if options.other is None else code_of(options.other)
    except ValueError as error:
        parser.error(str(error))
    if options.minutes is not None:
        options.seconds = 60 * options.minutes
        if not options.inside:
            options.net, options.disks = "namespaces", "loop"
    wanted = _wanted(options)
    if wanted and options.membership:
        parser.error("changes of members come with faults of their own: no numbers of faults")
    if (
        min(options.seconds, options.thinking) <= 0
        or options.longest < SHORTEST
        or options.visitors < 0
        or min(options.crews, options.clients, options.lanes, options.operations, options.most_faults) < 1
        or min(wanted.values(), default=1) < 1
    ):
        parser.error(f"numbers must be positive, and --longest at least {SHORTEST:g}")
    return options


def _wanted(options: argparse.Namespace) -> dict[Category, int]:
    numbers = {name: getattr(options, name.replace("-", "_")) for name in KINDS}
    return {name: number for name, number in numbers.items() if number is not None}


def _show(report: Report) -> None:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(report.kinds.items()))
    figures = ", ".join(
        f"{name} {report.figures[name]}"
        for name in ("reconnects", "failed_connections", "sessions", "redeliveries", "duplicate_deliveries")
    )
    print("faults by kind, and their hits:")
    for kind, count in sorted(report.faults.items()):
        print(f"  {kind:<17} {count:>4}  {report.hits[kind]:>9,} {HITS[category(parse_faults(kind)[0])]}")
    if report.changes:
        print(f"changes of members: {', '.join(f'{kind} {count}' for kind, count in sorted(report.changes.items()))}")
    print(f"operations by kind: {kinds}")
    print(f"clients: {figures}")
    for duty, verdict in report.duties.items():
        print(f"{duty}: {verdict}")
    for line in report.times():
        print(line)
    print(
        f"whole again after each fault: median {report.rejoin(0.5):.2f} s, p99 {report.rejoin(0.99):.2f} s, at most"
        f" {report.rejoin(1.0):.2f} s; judged in {report.judging:.1f} s"
    )
    for problem in report.problems:
        print(f"problem: {problem}")


def _probe(options: argparse.Namespace) -> bool:
    """Look at what can be had, and say what cannot. Returns whether to go on."""
    for kind, ask, rest in (("net", "namespaces", "loopback"), ("disks", "loop", "folders")):
        if getattr(options, kind) != ask:
            continue
        reason = missing("net" if kind == "net" else "disks")
        if reason is not None:
            print(f"chaos: --{kind} {ask} cannot be had: {reason}", flush=True)
            if options.strict:
                return False
            print(f"chaos: going on with --{kind} {rest}", flush=True)
            setattr(options, kind, rest)
    return True


def _absent(options: argparse.Namespace) -> dict[Category, str]:
    """Kinds of faults that cannot be had, and why."""
    absent: dict[Category, str] = {}
    wanted = {category(fault) for fault in options.faults or FAULTS} | set(_wanted(options))
    reasons: dict[str, str | None] = {
        "net": None if options.net == "namespaces" else "they need --net namespaces",
        "disks": None if options.disks == "loop" else "they need --disks loop",
        "other": None if options.code else "they need --other CHECKOUT",
    }
    reasons["links"] = reasons["net"]
    for name, need in NEED.items():
        if name not in wanted:
            continue
        if need not in reasons or (need == "links" and reasons[need] is None):
            reasons[need] = missing("links" if need == "links" else "shim")
        reason = reasons[need]
        if reason is not None:
            absent[name] = reason
    return absent


def _possible(options: argparse.Namespace) -> tuple[Fault, ...]:
    """The faults to choose from. Errors: ValueError if one was asked for that cannot be had."""
    absent = _absent(options)
    possible = tuple(fault for fault in FAULTS if category(fault) not in absent)
    asked = {category(fault) for fault in options.faults or ()} | set(_wanted(options))
    wrong = [name for name in absent if name in asked]
    if wrong:
        raise ValueError("; ".join(f"no {name}: {absent[name]}" for name in wrong))
    for name, reason in absent.items():
        print(f"chaos: without {name}: {reason}", flush=True)
    return options.faults or possible


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns 0 if nothing is wrong, 1 for problems, 2 for what cannot be run."""
    options = _parse(arguments)
    isolated = options.net == "namespaces" or options.disks == "loop"
    if isolated and not options.inside:
        if not _probe(options):
            return 2
        isolated = options.net == "namespaces" or options.disks == "loop"
    try:
        if not options.inside:
            options.faults = _possible(options)
        if isolated and not options.inside:
            given = sys.argv[1:] if arguments is None else arguments
            final = ["--net", options.net, "--disks", options.disks, "--faults", ",".join(options.faults), INSIDE]
            command = [sys.executable, "-m", "chaos", *given, *final]
            return run_inside(command, network=options.net == "namespaces")
        if isolated:
            settle()
    except (CannotIsolate, ValueError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    seed, folder, say = begin(options, "chaos")
    say(f"seed {seed}, network {options.net}, disks {options.disks}, folder {folder}")
    todo = Options(
        folder=folder,
        seconds=options.seconds,
        seed=seed,
        faults=options.faults,
        wanted=_wanted(options),
        namespaces=options.net == "namespaces",
        disks=options.disks == "loop",
        other=options.code,
        shims=any(NEED.get(category(fault)) == "shim" for fault in options.faults),
        every=options.minutes is not None or options.once,
        membership=options.membership,
        crews=options.crews,
        clients=options.clients,
        lanes=options.lanes,
        visitors=options.visitors,
        thinking=options.thinking,
        operations=options.operations,
        longest=options.longest,
        most_faults=len(options.faults) if options.once else options.most_faults,
    )
    try:
        report = asyncio.run(trial(todo, say))
    except KeyboardInterrupt:
        print("chaos: interrupted", flush=True)
        return 130
    _show(report)
    if report.timeline is not None:
        plot = options.plot or folder / "timeline.svg"
        plot.write_text(report.timeline.svg(f"chaos --seed {seed}: {report.faults.total()} faults"))
    if report.problems:
        (folder / "problems.txt").write_text("\n".join([*report.problems, report.line]) + "\n")
        print(f"history and logs are in {folder}")
    elif not options.keep:
        shutil.rmtree(folder)
    print(report.line)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
