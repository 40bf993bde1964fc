"""What making checkpoints costs the writes: `python -m bench.checkpoint_load [--megabytes 1024] [--rate 1000]`.

Stores a state of that size in large writes, then goes on with smaller ones until every node has made a checkpoint, and
compares the times of writes while no node made one with those while some node did. A checkpoint under way is seen from
outside: its draft lies in the node's folder. The aim: p99 at most 5 × the quiet one, nothing above 150 ms, and a log
that is cut afterwards. Other work on the machine lengthens all these times; how many nodes made one at once, and how
much of the state lay unwritten in memory, does not depend on it as much, and is told too.
"""

import argparse
import asyncio
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, fill, shape, tell
from bench.process import anonymous_mib
from kvorum_node.dev_cluster import DevCluster, in_thread

RATIO: Final = 5.0
LONGEST: Final = 150.0
"""Milliseconds."""
LOOK: Final = 0.02
NODE_FIGURES: Final = (
    "log_base_index",
    "log_cached_bytes",
    "replay_bytes",
    "checkpoint_seconds",
    "checkpoint_rate",
    "checkpoint_stretched_seconds",
    "checkpoints_held_back",
    "checkpoints_out_of_turn",
    "checkpoint_failures",
    "loop_lag_worst_ever",
    "longest_step",
)
"""What each node is asked for before and after."""
PATIENCE: Final = 10
"""Times that a node is asked before it counts as lost."""
SETTLE: Final = 3.0
"""Seconds of quiet before anything counts."""


class Drafts:
    """Watches the nodes' folders for checkpoints under way and finished ones."""

    def __init__(self, cluster: DevCluster) -> None:
        self._folders = [cluster.data_dir(number) / "checkpoints" for number in range(cluster.nodes)]
        self.busy: list[tuple[float, float]] = []
        """(begin, end) of each time in which some node made one."""
        self.finished: list[set[str]] = [set() for _ in self._folders]
        self.most_at_once = 0
        self._since: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether one was under way at the last look."""
        return self._since is not None

    def look(self) -> None:
        """Note what there is now."""
        now = time.monotonic()
        drafting = 0
        for number, folder in enumerate(self._folders):
            try:
                names = os.listdir(folder)  # noqa: PTH208 - called often
            except FileNotFoundError:
                continue
            drafting += any(name.startswith("draft-") for name in names)
            self.finished[number].update(name for name in names if name[:1].isdigit())
        self.most_at_once = max(self.most_at_once, drafting)
        if drafting and self._since is None:
            self._since = now - LOOK
        elif not drafting and self._since is not None:
            self.busy.append((self._since, now))
            self._since = None

    def close(self) -> None:
        """One that is still under way ends now."""
        if self._since is not None:
            self.busy.append((self._since, time.monotonic()))
            self._since = None

    async def watch(self) -> None:
        """For ever."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK)


def divide(done: list[tuple[float, float]], busy: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Sorted milliseconds of writes that had nothing to do with a checkpoint, and of those that overlapped one."""
    begins = [begin for begin, _ in busy]
    quiet: list[float] = []
    during: list[float] = []
    for before, after in done:
        at = bisect_right(begins, after) - 1
        overlaps = at >= 0 and busy[at][1] >= before
        (during if overlaps else quiet).append((after - before) * 1e3)
    return sorted(quiet), sorted(during)


async def measure(cluster: DevCluster, options: argparse.Namespace) -> dict[str, Any]:
    """Fill, write, and compare."""
    async with kvorum.open_kv(cluster.url) as kv:
        began = time.monotonic()
        await fill(kv, options.megabytes)
        filled = time.monotonic() - began
        print(f"{options.megabytes} MiB stored in {filled:.1f} s", flush=True)
        drafts = Drafts(cluster)
        watching = asyncio.create_task(drafts.watch())
        await _quiet(drafts)
        earlier = [len(names) for names in drafts.finished]
        logs = await in_thread(_log_figures, cluster)
        drafts.busy.clear()
        drafts.most_at_once = 0
        async with Writers(kv, options.callers, size=options.size, keys=50_000, rate=options.rate) as writers:
            await asyncio.sleep(SETTLE)
            writers.done.clear()
            memory = dirty = 0.0
            unanswered = 0
            worst: dict[str, dict[str, float]] = {"quiet": {}, "during": {}}
            end = time.monotonic() + options.seconds
            while time.monotonic() < end and not _enough(drafts, earlier):
                await asyncio.sleep(0.25)
                when = worst["during" if drafts.is_busy else "quiet"]
                dirty = max(dirty, _dirty_mib())
                for number in range(cluster.nodes):
                    memory = max(memory, anonymous_mib(cluster.pid(number)))
                    status = await in_thread(cluster.peek, number)
                    if status is None:
                        unanswered += 1
                    else:
                        _note_worst(when, status.statistics)
        watching.cancel()
        drafts.close()
        quiet, during = divide(writers.done, drafts.busy)
    return {
        "megabytes": options.megabytes,
        "fill_s": round(filled, 1),
        "rate": options.rate,
        "quiet": shape(quiet),
        "during": shape(during),
        "checkpointing_s": round(sum(end - begin for begin, end in drafts.busy), 1),
        "most_at_once": drafts.most_at_once,
        "checkpoints": [len(names) - before for names, before in zip(drafts.finished, earlier, strict=True)],
        "log_before": logs,
        "log_after": await in_thread(_log_figures, cluster),
        "largest_anonymous_mib": round(memory),
        "largest_dirty_mib": round(dirty),
        "unanswered": unanswered,
        "load": os.getloadavg(),
        "worst_seconds": worst,
        "errors": dict(writers.errors),
    }


def _dirty_mib() -> float:
    """Of the whole machine: pages in memory that the disk lacks."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Dirty:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _enough(drafts: Drafts, earlier: list[int]) -> bool:
    """Whether every node has made one, and none is under way."""
    made = [len(names) - before for names, before in zip(drafts.finished, earlier, strict=True)]
    return min(made) > 0 and not drafts.is_busy


async def _quiet(drafts: Drafts) -> None:
    """Wait for the checkpoints that storing has set off, and for the disk."""
    await asyncio.sleep(SETTLE)
    calm = time.monotonic()
    while time.monotonic() < calm + SETTLE:
        await asyncio.sleep(0.1)
        if drafts.is_busy:
            calm = time.monotonic()


def _note_worst(worst: dict[str, float], statistics: Mapping[str, float]) -> None:
    """Where time goes: in the disk, or in a node's event loop."""
    for name in ("loop_lag", "log_unsynced_age"):
        worst[name] = max(worst.get(name, 0.0), round(statistics.get(name, 0.0), 3))


def _log_figures(cluster: DevCluster) -> list[dict[str, float]]:
    """What the nodes say of their logs."""
    rows = []
    for number in range(cluster.nodes):
        answer = next((one for _ in range(PATIENCE) if (one := cluster.peek(number)) is not None), None)
        statistics = (answer or cluster.status(number)).statistics
        rows.append({name: round(statistics[name], 3) for name in NODE_FIGURES if name in statistics})
    return rows


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_024)
    parser.add_argument("--seconds", type=float, default=240.0, help="at most")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1_000.0, help="writes a second")
    parser.add_argument("--size", type=int, default=8_000, help="bytes of a value")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(DevCluster) as cluster:
        figures = run(measure(cluster, options))
    quiet, during = figures["quiet"], figures["during"]
    bases = [[row.get("log_base_index", 0.0) for row in figures[when]] for when in ("log_before", "log_after")]
    good = (
        all(after > before for before, after in zip(*bases, strict=True))
        and during["count"] > 0
        and min(figures["checkpoints"]) > 0
        and during["p99_ms"] <= RATIO * quiet["p99_ms"]
        and during["max_ms"] <= LONGEST
        and not figures["errors"]
    )
    summary = (
        f"{options.megabytes} MiB, {options.rate:.0f} writes/s of {options.size} bytes: quiet p99 {quiet['p99_ms']} max"
        f" {quiet['max_ms']} ms; while checkpoints are made p99 {during['p99_ms']} max {during['max_ms']} ms;"
        f" checkpoints {figures['checkpoints']} in {figures['checkpointing_s']} s, {figures['most_at_once']} at once,"
        f" at most {figures['largest_anonymous_mib']} MiB of memory and {figures['largest_dirty_mib']} MiB unwritten;"
        f" load {figures['load'][0]:.1f}"
    )
    return tell("checkpoint_load", summary, good, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
