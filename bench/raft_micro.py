"""What the consensus layer alone costs: three processes on one machine, every entry synced by a majority.

    python -m bench.raft_micro [--dir FOLDER] [--seconds 3]

Reports the latency of one entry at a time (100 bytes and 16 KiB), entries per second with several under way, and
linearizable reads. The folder must be on a real disk: a memory file system would measure something else, and is
refused.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import between, clock
from kvorum_node.dev_cluster import free_ports
from kvorum_raft.config import RaftConfig
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Member, PreparedState, StateFacts, StateImage


class CountingMachine:
    """Applies nothing but the index."""

    def __init__(self) -> None:
        self._index = 0

    @property
    def applied_index(self) -> int:
        return self._index

    def apply(self, index: int, time_ms: int, payload: bytes) -> Generator[bool | None, None, Any]:
        yield True
        self._index = index

    def state_hash(self) -> bytes:
        return bytes(16)

    def size(self) -> int:
        return 1 << 50  # no checkpoint is ever due

    def image(self) -> StateImage:
        raise NotImplementedError

    def inspect(self, file: Path) -> StateFacts:
        raise NotImplementedError

    def prepare(self, file: Path, pause: Callable[[int], None] | None = None) -> PreparedState:
        raise NotImplementedError

    def adopt(self, prepared: PreparedState) -> None:
        raise NotImplementedError


async def measure(action: Callable[[], Awaitable[Any]], callers: int, seconds: float) -> dict[str, float]:
    """`action` by so many callers at once; per second, and milliseconds at the median and the 99th percentile."""
    begin = clock()
    row = await between(lambda caller: action(), callers, begin, begin + seconds)
    return {
        "per_second": row["rate"],
        "p50_ms": row["p50_ms"],
        "p99_ms": row["p99_ms"],
        "leader_cpu_us": row["client_cpu_s"] / max(1.0, row["calls"]) * 1e6,
    }


async def load(node: RaftNode, seconds: float) -> list[dict[str, Any]]:
    """All measurements, on the leader."""
    rows = []
    for what, size, callers in (
        ("entry 100 B", 100, 1),
        ("entry 16 KiB", 16_384, 1),
        ("entry 16 KiB", 16_384, 2),
        ("entry 16 KiB", 16_384, 16),
        ("entry 100 B", 100, 256),
    ):
        payload = b"x" * size
        found = await measure(partial(node.propose, payload), callers, seconds)
        rows.append({"what": what, "callers": callers, **found})
    for callers in (1, 256):
        rows.append({"what": "read", "callers": callers, **await measure(node.read_index, callers, seconds)})
    return rows


async def serve(node_id: str, folder: Path, members: list[Member], seconds: float) -> None:
    """One process: whoever becomes the leader first measures and prints the rows."""
    node = RaftNode(RaftConfig(node_id, members, folder, map_size=1 << 36), CountingMachine())
    await node.start()
    leads = asyncio.Event()
    node.on_leadership(lambda is_leader: leads.set() if is_leader else None)
    await leads.wait()
    print(json.dumps(await load(node, seconds)), flush=True)
    await node.stop()


def run(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Start three processes in the folder and return the leader's rows."""
    members = [(f"n{number}", f"127.0.0.1:{port}", "") for number, port in enumerate(free_ports(3), start=1)]
    options = ["--seconds", str(seconds), "--members", json.dumps(members)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.raft_micro", "--serve", node_id, "--dir", str(folder / node_id), *options],
            stdout=subprocess.PIPE,
        )
        for node_id, _, _ in members
    ]
    try:
        # Two of them never print anything: the first line that comes is the leader's.
        lines = asyncio.run(_first_line([process.stdout for process in processes]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    rows: list[dict[str, Any]] = json.loads(lines)
    return rows


async def _first_line(streams: list[Any]) -> bytes:
    loop = asyncio.get_running_loop()
    tasks, transports = [], []
    for stream in streams:
        reader = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), stream)
        transports.append(transport)
        tasks.append(asyncio.create_task(reader.readline()))
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for transport in transports:
        transport.close()
    return done.pop().result()


def on_memory(folder: Path) -> bool:
    """True for a memory file system."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True)
    return kind.stdout.strip() in ("tmpfs", "ramfs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.raft_micro", description=__doc__)
    parser.add_argument("--dir", type=Path, help="parent of the nodes' data; default: this project")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--members", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        members = [Member(*one) for one in json.loads(options.members)]
        run_loop = asyncio.run
        try:
            import uvloop

            run_loop = uvloop.run
        except ImportError:
            print("without uvloop", file=sys.stderr)
        run_loop(serve(options.serve, options.dir, members, options.seconds))
        return
    parent = options.dir or Path(__file__).resolve().parents[1]
    parent.mkdir(parents=True, exist_ok=True)
    if on_memory(parent):
        parser.error(f"{parent} is on a memory file system; choose a folder on a disk with --dir")
    folder = Path(tempfile.mkdtemp(prefix=".raft-micro-", dir=parent))
    try:
        print(f"{'what':14} {'callers':>7} {'per second':>11} {'p50 ms':>8} {'p99 ms':>8} {'leader µs':>10}")
        for row in run(folder, options.seconds):
            print(
                f"{row['what']:14} {row['callers']:7} {row['per_second']:11,.0f} {row['p50_ms']:8.2f} "
                f"{row['p99_ms']:8.2f} {row['leader_cpu_us']:10.0f}"
            )
        print(f"{os.cpu_count()} processors, three processes and the load on one machine")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
