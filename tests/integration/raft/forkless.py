"""A program: three nodes and sixteen client threads in one process, with a snapshot on every node every two seconds,
and a hook that sees whether any process is started. Prints one line of JSON.

    python -m tests.integration.raft.forkless FOLDER SECONDS
"""

import asyncio
import contextlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from kvorum.errors import KvorumError
from kvorum.sync import Kv, open_kv
from kvorum_node.assembly import Replica
from kvorum_node.config import load
from kvorum_node.dev_cluster import free_ports

THREADS = 16
EVERY = 2.0
CHECKPOINTS = 3
OPERATIONS = 300
"""So many at least, however long it takes."""
_STARTERS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen")


def _flags(folder: Path) -> list[dict[str, str]]:
    ports = free_ports(6)
    members = ",".join(f"n{i}=127.0.0.1:{ports[2 * i]}/127.0.0.1:{ports[2 * i + 1]}" for i in range(3))
    return [
        {"node_id": f"n{i}", "data_dir": str(folder / f"n{i}"), "members": members, "http_listen": "off"}
        for i in range(3)
    ]


class Load:
    """Client threads that write and read until they are stopped; the slowest call tells of a hang."""

    def __init__(self, kv: Kv) -> None:
        self.done = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self._kv = kv
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(THREADS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def hanging(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def _run(self, number: int) -> None:
        count = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._kv.set(["load", number, count % 500], "x" * 200)
                if self._kv.get(["load", number, count % 500]).value != "x" * 200:
                    raise ValueError("a read missed the write before it")
            except (KvorumError, ValueError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                return
            count += 1
            with self._lock:
                self.done += 1
                self.slowest = max(self.slowest, time.monotonic() - begun)


async def _serve(folder: Path, seconds: float) -> dict[str, Any]:
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in _STARTERS else None)
    async with contextlib.AsyncExitStack() as stack:
        configurations = [load(None, {}, flags) for flags in _flags(folder)]
        nodes = [await stack.enter_async_context(Replica(configuration)) for configuration in configurations]
        url = "kvorum://" + ",".join(configuration.client_listen for configuration in configurations)
        kv = await asyncio.to_thread(open_kv, url)
        load_ = Load(kv)
        await asyncio.to_thread(load_.__enter__)
        begun = time.monotonic()

        def enough() -> bool:
            made = min(node._raft.status().statistics["checkpoints"] for node in nodes)
            return time.monotonic() - begun >= seconds and made >= CHECKPOINTS and load_.done >= OPERATIONS

        while not enough() and not load_.failures:
            await asyncio.sleep(EVERY)
            for node in nodes:
                node._raft._snapshots.checkpointer.force()
        await asyncio.to_thread(load_.__exit__)
        await asyncio.to_thread(kv.close)
        made = [node._raft.status().statistics["checkpoints"] for node in nodes]
        faults = [node._raft.status().statistics["checkpoint_failures"] for node in nodes]
    return {
        "operations": load_.done,
        "slowest": load_.slowest,
        "hanging": load_.hanging,
        "failures": load_.failures,
        "checkpoints": made,
        "checkpoint_failures": faults,
        "processes": started,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))))
