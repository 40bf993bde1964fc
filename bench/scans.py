"""Long lists while others write: `python -m bench.scans [--lists 300] [--kills 20]`.

Part one: hundreds of lists at once, each over a large range in small batches, while writers go on; reported are the
writes' times without and with the lists. Part two: the node that serves the lists is killed in the middle of them, over
and over; afterwards the files of the states must not have grown beyond what the same writes take anyway, which pages
held back by readers that died would make them do. The aims: no error but the one that says where to go on, every list
comes to its end with all keys in order, and files that stay within 2 × their size before.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from uvloop import run

import kvorum
from bench.load import Writers, cluster_of, fill, rejoined, shape, tell
from kvorum.errors import KvorumError
from kvorum_node.dev_cluster import DevCluster, in_thread

GROWTH: Final = 2.0
BATCH: Final = 50
KEYS: Final = 5_000
CALL: Final = 30_000
"""Milliseconds for each batch: with hundreds of lists most of them wait."""


class Lists:
    """Lists over the whole range, one after the other, in `count` tasks."""

    def __init__(self, kv: kvorum.Kv, keys: int) -> None:
        self._kv = kv
        self._keys = keys
        self.finished = 0
        self.wrong = 0
        self.resumed: Counter[str] = Counter()
        """Errors after which a list went on from its cursor."""

    async def one(self) -> None:
        """List everything once, going on after errors as the documentation says."""
        expected = 0
        cursor: str | None = None
        while True:
            rows = self._kv.list(prefix=("filled",), batch_size=BATCH, timeout=CALL, cursor=cursor)
            begun = expected
            try:
                async for entry in rows:
                    self.wrong += entry.key[-1] != expected
                    expected += 1
            except KvorumError as error:
                self.resumed[type(error).__name__] += 1
                cursor = rows.cursor if expected > begun else cursor
                await asyncio.sleep(0.05)
            else:
                break
        self.wrong += expected != self._keys
        self.finished += 1

    async def over_and_over(self, ended: asyncio.Event) -> None:
        """At least once, until then; a list that has begun comes to its end."""
        while True:
            await self.one()
            if ended.is_set():
                return


async def run_lists(url: str, count: int, keys: int, repeat: bool) -> None:
    """A process of its own, so that what lists cost the client is not taken for what they cost the writers. Prints
    what happened as JSON. With `repeat` it goes on until its standard input ends."""
    async with kvorum.open_kv(url) as kv:
        lists, ended = Lists(kv, keys), asyncio.Event()
        listening = asyncio.create_task(asyncio.to_thread(sys.stdin.read) if repeat else asyncio.sleep(0))
        listening.add_done_callback(lambda _: ended.set())
        await asyncio.gather(listening, *(lists.over_and_over(ended) for _ in range(count)))
    print(json.dumps({"finished": lists.finished, "wrong": lists.wrong, "resumed": dict(lists.resumed)}))


async def start_lists(url: str, count: int, keys: int, *, repeat: bool) -> asyncio.subprocess.Process:
    """That process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.scans", "--run", url, str(count), str(keys), str(int(repeat))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def end_lists(process: asyncio.subprocess.Process) -> dict[str, Any]:
    """Wait for it; what it says."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    said = await process.stdout.read()
    if await process.wait():
        raise SystemExit(f"the lists' process has ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


def file_sizes(cluster: DevCluster) -> list[int]:
    """Bytes that the states take on disk."""
    return [
        sum(file.stat().st_blocks * 512 for file in (cluster.data_dir(number) / "state").rglob("*.mdb"))
        for number in range(cluster.nodes)
    ]


async def with_lists(cluster: DevCluster, kv: kvorum.Kv, options: argparse.Namespace, keys: int) -> dict[str, Any]:
    """Writes alone, then with lists beside them."""
    async with Writers(kv, options.callers, rate=options.rate) as writers:
        await asyncio.sleep(1.0)
        begin = time.monotonic()
        await asyncio.sleep(options.seconds)
        middle = time.monotonic()
        seen = await end_lists(await start_lists(cluster.url, options.lists, keys, repeat=False))
        end = time.monotonic()
        await asyncio.sleep(0.5)
    return {
        "lists": options.lists,
        "lists_s": round(end - middle, 1),
        "entries_per_s": round(options.lists * keys / (end - middle)),
        "alone": shape(writers.times(begin, middle)),
        "beside_lists": shape(writers.times(middle, end)),
        **seen,
        "errors": dict(writers.errors),
    }


async def with_kills(cluster: DevCluster, kv: kvorum.Kv, options: argparse.Namespace, keys: int) -> dict[str, Any]:
    """Kill whoever serves the lists."""
    async with Writers(kv, options.callers, rate=options.rate) as writers:
        await asyncio.sleep(2.0)
        before = file_sizes(cluster)
        lists = await start_lists(cluster.url, options.killed_lists, keys, repeat=True)
        for kill in range(options.kills):
            await asyncio.sleep(0.5)
            victim = await in_thread(cluster.leader)
            await in_thread(cluster.kill, victim)
            await in_thread(cluster.start, victim)
            await in_thread(rejoined, cluster, victim)
            print(f"kill {kill + 1} of {options.kills} is over", flush=True)
        seen = await end_lists(lists)
    readers = [(await in_thread(cluster.status, number)).statistics["readers"] for number in range(cluster.nodes)]
    return {
        "kills": options.kills,
        **seen,
        "errors": dict(writers.errors),
        "bytes_before": before,
        "bytes_after": file_sizes(cluster),
        "readers": readers,
    }


async def measure(cluster: DevCluster, options: argparse.Namespace) -> dict[str, Any]:
    """Both parts."""
    async with kvorum.open_kv(cluster.url) as kv:
        keys = await fill(kv, options.megabytes, size=(options.megabytes << 20) // KEYS)
        first = await with_lists(cluster, kv, options, keys)
        print(f"{options.lists} lists of {keys} keys in {first['lists_s']} s", flush=True)
        second = await with_kills(cluster, kv, options, keys)
    return {"keys": keys, "megabytes": options.megabytes, "beside": first, "killed": second}


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--killed-lists", type=int, default=30, help="lists at once in the second part")
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--rate", type=float, default=500.0, help="writes a second")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of writes alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        url, count, keys, repeat = options.run
        run(run_lists(url, int(count), int(keys), bool(int(repeat))))
        return 0
    with cluster_of(DevCluster) as cluster:
        figures = run(measure(cluster, options))
    beside, killed = figures["beside"], figures["killed"]
    growth = max(after / before for before, after in zip(killed["bytes_before"], killed["bytes_after"], strict=True))
    good = growth <= GROWTH and not beside["wrong"] and not killed["wrong"] and not beside["errors"]
    summary = (
        f"{options.lists} lists at once of {figures['keys']} keys in {beside['lists_s']} s: writes p99"
        f" {beside['beside_lists']['p99_ms']} ms (alone {beside['alone']['p99_ms']} ms); {options.kills} kills under"
        f" lists: files grew {growth:.2f} ×, {killed['finished']} lists finished,"
        f" {sum(killed['resumed'].values())} resumed, {killed['wrong']} wrong"
    )
    return tell("scans", summary, good, {"growth": round(growth, 3), **figures}, options.json)


if __name__ == "__main__":
    sys.exit(main())
