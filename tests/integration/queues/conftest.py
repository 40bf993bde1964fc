"""One suite of queues for both clients and all kinds of databases."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster_fixture import ThreeNodes

Open = Callable[[], Awaitable[kvorum.Kv]]

LEASE: int = 1_000
"""Milliseconds, of the clusters that a test has for itself."""


@pytest.fixture
async def open_client(target: str) -> AsyncIterator[Open]:
    """Opens a client of the target; all are closed in the end."""
    opened: list[kvorum.Kv] = []

    async def open_one() -> kvorum.Kv:
        kv = await kvorum.open_kv(target)
        opened.append(kv)
        return kv

    yield open_one
    for kv in opened:
        await kv.close()


@pytest.fixture
async def kv(open_client: Open) -> kvorum.Kv:
    return await open_client()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own: a cluster is shared by all tests."""
    node: str = request.node.name
    return node[:200]


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """Three real nodes that the test may harm; a lease lasts a second."""
    with ThreeNodes(tmp_path, lease_ms=LEASE) as cluster:
        yield cluster
