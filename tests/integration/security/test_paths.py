"""Paths and names of methods that lead elsewhere, if somebody takes them for more than names."""

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest

from kvorum_node.dev_cluster import DevCluster
from tests.integration.kv_connect.wire import Http2

PATHS = (
    b"/../../../../../../etc/passwd",
    b"/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    b"/..%2f..%2f..%2fetc%2fpasswd",
    b"//etc/passwd",
    b"/etc/passwd",
    b"/proc/self/environ",
    b"/n1.toml",
    b"/v2/../metrics",
    b"/v2/atomic_write/../../metrics",
    b"/metrics/../livez",
    b"/%6detrics",
    b"/metrics%00",
    b"/metrics%0d%0aX-Injected:%20yes",
    b"/metrics/",
    b"/METRICS",
    b"/metrics;x",
    b"/\\..\\metrics",
    b"/" + b"a" * 5_000,
    b"/\xff\xfe\xc0\xaf..\xc0\xaf",
    b"/v2/snapshot_read/",
    b"file:///etc/passwd",
    b"metrics",
    b"*",
)
METHODS = (
    "/kvorum.v1.Kv/../Admin/Members",
    "/kvorum.v1.Kv//Status",
    "/kvorum.v1.Kv/Status/",
    "/kvorum.v1.Kv/status",
    "/kvorum.v1.Kv/%53tatus",
    "/kvorum.v1.Kv/__init__",
    "/kvorum.v1.Kv/_stream",
    "/kvorum.v1.Kv",
    "/../../etc/passwd",
    "//",
)
_NAMES = [path.decode("latin-1")[:40] for path in PATHS]


def _is_nothing(status: int, answer: str) -> None:
    assert status in (400, 404, 431), answer
    for told in ("root:", "kvorum_raft", "PATH=", "node_id", "X-Injected"):
        assert told not in answer, answer


@pytest.mark.parametrize("path", PATHS, ids=_NAMES)
async def test_there_is_nothing_at_an_odd_path(shared_cluster: DevCluster, path: bytes) -> None:
    host, _, port = shared_cluster.http_address(0).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = (await asyncio.wait_for(reader.read(-1), 20)).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 ")
    assert answer.count("HTTP/1.1 ") == 1
    _is_nothing(int(answer.split()[1]), answer)


@pytest.mark.parametrize("path", PATHS, ids=_NAMES)
async def test_nor_by_the_other_version(shared_cluster: DevCluster, path: bytes) -> None:
    async with Http2(shared_cluster.http_address(0)) as client:
        with contextlib.suppress(ConnectionResetError):  # as good an answer to what is no path
            answer = await client.request("GET", path.decode("latin-1"))
            _is_nothing(answer.status, f"{answer.headers} {answer.text}")


async def test_there_is_something_at_a_plain_one(shared_cluster: DevCluster) -> None:
    async with Http2(shared_cluster.http_address(0)) as client:
        answer = await client.request("GET", "/metrics")
        assert (answer.status, "kvorum_raft" in answer.text) == (200, True)


@pytest.mark.parametrize("method", METHODS)
async def test_there_is_no_method_of_an_odd_name(shared_cluster: DevCluster, method: str) -> None:
    async with grpc.aio.insecure_channel(shared_cluster.client_address(0)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(method)(b"", timeout=20)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
