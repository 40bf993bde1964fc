"""Three whole nodes in this process, which traces: so the spans of the client and of all nodes are in one place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kvorum_node.assembly import Replica
from kvorum_node.config import load
from kvorum_node.dev_cluster import DevCluster
from tests.spans import kept_spans


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return kept_spans(monkeypatch)


class Nodes:
    """Three replicas, each of which can be ended by itself."""

    def __init__(self, files: DevCluster) -> None:
        self.files = files
        self.url = files.url
        self.replicas: dict[str, Replica] = {}
        self._stacks: dict[str, AsyncExitStack] = {}

    async def start(self) -> None:
        for number in range(3):
            replica, stack = Replica(load(self.files.config(number), {}, {})), AsyncExitStack()
            await stack.enter_async_context(replica)
            self.replicas[f"n{number + 1}"], self._stacks[f"n{number + 1}"] = replica, stack
        await self.leader()

    async def leader(self) -> str:
        """The node that serves as leader; waits for one."""
        news = asyncio.Event()
        stops = [replica._service.on_leader(news.set) for replica in self.replicas.values()]
        try:
            async with asyncio.timeout(30):
                while True:
                    news.clear()
                    for name, replica in self.replicas.items():
                        if replica._service.leader.node_id == name:
                            return name
                    await news.wait()
        finally:
            for stop in stops:
                stop()

    async def end(self, name: str, *, orderly: bool = True) -> None:
        """`orderly`: it lets another node lead first."""
        replica = self.replicas.pop(name)
        if orderly:
            await replica.retire()
        await self._stacks.pop(name).aclose()


@pytest.fixture
async def nodes(tmp_path: Path, spans: InMemorySpanExporter) -> AsyncIterator[Nodes]:
    files = DevCluster(tmp_path / "cluster")
    files.write_configs()
    cluster = Nodes(files)
    await cluster.start()
    yield cluster
    for name in list(cluster.replicas):
        await cluster.end(name, orderly=False)
