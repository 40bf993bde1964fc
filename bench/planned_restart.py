"""How long a cluster has no leader when its leader is told to end: `python -m bench.planned_restart [--times 20]`.

Each time the leader gets SIGTERM under load, and is started again when it has ended. All nodes are asked all the time
who leads. Reported: the longest time in which no running node said that it leads, and the longest time without an
acknowledged write as the clients see it. The aim: at most 300 ms without a leader.
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, longest_gap, rejoined, tell
from bench.measure import quantile
from kvorum_node.dev_cluster import DevCluster, in_thread

AIM: Final = 0.3
AROUND: Final = (0.2, 2.0)
"""Seconds before and after the order to end that are looked at."""


class Watchers:
    """A thread for each node that asks it for its role; `with Watchers(cluster) as watchers`."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(number,)) for number in range(cluster.nodes)]
        self.led: list[float] = []
        """Moments at which some node said that it leads."""

    def __enter__(self) -> "Watchers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, number: int) -> None:
        while not self._stop.wait(0.005):
            asked = time.monotonic()
            answer = self._cluster.peek(number)
            if answer is not None and answer.role == "leader" and answer.leader.node_id == answer.node_id:
                self.led.append(asked)


async def restart(cluster: DevCluster, times: int, callers: int) -> tuple[list[float], list[float], dict[str, int]]:
    """Seconds without a leader, and without an acknowledged write, for each time; errors of the callers."""
    leaderless: list[float] = []
    gaps: list[float] = []
    async with kvorum.open_kv(cluster.url) as kv, Writers(kv, callers) as writers:
        for turn in range(times):
            victim = await in_thread(cluster.leader)
            with Watchers(cluster) as watchers:
                await asyncio.sleep(1.0)
                told = time.monotonic()
                status = await in_thread(cluster.terminate, victim)
                took = time.monotonic() - told
                begin, end = told - AROUND[0], max(told + AROUND[1], time.monotonic() + 0.3)
                await asyncio.sleep(end - time.monotonic())
            leaderless.append(longest_gap(watchers.led, begin, end))
            gaps.append(longest_gap((done for _, done in writers.done), begin, end))
            print(
                f"restart {turn + 1:2}: {leaderless[-1] * 1e3:4.0f} ms without a leader, {gaps[-1] * 1e3:4.0f} ms"
                f" without an acknowledged write; ended with {status} after {took:.2f} s",
                flush=True,
            )
            writers.done.clear()
            await in_thread(cluster.start, victim)
            await in_thread(rejoined, cluster, victim)
        return leaderless, gaps, dict(writers.errors)


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(DevCluster) as cluster:
        leaderless, gaps, errors = run(restart(cluster, options.times, options.callers))
    figures = {}
    for name, times in (("without_leader_ms", leaderless), ("client_gap_ms", gaps)):
        ordered = sorted(round(seconds * 1e3) for seconds in times)
        figures[name] = {"median": statistics.median(ordered), "p99": quantile(ordered, 0.99), "max": ordered[-1]}
    summary = (
        f"{options.times} times: without a leader median {figures['without_leader_ms']['median']:.0f} ms, max"
        f" {figures['without_leader_ms']['max']:.0f} ms; client gap median {figures['client_gap_ms']['median']:.0f} ms,"
        f" max {figures['client_gap_ms']['max']:.0f} ms; errors {sum(errors.values())}"
    )
    good = max(leaderless) <= AIM
    return tell("planned_restart", summary, good, {"aim_ms": AIM * 1e3, **figures, "errors": errors}, options.json)


if __name__ == "__main__":
    sys.exit(main())
