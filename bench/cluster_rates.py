"""Rates and latencies of one Python process on three nodes: `python -m bench.cluster_rates [--seconds 5] [--callers
1,64,256,1024] [--json FILE]`.

Each caller awaits its answer before it sends the next call. Sets have 100-byte values and are answered after an fsync
on a majority; gets are linearizable. After
the run all nodes are killed and started again, and the acknowledged writes are counted.
"""

import argparse
import itertools
import json
import resource
import tempfile
from pathlib import Path

from uvloop import run

import kvorum
from bench.measure import between, clock
from kvorum_node.dev_cluster import DevCluster

VALUE = "x" * 96  # 100 bytes with its V8 header
KEYS = 10_000


async def rates(cluster: DevCluster, callers: list[int], seconds: float) -> list[dict[str, object]]:
    """Sets and gets in turn, for each number of callers."""
    rows: list[dict[str, object]] = []
    written: set[int] = set()
    async with kvorum.open_kv(cluster.url) as kv:
        numbers = itertools.count()

        async def put(caller: int) -> None:
            number = next(numbers) % KEYS
            await kv.set(("bench", number), VALUE)
            written.add(number)

        async def get(caller: int) -> None:
            await kv.get(("bench", next(numbers) * 7919 % KEYS))

        begin = clock()
        await between(put, 64, begin, begin + min(seconds, 2.0))  # warm up, and keys to read
        for count in callers:
            for name, call in (("set", put), ("get", get)):
                begin = clock()
                row = await between(call, count, begin, begin + seconds)
                row["client_cpu_us_per_call"] = row["client_cpu_s"] / max(1.0, row["calls"]) * 1e6
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
