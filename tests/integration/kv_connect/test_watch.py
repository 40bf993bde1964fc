"""Watches over KV Connect: full snapshots, signs of life, and ends."""

import asyncio
import time
import uuid

import pytest

from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import DevCluster
from tests.integration.cluster_fixture import pace_of

from .wire import CLIENTS, HELLO, V8, Client, Http1, Http2, done, key, mutation, sum_of, watch


def fresh(*parts: str) -> bytes:
    """A key that no other test uses."""
    return key(uuid.uuid4().hex, *parts)


def values(event: dp.WatchOutput) -> list[bytes | None]:
    """Every key must count as changed: Deno takes those that do not for deleted."""
    assert event.status == dp.SR_SUCCESS
    assert all(part.changed for part in event.keys)
    return [part.entry_if_changed.value if part.HasField("entry_if_changed") else None for part in event.keys]


async def test_every_frame_is_a_full_snapshot(client: Client, shared_cluster: DevCluster) -> None:
    one, two, absent = fresh(), fresh(), fresh()
    async with Http1(shared_cluster.http_address(0)) as writer:
        await done(writer, mutation(two))
        frames = await watch(client, one, two, absent, two)
        assert await frames.next() is None  # a sign of life at once
        first = await frames.event()
        assert values(first) == [None, HELLO, None, HELLO]
        stamp = await done(writer, mutation(one, b"\xff\x0fI\x02"))
        event = await frames.event()
        assert values(event) == [b"\xff\x0fI\x02", HELLO, None, HELLO]
        assert event.keys[0].entry_if_changed.versionstamp == stamp
        assert event.keys[0].entry_if_changed.key == one
        await done(writer, mutation(two, None, dp.M_DELETE))
        assert values(await frames.event()) == [b"\xff\x0fI\x02", None, None, None]


async def test_mutations_that_change_nothing_are_seen_too(client: Client, shared_cluster: DevCluster) -> None:
    """The raw watches of clients promise that."""
    name = fresh()
    async with Http2(shared_cluster.http_address(1)) as writer:
        frames = await watch(client, name)
        assert values(await frames.event()) == [None]
        await done(writer, mutation(name, None, dp.M_DELETE))
        assert values(await frames.event()) == [None]
        await done(writer, mutation(name, kind=dp.M_SET_SUFFIX_VERSIONSTAMPED_KEY))
        assert values(await frames.event()) == [None]


async def test_an_expiry_is_seen(client: Client, shared_cluster: DevCluster) -> None:
    name = fresh()
    async with Http2(shared_cluster.http_address(0)) as writer:
        await done(writer, mutation(name, expire_at_ms=int(time.time() * 1000) + 300))
        frames = await watch(client, name)
        seen = [values(await frames.event()), values(await frames.event())]
    assert seen == [[HELLO], [None]]


async def test_version_16_is_relabelled_in_watches_too(shared_cluster: DevCluster) -> None:
    name = fresh()
    async with Http2(shared_cluster.http_address(0)) as client, Http1(shared_cluster.http_address(1)) as node:
        await done(client, mutation(name, b"\xff\x10I\x02", encoding=V8))
        frames = await watch(client, name, **{"user-agent": "Deno/2.9.6"})
        assert values(await frames.event()) == [b"\xff\x10I\x02"]
        frames = await watch(node, name, **{"user-agent": "node"})
        assert values(await frames.event()) == [b"\xff\x0fI\x02"]


async def test_signs_of_life_come_every_five_seconds(shared_cluster: DevCluster) -> None:
    async with Http2(shared_cluster.http_address(1)) as client:
        frames = await watch(client, fresh())
        assert await frames.next() is None
        await frames.event()
        begun, pace = time.monotonic(), pace_of(shared_cluster)
        assert await frames.next() is None
        assert pace.seconds() < 8
        assert time.monotonic() - begun > 3.9


async def test_watches_do_not_hold_up_the_connection(shared_cluster: DevCluster) -> None:
    """Deno has one connection for everything."""
    name = fresh()
    async with Http2(shared_cluster.http_address(1)) as client:
        streams = [await watch(client, name, fresh()) for _ in range(50)]
        for number in range(5):
            await done(client, sum_of(name, 1))
            for frames in streams:
                while values(await frames.event())[0] != (number + 1).to_bytes(8, "little"):
                    pass


async def test_a_watch_that_nobody_reads_costs_one_frame_and_then_shows_the_newest(shared_cluster: DevCluster) -> None:
    """The client's window is closed: the node has nowhere to put more than a frame."""
    name = fresh()
    async with (
        Http2(shared_cluster.http_address(1), window=0) as client,
        Http1(shared_cluster.http_address(0)) as writer,
    ):
        frames = await watch(client, name)
        await done(writer, mutation(name, b"x" * 10_000, encoding=dp.VE_BYTES))
        for number in range(200):
            await done(writer, mutation(name, b"%03d" % number + b"x" * 10_000, encoding=dp.VE_BYTES))
        client.open_window(1 << 20)
        seen = []
        while not seen or seen[-1] != b"199":
            found = values(await frames.event())[0]
            if found is not None:
                seen.append(found[:3])
    assert len(seen) <= 4, seen


@pytest.mark.parametrize("version", CLIENTS)
async def test_refused_watches(shared_cluster: DevCluster, version: str) -> None:
    async with CLIENTS[version](shared_cluster.http_address(1)) as client:
        for keys, headers, text in (
            ([b"\x02a\0"] * 11, {}, "Too many keys watched in a single watch request."),
            ([b"x" * 2_050], {}, "A key exceeds the key size limit."),
            ([b"\x02a\0"], {"x-denokv-version": "2"}, "Watching needs protocol version 3."),
        ):
            body = dp.Watch(keys=[dp.WatchKey(key=name) for name in keys]).SerializeToString()
            answer = await client.request("POST", "/v2/watch", body, headers)
            assert (answer.status, answer.text) == (400, text)


async def test_one_connection_has_a_limit_of_watches(shared_cluster: DevCluster) -> None:
    """Beyond it the stream fails for good: 503 would be repeated for ever."""
    async with Http2(shared_cluster.http_address(2)) as client:
        name = fresh()
        streams = [await watch(client, name) for _ in range(256)]
        body = dp.Watch(keys=[dp.WatchKey(key=name)]).SerializeToString()
        answer = await client.request("POST", "/v2/watch", body)
        assert (answer.status, answer.text) == (400, "One connection can have 256 watches.")
        await done(client, mutation(name))
        for frames in streams:
            await frames.event()
        client.reset(client.last_stream - 4)  # one of them ends
        await done(client, mutation(name))
        again = await watch(client, name)
        assert values(await again.event()) == [HELLO]


async def test_a_watcher_that_leaves_takes_its_watch_along(shared_cluster: DevCluster) -> None:
    address = shared_cluster.http_address(2)

    async def watches() -> float:
        async with Http1(address) as client:
            page = await client.request("GET", "/metrics")
        lines = dict(line.split(" ") for line in page.text.splitlines() if not line.startswith("#"))
        return float(lines["kvorum_kv_watchers"])

    before = await watches()
    async with Http2(address) as two, Http1(address) as one:
        for client in (one, two):
            await (await watch(client, fresh())).event()
        assert await watches() == before + 2
    async with asyncio.timeout(60):
        while await watches() != before:
            pass
