"""`scripts/sim`: play seeds, or one with its trace.

    scripts/sim --seeds 200 --first-seed 0 [--nodes 3|5|mixed] [--jobs N]
    scripts/sim --seed 17 --trace [--rule "durable vote"]
    scripts/sim --mutations
    scripts/sim --plain --seeds 50

The last line is `sim: seeds N violations N unconverged N undecided N …`. The exit status is 1 if there are any, and if
a move or a kind of event came up less often than it should have: a blind simulator proves nothing. An undecided history
is one on which a checker gave up, which proves nothing either.

`--mutations` disables one rule of the product after the other and plays seeds until that is noticed by what comes of
it; rules of which the simulator also has a watch (it looks at the node while it breaks the rule) are played with it as
well. `--plain` plays random schedules to the library's own core, which must not survive them.
"""

import argparse
import logging
import math
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from chaos.history import export
from tests.simulation import fuzz
from tests.simulation.whole import crew, schedule
from tests.simulation.whole.mutations import RULES, WATCHED
from tests.simulation.whole.plots import PLOTS

MINIMUM = {
    "kill": 0.5,
    "power": 0.3,
    "kill_all": 0.05,
    "power_all": 0.08,
    "stop": 0.2,
    "pause": 0.4,
    "isolate": 0.4,
    "one_way": 0.3,
    "split_clients": 0.2,
    "reset": 0.1,
    "slow_link": 0.2,
    "slow_disk": 0.15,
    "stall": 0.25,
    "broken_disk": 0.05,
    "disk_full": 0.05,
    "jump": 0.15,
    "trap": 0.2,
    "kill_after_commit": 0.15,
    "old_leader": 0.15,
    "pause_client": 0.15,
    "kill_client": 0.1,
    "kill_inside": 0.4,
    "remake": 0.04,
    "wipe": 0.05,
    "rot": 0.03,
    "hollow starts": 0.01,
    "elections left to others": 0.05,
    "copy_folder": 0.02,
    "doubles": 0.01,
    "back_up": 0.2,
    "roll_back": 0.02,
    "add": 0.05,
    "remove": 0.03,
    "move": 0.03,
    "transfer": 0.06,
    "set_time": 0.03,
    "burst": 0.06,
    "repeat_tick": 0.06,
    "low_space": 0.1,
    "plot figure_8": 0.05,
    "plot surplus": 0.05,
    "plot two_changes": 0.05,
    "plot stale_leader": 0.05,
    "plot old_snapshot": 0.05,
    "reads of any node": 20.0,
    "watch events": 20.0,
    "first frames": 5.0,
    "changes told": 20.0,
    "expiries told": 2.0,
    "marks of progress": 1.0,
    "watches resumed": 1.0,
    "watches behind the history": 0.2,
    "keys expired": 3.0,
    "votes lost": 0.02,
    "faults made": 0.05,
    "folders refused": 0.1,
    "unsynced data lost by cuts": 0.1,
    "files lost by cuts": 1.0,
    "deaths within a sync of a file": 0.2,
    "transactions lost by kills": 0.1,
    "states rebuilt": 0.5,
    "states trusted": 0.5,
    "states rebuilt on a copy": 1.5,
    "of them from a checkpoint": 0.7,
    "checkpoints made": 3.0,
    "snapshots installed": 0.1,
    "leaderships handed over": 0.03,
    "add done": 0.03,
    "promote done": 0.1,
    "remove done": 0.01,
    "replace done": 0.04,
    "move done": 0.02,
    "transfer done": 0.04,
    "set_time done": 0.02,
    "terms": 3.0,
    "writes acknowledged": 100.0,
    "writes refused by checks": 5.0,
    "writes unknown": 0.5,
    "unknown outcomes that happened": 0.1,
    "writes not applied": 0.5,
    "reads": 100.0,
    "eventual reads": 10.0,
    "dedup hits": 0.1,
    "handled": 10.0,
    "redeliveries": 2.0,
    "settles stale": 0.1,
    "bulk writes": 1.0,
    "bulk writes refused": 0.4,
    "bulk looks": 1.5,
    "events of any node": 20.0,
    "queue sends": 20.0,
    "queue leases": 40.0,
    "queue redeliveries": 6.0,
    "queue ack": 25.0,
    "queue retry": 4.0,
    "queue reject": 1.5,
    "queue return": 1.5,
    "queue extend": 1.5,
    "queue lapses": 1.0,
    "queue releases": 0.1,
    "queue takes": 3.0,
    "queue duplicates": 0.2,
    "queue letters": 1.0,
    "letters delivered": 0.5,
    "topic copies delivered": 5.0,
    "queue full": 0.5,
    "subscriptions from the past": 0.8,
    "subscriptions ended": 0.5,
    "topics removed": 0.1,
    "copies of the past": 1.5,
    "queues removed": 0.5,
    "rows removed": 2.0,
    "requests answered": 3.0,
    "requests without answer": 0.3,
    "requests handled": 3.0,
    "answers that nobody took": 0.1,
    "stale answers": 0.02,
    "queue cancelled": 0.1,
    "queue rescheduled": 0.08,
    "queue pause": 0.3,
    "queue resume": 0.15,
    "queue policy": 0.2,
    "queue purge": 0.2,
    "messages by purge": 0.2,
    "queue requeue": 0.2,
    "messages by requeue": 0.15,
    "queue back": 0.2,
    "messages by back": 0.02,
    "leases overstayed": 1.0,
    "stale queue settles": 0.5,
    "lapses judged": 0.1,
    "ticks": 3.0,
    "auth switched": 1.0,
    "auth given": 0.7,
    "auth taken": 0.7,
    "auth done": 5.0,
    "auth refused": 5.0,
    "log truncations": 0.3,
    "timeouts": 0.3,
}
"""How often each thing must happen in a seed, on average over a run of at least `ENOUGH` seeds."""
ENOUGH = 60
MOST_SEEDS = 500
"""Within which a disabled rule must be noticed."""
_OF_THE_HOOK = ("TypeError", "AttributeError", "NameError")
"""What a hook ends with, rather than a rule that is missing."""
PLAIN_SHARE = 0.1
"""Of the seeds in which the library's own core must fail."""
_CHANCE = 0.01


def blind_spots(counters: Counter[str], seeds: int) -> list[str]:
    """What never came up, or too rarely for chance to explain it: of what is due twice in 100 seeds, one is no news."""
    return [
        f"{name}: {counters[name] / seeds:.2f} < {least}"
        for name, least in MINIMUM.items()
        if not counters[name] or _chance(counters[name], least * seeds) < _CHANCE
    ]


def _chance(count: int, expected: float) -> float:
    """That something comes up so often at most (Poisson); of what is due a thousand times nothing may lack."""
    term = total = math.exp(-expected)
    for number in range(1, count + 1):
        term *= expected / number
        total += term
    return 1.0 if count >= expected else total


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print everything that happened (with --seed)")
    parser.add_argument("--nodes", choices=("3", "5", "mixed"), default="mixed", help="five in every third seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="seeds at a time")
    parser.add_argument("--history", type=Path, help="write the history of operations, a JSON line each (with --seed)")
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation")
    parser.add_argument("--no-watches", action="store_true", help="look only at what comes of what nodes do")
    parser.add_argument("--plot", choices=list(PLOTS), default="", help="begin every seed with this plot")
    parser.add_argument("--rule", choices=list(RULES), default="", help="disable this rule of the product")
    parser.add_argument("--mutations", action="store_true", help="disable each rule until it is noticed")
    parser.add_argument("--plain", action="store_true", help="the library's own core, in the simulator of cores alone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings are walked in the order of their hashes.
        os.environ["PYTHONHASHSEED"] = "0"
        given = sys.argv[1:] if arguments is None else arguments
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.whole", *given])
    if options.worker is not None:
        return crew.work(options.worker)
    nodes = 0 if options.nodes == "mixed" else int(options.nodes)
    settings = schedule.Settings(nodes=nodes, watches=not options.no_watches, plot=options.plot)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.seed is not None:
        return _one(options, settings)
    if options.mutations:
        return _mutations(settings, options.first_seed, options.jobs)
    if options.plain:
        return _plain(seeds)
    return _many(seeds, settings, options)


def _one(options: argparse.Namespace, settings: schedule.Settings) -> int:
    started = time.monotonic()
    result = crew.play(options.seed, settings, options.rule)
    if options.history is not None:
        export(result.history, options.history)
    if options.trace:
        print("\n".join(result.trace.lines()))
    print(f"seed {options.seed}: trace {result.digest}")
    return _report([crew.summary(result)], time.monotonic() - started)


def _many(seeds: Sequence[int], settings: schedule.Settings, options: argparse.Namespace) -> int:
    started = time.monotonic()
    done: list[crew.Summary] = []
    playing = crew.play_all(seeds, settings, options.jobs, options.rule)
    for summary in playing:
        done.append(summary)
        if not summary.ok:
            print(f"seed {summary.seed}: {summary.what}", flush=True)
            if options.stop_at_first:
                break
    playing.close()
    return _report(done, time.monotonic() - started, quiet=True)


def _report(done: list[crew.Summary], took: float, *, quiet: bool = False) -> int:
    totals: Counter[str] = Counter()
    for summary in done:
        totals.update(summary.counters)
        if not summary.ok and not quiet:
            print(f"seed {summary.seed}: {summary.what}")
    played = len(done)
    spots = blind_spots(totals, played) if played >= ENOUGH else []
    print("; ".join(f"{name} {count}" for name, count in sorted(totals.items())))
    for spot in spots:
        print(f"blind: {spot}")
    violations = sum(bool(summary.findings) for summary in done)
    unconverged = sum(summary.unconverged for summary in done)
    undecided = sum(summary.undecided for summary in done)
    print(
        f"sim: seeds {played} violations {violations} unconverged {unconverged} undecided {undecided} "
        f"operations {sum(summary.operations for summary in done)} "
        f"slowest convergence {max((summary.converged_in for summary in done), default=0.0):.1f} s "
        f"blind spots {len(spots)} seeds per minute {played / took * 60:.0f} "
        f"seconds of CPU a seed {_cpu_seconds() / max(played, 1):.2f}"
    )
    return 1 if violations or unconverged or undecided or spots else 0


def _cpu_seconds() -> float:
    """Of this process and those that it has waited for: what a seed costs whatever else the machine does."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _mutations(settings: schedule.Settings, first: int, jobs: int) -> int:
    missed = 0
    for rule in RULES:
        for watches in (False, True) if rule in WATCHED else (False,):
            played, found = _until_noticed(
                rule, schedule.Settings(settings.nodes, watches=watches, plot=settings.plot), first, jobs
            )
            if found is not None and any(error in found.what for error in _OF_THE_HOOK):
                found.findings[0] = f"the hook does not fit the product any more: {found.what}"
                missed += 1
            missed += found is None
            how = "watch" if watches else "consequence"
            seen = f"seed {found.seed}: {found.what[:200]}" if found is not None else "not noticed"
            print(f"{rule} | by {how} | after {played} seeds | {seen}", flush=True)
    print(f"sim: rules {len(RULES)} missed {missed}")
    return 1 if missed else 0


def _until_noticed(rule: str, settings: schedule.Settings, first: int, jobs: int) -> tuple[int, crew.Summary | None]:
    played = 0
    playing = crew.play_all(range(first, first + MOST_SEEDS), settings, jobs, rule)
    for summary in playing:
        played += 1
        if not summary.ok:
            playing.close()
            return played, summary
    return played, None


def _plain(seeds: Sequence[int]) -> int:
    """There is nothing to put under a whole node of the plain class: no durable log, no state with an index, no way to
    tell an unknown outcome from a refusal. Its core alone plays the schedules of `fuzz`."""
    bad: Counter[str] = Counter()
    logging.disable(logging.CRITICAL)
    for seed in seeds:
        finding, _ = fuzz.run(seed, plain=True)
        if finding:
            bad["".join(c for c in finding if not c.isdigit())] += 1
    for finding, count in bad.most_common():
        print(f"{count} seeds: {finding}")
    print(f"sim: plain class seeds {len(seeds)} violations {bad.total()}")
    return 0 if bad.total() >= PLAIN_SHARE * len(seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
