"""The runbook of docs/security.md, step by step, under load; and a leader that dies."""

import asyncio
import contextlib
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import kvorum
from kvorum import Tls
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.tls.secure import HOSTS, Certificates, SecureNodes

TIMEOUT = 30_000


@pytest.fixture
def cluster(tmp_path: Path) -> "SecureNodes":
    return SecureNodes(tmp_path, clients=True)


class Load:
    """Writes without end; every one must succeed."""

    def __init__(self, kv: kvorum.Kv) -> None:
        self._kv = kv
        self.done = 0
        self.acknowledged: dict[int, bytes] = {}

    async def run(self, caller: int) -> None:
        number = 0
        while True:
            result = await self._kv.set(("load", caller), number)
            self.done += 1
            self.acknowledged[caller] = number.to_bytes(8, "big")
            assert result.ok
            number += 1

    async def goes_on(self) -> None:
        """Some more writes are answered, of those that began after this moment."""
        goal = self.done + 50
        async with asyncio.timeout(60):
            while self.done < goal:
                await self._kv.get(("load", 0))


@contextlib.asynccontextmanager
async def load(cluster: ThreeNodes, tls: Tls | None) -> AsyncIterator[Load]:
    """A failed call fails the test."""
    async with kvorum.open_kv(cluster.url, tls=tls, timeout=TIMEOUT) as kv:
        under = Load(kv)
        tasks = [asyncio.ensure_future(under.run(caller)) for caller in range(8)]
        try:
            yield under
            await under.goes_on()
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
        for caller, number in under.acknowledged.items():
            found = (await kv.get(("load", caller))).value
            assert isinstance(found, int)
            assert found >= int.from_bytes(number, "big")


def shown(address: str) -> str:
    """The certificate that a port shows."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            pass  # it asks a node, which takes its time


def ports(cluster: SecureNodes, number: int) -> list[str]:
    return [cluster.client_address(number), cluster.http_address(number)]


def renew(made: Certificates, node_id: str) -> None:
    """By the command of docs/security.md."""
    words = [sys.executable, "-m", "kvorum.cli", "certs", "node", str(made.folder), "--id", node_id]
    words += [word for host in HOSTS for word in ("--host", host)]
    ended = subprocess.run([*words, "--days", "60", "--force"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


async def test_certificates_are_replaced_under_load(cluster: SecureNodes) -> None:
    """`kvorum certs node … --force` for each node, and nothing else: no restart, no failed call."""
    with cluster:
        made = cluster.certificates
        async with load(cluster, made.app) as under:
            for number in range(3):
                before = made.pair(f"n{number + 1}")[0].read_text()
                await asyncio.to_thread(renew, made, f"n{number + 1}")
                now = made.pair(f"n{number + 1}")[0].read_text()
                assert now != before
                for address in ports(cluster, number):
                    assert await asyncio.to_thread(shown, address) == now
                await under.goes_on()
        for number in range(3):
            assert 59 < cluster.status(number).statistics["tls_cert_expiry_days"] <= 60
            assert 59 < cluster.status(number).statistics["peer_cert_expiry_days"] <= 60
        async with kvorum.open_kv(cluster.url, tls=made.app, timeout=TIMEOUT) as kv:
            await kv.set(("after",), 1)


def bundle(file: Path, *parts: Path) -> None:
    """As an operator would: beside it, then in its place."""
    fresh = file.with_suffix(".new")
    fresh.write_bytes(b"".join(part.read_bytes() for part in parts))
    fresh.rename(file)


async def test_the_ca_is_replaced_under_load(cluster: SecureNodes, tmp_path: Path) -> None:
    """First all trust both, then all show new certificates, then nobody trusts the old one: so a stolen key is shut
    out, since there are no lists of revoked certificates. A node that restarts in between comes back."""
    made = cluster.certificates
    old_ca, *old_app = (tmp_path / name for name in ("old.pem", "old_app.pem", "old_app.key"))
    for kept, file in zip((old_ca, *old_app), (made.ca, *made.pair("app")), strict=True):
        kept.write_bytes(file.read_bytes())
    new = Certificates(tmp_path / "new")
    with cluster:
        async with load(cluster, made.app) as under:
            # 1. everybody trusts both
            bundle(made.ca, old_ca, new.ca)
            await _restart_a_follower(cluster)
            # 2. everybody shows certificates of the new one
            for name in ("n1", "n2", "n3", "app"):
                for own, fresh in zip(made.pair(name), new.pair(name), strict=True):
                    bundle(own, fresh)
                await under.goes_on()
            await _restart_a_follower(cluster)
            # 3. nobody trusts the old one
            bundle(made.ca, new.ca)
            await _restart_a_follower(cluster)
        async with kvorum.open_kv(cluster.url, tls=made.app, timeout=TIMEOUT) as kv:
            await kv.set(("after",), 1)
        await _is_refused(cluster, Tls(old_ca, *made.pair("app")))
        await _is_refused(cluster, Tls(made.ca, *old_app))


async def _restart_a_follower(cluster: SecureNodes) -> None:
    """It dials the others, they dial it, and what it lacks reaches it."""
    number = (await asyncio.to_thread(cluster.followers))[0]
    await asyncio.to_thread(cluster.terminate, number)
    await asyncio.to_thread(cluster.start, number)
    leader = await asyncio.to_thread(cluster.leader)
    goal = (await asyncio.to_thread(cluster.status, leader)).commit_index
    await until(lambda: (answer := cluster.peek(number)) is not None and answer.applied_index >= goal)


async def _is_refused(cluster: SecureNodes, tls: Tls) -> None:
    with pytest.raises(kvorum.errors.WrongCluster, match="certificate"):
        await kvorum.open_kv(cluster.url, tls=tls, timeout=TIMEOUT)


async def test_a_dead_leader_loses_no_write(cluster: SecureNodes) -> None:
    """With TLS on every connection, clients find the next leader, and what was acknowledged is there."""
    with cluster:
        async with load(cluster, cluster.client_tls) as under:
            for _ in range(2):
                await under.goes_on()
                leader = await asyncio.to_thread(cluster.leader)
                await asyncio.to_thread(cluster.kill, leader)
                await under.goes_on()
                await asyncio.to_thread(cluster.start, leader)
        await until(lambda: len({found[0] for found in cluster.hashes()}) == 1)
        assert len({found[1] for found in cluster.hashes()}) == 1
