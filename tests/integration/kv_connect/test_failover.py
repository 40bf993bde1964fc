"""What clients of KV Connect see while nodes die, stop and come back (rules H)."""

import asyncio
import contextlib
import os
import re
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp
from kvorum_node.dev_cluster import DevCluster, in_thread
from tests.integration.cluster_fixture import ThreeNodes, pace_of

from .wire import CLIENTS, TOKEN, Client, Http1, Http2, done, get, key, metadata, mutation, read, sum_of, watch, write

COUNTER = key("counter")
KILLS = 2
SLOW = re.compile("its oldest log write waits|the loop was .* late|slow operation")
"""What a log may tell on a machine that has others to serve too."""


async def total(client: Client, name: bytes = COUNTER) -> int:
    found = await get(client, name)
    return 0 if found is None else int.from_bytes(found.value, "little")


class Adders:
    """Callers that add 1 through one node, each with a connection of its own, and note what they are told."""

    def __init__(self, address: str, version: str, callers: int) -> None:
        self._address = address
        self._version = version
        self._callers = callers
        self.answers: Counter[int] = Counter()
        self.slowest = 0.0
        self._answered = asyncio.Event()
        self._stopping = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._add()) for _ in range(self._callers)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def _add(self) -> None:
        async with CLIENTS[self._version](self._address) as client:
            while not self._stopping:
                begun = time.monotonic()
                answer = await write(client, sum_of(COUNTER, 1))
                self.answers[answer.status] += 1
                self._answered.set()
                # A strong read never shows less than what was acknowledged before it began.
                known = self.answers[200]
                found = await total(client)
                assert found >= known, (found, known)
                self.slowest = max(self.slowest, time.monotonic() - begun)

    async def progress(self, more: int) -> None:
        """Wait until so many more were answered."""
        goal = sum(self.answers.values()) + more
        async with asyncio.timeout(60):
            while sum(self.answers.values()) < goal:
                self._answered.clear()
                await self._answered.wait()


@pytest.mark.parametrize("version", CLIENTS)
async def test_requests_through_a_follower_survive_the_death_of_leaders(tmp_path: Path, version: str) -> None:
    """Held, repeated under the same number, applied once: every answer is 200, and the sum is exact."""
    with ThreeNodes(tmp_path) as cluster:
        serving = cluster.followers()[0]
        adders = Adders(cluster.http_address(serving), version, 8)
        async with adders.running():
            for _ in range(KILLS):
                await adders.progress(40)
                leader = await in_thread(cluster.leader)
                if leader == serving:
                    # The office has come to the node that serves: let it go on.
                    await in_thread(hand_over, cluster, serving)
                    leader = await in_thread(cluster.leader)
                await in_thread(cluster.kill, leader)
                await adders.progress(40)
                await in_thread(cluster.start, leader)
        async with Http2(cluster.http_address(serving)) as client:
            assert await total(client) == adders.answers[200]
        assert set(adders.answers) == {200}, adders.answers
        assert adders.slowest < 20


def hand_over(cluster: DevCluster, number: int) -> None:
    """Let another node than this one lead."""
    with grpc.insecure_channel(cluster.client_address(number)) as channel:
        call = channel.unary_unary(
            "/kvorum.v1.Admin/Transfer",
            request_serializer=pb.TransferRequest.SerializeToString,
            response_deserializer=pb.AdminResponse.FromString,
        )
        call(pb.TransferRequest(), timeout=10)


async def test_a_node_that_stops_in_order_answers_what_is_under_way_and_ends_its_streams(tmp_path: Path) -> None:
    """The leader itself stops, with writes under way and watches open on it: nothing is lost, nothing is reset."""
    with ThreeNodes(tmp_path) as cluster:
        leader = cluster.leader()
        address = cluster.http_address(leader)
        async with Http2(address) as client, Http2(address) as idle, Http1(address) as old:
            streams = [await watch(client, COUNTER) for _ in range(20)]
            streams.append(await watch(old, COUNTER))
            for frames in streams:
                await frames.event()
            await done(idle, mutation(key("x")))
            answers: Counter[int] = Counter()
            enough = asyncio.Event()

            async def add() -> None:
                with contextlib.suppress(ConnectionResetError):
                    while True:
                        answers[(await write(client, sum_of(COUNTER, 1))).status] += 1
                        if answers[200] == 50:
                            enough.set()

            adding = [asyncio.ensure_future(add()) for _ in range(16)]
            await enough.wait()
            pace = pace_of(cluster)
            status = await in_thread(cluster.terminate, leader)
            assert pace.seconds() < 8
            await asyncio.gather(*adding)
            for frames in streams:
                await frames.end()
            await client.closed.wait()
            await idle.closed.wait()
            assert client.going_away and idle.going_away
            refused = 7  # REFUSED_STREAM: certainly not looked at
            assert set(client.resets) <= {refused}, client.resets
        assert status == 0
        assert set(answers) == {200}, answers
        async with Http2(cluster.http_address((leader + 1) % 3)) as client:
            assert await total(client) == answers[200]
        log = cluster.log(leader).read_text()
        told = "\n".join(line for line in log.splitlines() if not SLOW.search(line))
        assert "level=error" not in told and "level=warning" not in told and "Traceback" not in told, log


def status_of(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def health_of(address: str) -> int:
    """What gRPC's health service says of the node."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(service="kvorum.v1.Kv"), timeout=10).status)


async def test_without_a_majority_everything_is_held_and_then_goes_on(tmp_path: Path) -> None:
    with ThreeNodes(tmp_path) as cluster:
        serving, other = cluster.followers()
        leader = cluster.leader()
        address, url = cluster.http_address(serving), cluster.http_url(serving)
        async with Http2(address) as client, Http1(address) as old, Http2(address) as watching:
            await done(client, sum_of(COUNTER, 1))
            frames = await watch(watching, COUNTER)
            await frames.event()
            assert await in_thread(status_of, f"{url}/readyz") == (200, "ok\n")
            await in_thread(cluster.kill, leader)
            await in_thread(cluster.kill, other)
            held = [
                asyncio.ensure_future(done(client, sum_of(COUNTER, 1))),
                asyncio.ensure_future(done(old, sum_of(COUNTER, 1))),
            ]
            reading = asyncio.ensure_future(total(client))
            late = asyncio.ensure_future(watch(watching, COUNTER))
            await frames.end()  # a node that has lost its leader for long shows nothing any more
            metadata = await client.request("POST", "/", b'{"supportedVersions":[3]}')
            assert metadata.status == 200
            deadline = time.monotonic() + 60
            while (await in_thread(status_of, f"{url}/readyz"))[0] != 503:
                assert time.monotonic() < deadline
            assert (await in_thread(status_of, f"{url}/livez"))[0] == 200
            grpc_address = cluster.client_address(serving)
            while await in_thread(health_of, grpc_address) != health_pb2.HealthCheckResponse.NOT_SERVING:
                assert time.monotonic() < deadline
            assert not any(task.done() for task in (*held, reading))
            await in_thread(cluster.start, other)
            await asyncio.gather(*held)
            deadline = time.monotonic() + 60
            while await in_thread(health_of, grpc_address) != health_pb2.HealthCheckResponse.SERVING:
                assert time.monotonic() < deadline
            assert await in_thread(status_of, f"{url}/readyz") == (200, "ok\n")
            assert await reading >= 1
            assert await total(client) == 3
            event = await (await late).event()
            assert int.from_bytes(event.keys[0].entry_if_changed.value, "little") in (1, 2, 3)


async def test_what_is_said_when_nobody_leads_for_too_long(tmp_path: Path) -> None:
    """409 only for a write that a leader had taken; 503 for what was certainly not done. And it was not."""
    with ThreeNodes(tmp_path, kv_connect_held_ms=1_500) as cluster:
        leader = cluster.leader()
        serving, other = cluster.followers()
        async with Http2(cluster.http_address(leader)) as client, Http1(cluster.http_address(serving)) as follower:
            await done(client, sum_of(COUNTER, 1))
            pids = [cluster.pid(serving), cluster.pid(other)]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            answer = await write(client, sum_of(COUNTER, 1))  # it is in the leader's log, and may yet be committed
            assert (answer.status, answer.text) == (409, "outcome unknown")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            page = (await client.request("GET", "/metrics")).text
            assert "kvorum_api_kv_connect_unknown_outcomes_total 1.0\n" in page
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            await in_thread(cluster.kill, other)
            await in_thread(cluster.leader)
            before = await total(follower)
            assert before in (1, 2)
            await in_thread(cluster.kill, leader)
            body = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"a", end=b"b", limit=5)]).SerializeToString()
            for path, message in (
                ("/v2/atomic_write", sum_of(COUNTER, 1).SerializeToString()),
                ("/v2/atomic_write", mutation(COUNTER, expire_at_ms=1 << 40).SerializeToString()),
                ("/v2/snapshot_read", body),
            ):
                answer = await follower.request("POST", path, message)
                assert answer.status == 503, answer
                assert answer.text.startswith("The server is temporarially unavailable, try again later. (")
            await in_thread(cluster.start, leader)
            assert await total(follower) == before


async def test_p23_a_hundred_parallel_atomics_of_a_hundred_sets(tmp_path: Path) -> None:
    """P23: 100 parallel atomics of 100 sets land without resets; through a follower, on one connection. The cluster has
    a token, so that this is seen to work, too."""
    with ThreeNodes(tmp_path, kv_connect_token=TOKEN["authorization"].split()[1]) as cluster:
        for address in cluster.http_addresses:
            async with Http1(address) as client:
                assert (await metadata(client)).status == 200
                assert (await metadata(client, authorization="Bearer another")).status == 401
        async with Http2(cluster.http_address(cluster.followers()[0])) as client:

            async def commit(number: int) -> bytes:
                batch = dp.AtomicWrite()
                for row in range(100):
                    batch.MergeFrom(
                        mutation(key("p23", f"{number:03}", f"{row:03}"), b"v" * 1_000, encoding=dp.VE_BYTES)
                    )
                return await done(client, batch)

            stamps = await asyncio.gather(*(commit(number) for number in range(100)))
            assert len(set(stamps)) == 100 and not client.resets
            rows = 0
            start = key("p23")
            while True:
                page = (await read(client, dp.ReadRange(start=start, end=key("p23") + b"\xff", limit=1_000))).ranges[0]
                rows += len(page.values)
                if len(page.values) < 1_000:
                    break
                start = page.values[-1].key + b"\0"
            assert rows == 10_000
