"""The same by KV Connect: leader and followers, both versions of HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

import kvorum
from kvorum.auth import NewToken
from kvorum_node._proto import datapath_pb2 as dp
from tests.integration.auth.conftest import ROOT
from tests.integration.cluster_fixture import ThreeNodes, pace_of
from tests.integration.kv_connect.wire import CLIENTS, Client, get, key, metadata, mutation, watch, write

A, B = key("a", "x"), key("b", "x")


@pytest.fixture(params=[(0, "http2"), (1, "http1"), (2, "http2")], ids=lambda param: f"node {param[0] + 1}, {param[1]}")
async def client(request: pytest.FixtureRequest, cluster: ThreeNodes, root: kvorum.Kv) -> AsyncIterator[Client]:
    number, version = request.param
    async with CLIENTS[version](cluster.http_address(number)) as client:
        yield client


@pytest.fixture
async def token(root: kvorum.Kv, client: Client) -> NewToken:
    """For ("a",), known to the client's node."""
    made = await root.auth.create("a only", read=[("a",)], write=[("a",)])
    await seen(client, made, 200)
    return made


async def seen(client: Client, made: NewToken, status: int) -> None:
    """Wait until that node answers so: it may be a moment behind the leader."""
    async with asyncio.timeout(10):
        while (await metadata(client, authorization=f"Bearer {made.text}")).status != status:
            pass


async def seen_by(cluster: ThreeNodes, number: int, made: NewToken) -> None:
    async with CLIENTS["http2"](cluster.http_address(number)) as client:
        await seen(client, made, 200)


async def ask(client: Client, *ranges: dp.ReadRange, **headers: str) -> int:
    body = dp.SnapshotRead(ranges=ranges).SerializeToString()
    return (await client.request("POST", "/v2/snapshot_read", body, headers)).status


async def test_strangers_are_refused(client: Client) -> None:
    for shown in ("Bearer a-token-of-the-tests", f"Bearer kvo_{'0' * 16}_{'A' * 43}", f"Bearer {ROOT}x"):
        answer = await metadata(client, authorization=shown)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await write(client, mutation(A), authorization=shown)).status == 401
        assert await ask(client, dp.ReadRange(start=A, end=A + b"\0", limit=1), authorization=shown) == 401


async def test_a_token_for_a_does_nothing_to_b(client: Client, token: NewToken, root: kvorum.Kv) -> None:
    await root.set(("b", "x"), "theirs")
    mine = {"authorization": f"Bearer {token.text}"}
    assert json.loads((await metadata(client, **mine)).body)["token"] == token.text
    assert (await write(client, mutation(A), **mine)).status == 200
    found = await get(client, A, **mine)
    assert found is not None and found.key == A
    refused = await write(client, mutation(B), **mine)
    assert refused.status == 403 and "write" in refused.text and "('b', 'x')" in refused.text
    both = mutation(A)
    both.MergeFrom(mutation(B))
    assert (await write(client, both, **mine)).status == 403
    checks = mutation(A)
    checks.checks.add(key=B)
    assert (await write(client, checks, **mine)).status == 403
    send = dp.AtomicWrite(enqueues=[dp.Enqueue(payload=b"\xff\x0f\x22\x01x")])
    assert (await write(client, send, **mine)).status == 403
    for selected in (
        dp.ReadRange(start=B, end=B + b"\0", limit=1),
        dp.ReadRange(start=key("a"), end=b"\xff", limit=10),
        dp.ReadRange(start=b"", end=b"\xff", limit=10, reverse=True),
    ):
        assert await ask(client, selected, **mine) == 403
        assert await ask(client, dp.ReadRange(start=A, end=A + b"\0", limit=1), selected, **mine) == 403
    request = dp.Watch(keys=[dp.WatchKey(key=A), dp.WatchKey(key=B)]).SerializeToString()
    assert (await client.request("POST", "/v2/watch", request, mine)).status == 403
    assert (await root.get(("b", "x"))).value == "theirs"


async def test_the_root_token_may_do_everything(client: Client) -> None:
    mine = {"authorization": f"Bearer {ROOT}"}
    assert (await write(client, mutation(B), **mine)).status == 200
    assert await get(client, B, **mine) is not None


async def test_a_revoked_token_ends_its_watches(
    client: Client, token: NewToken, cluster: ThreeNodes, root: kvorum.Kv
) -> None:
    mine = {"authorization": f"Bearer {token.text}"}
    for number in range(3):
        await seen_by(cluster, number, token)
    async with CLIENTS["http2"](cluster.http_address(1)) as watcher:
        frames = await watch(watcher, A, **mine)
        await frames.event()
        await root.auth.revoke(token.id)
        pace = pace_of(cluster)
        async with asyncio.timeout(60):
            await frames.end()
        assert pace.seconds() < 5
    await seen(client, token, 401)
    assert (await write(client, mutation(A), **mine)).status == 401


async def test_while_tokens_are_not_asked_for_all_is_as_ever(client: Client, root: kvorum.Kv) -> None:
    await root.auth.off()
    try:
        async with asyncio.timeout(10):
            while (await metadata(client)).status != 200:
                pass
        assert (await write(client, mutation(B))).status == 200
    finally:
        await root.auth.on()
