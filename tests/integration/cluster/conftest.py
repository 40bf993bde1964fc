from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kvorum.cluster import ClusterBackend, connect
from kvorum.cluster.route import Address, parse
from kvorum_node.dev_cluster import DevCluster

Connect = Callable[..., Awaitable[ClusterBackend]]


def address(cluster: DevCluster, number: int) -> Address:
    """Where a node of the cluster listens for clients."""
    found = parse(cluster.client_address(number))
    assert found is not None
    return found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """Three real nodes that the test may harm."""
    cluster = DevCluster(tmp_path / "cluster")
    cluster.start_all()
    yield cluster
    cluster.stop()


@pytest.fixture
async def open_backend() -> AsyncIterator[Connect]:
    """`await open_backend(cluster, 0, 2)` connects to those nodes; to all, if none is named."""
    opened: list[ClusterBackend] = []

    async def open_(cluster: DevCluster, *numbers: int) -> ClusterBackend:
        chosen = numbers or range(cluster.nodes)
        backend = await connect([address(cluster, number) for number in chosen], timeout=10)
        opened.append(backend)
        return backend

    yield open_
    for backend in opened:
        await backend.close()
