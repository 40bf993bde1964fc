"""Checkpoints, a log that is cut, and snapshots for those who need what was cut: real nodes, sockets and disks."""

import asyncio
import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvorum_raft.config import Limits
from kvorum_raft.entry import Entry, Kind
from kvorum_raft.errors import RaftError
from kvorum_raft.faults import REBUILD_MARKER, write_marker
from kvorum_raft.node import RaftNode
from tests.integration.raft.harness import Cluster, wait_until

LIMITS = Limits(checkpoint_log=20_000, hash_every=16)


def _statistics(node: RaftNode) -> dict[str, float]:
    return node.status().statistics


async def _cut(cluster: Cluster) -> None:
    """Work until every running node has cut its log."""
    while not all(_statistics(node)["log_base_index"] > 0 for node in cluster.nodes.values()):
        await cluster.propose(200, size=100)


async def test_a_log_is_cut_behind_the_older_of_two_checkpoints_and_a_restart_needs_only_the_rest(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await _cut(cluster)
    await cluster.settled()
    wanted = (await cluster.leader()).status().applied_index
    for node_id, node in cluster.nodes.items():
        checkpoints = sorted(path.name for path in (tmp_path / node_id / "checkpoints").iterdir())
        older = int(checkpoints[0].partition("-")[0])
        assert _statistics(node)["log_base_index"] <= older < wanted
    await cluster.stop()
    await cluster.start()
    await cluster.settled()
    for node_id in cluster.nodes:
        assert len(cluster.machines[node_id].adopted) == 1, "rebuilt from a checkpoint, not from entry 1"
    assert len({machine.digest for machine in cluster.machines.values()}) == 1
    await cluster.stop()


async def test_a_node_that_was_away_too_long_gets_a_snapshot(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await cluster.propose(10)
    away = (await cluster.followers())[0].status().node_id
    await cluster.stop(away)
    await _cut(cluster)
    await cluster.start(away)
    await cluster.settled()
    machine = cluster.machines[away]
    assert machine.adopted and machine.adopted[-1] > 10
    assert _statistics(cluster.nodes[away])["installs"] == 1
    heard: list[int] = []
    cluster.nodes[away].on_installed(heard.append)
    await cluster.propose(50)
    await cluster.settled()
    assert heard == []
    await cluster.stop()


async def test_a_snapshot_under_load_is_heard_of(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await cluster.propose(10)
    away = (await cluster.followers())[0].status().node_id
    await cluster.stop(away)
    await _cut(cluster)
    await cluster.start(away)
    heard: list[int] = []
    cluster.nodes[away].on_installed(heard.append)
    while not heard:
        await cluster.propose(200, size=100)
    await cluster.settled()
    assert heard[0] in cluster.machines[away].adopted
    await cluster.stop()


async def test_a_node_whose_checkpoints_are_gone_votes_but_leads_only_when_it_has_got_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await _cut(cluster)
    await cluster.settled()
    victim = (await cluster.followers())[0].status().node_id
    other = next(node.status().node_id for node in await cluster.followers() if node.status().node_id != victim)
    await cluster.stop()
    shutil.rmtree(tmp_path / victim / "checkpoints")
    await cluster.start(victim)
    assert cluster.nodes[victim].hollow
    await cluster.start(other)  # two of three: its vote is needed, and only the other one can lead
    leader = await cluster.leader()
    assert leader.status().node_id == other
    await wait_until(lambda: not cluster.nodes[victim].hollow, what="a snapshot")
    await cluster.settled()
    await cluster.propose(20)
    await cluster.settled()
    await cluster.stop()


async def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await _cut(cluster)
    await cluster.settled()
    victim = (await cluster.followers())[0].status().node_id
    await cluster.stop()
    newest = max((tmp_path / victim / "checkpoints").iterdir())
    damaged = bytearray((newest / "state").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (newest / "state").write_bytes(damaged)
    await cluster.start()
    await cluster.settled()
    adopted = cluster.machines[victim].adopted[0]
    assert adopted < int(newest.name.partition("-")[0]), "from the older one"
    assert not cluster.faults
    await cluster.stop()


async def test_the_odd_one_out_is_rebuilt(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await cluster.propose(10)
    await cluster.settled()
    victim = (await cluster.followers())[0].status().node_id
    cluster.machines[victim]._digest = b"x" * 16
    while victim not in cluster.faults:
        await cluster.propose(1)
    assert "majority" in str(cluster.faults[victim])
    assert (tmp_path / victim / "raft" / REBUILD_MARKER).exists()
    await cluster.nodes.pop(victim).stop()
    del cluster.faults[victim]
    await cluster.start(victim)
    await cluster.settled()
    assert not (tmp_path / victim / "raft" / REBUILD_MARKER).exists()
    for _ in range(40):
        await cluster.propose(1)
    assert not cluster.faults
    await cluster.stop()


async def test_a_leader_that_is_the_odd_one_hands_over_first(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await cluster.propose(10)
    await cluster.settled()
    leader = await cluster.leader()
    victim = leader.status().node_id
    cluster.machines[victim]._digest = b"x" * 16
    while (await cluster.leader()).status().node_id == victim:
        with contextlib.suppress(RaftError):  # while it hands over
            await cluster.propose(1)
        await asyncio.sleep(0.002)
    while victim not in cluster.faults:
        await cluster.propose(1)
    await cluster.stop()


async def test_a_rebuild_throws_the_checkpoints_away(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    await _cut(cluster)
    victim = (await cluster.followers())[0].status().node_id
    await cluster.stop(victim)
    write_marker(tmp_path / victim / "raft", REBUILD_MARKER, "for a test")
    await cluster.start(victim)
    assert not list((tmp_path / victim / "checkpoints").iterdir())
    assert cluster.nodes[victim].hollow
    await wait_until(lambda: not cluster.nodes[victim].hollow, what="a snapshot")
    await cluster.settled()
    await cluster.stop()


async def test_a_log_that_somebody_copies_is_cut_only_behind_what_he_has(tmp_path: Path) -> None:
    """`hold_log` on one node; what `log` gives out is what was proposed, from the disk as well."""
    cluster = Cluster(tmp_path, limits=replace(LIMITS, log_cache=4_096))
    held: int | None = 5
    cluster.prepare = lambda node_id, node: node.hold_log(lambda: held) if node_id == "n1" else None
    await cluster.start()
    node = cluster.nodes["n1"]
    others = [cluster.nodes[name] for name in ("n2", "n3")]
    while min(_statistics(one)["log_base_index"] for one in others) <= 5 or _statistics(node)["checkpoints"] < 3:
        await cluster.propose(200, size=100)
    await cluster.settled()
    assert _statistics(node)["log_base_index"] <= 5
    log = node.log
    assert log is not None
    entries: list[Entry] = []
    while found := log.entries(log.base_index + len(entries) + 1, 10_000):
        assert len(found) == 1 or sum(entry.size for entry in found) <= 10_000
        entries += found
    assert [entry.index for entry in entries] == [*range(log.base_index + 1, log.applied_index + 1)]
    assert all(log.term_at(entry.index) == entry.term for entry in entries)
    commands = [entry.payload for entry in entries if entry.kind is Kind.COMMAND]
    assert commands == cluster.machines["n1"].payloads[-len(commands) :]
    held = None
    await wait_until(lambda: _statistics(node)["log_base_index"] > 5, what="cut")
    with pytest.raises(ValueError, match="was cut off"):
        log.entries(log.base_index, 100)
    await cluster.stop()
    assert node.log is None
