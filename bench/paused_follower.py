"""What a frozen follower costs the others' writes: `python -m bench.paused_follower [--pairs 5]`.

Pairs of a quiet stretch and one with one follower under SIGSTOP from its first moment on; the order changes from pair
to pair, so that a machine that gets slower or faster favours neither. The aim: p99 with it at most 1.2 × that without.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, rejoined, shape, tell
from bench.measure import quantile
from kvorum_node.dev_cluster import DevCluster, in_thread

AIM: Final = 1.2


async def stretch(cluster: DevCluster, writers: Writers, seconds: float, victim: int | None) -> list[float]:
    """Sorted times of the writes of a stretch, milliseconds."""
    pid = 0 if victim is None else cluster.pid(victim)
    begin = time.monotonic()
    if pid:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
        end = time.monotonic()
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)
    if victim is not None:
        await in_thread(rejoined, cluster, victim)
    await asyncio.sleep(0.5)
    return writers.times(begin, end)


async def compare(cluster: DevCluster, callers: int, pairs: int, seconds: float, rng: Random) -> dict[str, Any]:
    """Figures for one number of callers."""
    quiet: list[float] = []
    paused: list[float] = []
    ratios: list[float] = []
    async with kvorum.open_kv(cluster.url) as kv, Writers(kv, callers) as writers:
        await asyncio.sleep(1.0)
        for pair in range(pairs):
            leader = await in_thread(cluster.leader)
            victim = rng.choice([number for number in range(cluster.nodes) if number != leader])
            order = (None, victim) if pair % 2 == 0 else (victim, None)
            both = {who: await stretch(cluster, writers, seconds, who) for who in order}
            quiet += both[None]
            paused += both[victim]
            ratios.append(quantile(both[victim], 0.99) / quantile(both[None], 0.99))
            print(
                f"{callers} callers, pair {pair + 1}: p99 {quantile(both[None], 0.99):.2f} ms without,"
                f" {quantile(both[victim], 0.99):.2f} ms with a frozen follower",
                flush=True,
            )
        errors = dict(writers.errors)
    return {
        "callers": callers,
        "median_ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "quiet": shape(sorted(quiet)),
        "paused": shape(sorted(paused)),
        "errors": errors,
    }


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5, help="of each stretch")
    parser.add_argument("--callers", default="64,1")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with cluster_of(DevCluster) as cluster:
        for callers in map(int, options.callers.split(",")):
            rows.append(run(compare(cluster, callers, options.pairs, options.seconds, Random(callers))))
    good = all(row["median_ratio"] <= AIM and not row["errors"] for row in rows)
    summary = ", ".join(
        f"{row['callers']} callers p99 {row['paused']['p99_ms']} against {row['quiet']['p99_ms']} ms,"
        f" median ratio {row['median_ratio']:.2f}"
        for row in rows
    )
    return tell("paused_follower", summary, good, {"aim": AIM, "rows": rows}, options.json)


if __name__ == "__main__":
    sys.exit(main())
