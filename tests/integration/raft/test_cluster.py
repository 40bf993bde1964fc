"""Three nodes in one loop: elect, replicate, read, restart, stop."""

import asyncio
import pickle
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import lmdb
import pysyncobj.pickle
import pytest
import uvloop

from kvorum_raft.config import Limits
from kvorum_raft.errors import NotLeader, Overloaded, RaftFault, UnknownOutcome
from kvorum_raft.log_store import LogStore
from kvorum_raft.node import RaftNode
from tests.integration.raft.harness import QUICK, Cluster, wait_until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path, first_payload=lambda cluster_id: b"init" + cluster_id)
    yield cluster
    await cluster.stop()
    assert not cluster.faults


async def test_ten_thousand_entries_arrive_everywhere_once_and_in_order(cluster: Cluster) -> None:
    await cluster.start()
    applied = await cluster.propose(10_000)
    assert [one.index for one in applied] == list(range(3, 10_003))
    assert [one.time_ms for one in applied] == sorted(one.time_ms for one in applied)
    await cluster.settled()
    for machine in cluster.machines.values():
        assert len(machine.payloads) == 10_001


async def test_a_new_cluster_begins_with_its_id_and_the_first_payload(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.leader()
    await cluster.settled()
    await wait_until(lambda: all(node.cluster_id for node in cluster.nodes.values()), what="cluster id")
    (cluster_id,) = {node.cluster_id for node in cluster.nodes.values()}
    assert len(cluster_id) == 16
    assert all(machine.payloads == [b"init" + cluster_id] for machine in cluster.machines.values())
    await cluster.stop()
    await cluster.start()
    await cluster.propose(1)
    await cluster.settled()
    assert {node.cluster_id for node in cluster.nodes.values()} == {cluster_id}
    assert all(machine.payloads[0] == b"init" + cluster_id for machine in cluster.machines.values())
    assert all(len(machine.payloads) == 2 for machine in cluster.machines.values())


async def test_nobody_votes_before_every_listed_node_was_met(cluster: Cluster) -> None:
    await cluster.start("n1", "n2")
    await wait_until(lambda: cluster.nodes["n1"].forming_waits_for == ["n3"], what="forming")
    await asyncio.sleep(1.5 * QUICK.election_max)
    assert all(node.status().term == 0 for node in cluster.nodes.values())
    await cluster.start("n3")
    await cluster.leader()


async def test_a_follower_that_was_away_catches_up_from_the_log(cluster: Cluster) -> None:
    await cluster.start()
    away = (await cluster.followers())[0].status().node_id
    await cluster.stop(away)
    await cluster.propose(3000, size=500)
    await cluster.start(away)
    await cluster.settled()


async def test_a_lost_leader_is_replaced_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    await cluster.start()
    acknowledged = await cluster.propose(200)
    old = (await cluster.leader()).status().node_id
    await cluster.stop(old)
    assert (await cluster.leader()).status().applied_index > acknowledged[-1].index
    await cluster.propose(10)
    await cluster.start(old)
    await cluster.settled()
    assert len(cluster.machines[old].payloads) == 211


async def test_reads_on_every_node_see_what_was_acknowledged_before(cluster: Cluster) -> None:
    await cluster.start()
    for _ in range(30):
        (applied,) = await cluster.propose(1)
        indices = await asyncio.gather(*[node.read_index() for node in cluster.nodes.values()])
        assert all(index >= applied.index for index in indices)
    leader = await cluster.leader()
    before = leader.statistics()["rounds"]
    await asyncio.gather(*[leader.read_index() for _ in range(1000)])
    assert leader.statistics()["rounds"] - before <= 5, "one round serves all reads that wait"


async def test_a_node_alone_answers_no_read_and_takes_no_proposal(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    await cluster.stop(*[node_id for node_id, node in cluster.nodes.items() if node is not leader])
    read = asyncio.ensure_future(leader.read_index())
    proposal = leader.propose(b"to nobody")
    with pytest.raises(NotLeader):
        await read
    with pytest.raises(UnknownOutcome):
        await proposal
    with pytest.raises(NotLeader):
        leader.propose(b"x")
    with pytest.raises(NotLeader):
        await leader.read_index()


async def test_stopping_tells_those_who_wait(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    proposal = leader.propose(b"in the log")
    await cluster.stop(leader.status().node_id)
    with pytest.raises(UnknownOutcome):
        await proposal


async def test_too_much_uncommitted_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, limits=Limits(uncommitted=100_000))
    await cluster.start()
    leader = await cluster.leader()
    proposals = []
    with pytest.raises(Overloaded):
        for _ in range(1000):
            proposals.append(leader.propose(b"x" * 1000))
    assert 50 < len(proposals) < 100
    await asyncio.gather(*proposals)
    assert (await leader.propose(b"again")).result == 5
    for wrong in (b"", b"x" * (Limits().entry + 1)):
        with pytest.raises(ValueError, match="payload"):
            leader.propose(wrong)
    await cluster.stop()


async def test_a_large_entry_passes_and_small_messages_go_on(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    applied = await asyncio.gather(leader.propose(b"x" * Limits().entry), leader.propose(b"small"))
    assert [one.result for one in applied] == [Limits().entry, 5]
    await cluster.settled()


async def test_long_applies_let_the_loop_run_between_slices(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, slices=50)
    await cluster.start()
    leader = await cluster.leader()
    turns = 0
    proposal = leader.propose(b"long")
    while not proposal.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 50
    await cluster.stop()


async def test_a_cluster_of_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start()
    await cluster.propose(100)
    assert await (await cluster.leader()).read_index() >= 100
    await cluster.stop()
    await cluster.start()
    await cluster.settled()
    assert len(cluster.machines["n1"].payloads) == 100
    await cluster.stop()


async def test_a_failed_write_stops_the_node_and_acknowledges_nothing_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start()
    leader = await cluster.leader()
    node_id = leader.status().node_id
    store, write = leader._store, LogStore.write

    def fail(self: LogStore, batches: Any) -> None:
        if self is store:
            raise lmdb.DiskError("mdb_txn_commit: Input/output error")
        write(self, batches)

    monkeypatch.setattr(LogStore, "write", fail)
    proposal = leader.propose(b"lost to this node")
    await wait_until(lambda: node_id in cluster.faults, what="fault")
    with pytest.raises(UnknownOutcome):
        await proposal
    fault = cluster.faults.pop(node_id)
    assert isinstance(fault, RaftFault)
    assert "Input/output error" in str(fault)
    assert not leader.is_leader
    await cluster.stop(node_id)
    await cluster.leader()
    await cluster.propose(5)


async def test_an_exception_while_applying_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start()
    leader = await cluster.leader()
    monkeypatch.setattr(cluster.machines["n1"], "apply", lambda *_: iter(()).throw(KeyError("x")))  # type: ignore[attr-defined]
    with pytest.raises(UnknownOutcome):
        await leader.propose(b"x")
    assert isinstance(cluster.faults["n1"], RaftFault)
    await cluster.stop()


async def test_a_state_ahead_of_its_log_is_a_fault(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)
    await cluster.start()
    await cluster.propose(3)
    machine = cluster.machines["n1"]
    await cluster.stop()
    log = tmp_path / "n1" / "raft" / "log"
    (log / "data.mdb").unlink()
    with pytest.raises(RaftFault, match=r"is damaged: it has a write-ahead file and no data\.mdb"):
        await RaftNode(cluster.config("n1"), machine).start()
    shutil.rmtree(log)
    with pytest.raises(RaftFault, match="the log ends at entry 0"):
        await RaftNode(cluster.config("n1"), machine).start()


def test_it_runs_on_uvloop(tmp_path: Path) -> None:
    """Whose transports and servers are not those of asyncio."""

    async def run() -> None:
        cluster = Cluster(tmp_path)
        await cluster.start()
        await cluster.propose(100)
        away = (await cluster.leader()).status().node_id
        await cluster.stop(away)
        await cluster.propose(100)
        await cluster.start(away)
        await cluster.settled()
        await cluster.stop()
        assert not cluster.faults

    uvloop.run(run())


async def test_the_library_never_pickles(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle is used")

    for name in ("loads", "dumps", "load", "dump"):
        monkeypatch.setattr(pysyncobj.pickle, name, forbidden)
        monkeypatch.setattr(pickle, name, forbidden)
    await cluster.start()
    await cluster.propose(100)
    away = (await cluster.leader()).status().node_id
    await cluster.stop(away)
    await cluster.propose(100)
    await cluster.start(away)
    await cluster.settled()


async def test_leadership_is_announced(cluster: Cluster) -> None:
    await cluster.start()
    seen: list[bool] = []
    follower = (await cluster.followers())[0]
    follower.on_leadership(seen.append)
    leader = await cluster.leader()
    await cluster.stop(leader.status().node_id)
    new = await cluster.leader()
    # That the old leader is gone may be announced before the new one is.
    await wait_until(lambda: seen[-1:] == [new is follower], what="announcement")
    await wait_until(lambda: follower.leader is not None, what="leader")
    assert follower.leader is not None
    assert follower.leader.node_id == new.status().node_id


async def test_after_a_pause_the_sockets_are_read_before_timers_are_judged(cluster: Cluster) -> None:
    await cluster.start()
    node = (await cluster.followers())[0]
    now, stepper = asyncio.get_running_loop().time(), node._stepper
    while not stepper._caught_up(now):
        pass  # this machine may just have let it be late
    before = node.statistics()["late_steps"]
    assert not stepper._caught_up(now + 1.0), "late: what would answer the timer may lie unread"
    stepper.messages += 1
    assert not stepper._caught_up(now + 1.0), "and there was something"
    assert stepper._caught_up(now + 1.0), "nothing came in a whole turn of the loop"
    assert node.statistics()["late_steps"] == before + 1


async def test_a_listener_that_fails_hurts_only_itself(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start()
    leader = await cluster.leader()
    seen: list[int] = []

    def fail(applied: Any) -> None:
        seen.append(applied.index)
        raise RuntimeError("the listener is broken")

    leader.on_applied(fail)
    applied = await cluster.propose(3)
    assert set(seen) >= {one.index for one in applied}
    assert "a listener failed" in caplog.text
