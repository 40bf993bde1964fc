"""`scripts/sim`: play seeds, or one with its trace.

    scripts/sim --seeds 200 --first-seed 0 [--nodes 3|5]
    scripts/sim --seed 17 --trace

The last line is `sim: seeds N violations N unconverged N …`. The exit status is 1 if there are any, and if a move or a
kind of event came up less often than it should have: a blind simulator proves nothing.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from chaos.history import export
from tests.simulation.whole import schedule

MINIMUM = {
    "kill": 1.0,
    "power": 0.6,
    "kill_all": 0.1,
    "power_all": 0.15,
    "stop": 0.3,
    "pause": 0.6,
    "isolate": 0.6,
    "one_way": 0.4,
    "split_clients": 0.3,
    "reset": 0.3,
    "slow_link": 0.3,
    "slow_disk": 0.3,
    "stall": 0.4,
    "broken_disk": 0.1,
    "jump": 0.3,
    "trap": 0.2,
    "kill_after_commit": 0.2,
    "old_leader": 0.2,
    "reads of any node": 20.0,
    "pause_client": 0.2,
    "watch events": 20.0,
    "keys expired": 3.0,
    "votes lost": 0.1,
    "faults made": 0.05,
    "unsynced data lost by cuts": 0.1,
    "transactions lost by kills": 0.05,
    "states rebuilt": 0.5,
    "states trusted": 0.5,
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
    "log truncations": 0.1,
    "timeouts": 0.3,
}
"""How often each thing must happen in a seed, on average over a run of at least `ENOUGH` seeds."""
ENOUGH = 20


def blind_spots(counters: Counter[str], seeds: int) -> list[str]:
    """What came up too rarely."""
    return [
        f"{name}: {counters[name] / seeds:.2f} < {least}"
        for name, least in MINIMUM.items()
        if counters[name] < least * seeds
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--history", type=Path, help="write the last seed's history of operations, a JSON line each")
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings are walked in the order of their hashes.
        os.environ["PYTHONHASHSEED"] = "0"
        given = sys.argv[1:] if arguments is None else arguments
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.whole", *given])
    seeds = (
        [options.seed]
        if options.seed is not None
        else list(range(options.first_seed, options.first_seed + options.seeds))
    )
    started = time.monotonic()
    totals: Counter[str] = Counter()
    violations = unconverged = played = operations = 0
    slowest = 0.0
    for seed in seeds:
        result = schedule.run(seed, nodes=options.nodes)
        played += 1
        totals.update(result.counters)
        violations += bool(result.findings)
        unconverged += result.unconverged
        operations += len(result.history)
        slowest = max(slowest, result.converged_in)
        if options.history is not None:
            export(result.history, options.history)
        if options.trace:
            print("\n".join(result.trace))
        if options.seed is not None:
            print(f"seed {seed}: trace {result.digest}")
        if not result.ok:
            what = result.findings[0] if result.findings else result.trace[-1]
            print(f"seed {seed}: {what[:4000]}", flush=True)
            if options.stop_at_first:
                break
    spots = blind_spots(totals, played) if played >= ENOUGH else []
    print("; ".join(f"{name} {count}" for name, count in sorted(totals.items())))
    for spot in spots:
        print(f"blind: {spot}")
    took = time.monotonic() - started
    print(
        f"sim: seeds {played} violations {violations} unconverged {unconverged} operations {operations} "
        f"slowest convergence {slowest:.1f} s blind spots {len(spots)} seeds per minute {played / took * 60:.0f}"
    )
    return 1 if violations or unconverged or spots else 0


if __name__ == "__main__":
    sys.exit(main())
