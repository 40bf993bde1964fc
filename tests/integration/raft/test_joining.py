"""Nodes that join, move, are replaced and removed, and whom a node talks with that knows only an old configuration."""

import asyncio
import dataclasses
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import RaftConfig, split_address
from kvorum_raft.errors import ConfigurationError, Refused
from kvorum_raft.faults import REFUSED_MARKER
from kvorum_raft.log_store import LogStore
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Member
from tests.integration.raft.harness import QUICK, Cluster, make_members, promoted, wait_until


class Growing(Cluster):
    """`files[node_id]` are the settings of nodes that have others than the first three."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, timing=dataclasses.replace(QUICK, guest_idle=0.5))
        self.files: dict[str, tuple[list[Member], bool]] = {}
        self.settings: dict[str, Any] = {}

    def config(self, node_id: str) -> RaftConfig:
        members, join = self.files.get(node_id, (self.members, False))
        config = RaftConfig(
            node_id, members, self.folder / node_id, timing=self._timing, limits=self._limits, map_size=1 << 34
        )
        return dataclasses.replace(config, join=join, **self.settings.get(node_id, {}))

    async def start_joining(self, node_id: str) -> Member:
        """Its file lists nobody but itself."""
        (place,) = make_members(1, self)
        member = dataclasses.replace(place, node_id=node_id)
        self.files[node_id] = ([member], True)
        await self.start(node_id)
        return member

    async def take_in(self, *node_ids: str) -> None:
        for node_id in node_ids:
            member = await self.start_joining(node_id)
            leader = await self.leader()
            await leader.add(member)
            await self.promote(node_id)

    async def promote(self, node_id: str) -> None:
        """Once it has caught up."""
        await promoted(await self.leader(), node_id)

    def members_known_to(self, node_id: str) -> set[str]:
        configuration = self.nodes[node_id]._core.configuration
        return set() if configuration is None else set(configuration.voters)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Growing]:
    cluster = Growing(tmp_path)
    await cluster.start()
    await cluster.propose(20)
    await wait_until(lambda: all(node.cluster_id for node in cluster.nodes.values()), what="cluster id")
    await cluster.settled()
    yield cluster
    await cluster.stop()


def _marker(cluster: Cluster, node_id: str) -> Path:
    return cluster.folder / node_id / "raft" / REFUSED_MARKER


async def _refused(cluster: Cluster, node_id: str, text: str) -> None:
    await wait_until(lambda: node_id in cluster.faults, what="refusal")
    error = cluster.faults.pop(node_id)
    assert isinstance(error, Refused)
    assert text in str(error)
    assert _marker(cluster, node_id).exists() == error.lasting
    await cluster.stop(node_id)


# ---- joining


async def test_a_joining_node_waits_and_is_taken_in(cluster: Growing) -> None:
    member = await cluster.start_joining("n4")
    joiner, leader = cluster.nodes["n4"], await cluster.leader()
    hello = await leader._transport.meet(member)
    assert hello.joining
    assert hello.incarnation == joiner._admissions.identity.incarnation
    assert joiner._transport.counters["connects"] == 0, "it dials nobody"
    assert joiner.status().last_log_index == 0
    await leader.add(member)
    await cluster.settled()
    assert joiner.cluster_id == leader.cluster_id
    assert "n4" not in cluster.members_known_to("n4"), "a learner"
    await cluster.promote("n4")
    await cluster.settled()
    assert cluster.members_known_to("n4") == {"n1", "n2", "n3", "n4"}
    # From now on the log says all: the file lists only this node still.
    await cluster.stop("n4")
    for join in (True, False):
        cluster.files["n4"] = ([member], join)
        await cluster.start("n4")
        await cluster.propose(5)
        await cluster.settled()
        await cluster.stop("n4")
    assert not cluster.faults


async def test_an_empty_folder_that_does_not_join_is_no_member(cluster: Growing) -> None:
    (place,) = make_members(1)
    cluster.files["n4"] = ([*cluster.members, dataclasses.replace(place, node_id="n4")], False)
    await cluster.start("n4")
    leader = await cluster.leader()
    before = leader.statistics()["peer_rejects"]
    await wait_until(lambda: leader.statistics()["peer_rejects"] > before, what="refusal")
    assert not cluster.nodes["n4"].cluster_id
    assert not cluster.faults


async def test_an_emptied_member_comes_back_by_replace_only(cluster: Growing) -> None:
    (one, other, *_) = [node.status().node_id for node in await cluster.followers()]
    old = next(member for member in cluster.members if member.node_id == one)
    await cluster.stop(one)
    shutil.rmtree(cluster.folder / one)
    await cluster.start(one)
    await _refused(cluster, one, "was emptied")
    shutil.rmtree(cluster.folder / one)
    cluster.files[one] = ([old], True)
    await cluster.start(one)
    joiner, leader = cluster.nodes[one], await cluster.leader()
    before = leader.statistics()["peer_rejects"]
    await wait_until(lambda: leader.statistics()["peer_rejects"] > before, what="refusal of the new folder")
    assert joiner.status().last_log_index == 0
    await leader.replace(old)
    await cluster.settled()
    await cluster.promote(one)
    await cluster.settled()
    assert cluster.members_known_to(one) == {"n1", "n2", "n3"}
    await cluster.stop(other)
    await cluster.propose(5)
    assert not cluster.faults


# ---- meeting


async def test_meeting_says_who_is_there_or_why_nobody_is(cluster: Growing) -> None:
    leader = await cluster.leader()
    follower = (await cluster.followers())[0].status().node_id
    member = next(member for member in cluster.members if member.node_id == follower)
    connects = leader._transport.counters["connects"]
    hello = await leader._transport.meet(member)
    assert (hello.node_id, hello.formed, hello.joining) == (follower, True, False)
    assert hello.peer_address == member.peer_address
    (nowhere,) = make_members(1)
    with pytest.raises(ConfigurationError, match=f"cannot reach node n1 at {nowhere.peer_address}: ") as caught:
        await leader._transport.meet(nowhere)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="cannot reach node n9"):
        await leader._transport.meet(Member("n9", "no.such.host.invalid:1", ""))
    with pytest.raises(ConfigurationError, match="is not an address"):
        await leader._transport.meet(Member("n9", "nonsense", ""))
    with pytest.raises(Refused, match="leads to node"):
        await leader._transport.meet(Member("n9", member.peer_address, ""))
    assert leader._transport.counters["connects"] == connects, "nothing else was disturbed"
    assert not leader._transport.guests
    assert not leader._transport._meetings


async def test_meeting_something_else_than_a_node(cluster: Growing) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConfigurationError, match="no kvorum node of that id answers there"):
        await (await cluster.leader())._transport.meet(Member("n4", f"127.0.0.1:{port}", ""))
    server.close()


# ---- addresses


async def test_a_node_that_moved_says_so_itself(cluster: Growing) -> None:
    """The others' files and the configuration still name the old address."""
    follower = (await cluster.followers())[0].status().node_id
    await cluster.stop(follower)
    (place,) = make_members(1)
    moved = dataclasses.replace(place, node_id=follower)
    others = [member for member in cluster.members if member.node_id != follower]
    cluster.files[follower] = ([*others, moved], False)
    await cluster.start(follower)
    await cluster.propose(5)
    await cluster.settled()
    leader = await cluster.leader()
    await leader.add(moved)
    await cluster.settled()
    found = leader._core.configuration.find(follower) if leader._core.configuration is not None else None
    assert found is not None
    assert found.member == moved
    assert leader._transport._peers[follower].configured == moved.peer_address


async def test_a_whole_cluster_that_moved_finds_itself_by_its_files(cluster: Growing) -> None:
    """No address in the configuration is right any more."""
    await cluster.stop()
    moved = [dataclasses.replace(place, node_id=f"n{number}") for number, place in enumerate(make_members(3), 1)]
    cluster.files = {member.node_id: (moved, False) for member in moved}
    await cluster.start()
    await cluster.propose(5)
    await cluster.settled()
    assert not cluster.faults


async def test_a_cluster_whose_files_are_old_finds_itself_by_its_configuration(cluster: Growing) -> None:
    leader = await cluster.leader()
    await cluster.stop()
    nowhere = {member.node_id: dataclasses.replace(member, peer_address="127.0.0.1:1") for member in cluster.members}
    for member in cluster.members:
        others = [nowhere[one.node_id] for one in cluster.members if one.node_id not in (member.node_id, "n2")]
        cluster.files[member.node_id] = ([member, *others], False)  # n2 is not even listed by the others
    cluster.files["n2"] = ([member for member in cluster.members if member.node_id == "n2"], False)
    await cluster.start()
    assert leader not in cluster.nodes.values()
    await cluster.propose(5)
    await cluster.settled()
    assert not cluster.faults


# ---- versions


async def test_each_connection_speaks_the_newest_version_that_both_know(cluster: Growing) -> None:
    await cluster.stop()
    cluster.settings = {
        "n1": {"protocols": (1, 3), "data_version": 4},
        "n2": {"protocols": (1, 2), "data_version": 2},
        "n3": {"protocols": (1, 5), "data_version": 7},
    }
    await cluster.start()
    await cluster.settled()

    def complete() -> bool:
        return all(
            peer.inbound is not None and peer.outbound is not None
            for node in cluster.nodes.values()
            for peer in node._transport._peers.values()
        )

    await wait_until(complete, what="all connections")
    for one, other, version in (("n1", "n2", 2), ("n1", "n3", 3), ("n2", "n3", 2)):
        for node_id, peer_id in ((one, other), (other, one)):
            peer = cluster.nodes[node_id]._transport._peers[peer_id]
            assert peer.inbound is not None
            assert peer.outbound is not None
            assert peer.inbound.protocol == peer.outbound.protocol == version
    assert {node.common_data_version() for node in cluster.nodes.values()} == {2}


async def test_a_node_that_shares_no_version_waits_outside(cluster: Growing) -> None:
    node_id = (await cluster.followers())[0].status().node_id
    await cluster.stop(node_id)
    cluster.settings[node_id] = {"protocols": (2, 3)}
    await cluster.start(node_id)
    leader = await cluster.leader()
    before = leader.statistics()["peer_rejects"]
    await wait_until(lambda: leader.statistics()["peer_rejects"] > before, what="refusal")
    assert not leader._transport.is_connected(node_id)
    await cluster.stop(node_id)
    del cluster.settings[node_id]
    await cluster.start(node_id)
    await cluster.settled()
    assert not cluster.faults


# ---- who knows an old configuration


async def test_a_laggard_answers_candidates_that_it_has_never_heard_of(cluster: Growing) -> None:
    """{n1, n2, n3} + n4, n5 while one of the three is away; then the two that knew them die."""
    laggard = (await cluster.followers())[0].status().node_id
    await cluster.stop(laggard)
    await cluster.take_in("n4", "n5")
    await cluster.propose(10)
    await cluster.settled()
    await cluster.stop(*[node_id for node_id in ("n1", "n2", "n3") if node_id != laggard])
    await cluster.start(laggard)
    leader = await cluster.leader()
    assert leader.status().node_id in ("n4", "n5")
    await cluster.propose(10)
    await cluster.settled()
    assert not cluster.nodes[laggard]._transport.guests, "it knows them now"
    assert not cluster.faults


async def test_a_removed_node_is_told_and_stays_down(cluster: Growing) -> None:
    node_id = (await cluster.followers())[0].status().node_id
    await (await cluster.leader()).remove(node_id)
    await _refused(cluster, node_id, "was removed from the cluster")
    with pytest.raises(Refused, match="must be replaced"):
        await cluster.start(node_id)
    await cluster.propose(5)
    assert not cluster.faults


async def test_a_replaced_folder_does_not_disturb_who_took_its_place(cluster: Growing) -> None:
    node_id = (await cluster.followers())[0].status().node_id
    await cluster.stop(node_id)
    old = cluster.folder / "old"
    shutil.move(cluster.folder / node_id, old)
    (place,) = make_members(1, cluster)
    member = dataclasses.replace(place, node_id=node_id)
    cluster.files[node_id] = ([member], True)
    await cluster.start(node_id)
    leader = await cluster.leader()
    await leader.replace(member)
    await cluster.settled()
    await cluster.promote(node_id)
    errors: list[Exception] = []
    config = dataclasses.replace(cluster.config(node_id), members=cluster.members, data_dir=old, join=False)
    replaced = RaftNode(config, type(cluster.machines["n1"])(), on_fault=errors.append)
    await replaced.start()
    await wait_until(lambda: bool(errors), what="refusal")
    assert "was removed from the cluster" in str(errors[0])
    await replaced.stop()
    await cluster.propose(5)
    await cluster.settled()
    assert not cluster.faults


# ---- bounds


async def _call(cluster: Cluster, hello: pb.Hello) -> tuple[pb.Envelope, asyncio.StreamWriter]:
    host, port = split_address(cluster.config("n1").own.peer_address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(wire.encode(pb.Envelope(hello=hello)))
    async with asyncio.timeout(60):
        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    return wire.decode(frame), writer


async def test_guests_are_few_and_silent_ones_are_forgotten(cluster: Growing) -> None:
    node, own = cluster.nodes["n1"], cluster.nodes["n2"].hello("n1")
    limit = cluster.config("n1").limits.guests
    (nowhere,) = make_members(1)
    writers = []

    def stranger(number: int, folder: int = 0) -> pb.Hello:
        hello = pb.Hello()
        hello.CopyFrom(own)
        hello.node_id, hello.incarnation = f"g{number}", bytes([number, folder]) * 8
        hello.peer_address = nowhere.peer_address
        return hello

    for number in range(limit):
        answer, writer = await _call(cluster, stranger(number))
        assert answer.WhichOneof("body") == "welcome"
        assert answer.welcome.protocol == 1
        writers.append(writer)
    assert len(node._transport.guests) == limit
    answer, writer = await _call(cluster, stranger(limit))
    assert answer.reject.code == pb.Reject.BUSY
    writer.close()
    # A known guest may call again; another folder under its name takes the name over, and keeps it for a moment.
    for folder, code in ((0, None), (1, None), (2, pb.Reject.BUSY), (1, None)):
        answer, writer = await _call(cluster, stranger(0, folder))
        assert (answer.reject.code if answer.HasField("reject") else None) == code
        writers.append(writer)
    for writer in writers:
        writer.close()
    await wait_until(lambda: not node._transport.guests, what="forgotten guests")
    await cluster.propose(5)
    assert not cluster.faults


async def test_starts_that_meet_nobody_take_no_place_in_the_list_of_starts(cluster: Growing) -> None:
    node_id = (await cluster.followers())[0].status().node_id
    other = (await cluster.leader()).status().node_id
    await cluster.stop(node_id)
    taken = next(member for member in cluster.members if member.node_id == other)
    before = _generation(cluster, node_id)
    own = cluster.config(node_id)
    cluster.files[node_id] = (own.members, False)
    for _ in range(3):
        config = dataclasses.replace(own, listen=taken.peer_address)
        with pytest.raises(ConfigurationError, match="cannot listen"):
            await RaftNode(config, type(cluster.machines["n1"])()).start()
    assert _generation(cluster, node_id) == before
    await cluster.start(node_id)
    await cluster.settled()
    await cluster.stop(node_id)
    assert _generation(cluster, node_id) == before + 1


def _generation(cluster: Cluster, node_id: str) -> int:
    store = LogStore.open(cluster.folder / node_id / "raft" / "log", map_size=1 << 34)
    record = store.get(b"identity")
    store.close()
    assert record is not None
    return pb.Identity.FromString(record).generation
