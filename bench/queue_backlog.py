"""What a large backlog costs: `python -m bench.queue_backlog [--messages 1000000]`, on three nodes.

Rates of sending (one message a call, 256 callers) and of delivery (256 handlers), always of 10,000 messages, so that
the backlog is the same afterwards: with 10,000 messages waiting and nothing else in the database, then in turn on that
queue and on one with `--messages` waiting, while another queue has as many scheduled for later. The aims: the large
backlog's rates are at least 80 % of the small one's; what is scheduled costs the nodes no CPU until it is due, and is
delivered in time among so many that are not; the leader's own memory does not grow with the backlog.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import cluster_of, tell
from bench.measure import quantile
from bench.process import anonymous_mib, cpu_seconds
from kvorum_node.dev_cluster import DevCluster, in_thread

VALUE: Final = b"x" * 100
SMALL: Final = 10_000
CALLERS: Final = 256
LONG: Final = timedelta(days=1)
SHORT: Final = 3.0
"""Seconds of the delay with which some messages are sent to see whether they come in time."""
MANY: Final = 500
"""Messages of a commit that fills a queue."""
AIM: Final = 0.8
IDLE_AIM: Final = 0.02
"""Seconds of CPU a second that the nodes may use more, each, with a scheduled backlog than without."""
MEMORY_AIM: Final = 32.0
"""MiB by which the leader's own memory may grow while one and a half times `--messages` more come to lie there."""


async def fill(kv: kvorum.Kv, queue: str, count: int, delay: timedelta | None = None) -> float:
    """Messages a second; large commits."""
    gate = asyncio.Semaphore(4)

    async def part(number: int) -> None:
        async with gate:
            commit = kv.atomic()
            for _ in range(number):
                commit.enqueue(VALUE, queue=queue, delay=delay)
            await commit.commit(timeout=60_000)

    began = time.monotonic()
    await asyncio.gather(*(part(min(MANY, count - first)) for first in range(0, count, MANY)))
    return count / (time.monotonic() - began)


async def send(kv: kvorum.Kv, queue: str, count: int) -> float:
    """Messages a second; one a call."""
    numbers = iter(range(count))

    async def caller() -> None:
        for _ in numbers:
            await kv.enqueue(VALUE, queue=queue)

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / (time.monotonic() - began)


async def deliver(kv: kvorum.Kv, queue: str, count: int) -> float:
    """Messages a second, from beginning to listen until so many are handled."""
    enough = asyncio.Event()
    handled = 0

    async def handle(value: object) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            enough.set()
        if handled >= count:
            await asyncio.Event().wait()  # one more than those that count: cancelled, it goes back

    began = time.monotonic()
    listening = asyncio.create_task(kv.listen_queue(handle, queue=queue, concurrency=CALLERS))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait([listening, waiting], return_when=asyncio.FIRST_COMPLETED)
    took = time.monotonic() - began
    if listening.done():
        listening.result()
    listening.cancel()
    await asyncio.wait([listening])
    return count / took


async def lateness(kv: kvorum.Kv, queue: str, count: int = 500) -> list[float]:
    """Milliseconds after their time at which messages of a short delay are handled; sorted."""
    late: list[float] = []
    enough = asyncio.Event()

    def handle(due: float) -> None:
        late.append((time.monotonic() - due) * 1e3)
        if len(late) == count:
            enough.set()

    listening = asyncio.create_task(kv.listen_queue(handle, queue=queue, concurrency=CALLERS))
    for _ in range(count):
        # Counted from before the commit, whose time is a little later: it can only seem later than it is.
        await kv.enqueue(time.monotonic() + SHORT, queue=queue, delay=timedelta(seconds=SHORT))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait([listening, waiting], return_when=asyncio.FIRST_COMPLETED)
    if listening.done():
        listening.result()
    listening.cancel()
    await asyncio.wait([listening])
    return sorted(late)


async def idle_cpu(cluster: DevCluster, seconds: float) -> list[float]:
    """Seconds of CPU a second of each node while nothing happens."""
    before = [cpu_seconds(cluster.pid(number)) for number in range(cluster.nodes)]
    await asyncio.sleep(seconds)
    after = [cpu_seconds(cluster.pid(number)) for number in range(cluster.nodes)]
    return [round((end - begin) / seconds, 4) for begin, end in zip(before, after, strict=True)]


async def rates(kv: kvorum.Kv, queue: str, what: str) -> dict[str, float]:
    """Send so many, deliver so many."""
    row: dict[str, float] = {
        "send": round(await send(kv, queue, SMALL)),
        "deliver": round(await deliver(kv, queue, SMALL)),
    }
    print(
        f"{what:42} sent {row['send']:7,}/s  delivered {row['deliver']:7,}/s  load {os.getloadavg()[0]:.1f}", flush=True
    )
    return row


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in ("send", "deliver")}


async def measure(cluster: DevCluster, options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""

    async def settle() -> None:
        await asyncio.sleep(options.idle / 2)

    async def memory() -> float:
        return round(anonymous_mib(cluster.pid(await in_thread(cluster.leader))), 1)

    figures: dict[str, Any] = {"messages": options.messages}
    async with kvorum.open_kv(cluster.url) as kv:
        await fill(kv, "small", SMALL)
        await rates(kv, "small", "warming up")
        alone = [await rates(kv, "small", f"{SMALL:,} waiting, nothing else") for _ in range(options.rounds)]
        await settle()
        figures |= {"alone": medians(alone), "memory_small_mib": await memory()}
        figures["idle_cpu_small"] = await idle_cpu(cluster, options.idle)
        half = options.messages // 2
        await fill(kv, "later", half, LONG)
        figures["memory_half_mib"] = await memory()  # by now what is cached of the log is as large as it gets
        figures["fill_scheduled"] = round(await fill(kv, "later", options.messages - half, LONG))
        await settle()
        figures |= {"memory_scheduled_mib": await memory(), "idle_cpu_scheduled": await idle_cpu(cluster, options.idle)}
        print(
            f"idle nodes use {figures['idle_cpu_small']} of a CPU each, with {options.messages:,} scheduled messages"
            f" {figures['idle_cpu_scheduled']}",
            flush=True,
        )
        late = await lateness(kv, "later")
        figures["late"] = {f"p{part:g}_ms": round(quantile(late, part / 100), 1) for part in (50, 99)}
        figures["fill_ready"] = round(await fill(kv, "large", options.messages))
        await settle()
        small, large = [], []
        for _ in range(options.rounds):
            small.append(await rates(kv, "small", f"{SMALL:,} waiting, beside the large ones"))
            large.append(await rates(kv, "large", f"{options.messages:,} waiting"))
        await settle()
        figures |= {"small": medians(small), "large": medians(large), "memory_large_mib": await memory()}
    return figures


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=10.0, help="seconds for which the idle nodes are watched")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(DevCluster) as cluster:
        figures = run(measure(cluster, options))
    alone, small, large = figures["alone"], figures["small"], figures["large"]
    figures["ratios"] = {
        f"{name}_to_{what}": round(large[name] / other[name], 2)
        for what, other in (("alone", alone), ("small", small))
        for name in ("send", "deliver")
    }
    growth = round(max(figures["memory_large_mib"], figures["memory_scheduled_mib"]) - figures["memory_half_mib"], 1)
    idle = max(
        after - before for before, after in zip(figures["idle_cpu_small"], figures["idle_cpu_scheduled"], strict=True)
    )
    good = (
        min(large["send"] / small["send"], large["deliver"] / small["deliver"]) >= AIM
        and idle <= IDLE_AIM
        and growth <= MEMORY_AIM
    )
    rates_of = {
        name: f"{row['send']:,.0f}/s sent, {row['deliver']:,.0f}/s delivered"
        for name, row in (("alone", alone), ("small", small), ("large", large))
    }
    few, many = f"{SMALL:,}", f"{options.messages:,}"
    late = figures["late"]["p99_ms"]
    summary = (
        f"{many} waiting: {rates_of['large']}; {few} in the same database: {rates_of['small']}; {few} alone:"
        f" {rates_of['alone']}; scheduled ones cost {idle:.2%} of a CPU and come {late} ms late (p99); the leader's own"
        f" memory grew by {growth} MiB from half of the scheduled ones to the end;"
    )
    return tell("queue_backlog", summary, good, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
