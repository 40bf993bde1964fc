"""What was begun by KV Connect while nobody was asked for a token."""

import asyncio

import kvorum
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.kv_connect.wire import CLIENTS, key, metadata, watch


async def test_a_watch_ends_when_tokens_are_asked_for(cluster: ThreeNodes, root: kvorum.Kv) -> None:
    await root.auth.off()
    try:
        async with CLIENTS["http2"](cluster.http_address(1)) as watcher:
            async with asyncio.timeout(10):
                while (await metadata(watcher)).status != 200:
                    pass
            frames = await watch(watcher, key("a", "x"))
            await frames.event()
            await root.auth.on()
            async with asyncio.timeout(5):
                await frames.end()
    finally:
        await root.auth.on()
