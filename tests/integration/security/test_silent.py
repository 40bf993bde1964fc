"""Calls to the gRPC port that say nothing, or need not say who they are: they keep nobody out."""

import asyncio
import urllib.request
from collections import Counter
from contextlib import AsyncExitStack

import kvorum
from kvorum_node.api.gate import MAX_GUESTS, MAX_SILENT, WHY
from kvorum_node.api.server import MAX_WAITING
from tests.integration.auth.conftest import ROOT
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.node.raw import RawStream
from tests.integration.security.hand import hello
from tests.integration.security.silent import SilentCalls

CALLS = 250
"""Of one connection: as many as it may have are a few more."""
PATIENCE = 90


async def _page(page: str) -> str:
    return await asyncio.to_thread(lambda: urllib.request.urlopen(f"{page}/metrics", timeout=30).read().decode())


async def _figure(page: str, name: str) -> float:
    (line,) = [line for line in (await _page(page)).splitlines() if line.startswith(f"kvorum_debug_{name} ")]
    return float(line.partition(" ")[2])


async def _state(page: str, calls: list[SilentCalls]) -> str:
    """What there is to be said when they do not end."""
    signs = ("calls_", "connections_shut", "unfinished", "unread")
    lines = [line for line in (await _page(page)).splitlines() if line[0] != "#" and any(s in line for s in signs)]
    return "\n".join([*lines, *(f"{one.words}: {one.over or 'connected'}" for one in calls)])


async def test_silent_calls_go_soon_and_the_oldest_first(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    address, page = cluster.client_address(0), cluster.http_url(0)
    connections = MAX_WAITING // CALLS - 1  # they come at once, and gRPC must not turn away any of them
    assert connections * CALLS > MAX_SILENT
    before = await _figure(page, "calls_ended_silent")
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(SilentCalls(address)) for _ in range(connections)]
        for number, one in enumerate(silent):
            await one.begin("/kvorum.v1.Kv/Commit" if number % 2 else "/kvorum.v1.Kv/Stream", CALLS)
        async with kvorum.open_kv(f"kvorum://{address}", token=ROOT) as kv:
            await kv.set(("a",), 1)
        try:
            async with asyncio.timeout(PATIENCE):
                while await _figure(page, "calls_ended_silent") < before + connections * CALLS:
                    assert await _figure(page, "calls_silent") <= MAX_SILENT
                for one in silent:  # they hear of it, so that nothing is left of them
                    await one.all_ended(CALLS)
                    assert one.words == {WHY: CALLS}
        except TimeoutError:
            raise AssertionError(await _state(page, silent)) from None
        assert await _figure(page, "calls_silent") == 0


async def test_more_calls_than_may_wait_keep_nobody_out(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    address = cluster.client_address(0)
    connections = 2 * MAX_WAITING // CALLS
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(SilentCalls(address)) for _ in range(connections)]
        for one in silent:
            await one.begin("/kvorum.v1.Kv/Stream", CALLS)
        async with kvorum.open_kv(f"kvorum://{address}", token=ROOT) as kv:
            await kv.set(("a",), 1)
        async with asyncio.timeout(PATIENCE):
            for one in silent:
                await one.all_ended(CALLS)
        said = sum((one.words for one in silent), Counter[str]())
        assert said.keys() <= {WHY, "CANCELLED"}  # the word of gRPC for those that it turned away
        assert said[WHY] >= MAX_WAITING


async def test_guests_are_few(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    address, page = cluster.client_address(0), cluster.http_url(0)
    before = await _figure(page, "calls_ended_silent")
    async with AsyncExitStack() as stack:
        stranger = await stack.enter_async_context(RawStream(address))
        await hello(stranger, "")
        for _ in range(MAX_GUESTS // CALLS + 1):
            guests = await stack.enter_async_context(SilentCalls(address))
            await guests.begin("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", CALLS)
        await stranger.end()  # it was there first, and never said who it is
        async with asyncio.timeout(PATIENCE):
            while await _figure(page, "calls_ended_silent") < before + CALLS:
                assert await _figure(page, "calls_guests") <= MAX_GUESTS
        async with kvorum.open_kv(f"kvorum://{address}", token=ROOT) as kv:
            await kv.set(("a",), 1)
