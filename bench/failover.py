"""How long writes stop when the leader is killed: `python -m bench.failover [--kills 20]`.

A client writes all the time with 16 callers; each kill waits until the last victim has rejoined. Reported: the time to
a new leader (asked of the nodes) and to the
next write that is acknowledged after one began after the kill, as the client sees it.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from uvloop import run

import kvorum
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import DevCluster

STRAGGLERS = 0.3
"""Seconds in which answers that had left the killed node may still come in."""


def _time_of_next_leader(cluster: DevCluster) -> float:
    cluster.leader()
    return time.monotonic()


async def failover(cluster: DevCluster, kills: int) -> tuple[list[float], list[float]]:
    """Seconds to a new leader, and to the next acknowledged write, for each kill."""
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
            await asyncio.to_thread(_rejoined, cluster, victim)
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    print(f"errors that reached the callers: {errors}")
    return leaders, gaps


def _rejoined(cluster: DevCluster, node: int, patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        leader = cluster.status(cluster.leader())
        mine = cluster.status(node)
        if mine.applied_index + 200 >= leader.commit_index > 0:
            return
        time.sleep(0.05)
    raise TimeoutError(f"node {node} did not catch up within {patience:.0f} s")


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-", dir=".") as folder:
        cluster = DevCluster(Path(folder))
        cluster.start_all()
        try:
            leaders, gaps = run(failover(cluster, options.kills))
        finally:
            cluster.stop()
    for name, times in (("new leader", leaders), ("gap seen by the client", gaps)):
        times.sort()
        print(f"{name}: median {statistics.median(times):.2f} s, p99 {times[-1]:.2f} s (largest of {len(times)})")


if __name__ == "__main__":
    main()
