"""Clients of both versions of HTTP, connected to each node of a shared cluster in turn, and of one with TLS."""

import inspect
from collections.abc import AsyncIterator, Iterator

import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.integration.tls.secure import SecureNodes, client_context

from .wire import CLIENTS, Client

PLAIN = ((0, "http2", False), (1, "http1", False), (2, "http2", False))
SECURE = ((0, "http2", True), (1, "http1", True))


@pytest.fixture(scope="session")
def secure_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNodes]:
    """With TLS on every port."""
    with SecureNodes(tmp_path_factory.mktemp("secure")) as cluster:
        yield cluster


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that speak to the shared cluster by other ways as well are about that one."""
    if "client" in metafunc.fixturenames:
        shared = "shared_cluster" in inspect.signature(metafunc.function).parameters
        metafunc.parametrize("client", PLAIN if shared else PLAIN + SECURE, indirect=True, ids=_way)


def _way(way: tuple[int, str, bool]) -> str:
    number, version, secure = way
    return f"node {number + 1}, {version}{', TLS' if secure else ''}"


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """One of the nodes leads, so leader and followers are all asked."""
    number, version, secure = request.param
    cluster: DevCluster = request.getfixturevalue("secure_cluster" if secure else "shared_cluster")
    context = client_context(None, alpn=("h2" if version == "http2" else "http/1.1",)) if secure else None
    async with CLIENTS[version](cluster.http_address(number), tls=context) as client:
        yield client
