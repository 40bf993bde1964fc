"""Nodes on a small disk that becomes full, in namespaces of their own: `python -m tests.integration.node.full_disk
CASE FOLDER`. Whatever ends this, the kernel takes mount, loop device and nodes away. See test_full_disk."""

import asyncio
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import kvorum
from chaos.disks import LoopDisk
from chaos.isolation import INSIDE, run_inside, settle
from kvorum_node.dev_cluster import DevCluster
from kvorum_raft.faults import EXIT_DISK_FULL

KEYS = 50
PATIENCE = 60.0


def main(case: str, folder: Path) -> None:
    """Errors: AssertionError."""
    disk = LoopDisk(folder / "image", folder / "disk", megabytes=256)
    # One MiB is kept free, instead of one GiB.
    cluster = DevCluster(folder / "cluster", nodes=1, settings={"min_free_mb": 1})
    cluster.write_configs()
    # Its log and its pid stand elsewhere.
    config = cluster.config(0)
    config.write_text(config.read_text().replace('data_dir = "n1"', f'data_dir = "{disk.mount}/n1"'))
    try:
        CASES[case](disk, cluster)
    finally:
        cluster.stop()
        disk.close()


def a_first_start(disk: LoopDisk, cluster: DevCluster) -> None:
    disk.fill()
    is_refused(disk, cluster)
    asyncio.run(write(cluster.url))


def a_start_that_needs_no_room(disk: LoopDisk, cluster: DevCluster) -> None:
    """After an orderly end: it serves, and refuses what makes it grow."""
    cluster.start_all()
    asyncio.run(write(cluster.url))
    assert cluster.terminate(0) == 0
    disk.fill()
    assert disk.has_no_room()
    cluster.start(0)
    cluster.leader()
    asyncio.run(find(cluster.url))
    asyncio.run(is_tight(cluster.url))
    disk.make_room()
    asyncio.run(write(cluster.url))


def a_start_after_a_kill(disk: LoopDisk, cluster: DevCluster) -> None:
    cluster.start_all()
    asyncio.run(write(cluster.url))
    cluster.kill(0)
    disk.fill()
    is_refused(disk, cluster)
    asyncio.run(find(cluster.url))


def writes(disk: LoopDisk, cluster: DevCluster) -> None:
    """Deletes are taken while growth is refused, and they too need room in the log."""
    cluster.start_all()
    asyncio.run(write(cluster.url))
    disk.fill()
    child = cluster._children[0]
    asyncio.run(delete(cluster.url, lambda: child.poll() is not None))
    ended(cluster, child.wait(PATIENCE))
    is_refused(disk, cluster)
    asyncio.run(find(cluster.url))


def is_refused(disk: LoopDisk, cluster: DevCluster) -> None:
    """The node does not start on the full disk, and starts when there is room again."""
    assert disk.has_no_room()
    cluster._spawn(0)
    ended(cluster, cluster._children[0].wait(PATIENCE))
    disk.make_room()
    cluster.start(0)
    cluster.leader()


def ended(cluster: DevCluster, status: int) -> None:
    """With the status of a full disk, and a line that says so."""
    said = cluster.log(0).read_text()
    assert status == EXIT_DISK_FULL, (status, said[-2_000:])
    last = said.splitlines()[-1]
    assert last.startswith("kvorum node: ") and "No space left on device" in last, last
    assert "Traceback" not in said, said[-4_000:]
    del cluster._children[0]


async def write(url: str) -> None:
    async with asyncio.timeout(PATIENCE), kvorum.open_kv(url) as kv:
        for number in range(KEYS):
            while True:
                try:
                    await kv.set(("kept", number), os.urandom(20_000))
                    break
                except kvorum.errors.NoSpace:
                    await asyncio.sleep(0.05)  # the node has not seen yet that there is room again


async def find(url: str) -> None:
    """What was acknowledged is there."""
    async with kvorum.open_kv(url) as kv:
        assert await kv.count(("kept",)) == KEYS


async def is_tight(url: str) -> None:
    """Growth is refused, and certainly not done."""
    async with kvorum.open_kv(url) as kv:
        try:
            await kv.set(("more",), bytes(20_000))
        except kvorum.errors.NoSpace:
            return
    raise AssertionError("a write was taken that there is no room for")


async def delete(url: str, over: Callable[[], bool]) -> None:
    """Many keys that do not exist, again and again."""
    async with asyncio.timeout(PATIENCE), kvorum.open_kv(url, timeout=2_000) as kv:
        for number in itertools.count():
            if over():
                return
            operation = kv.atomic()
            for part in range(100):
                operation = operation.delete((b"x" * 1_900, number, part))
            try:
                await operation.commit()
            except kvorum.KvorumError:
                await asyncio.sleep(0.05)  # it has no room, or is gone, and is looked at again


CASES = {one.__name__: one for one in (a_first_start, a_start_that_needs_no_room, a_start_after_a_kill, writes)}

if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] != INSIDE:
        sys.exit(run_inside([sys.executable, "-m", __spec__.name, INSIDE, *words], network=False))
    settle()
    main(words[1], Path(words[2]))
