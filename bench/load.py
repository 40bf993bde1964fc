"""Writers that go on all the time, and what they saw: shared by the benchmarks that disturb a cluster meanwhile."""

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import kvorum
import kvorum.cluster  # first of all: it tells gRPC to keep its remarks to itself
from bench.measure import quantile
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import DevCluster

C = TypeVar("C", bound=DevCluster)

PATIENCE: Final = 60.0
"""Seconds that a node may take to rejoin."""


@dataclass(slots=True)
class Writers:
    """`callers` loops that write values of `size` characters to `keys` keys below `("load", …)`.

    With a `rate` they share that many writes a second, each beginning when it is due, however long earlier ones take:
    a time counts from when the write was due. Without one, each caller writes as soon as it is answered.
    """

    kv: kvorum.Kv
    callers: int
    size: int = 100
    keys: int = 10_000
    rate: float | None = None
    done: list[tuple[float, float]] = field(default_factory=list)
    """(began or was due, was acknowledged) in seconds of the monotonic clock."""
    errors: Counter[str] = field(default_factory=Counter)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> "Writers":
        began = time.monotonic()
        self._tasks = [asyncio.create_task(self._write(number, began)) for number in range(self.callers)]
        return self

    async def __aexit__(self, *raised: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, caller: int, began: float) -> None:
        value = "x" * self.size
        number = caller
        while True:
            due = time.monotonic()
            if self.rate is not None:
                due = began + number / self.rate
                if (early := due - time.monotonic()) > 0:
                    await asyncio.sleep(early)
            try:
                await self.kv.set(("load", number % self.keys), value)
                self.done.append((due, time.monotonic()))
            except KvorumError as error:
                self.errors[type(error).__name__] += 1
            number += self.callers

    def times(self, begin: float, end: float) -> list[float]:
        """Milliseconds, sorted, of writes that began between two moments."""
        return sorted((after - before) * 1e3 for before, after in self.done if begin <= before < end)


def shape(times: list[float]) -> dict[str, float]:
    """Of sorted times in milliseconds."""
    return {
        "count": len(times),
        "p50_ms": round(quantile(times, 0.5), 2),
        "p99_ms": round(quantile(times, 0.99), 2),
        "max_ms": round(times[-1], 1) if times else 0.0,
    }


def longest_gap(moments: Iterable[float], begin: float, end: float) -> float:
    """Seconds without any of these moments, at most, between two others."""
    inside = sorted(moment for moment in moments if begin <= moment <= end)
    return max((after - before for before, after in zip([begin, *inside], [*inside, end], strict=True)), default=0.0)


async def fill(kv: kvorum.Kv, megabytes: int, *, size: int = 16_000, root: str = "filled") -> int:
    """Store so many MiB in large atomic writes; returns the number of keys. Values differ, so nothing can be shared."""
    count = (megabytes << 20) // size
    each = 40
    gate = asyncio.Semaphore(8)

    async def part(first: int) -> None:
        async with gate:
            commit = kv.atomic()
            for number in range(first, min(first + each, count)):
                commit.set((root, number), f"{number:012}" + "y" * (size - 12))
            result = await commit.commit(timeout=60_000)
            assert result.ok

    await asyncio.gather(*(part(first) for first in range(0, count, each)))
    return count


def rejoined(cluster: DevCluster, node: int, patience: float = PATIENCE) -> None:
    """Wait until a node follows the leader and holds what was committed when it was first seen to. Errors:
    TimeoutError."""
    deadline = time.monotonic() + patience
    goal = None
    while time.monotonic() < deadline:
        mine, leader = cluster.peek(node), cluster.peek(cluster.leader())
        if mine is not None and leader is not None and mine.leader.node_id == leader.node_id:
            if goal is None:
                goal = leader.commit_index
            if mine.node_id == leader.node_id or any(
                peer.node_id == mine.node_id and peer.connected and peer.match_index >= goal for peer in leader.peers
            ):
                return
        time.sleep(0.02)
    raise TimeoutError(f"node {node + 1} did not catch up within {patience:.0f} s")


@contextlib.contextmanager
def cluster_of(make: Callable[[Path], C]) -> Iterator[C]:
    """A started cluster in a new folder on the disk of the working folder; whatever happens, its nodes end.

    Not in a temporary folder, which may be in memory: there a sync costs nothing.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-", dir=".") as folder:
        cluster = make(Path(folder))
        try:
            cluster.start_all()
            yield cluster
        finally:
            cluster.stop()


def tell(name: str, summary: str, good: bool, figures: dict[str, Any], file: Path | None) -> int:
    """Print the summary and the figures; returns the exit status."""
    figures = {"bench": name, "ok": good, **figures}
    print(f"{name}: {summary} {'ok' if good else 'MISSED'}")
    print(json.dumps(figures))
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if good else 1
