"""Clients of both versions of HTTP, connected to each node of a shared cluster in turn."""

from collections.abc import AsyncIterator

import pytest

from kvorum_node.dev_cluster import DevCluster

from .wire import CLIENTS, Client


@pytest.fixture(params=[(0, "http2"), (1, "http1"), (2, "http2")], ids=lambda param: f"node {param[0] + 1}, {param[1]}")
async def client(request: pytest.FixtureRequest, shared_cluster: DevCluster) -> AsyncIterator[Client]:
    """One of the nodes leads, so leader and followers are all asked."""
    number, version = request.param
    async with CLIENTS[version](shared_cluster.http_address(number)) as client:
        yield client
