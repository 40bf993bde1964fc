"""What a backup costs the writes: `python -m bench.backup [--megabytes 200] [--rate 5000] [--rounds 5]`.

Stores a state of that size, then writes all the time, and in turn lets the cluster alone for some seconds and has it
backed up by `kvorum backup save`, whose process runs on this machine too. What is compared are acknowledged writes a
second, of pairs that lie side by side, so that other work on the machine counts on both sides. The aim: at most 20 %
fewer while a backup is made. Without a rate (`--rate 0`) the writers go as fast as they are answered, which is the
harder question: then there is no time to spare.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, fill, shape, tell
from kvorum_node.dev_cluster import DevCluster

COST: Final = 0.20
SETTLE: Final = 5.0
"""Seconds after the state was stored, and after each backup, that count for nothing."""


async def save(cluster: DevCluster, file: Path) -> None:
    """One backup, by the command. Errors: RuntimeError."""
    words = ("backup", "save", str(file), "--overwrite", "--url", cluster.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvorum.cli", *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(told.decode(errors="replace"))


def rate_of(writers: Writers, begin: float, end: float) -> float:
    """Acknowledged writes a second."""
    return sum(begin <= after < end for _, after in writers.done) / (end - begin)


async def measure(cluster: DevCluster, options: argparse.Namespace) -> dict[str, Any]:
    """Fill, write, and compare."""
    file = cluster.base_dir / "bench.bak"
    pairs: list[dict[str, float]] = []
    quiet: list[float] = []
    during: list[float] = []
    async with kvorum.open_kv(cluster.url) as kv:
        await fill(kv, options.megabytes)
        async with Writers(kv, options.callers, size=options.size, keys=50_000, rate=options.rate or None) as writers:
            for _ in range(options.rounds):
                await asyncio.sleep(SETTLE)
                begin = time.monotonic()
                await save(cluster, file)
                middle = time.monotonic()
                await asyncio.sleep(SETTLE)
                again = time.monotonic()
                await asyncio.sleep(middle - begin)
                end = time.monotonic()
                pair = {
                    "seconds": round(middle - begin, 2),
                    "during": round(rate_of(writers, begin, middle)),
                    "quiet": round(rate_of(writers, again, end)),
                    "load": os.getloadavg()[0],
                }
                print(pair, flush=True)
                pairs.append(pair)
                during += writers.times(begin, middle)
                quiet += writers.times(again, end)
                writers.done.clear()
    return {
        "megabytes": options.megabytes,
        "file_mib": round(file.stat().st_size / (1 << 20)),
        "rate": options.rate,
        "pairs": pairs,
        "share": round(statistics.median(pair["during"] / max(pair["quiet"], 1.0) for pair in pairs), 3),
        "quiet": shape(sorted(quiet)),
        "during": shape(sorted(during)),
        "errors": dict(writers.errors),
    }


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--rate", type=float, default=5_000.0, help="writes a second; 0: as many as are answered")
    parser.add_argument("--size", type=int, default=100, help="characters of a value")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster_of(DevCluster) as cluster:
        figures = run(measure(cluster, options))
    good = figures["share"] >= 1 - COST and not figures["errors"]
    quiet, during = figures["quiet"], figures["during"]
    summary = (
        f"{figures['file_mib']} MiB in {statistics.median(pair['seconds'] for pair in figures['pairs']):.1f} s:"
        f" {100 * (1 - figures['share']):.1f} % fewer writes meanwhile;"
        f" p50 {quiet['p50_ms']} and {during['p50_ms']} ms, p99 {quiet['p99_ms']} and {during['p99_ms']} ms"
    )
    return tell("backup", summary, good, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
