"""How long writes stop when the leader is killed: `python -m bench.failover [--kills 20]`.

A client writes all the time with 16 callers; each kill waits until the last victim has rejoined. Reported: the time to
a new leader (asked of the nodes), and to the next write that is acknowledged after one began after the kill, as the
client sees it. The aims, for 100 kills or more: p99 of at most 2 s and 3 s.
"""

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import cluster_of, rejoined, tell
from bench.measure import quantile
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import DevCluster

NEW_LEADER: Final = 2.0
GAP: Final = 3.0
STRAGGLERS = 0.3
"""Seconds in which answers that had left the killed node may still come in."""


def _time_of_next_leader(cluster: DevCluster) -> float:
    cluster.leader()
    return time.monotonic()


async def failover(cluster: DevCluster, kills: int) -> tuple[list[float], list[float], int]:
    """Seconds to a new leader, and to the next acknowledged write, for each kill; errors that reached the callers."""
    leaders: list[float] = []
    gaps: list[float] = []
    acknowledged: list[tuple[float, float]] = []
    """(began, ended) of each acknowledged write"""
    errors = 0
    async with kvorum.open_kv(cluster.url) as kv:

        async def writer(name: int) -> None:
            nonlocal errors
            number = 0
            while True:
                began = time.monotonic()
                try:
                    await kv.set(("failover", name), number)
                    acknowledged.append((began, time.monotonic()))
                except KvorumError:
                    errors += 1
                number += 1

        writers = [asyncio.create_task(writer(name)) for name in range(16)]
        for kill in range(kills):
            victim = await asyncio.to_thread(cluster.leader)
            await asyncio.sleep(0.5)
            acknowledged.clear()
            killed = time.monotonic()
            cluster.kill(victim)
            elected = asyncio.create_task(asyncio.to_thread(_time_of_next_leader, cluster))
            while not (
                answered := [ended for began, ended in acknowledged if began > killed or ended > killed + STRAGGLERS]
            ):
                await asyncio.sleep(0.001)
            leaders.append(await elected - killed)
            gaps.append(min(answered) - killed)
            print(
                f"kill {kill + 1:2}: leader after {leaders[-1]:.2f} s, next acknowledged write after {gaps[-1]:.2f} s",
                flush=True,
            )
            await asyncio.to_thread(cluster.start, victim)
            await asyncio.to_thread(rejoined, cluster, victim)
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    return leaders, gaps, errors


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(DevCluster) as cluster:
        leaders, gaps, errors = run(failover(cluster, options.kills))
    figures: dict[str, Any] = {"kills": options.kills, "errors": errors}
    summary = []
    for name, what, times in (
        ("new_leader_s", "new leader", leaders),
        ("client_gap_s", "gap seen by the client", gaps),
    ):
        times.sort()
        figures[name] = {
            "median": round(statistics.median(times), 3),
            "p99": round(quantile(times, 0.99), 3),
            "max": round(times[-1], 3),
        }
        figure = figures[name]
        summary.append(f"{what} median {figure['median']:.2f} s, p99 {figure['p99']:.2f} s, max {figure['max']:.2f} s")
    good = quantile(leaders, 0.99) <= NEW_LEADER and quantile(gaps, 0.99) <= GAP
    return tell(
        "failover", f"{options.kills} kills: {'; '.join(summary)}; errors {errors}", good, figures, options.json
    )


if __name__ == "__main__":
    sys.exit(main())
