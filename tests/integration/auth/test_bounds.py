"""Bounds of a token: operations a second, and connections."""

import asyncio

import pytest

import kvorum
from kvorum.errors import ConnectFailed, InvalidArgument, OutcomeUnknown, Overloaded
from tests.integration.cluster_fixture import ThreeNodes


async def test_operations(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    made = await root.auth.create("slow", read=[("a",)], write=[("a",)], operations_per_second=5)
    async with kvorum.open_kv(cluster.url, token=made.text, timeout=20_000) as kv:
        await asyncio.gather(*(kv.set(("a", number), number) for number in range(40)))
        # That was 40 operations at once, so the next one is refused for seven seconds.
        with pytest.raises(Overloaded, match="5 operations a second"):
            await _set(kv)
        with pytest.raises(kvorum.errors.Unavailable, match="5 operations a second"):
            await kv.get(("a", 0), timeout=500)
        with pytest.raises(kvorum.errors.Unavailable, match="5 operations a second"):
            await kv.get_many([("a", 0), ("a", 1)], timeout=500)
    await root.set(("a", 0), 1)


async def _set(kv: kvorum.Kv) -> None:
    """A write is asked for again and again. On a busy machine it may end while it is, and nobody can say how."""
    while True:
        try:
            await kv.set(("a", 0), 0, timeout=500)
            return
        except OutcomeUnknown:
            continue


async def test_connections(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    made = await root.auth.create("few", read=[("a",)], connections=1)
    url = f"kvorum://{cluster.client_address(cluster.leader())}"
    async with kvorum.open_kv(url, token=made.text) as kv:
        await kv.get(("a",))
        with pytest.raises(ConnectFailed, match="1 connections to each node"):
            await kvorum.open_kv(url, token=made.text, timeout=2_000)
        await kv.get(("a",))
    async with asyncio.timeout(60):
        while True:  # until the node has seen that the first one is gone
            try:
                kv = await kvorum.open_kv(url, token=made.text, timeout=2_000)
                break
            except ConnectFailed:
                continue
    await kv.get(("a",))
    await kv.close()


async def test_bounds_are_numbers(root: kvorum.Kv) -> None:
    for bound in (0, -1, 1 << 32, True, 1.5):
        with pytest.raises(InvalidArgument, match="connections is an int from 1"):
            await root.auth.create("x", read=[()], connections=bound)  # type: ignore[arg-type]
    made = await root.auth.create("bounded", read=[()], operations_per_second=7, connections=8)
    scopes = (await root.auth.show(made.id)).scopes
    assert (scopes.operations_per_second, scopes.connections) == (7, 8)
