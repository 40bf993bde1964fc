"""Thousands of connections that want nothing: those who want something are served all the same."""

import asyncio
import resource
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import kvorum
from kvorum_node.descriptors import at_most, raise_limit
from tests.integration.cluster_fixture import PATIENT
from tests.integration.tls.secure import SecureNodes

TIMEOUT = 30_000
CROWD = """
import socket, sys
host, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
idle, refused = [], 0
for _ in range(number):
    try:
        idle.append(socket.create_connection((host, port), timeout=10))
    except OSError:
        refused += 1
print(len(idle), flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def crowd(address: str, number: int) -> AsyncIterator[int]:
    """A process with so many idle connections, or as many as it may have; how many there are."""
    host, _, port = address.rpartition(":")
    code = f"from kvorum_node.descriptors import raise_limit; raise_limit()\n{CROWD}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, host, port, str(number)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """To the leader's client port, while others write; then a newcomer, and the leader still leads."""
    with SecureNodes(tmp_path, **PATIENT) as cluster:
        leader = cluster.leader()
        term = cluster.status(leader).term
        async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as kv:
            await kv.set(("before",), 1)
            before = descriptors(cluster.pid(leader))
            async with crowd(cluster.client_address(leader), 10_000) as there:
                assert there >= min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)
                for number in range(100):
                    await kv.set(("among", number), number)
                async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as other:
                    assert (await other.get(("among", 99))).value == 99
                assert cluster.status(leader).term == term
            async with asyncio.timeout(60):  # they are gone, or their time for a handshake is over
                while descriptors(cluster.pid(leader)) > before + 50:
                    await kv.get(("before",))


@pytest.mark.parametrize("which", ["http", "peer"])
async def test_idle_connections_to_the_other_ports(tmp_path: Path, which: str) -> None:
    with SecureNodes(tmp_path, **PATIENT) as cluster:
        leader = cluster.leader()
        term = cluster.status(leader).term
        address = cluster.http_address(leader) if which == "http" else peer_address(cluster, leader)
        follower = next(number for number in range(3) if number != leader)
        async with kvorum.open_kv(cluster.url, tls=cluster.client_tls, timeout=TIMEOUT) as kv:
            async with crowd(address, 3_000):
                for number in range(50):
                    await kv.set(("among", number), number)
                # A follower that comes back finds its way in.
                await asyncio.to_thread(cluster.terminate, follower)
                await asyncio.to_thread(cluster.start, follower)
                goal = (await asyncio.to_thread(cluster.status, leader)).commit_index
                while (await asyncio.to_thread(cluster.status, follower)).applied_index < goal:
                    await kv.get(("among", 0))
                figures = (await asyncio.to_thread(cluster.status, leader)).statistics
                assert figures["peer_tls_crowded_out"] > 2_000 or which == "http"
            assert (await asyncio.to_thread(cluster.status, leader)).term == term


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def peer_address(cluster: SecureNodes, number: int) -> str:
    return str(tomllib.loads(cluster.config(number).read_text())["peer_listen"])


def test_a_port_never_has_all_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    assert (at_most(12_000, 10), at_most(2_000, 2), at_most(50, 2)) == (640, 128, 50)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert at_most(12_000, 10) == 12_000


def test_a_node_takes_what_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, wanted in ((4_096, 4_096), (1_000_000, 65_536), (resource.RLIM_INFINITY, 65_536)):
        set_to: list[tuple[int, int]] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (1_024, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda _, limits, set_to=set_to: set_to.append(limits))
        raise_limit()
        assert set_to == [(wanted, hard)]
