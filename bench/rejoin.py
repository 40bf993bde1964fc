"""A node loses its folder while the cluster works: `python -m bench.rejoin [--megabytes 1024] [--rate 5000]`.

Stores a state of that size, goes on with that many writes a second, kills a follower, deletes its folder, starts it
again with an empty one, and has it take its old place: `replace`, a snapshot, the log, `promote`. Reported: how long
that takes, what writes took before and meanwhile, and the anonymous memory of each node at most. The aim: it catches
up, no call fails, and memory stays within a bound that does not depend on the size of the state.
"""

import argparse
import asyncio
import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, fill, shape, tell
from bench.process import anonymous_mib
from chaos.arena import Arena
from chaos.operator import Operator
from kvorum_node.dev_cluster import in_thread

MEMORY: Final = 512.0
"""MiB of anonymous memory that no node may exceed: caches of the log and windows of the transfer are bounded."""
SETTLE: Final = 10.0


class Memory:
    """The largest anonymous memory of each node, MiB."""

    def __init__(self, cluster: Arena) -> None:
        self._cluster = cluster
        self.most = [0.0] * cluster.nodes

    async def watch(self) -> None:
        """For ever."""
        while True:
            for number in range(self._cluster.nodes):
                pid = self._cluster.pid(number)
                with contextlib.suppress(OSError):  # it was killed just now
                    self.most[number] = max(self.most[number], anonymous_mib(pid) if pid else 0.0)
            await asyncio.sleep(0.1)


def wipe(cluster: Arena, number: int) -> None:
    """Kill a node, delete all it has, and start it with an empty folder, waiting to be let in."""
    cluster.kill(number)
    shutil.rmtree(cluster.data_dir(number))
    cluster.let_join(number)
    cluster.start(number)


async def measure(cluster: Arena, options: argparse.Namespace) -> dict[str, Any]:
    """Fill, write, wipe, and wait for the node."""
    operator = Operator(cluster)
    memory = Memory(cluster)
    async with kvorum.open_kv(cluster.url) as kv:
        began = time.monotonic()
        await fill(kv, options.megabytes)
        print(f"{options.megabytes} MiB stored in {time.monotonic() - began:.1f} s", flush=True)
        watching = asyncio.create_task(memory.watch())
        async with Writers(kv, options.callers, rate=options.rate) as writers:
            await asyncio.sleep(SETTLE)
            leader = await in_thread(cluster.leader)
            victim = next(number for number in range(cluster.nodes) if number != leader)
            wiped = time.monotonic()
            await in_thread(wipe, cluster, victim)
            started = time.monotonic()
            await in_thread(operator.replace, victim)
            replaced = time.monotonic()
            print(f"n{victim + 1} wiped, started and replaced after {replaced - wiped:.1f} s", flush=True)
            await in_thread(operator.promote, victim, options.seconds)
            promoted = time.monotonic()
            await asyncio.sleep(3.0)
            end = time.monotonic()
        watching.cancel()
        unequal = await in_thread(_unequal, cluster)
    return {
        "megabytes": options.megabytes,
        "rate": options.rate,
        "rejoin_s": round(promoted - started, 1),
        "achieved_rate": round(len(writers.times(wiped, promoted)) / (promoted - wiped)),
        "before": shape(writers.times(wiped - SETTLE / 2, wiped)),
        "meanwhile": shape(writers.times(wiped, promoted)),
        "afterwards": shape(writers.times(promoted, end)),
        "anonymous_mib": [round(most) for most in memory.most],
        "wiped": f"n{victim + 1}",
        "unequal": unequal,
        "errors": dict(writers.errors),
    }


def _unequal(cluster: Arena, patience: float = 30.0) -> bool:
    """Whether the states differ once all have applied the same entry."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        states = cluster.hashes()
        if len({index for index, _ in states}) == 1:
            return len(set(states)) > 1
        time.sleep(0.1)
    return True


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_024)
    parser.add_argument("--rate", type=float, default=5_000.0)
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=300.0, help="for catching up, at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(Arena) as cluster:
        figures = run(measure(cluster, options))
    good = not figures["unequal"] and not figures["errors"] and max(figures["anonymous_mib"]) <= MEMORY
    good = good and figures["achieved_rate"] >= 0.9 * options.rate
    summary = (
        f"{figures['rejoin_s']} s from an empty folder to a voter, {options.megabytes} MiB,"
        f" {figures['achieved_rate']} writes/s meanwhile: p99 {figures['meanwhile']['p99_ms']} max"
        f" {figures['meanwhile']['max_ms']} ms (before: p99 {figures['before']['p99_ms']} ms);"
        f" anonymous memory at most {max(figures['anonymous_mib'])} MiB a node"
    )
    return tell("rejoin", summary, good, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
