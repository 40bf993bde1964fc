"""Whose folder is whose: damaged, emptied, rolled back, moved and foreign ones never vote."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvorum_node.dev_cluster import free_ports
from kvorum_raft.errors import ConfigurationError, RaftFault, Refused
from kvorum_raft.faults import REFUSED_MARKER
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Member
from tests.integration.raft.harness import QUICK, Cluster, ListMachine, wait_until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start()
    await cluster.propose(50)
    await wait_until(lambda: all(node.cluster_id for node in cluster.nodes.values()), what="cluster id")
    await cluster.settled()
    yield cluster
    await cluster.stop()


async def _away(cluster: Cluster) -> str:
    """A follower that was stopped."""
    node_id = (await cluster.followers())[0].status().node_id
    await cluster.stop(node_id)
    return node_id


async def _refused(cluster: Cluster, node_id: str, match: str) -> None:
    """The node comes up, is refused by the others for that reason, and they go on."""
    await cluster.start(node_id)
    await wait_until(lambda: node_id in cluster.faults, what="refusal")
    error = cluster.faults.pop(node_id)
    assert isinstance(error, Refused)
    assert match in str(error)
    assert "\n" not in str(error)
    assert cluster.nodes[node_id].statistics()["elections"] == 0
    await cluster.stop(node_id)
    await cluster.propose(5)
    assert not cluster.faults


async def test_a_changed_byte_in_the_log_is_named(cluster: Cluster) -> None:
    node_id = await _away(cluster)
    data = cluster.data(node_id)
    content = data.read_bytes()
    assert b"0/25/..." in content
    data.write_bytes(content.replace(b"0/25/...", b"0/25/.,."))  # in every copy that LMDB keeps of the page
    with pytest.raises(RaftFault, match=r"is damaged: .*checksum.* entry") as caught:
        await cluster.start(node_id)
    assert "\n" not in str(caught.value)


async def test_a_file_cut_short_is_named(cluster: Cluster) -> None:
    node_id = await _away(cluster)
    data = cluster.data(node_id)
    data.write_bytes(data.read_bytes()[: 3 * 4096])
    with pytest.raises(RaftFault, match="damaged"):
        await cluster.start(node_id)


async def test_an_emptied_folder_is_refused_and_stays_down(cluster: Cluster) -> None:
    node_id = await _away(cluster)
    shutil.rmtree(cluster.folder / node_id)
    await _refused(cluster, node_id, "was emptied")
    assert (cluster.folder / node_id / "raft" / REFUSED_MARKER).exists()
    with pytest.raises(Refused, match="must be replaced"):
        await cluster.start(node_id)


async def test_a_folder_from_a_copy_is_refused_however_often_it_starts(cluster: Cluster) -> None:
    node_id = await _away(cluster)
    folder, copy = cluster.folder / node_id, cluster.folder / "copy"
    shutil.copytree(folder, copy)
    await cluster.start(node_id)
    await cluster.propose(10)
    await cluster.settled()
    await cluster.stop(node_id)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    config = cluster.config(node_id)
    for _ in range(3):  # starts that meet nobody
        alone = RaftNode(
            type(config)(node_id, config.members, config.data_dir, timing=QUICK, map_size=1 << 34),
            ListMachine(),
            on_fault=lambda error: None,
        )
        await alone.start()
        await alone.stop()
        (folder / "raft" / REFUSED_MARKER).unlink(missing_ok=True)
    await _refused(cluster, node_id, "was rolled back")


async def test_a_log_that_lost_what_it_acknowledged_is_refused(cluster: Cluster) -> None:
    """Same folder, same starts, but the entries are gone: as after a disk that lied about its syncs."""
    node_id = await _away(cluster)
    folder = cluster.folder / node_id
    await cluster.start(node_id)
    await cluster.stop(node_id)
    saved = cluster.folder / "saved"
    shutil.copytree(folder, saved)
    await cluster.start(node_id)
    await cluster.propose(20)
    await cluster.settled()
    await cluster.stop(node_id)
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)
    await _refused(cluster, node_id, "was rolled back")


async def test_a_log_that_lost_entries_within_one_start_is_refused_by_the_leader_that_was(cluster: Cluster) -> None:
    """No list of starts tells: only what the leader remembers of its acknowledgements, and it has restarted since."""
    node_id = (await cluster.followers())[0].status().node_id
    copy = cluster.folder / "copy"
    copy.mkdir()
    store = cluster.nodes[node_id]._store
    assert store is not None
    store._env.copy(str(copy))  # as the disk was at this moment
    ahead = cluster.data(node_id).with_name("write-ahead")
    shutil.copy(ahead, copy)
    await cluster.propose(20)
    await cluster.settled()
    await cluster.stop()
    for name in ("data.mdb", "write-ahead"):
        shutil.copy(copy / name, cluster.data(node_id).with_name(name))
    cluster.data(node_id).with_name("lock.mdb").unlink()
    await cluster.start(*(one.node_id for one in cluster.members if one.node_id != node_id))
    await cluster.propose(5)
    await _refused(cluster, node_id, "was rolled back: its log ends at entry")


async def test_a_folder_of_another_node_is_refused_at_once(cluster: Cluster) -> None:
    node_id = await _away(cluster)
    (other,) = [one.node_id for one in cluster.members if one.node_id != node_id][:1]
    shutil.rmtree(cluster.folder / node_id)
    await cluster.stop(other)
    shutil.copytree(cluster.folder / other, cluster.folder / node_id)
    with pytest.raises(Refused, match=f"belongs to node {other}, not to node {node_id}"):
        await cluster.start(node_id)
    await cluster.start(other)


async def test_a_folder_of_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    stranger = Cluster(tmp_path / "other")
    await stranger.start()
    await stranger.propose(5)
    await wait_until(lambda: all(node.cluster_id for node in stranger.nodes.values()), what="cluster id")
    await stranger.stop()
    node_id = await _away(cluster)
    kept = cluster.folder / "kept"
    shutil.move(cluster.folder / node_id, kept)
    shutil.copytree(stranger.folder / node_id, cluster.folder / node_id)
    await _refused(cluster, node_id, "belongs to another cluster")
    assert not (cluster.folder / node_id / "raft" / REFUSED_MARKER).exists(), "the folder is sound, only misplaced"
    shutil.rmtree(cluster.folder / node_id)
    shutil.move(kept, cluster.folder / node_id)
    await cluster.start(node_id)
    await cluster.settled()


async def test_a_port_that_is_taken_is_named(cluster: Cluster, tmp_path: Path) -> None:
    taken = cluster.members[0]
    members = [taken, Member("x2", "127.0.0.1:1", ""), Member("x3", "127.0.0.1:2", "")]
    config = type(cluster.config("n1"))(taken.node_id, members, tmp_path / "x", map_size=1 << 30)
    if taken.node_id not in cluster.nodes:
        await cluster.start(taken.node_id)
    with pytest.raises(ConfigurationError, match=f"cannot listen for peers on {taken.peer_address}"):
        await RaftNode(config, ListMachine()).start()


async def test_a_folder_in_use_is_named(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="in use by another process"):
        await RaftNode(cluster.config("n1"), ListMachine()).start()


async def test_a_copy_is_not_let_in_while_the_original_runs(cluster: Cluster, tmp_path: Path) -> None:
    """It looks like the next start of the same folder, but a folder starts again only when its process has ended."""
    original = (await cluster.followers())[0]
    node_id = original.status().node_id
    shutil.copytree(cluster.folder / node_id, tmp_path / "copy")
    own = Member(node_id, f"127.0.0.1:{free_ports(1)[0]}", "")
    members = [own, *(member for member in cluster.members if member.node_id != node_id)]
    copy = RaftNode(replace(cluster.config(node_id), data_dir=tmp_path / "copy", members=members), ListMachine())
    await copy.start()
    others = [node for other, node in cluster.nodes.items() if other != node_id]
    before = [node.statistics()["peer_rejects"] for node in others]
    await wait_until(
        lambda: all(node.statistics()["peer_rejects"] > old for node, old in zip(others, before, strict=True)),
        what="refusal by all others",
    )
    assert not any(view.connected for view in copy.status().peers)
    await copy.stop()
    await cluster.propose(20)
    await cluster.stop(node_id)
    await cluster.start(node_id)
    await cluster.settled()
    assert not cluster.faults, "the original may come back"
