"""Rates and latencies of one Python process on three nodes: `python -m bench.cluster_rates [--seconds 5] [--callers
1,64,256,1024] [--json FILE]`.

Each caller awaits its answer before it sends the next call. Sets have 100-byte values and are answered after an fsync
on a majority; gets are linearizable. After
the run all nodes are killed and started again, and the acknowledged writes are counted.
"""

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from uvloop import run

import kvorum
from kvorum_node.dev_cluster import DevCluster

VALUE = "x" * 96  # 100 bytes with its V8 header
KEYS = 10_000


async def measure(call: Callable[[int], Awaitable[object]], callers: int, seconds: float) -> dict[str, float]:
    """Run `callers` loops of `call` for a while; rate per second, latencies in milliseconds."""
    latencies: list[float] = []
    clock = time.perf_counter
    end = clock() + seconds
    number = iter(range(1 << 60))

    async def caller() -> None:
        while (begin := clock()) < end:
            await call(next(number))
            latencies.append(clock() - begin)

    began, cpu = clock(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    took = clock() - began
    latencies.sort()
    return {
        "rate": len(latencies) / took,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)] * 1e3,
        "max_ms": latencies[-1] * 1e3,
        "client_cpu_us_per_call": (time.process_time() - cpu) / len(latencies) * 1e6,
    }


async def rates(cluster: DevCluster, callers: list[int], seconds: float) -> list[dict[str, object]]:
    """Sets and gets in turn, for each number of callers."""
    rows: list[dict[str, object]] = []
    written: set[int] = set()
    async with kvorum.open_kv(cluster.url) as kv:

        async def put(number: int) -> None:
            await kv.set(("bench", number % KEYS), VALUE)
            written.add(number % KEYS)

        async def get(number: int) -> None:
            await kv.get(("bench", number * 7919 % KEYS))

        await measure(put, 64, min(seconds, 2.0))  # warm up, and keys to read
        for count in callers:
            for name, call in (("set", put), ("get", get)):
                row = await measure(call, count, seconds)
                rows.append({"call": name, "callers": count, **row})
                print(
                    f"{name} {count:5} callers {row['rate']:9,.0f}/s"
                    f"  p50 {row['p50_ms']:7.2f} ms  p99 {row['p99_ms']:7.2f} ms"
                    f"  max {row['max_ms']:7.1f} ms  client {row['client_cpu_us_per_call']:5.1f} µs/call",
                    flush=True,
                )
    nodes = range(3)
    for node in nodes:
        cluster.kill(node)
    for node in nodes:
        cluster.start(node)
    cluster.leader()
    async with kvorum.open_kv(cluster.url) as kv:
        there = sum([1 async for _ in kv.list(prefix=("bench",), batch_size=1000)])
    print(f"after kill -9 of all nodes: {there} of {len(written)} acknowledged keys there")
    if there != len(written):
        raise SystemExit("acknowledged writes are missing")
    return rows


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--callers", default="1,64,256,1024")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvorum-bench-", dir=".") as folder:
        cluster = DevCluster(Path(folder))
        cluster.start_all()
        try:
            rows = run(rates(cluster, [int(part) for part in options.callers.split(",")], options.seconds))
        finally:
            cluster.stop()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"CPU of the nodes: {children.ru_utime + children.ru_stime:.1f} s,"
        f" peak memory of the largest {children.ru_maxrss / 1024:.0f} MiB"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
