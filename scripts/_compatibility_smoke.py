"""What `scripts/compatibility` runs in each environment: every module is imported, an embedded store and three nodes
are written to and read, by the client and over queues. Prints the versions that it ran with."""

import asyncio
import importlib
import pkgutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import kvorum
import kvorum_node
import kvorum_raft
from kvorum_node.dev_cluster import DevCluster


def import_everything() -> int:
    """Returns the number of modules."""
    number = 0
    for package in (kvorum, kvorum_raft, kvorum_node):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
                number += 1
    return number


async def use(target: str) -> None:
    """A write, a check, a sum, a list, and a message that is acknowledged."""
    async with kvorum.open_kv(target, timeout=30_000) as kv:
        await kv.set(("a", 1), {"text": "ä", "bytes": b"\0\xff"})
        entry = await kv.get(("a", 1))
        assert entry.value == {"text": "ä", "bytes": b"\0\xff"}
        assert (await kv.atomic().check(entry).sum(("n",), 2).commit()).ok
        assert [found.key async for found in kv.list(prefix=())] == [("a", 1), ("n",)]
        await kv.queue("jobs").send({"job": 1})
        (message,) = await kv.queue("jobs").receive_batch(max=1, wait=10_000)
        assert message.value == {"job": 1}
        await message.ack()
        assert (await kv.queue("jobs").stats()).messages == 0


def main() -> None:
    number = import_everything()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(use(f"{folder}/embedded.kv"))
        cluster = DevCluster(Path(folder) / "cluster")
        try:
            cluster.start_all()
            asyncio.run(use(cluster.url))
        finally:
            cluster.stop()
    versions = ", ".join(f"{name} {version(name)}" for name in ("protobuf", "grpcio", "grpcio-health-checking"))
    print(f"{number} modules, embedded and three nodes ok with {versions}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
