"""From clear connections between nodes to TLS and back, while the cluster serves: the runbook of docs/security.md."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kvorum.cli.doctor_cluster import Told, judge
from kvorum_raft.config import RaftConfig
from kvorum_raft.errors import ConfigurationError, RaftError
from kvorum_raft.seams import Member
from kvorum_raft.tls import PeerTls
from tests.integration.cluster_fixture import ThreeNodes
from tests.integration.raft.harness import Cluster, wait_until
from tests.integration.tls.secure import Certificates, make_expired
from tests.integration.tls.test_rotation import load, until

CLEAR: Mapping[str, str] = {}


class ChangingNodes(ThreeNodes):
    """Three real nodes whose peers speak in clear at first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.certificates = Certificates(folder / "certs")

    def with_tls(self, number: int, peer_tls: str) -> Mapping[str, str]:
        """Settings of a node."""
        name = f"n{number + 1}"
        cert, key = map(str, self.certificates.pair(name))
        return {"peer_cert": cert, "peer_key": key, "peer_ca": str(self.certificates.ca), "peer_tls": peer_tls}

    def begin_with_tls(self) -> None:
        """Before the first start."""
        self._node_settings = [dict(self.with_tls(number, "require")) for number in range(3)]

    async def restart(self, number: int, settings: Mapping[str, str]) -> None:
        """One step of a round: the next node follows when this one has what was committed."""
        names = ("peer_cert", "peer_key", "peer_ca", "peer_tls")
        old = self.config(number).read_text().splitlines(keepends=True)
        kept = [line for line in old if line.partition(" ")[0] not in names]
        self.config(number).write_text("".join([*(f'{name} = "{value}"\n' for name, value in settings.items()), *kept]))
        await asyncio.to_thread(self.terminate, number)
        await asyncio.to_thread(self.start, number)
        leader = await asyncio.to_thread(self.leader)
        goal = (await asyncio.to_thread(self.status, leader)).commit_index
        await until(lambda: (answer := self.peek(number)) is not None and answer.applied_index >= goal)

    async def clear(self) -> list[int | None]:
        """For each node its clear connections; None if it does not tell, since it does not prefer TLS."""
        found = [(await asyncio.to_thread(self.status, number)).statistics for number in range(3)]
        name = "peer_clear_connections"
        return [int(figures[name]) if name in figures else None for figures in found]

    async def settles(self, *wanted: int | None) -> None:
        """Until `clear` is that."""
        async with asyncio.timeout(30):
            while await self.clear() != list(wanted):
                pass  # it asks nodes, which takes its time

    async def doctor(self, number: int) -> list[str]:
        """What it says of a node's connections with peers."""
        told = Told("", await asyncio.to_thread(self.status, number), "", 0.0, 0.0)
        return [one.told for one in judge([told], None) if one.check == "peers"]


@pytest.mark.timeout(300)  # six restarts, on a machine that may be busy
async def test_peers_change_to_tls_under_load(tmp_path: Path) -> None:
    """Two rounds of restarts. No call may fail, no acknowledged write may be lost, and after the first round nothing is
    in clear any more."""
    with ChangingNodes(tmp_path) as cluster:
        async with load(cluster, None) as under:
            await cluster.restart(0, cluster.with_tls(0, "prefer"))
            await under.goes_on()
            await cluster.settles(4, None, None)  # to and from two others
            assert await cluster.doctor(1) == []
            assert "has 4" in (await cluster.doctor(0))[0]
            for number in (1, 2):
                await cluster.restart(number, cluster.with_tls(number, "prefer"))
                await under.goes_on()
            await cluster.settles(0, 0, 0)
            assert "has none" in (await cluster.doctor(0))[0]
            for number in range(3):
                await cluster.restart(number, cluster.with_tls(number, "require"))
                await under.goes_on()
            await cluster.settles(None, None, None)
            assert (await asyncio.to_thread(cluster.status, 2)).statistics["peer_tls_accepted"] >= 2
        await _is_the_same_everywhere(cluster)


@pytest.mark.timeout(300)
async def test_and_back(tmp_path: Path) -> None:
    cluster = ChangingNodes(tmp_path)
    cluster.begin_with_tls()
    with cluster:
        async with load(cluster, None) as under:
            for number in range(3):
                await cluster.restart(number, cluster.with_tls(number, "prefer"))
                await under.goes_on()
            await cluster.settles(0, 0, 0)
            for number in range(3):
                await cluster.restart(number, CLEAR)
                await under.goes_on()
            await cluster.settles(None, None, None)
        await _is_the_same_everywhere(cluster)


async def _is_the_same_everywhere(cluster: ChangingNodes) -> None:
    await until(lambda: len({found[0] for found in cluster.hashes()}) == 1)
    assert len({found[1] for found in cluster.hashes()}) == 1


# ---- nodes in this process


class MixedCluster(Cluster):
    """`modes`: "clear", "prefer" or "require" for each node; `files` are the certificates of some, if not the usual
    ones."""

    def __init__(self, folder: Path, *modes: str) -> None:
        super().__init__(folder)
        self.certificates = Certificates(folder / "certs")
        self.modes = {f"n{number}": mode for number, mode in enumerate(modes, 1)}
        self.files: dict[str, tuple[Path, Path]] = {}

    def config(self, node_id: str) -> RaftConfig:
        mode = self.modes[node_id]
        if mode == "clear":
            return super().config(node_id)
        files = self.files.get(node_id) or self.certificates.pair(node_id)
        tls = PeerTls(node_id, *files, self.certificates.ca)
        return replace(super().config(node_id), tls=tls, tls_required=mode == "require")

    def clear(self, node_id: str) -> float:
        return self.nodes[node_id].statistics()["peer_clear_connections"]

    async def serves(self) -> None:
        """Entries go through, whoever leads: on a busy machine offices of half a second's patience change hands."""
        async with asyncio.timeout(30):
            while True:
                try:
                    await self.propose(10)
                    break
                except RaftError:
                    pass
        await self.settled()


@pytest.mark.parametrize(
    ("modes", "clear"),
    [
        (("prefer", "clear", "clear"), 4),
        (("prefer", "prefer", "clear"), 2),
        (("prefer", "prefer", "prefer"), 0),
        (("prefer", "require", "require"), 0),
    ],
)
async def test_every_step_of_the_way_is_a_cluster(tmp_path: Path, modes: tuple[str, ...], clear: int) -> None:
    cluster = MixedCluster(tmp_path, *modes)
    await cluster.start()
    try:
        await cluster.serves()
        await wait_until(lambda: cluster.clear("n1") == clear, what="connections")
        transport = cluster.nodes["n1"]._transport
        for other in ("n2", "n3"):  # as a member is met before it is let in
            where = cluster.config(other).own.peer_address
            assert (await transport.meet(Member(other, where, where))).node_id == other
    finally:
        await cluster.stop()
    assert not cluster.faults


async def test_whose_certificate_is_not_accepted_takes_part_in_clear(tmp_path: Path) -> None:
    """Until its node is put right: nothing is lost but protection, and figures and doctor show it."""
    cluster = MixedCluster(tmp_path, "prefer", "prefer", "prefer")
    cluster.files["n3"] = make_expired(cluster.certificates.folder, "old", "n3")
    await cluster.start()
    try:
        await cluster.serves()
        await wait_until(lambda: [cluster.clear(node) for node in ("n1", "n2", "n3")] == [2, 2, 4], what="connections")
        cluster.files.clear()
        await cluster.stop("n3")
        await cluster.start("n3")
        await cluster.serves()
        await wait_until(lambda: [cluster.clear(node) for node in ("n1", "n2", "n3")] == [0, 0, 0], what="TLS")
    finally:
        await cluster.stop()
    assert not cluster.faults


async def test_one_that_requires_tls_is_not_reached_in_clear(tmp_path: Path) -> None:
    """The clear one is told nothing."""
    cluster = MixedCluster(tmp_path, "require", "require", "require")
    await cluster.start()
    try:
        await cluster.serves()
        await cluster.stop("n1")
        cluster.modes["n1"] = "clear"
        await cluster.start("n1")
        where = cluster.config("n2").own.peer_address
        with pytest.raises(ConfigurationError):
            await cluster.nodes["n1"]._transport.meet(Member("n2", where, where))
        figures = cluster.nodes["n2"].statistics()
        assert figures["peer_tls_not_tls"] >= 1 and figures["peer_clear_connects"] == 0
        assert not cluster.nodes["n1"]._transport.is_connected("n2")
    finally:
        await cluster.stop()
