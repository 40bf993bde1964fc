import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from kvorum.cluster import ClusterBackend, connect
from tests.unit.cluster.fake_node import FakeNode, FakeState

Connect = Callable[..., Awaitable[ClusterBackend]]


@pytest.fixture
async def state() -> AsyncIterator[FakeState]:
    """A fake cluster; nodes that tests start on it are stopped."""
    fake = FakeState()
    yield fake
    for node in fake.nodes:
        node.thaw()
        await node.kill()


@pytest.fixture
async def nodes(state: FakeState) -> list[FakeNode]:
    """Three nodes, the first one leads."""
    for number in range(3):
        node = FakeNode(state, f"n{number}")
        await node.start()
        state.nodes.append(node)
    state.leader = state.nodes[0]
    return state.nodes


@pytest.fixture
async def open_backend(nodes: list[FakeNode]) -> AsyncIterator[Connect]:
    """`await open_backend()` connects to all nodes; closed at the end."""
    opened: list[ClusterBackend] = []

    async def open_(*chosen: FakeNode, timeout: float = 5.0) -> ClusterBackend:
        backend = await connect([node.target for node in chosen or nodes], timeout=timeout)
        opened.append(backend)
        return backend

    yield open_
    for backend in opened:
        await backend.close()
    assert [task for task in asyncio.all_tasks() if "kvorum" in repr(task.get_coro())] == []


@pytest.fixture
async def backend(open_backend: Connect) -> ClusterBackend:
    return await open_backend()
