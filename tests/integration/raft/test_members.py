"""Nodes that come, go and are replaced, on real sockets and disks."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvorum_raft.config import Limits
from kvorum_raft.errors import NotLeader, RaftError, Refused, UnknownOutcome
from kvorum_raft.node import RaftNode
from kvorum_raft.seams import Member
from tests.integration.raft.harness import QUICK, Cluster, wait_until
from tests.pace import Pace

LIMITS = Limits(checkpoint_log=20_000, hash_every=16)


def _voters(cluster: Cluster, node_id: str) -> set[str]:
    status = cluster.nodes[node_id].status()
    found = {view.member.node_id for view in status.peers if not view.learner}
    return found | ({node_id} if status.own is not None and not status.own_learner else set())


def _members(node: RaftNode) -> set[str]:
    status = node.status()
    return {view.member.node_id for view in status.peers} | ({status.node_id} if status.own is not None else set())


async def _caught_up(cluster: Cluster, node_id: str) -> None:
    leader = await cluster.leader()

    def same() -> bool:
        return cluster.nodes[node_id].status().applied_index >= leader.status().commit_index > 0

    await wait_until(same, what=f"catching up of {node_id}")


async def _changed(
    cluster: Cluster, ask: Callable[[RaftNode], Awaitable[None]], is_so: Callable[[RaftNode], bool]
) -> None:
    """By whoever leads, on a machine where elections may come at any time: what was certainly not done is asked for
    again, and where nobody knows the members tell."""
    while True:
        leader = await cluster.leader()
        try:
            return await ask(leader)
        except UnknownOutcome:
            if is_so(await cluster.leader()):
                return None
        except RaftError as error:
            assert error.definite
            await asyncio.sleep(0.01)


async def _added(cluster: Cluster, member: Member) -> None:
    await _changed(cluster, lambda leader: leader.add(member), lambda leader: member.node_id in _members(leader))


async def _removed(cluster: Cluster, node_id: str) -> None:
    await _changed(cluster, lambda leader: leader.remove(node_id), lambda leader: node_id not in _members(leader))


async def _promoted(cluster: Cluster, node_id: str) -> None:
    """A leader that was only just elected may not have met it yet."""
    await _changed(
        cluster,
        lambda leader: leader.promote(node_id),
        lambda leader: node_id in _voters(cluster, leader.status().node_id),
    )


async def test_a_fourth_node_is_added_and_the_leader_removed(tmp_path: Path) -> None:
    """Also P32: an old node that restarts before any compaction knows all four."""
    cluster = Cluster(tmp_path)
    await cluster.start()
    await cluster.propose(100)
    member = cluster.joins("n4")
    await cluster.start("n4")
    leader = await cluster.leader()
    await leader.add(member)
    await _caught_up(cluster, "n4")
    assert cluster.nodes["n4"].status().own_learner
    await _promoted(cluster, "n4")
    await cluster.settled()
    old = next(node_id for node_id in ("n1", "n2", "n3") if cluster.nodes[node_id] is not leader)
    await cluster.stop(old)
    await cluster.start(old)
    await cluster.settled()
    for node_id in cluster.nodes:
        assert _voters(cluster, node_id) == {"n1", "n2", "n3", "n4"}
    gone = (await cluster.leader()).status().node_id
    await _removed(cluster, gone)
    await wait_until(lambda: gone in cluster.faults, what="the removed node to be told")
    assert isinstance(cluster.faults[gone], Refused)
    await cluster.nodes.pop(gone).stop()
    await cluster.propose(20)
    await cluster.settled()
    left = {"n1", "n2", "n3", "n4"} - {gone}
    for node_id in cluster.nodes:
        assert _voters(cluster, node_id) == left
    with pytest.raises(Refused, match="removed"):
        await cluster.start(gone)
    await cluster.stop()


async def test_a_wiped_node_is_refused_until_it_is_replaced(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    while not all(node.status().statistics["log_base_index"] > 0 for node in cluster.nodes.values()):
        await cluster.propose(200, size=100)
    victim = (await cluster.followers())[0].status().node_id
    await cluster.stop(victim)
    shutil.rmtree(tmp_path / victim)
    await cluster.start(victim)
    await wait_until(lambda: victim in cluster.faults, what="refusal")
    assert isinstance(cluster.faults.pop(victim), Refused)
    await cluster.nodes.pop(victim).stop()
    shutil.rmtree(tmp_path / victim)
    member = cluster.joins(victim)
    await cluster.start(victim)
    leader = await cluster.leader()
    await leader.replace(member)
    await _caught_up(cluster, victim)
    assert cluster.machines[victim].adopted, "the log alone does not reach back to the beginning"
    await _promoted(cluster, victim)
    await cluster.settled()
    assert _voters(cluster, victim) == {"n1", "n2", "n3"}
    await cluster.stop(*[node_id for node_id in cluster.nodes if node_id != victim][:1])
    await cluster.propose(20)
    await cluster.stop()


async def test_leadership_goes_where_it_is_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start()
    await cluster.propose(100)
    for _ in range(4):
        leader = await cluster.leader()
        to = next(node_id for node_id, node in cluster.nodes.items() if node is not leader)
        pace = Pace()
        assert await leader.transfer(to) == to
        await wait_until(lambda to=to: cluster.nodes[to].is_leader, what="the new leader")  # type: ignore[misc]
        assert pace.seconds() < QUICK.election_min, "it takes no election timeout"
        await cluster.propose(10)
    await cluster.stop()


async def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start()
    leader = await cluster.leader()
    follower = (await cluster.followers())[0]
    with pytest.raises(NotLeader):
        await follower.remove("n1")
    with pytest.raises(ValueError, match="not a member"):
        await leader.promote("n9")
    with pytest.raises(ValueError, match="reach"):
        await leader.add(cluster.joins("n9"))
    with pytest.raises(ValueError, match="forward only"):
        await leader.set_time(1)
    other = follower.status().own
    assert other is not None
    with pytest.raises(ValueError, match="waits to be added"):
        await leader.replace(other)
    await cluster.stop()


async def test_a_change_that_would_stop_the_cluster_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start()
    down, alive = [node.status().node_id for node in await cluster.followers()]
    await cluster.stop(down)
    leader = await cluster.leader()
    await wait_until(lambda: not leader._core.is_connected(down), what="the connection to be gone")
    with pytest.raises(ValueError, match="2 are needed"):
        await leader.remove(alive)
    await leader.remove(down)
    await cluster.propose(5)
    await cluster.stop()


async def test_a_new_node_announces_a_leader_whose_address_it_learns_later_than_its_name(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await cluster.start()
    await cluster.propose(20)
    member = cluster.joins("n4")
    everybody, cluster.members = cluster.members, [member]  # its file names nobody else
    await cluster.start("n4")
    cluster.members = everybody
    node, heard = cluster.nodes["n4"], list[str]()
    node.on_leadership(lambda leads: heard.append(node.leader.node_id if node.leader is not None else ""))
    leader = await cluster.leader()
    await leader.add(member)
    await cluster.settled()
    await wait_until(lambda: heard[-1:] == [leader.status().node_id], what="announcement")
    await cluster.stop()


async def test_members_change_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=LIMITS)
    await cluster.start()
    over = False
    acknowledged: list[bytes] = []

    async def work(number: int) -> None:
        count = 0
        while not over:
            payload = f"{number}/{count}".encode()
            try:
                await (await cluster.leader()).propose(payload)
            except RaftError:
                await asyncio.sleep(0)
            else:
                acknowledged.append(payload)
            count += 1

    tasks = [asyncio.create_task(work(number)) for number in range(8)]
    for round_ in range(2):
        name = f"x{round_}"
        member = cluster.joins(name)
        await cluster.start(name)
        await _added(cluster, member)
        await _caught_up(cluster, name)
        await _promoted(cluster, name)
        gone = (await cluster.leader()).status().node_id
        await _removed(cluster, gone)
        await wait_until(lambda gone=gone: gone in cluster.faults, what="the removed node to be told")  # type: ignore[misc]
        await cluster.nodes.pop(gone).stop()
    over = True
    await asyncio.gather(*tasks)
    await cluster.settled()
    node_id = (await cluster.leader()).status().node_id
    applied = cluster.machines[node_id].payloads
    assert len(acknowledged) > 50
    assert set(acknowledged) <= set(applied)
    assert len(applied) == len(set(applied))
    await cluster.stop()
