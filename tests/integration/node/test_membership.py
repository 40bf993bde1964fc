"""What an operator does to a cluster of real processes, by the commands that the documentation names."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvorum
from kvorum import errors
from kvorum_node.dev_cluster import in_thread
from tests.integration.cluster_fixture import pace_of
from tests.integration.node.growing import GrowingCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[GrowingCluster]:
    nodes = GrowingCluster(tmp_path)
    with nodes:
        yield nodes


async def write(cluster: GrowingCluster, name: str, count: int = 50) -> None:
    async with kvorum.open_kv(cluster.url) as kv:
        await asyncio.gather(*(kv.set((name, number), number) for number in range(count)))


async def read(cluster: GrowingCluster, name: str) -> list[object]:
    async with kvorum.open_kv(cluster.url) as kv:
        return [entry.value async for entry in kv.list(prefix=(name,))]


def same_state(cluster: GrowingCluster, *numbers: int) -> None:
    """These nodes come to stand at the same index with the same content."""
    deadline = time.monotonic() + 60
    while True:
        seen = {(status.applied_index, status.state_hash) for status in map(cluster.status, numbers)}
        if len(seen) == 1:
            return
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


async def test_a_fourth_node_is_added_promoted_and_votes(cluster: GrowingCluster) -> None:
    await write(cluster, "before")
    number = await in_thread(cluster.new_node)
    told = await in_thread(cluster.cluster, "add", "n4", *cluster.place(number))
    assert told == "node n4 is a learner; when it has caught up: kvorum cluster promote n4\n"
    assert not (await in_thread(cluster.members))["n4"]["voter"]
    await in_thread(cluster.cluster, "promote", "n4")
    members = await in_thread(cluster.members)
    assert [(name, row["voter"], row["connected"]) for name, row in members.items()] == [
        (name, True, True) for name in ("n1", "n2", "n3", "n4")
    ]
    # Three of four must agree, so without n4 one more lost node would be one too many.
    await in_thread(cluster.kill, (await in_thread(cluster.followers))[0])
    await write(cluster, "after")
    assert await read(cluster, "before") == await read(cluster, "after") == list(range(50))
    await in_thread(cluster.kill, number)
    await in_thread(cluster.start, number)
    await write(cluster, "restarted")
    await in_thread(same_state, cluster, number, await in_thread(cluster.leader))


async def test_the_leader_is_removed_and_the_others_go_on(cluster: GrowingCluster) -> None:
    await write(cluster, "before")
    leader = await in_thread(cluster.leader)
    name = f"n{leader + 1}"
    told = await in_thread(cluster.cluster, "remove", name)
    assert told == f"node {name} is no member any more; its process may be stopped\n"
    await in_thread(cluster.terminate, leader)
    await write(cluster, "after")
    assert await read(cluster, "before") == list(range(50))
    assert set(await in_thread(cluster.members)) == {"n1", "n2", "n3"} - {name}
    refused = await in_thread(lambda: cluster.cluster("remove", name, status=2))
    left = ", ".join(sorted({"n1", "n2", "n3"} - {name}))
    assert refused == f"kvorum: node {name} is not a member: the members are {left}\n"


async def test_a_wiped_node_is_replaced(cluster: GrowingCluster) -> None:
    await write(cluster, "before")
    lost = (await in_thread(cluster.followers))[0]
    name = f"n{lost + 1}"
    await in_thread(cluster.kill, lost)
    cluster.wipe(lost)
    await write(cluster, "meanwhile")
    cluster.set_key(lost, "join", "true")
    await in_thread(cluster.start, lost)
    told = await in_thread(cluster.cluster, "replace", name, *cluster.place(lost), "--promote", "--timeout", "60s")
    assert told == f"node {name} is a voter\n"
    await in_thread(same_state, cluster, 0, 1, 2)
    assert await read(cluster, "meanwhile") == list(range(50))
    # And it counts: with another one down the cluster lives on it.
    await in_thread(cluster.kill, next(one for one in await in_thread(cluster.followers) if one != lost))
    await write(cluster, "after")


async def test_a_wiped_node_gets_a_snapshot_when_the_log_does_not_reach_back(cluster: GrowingCluster) -> None:
    async with kvorum.open_kv(cluster.url) as kv:
        room = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with room:
                await kv.set(("big", number % 200), os.urandom(60_000), timeout=60_000)

        # Two checkpoints must be made, each after 64 MiB of log, before the log is cut behind the older one; nodes take
        # turns at that, the leader last.
        async with asyncio.timeout(100):
            while not (await in_thread(lambda: cluster.status(cluster.leader()))).statistics["log_base_index"]:
                await asyncio.gather(*(one(number) for number in range(400)))
    lost = (await in_thread(cluster.followers))[0]
    name = f"n{lost + 1}"
    await in_thread(cluster.kill, lost)
    cluster.wipe(lost)
    cluster.set_key(lost, "join", "true")
    await in_thread(cluster.start, lost)
    await in_thread(cluster.cluster, "replace", name, *cluster.place(lost), "--promote", "--timeout", "60s")
    await in_thread(same_state, cluster, 0, 1, 2)
    assert "from a snapshot" in cluster.log(lost).read_text()
    async with kvorum.open_kv(f"kvorum://{cluster.client_address(lost)}") as kv:
        assert len([entry async for entry in kv.list(prefix=("big",), consistency="eventual")]) == 200


async def test_leadership_goes_where_it_is_sent(cluster: GrowingCluster) -> None:
    target = (await in_thread(cluster.followers))[0]
    assert await in_thread(cluster.cluster, "transfer", f"n{target + 1}") == f"node n{target + 1} leads\n"
    assert await in_thread(cluster.leader) == target
    told = await in_thread(cluster.cluster, "transfer")
    new = cluster.number_of(told.split()[1])
    assert new != target
    assert await in_thread(cluster.leader) == new
    refused = await in_thread(lambda: cluster.cluster("transfer", "n9", status=2))
    assert "n9" in refused


async def test_a_node_moves_to_another_address(cluster: GrowingCluster) -> None:
    await write(cluster, "before")
    moved = (await in_thread(cluster.followers))[0]
    name = f"n{moved + 1}"
    old = cluster.place(moved)
    await in_thread(cluster.terminate, moved)
    cluster.write_joining(moved)
    await in_thread(cluster.start, moved)
    told = await in_thread(cluster.cluster, "add", name, *cluster.place(moved))
    assert told.startswith(f"node {name} is a voter, at ")
    assert old != cluster.place(moved)
    row = (await in_thread(cluster.members))[name]
    assert (row["peer_address"], row["client_address"]) == cluster.place(moved)[1::2]
    await write(cluster, "after")
    await in_thread(same_state, cluster, 0, 1, 2)


async def test_time_jumps_forward_and_never_back(cluster: GrowingCluster) -> None:
    async with kvorum.open_kv(cluster.url) as kv:
        await kv.set(("short",), 1, expire_in=3_600_000)
        await kv.enqueue("later", delay=3_600_000)
        ahead = time.time_ns() // 1_000_000 + 7_200_000
        dry = await in_thread(cluster.cluster, "set-time", str(ahead), "--ahead", "--dry-run")
        assert "would let the cluster's time jump from" in str(dry)
        await in_thread(cluster.cluster, "set-time", str(ahead), "--ahead")
        async with asyncio.timeout(60):
            async for (entry,) in kv.watch([("short",)]):
                if entry.versionstamp is None:
                    break
            got: asyncio.Queue[object] = asyncio.Queue()
            listening = asyncio.create_task(kv.listen_queue(got.put))
            assert await got.get() == "later"
            listening.cancel()
            await asyncio.wait([listening])
    refused = await in_thread(lambda: cluster.cluster("set-time", str(ahead - 3_600_000), "--ahead", status=2))
    assert refused.startswith("kvorum: ")


async def test_growth_is_refused_while_one_disk_is_short_and_deletes_are_taken(cluster: GrowingCluster) -> None:
    await write(cluster, "before")
    short = (await in_thread(cluster.followers))[0]
    await in_thread(cluster.terminate, short)
    original = cluster.config(short).read_text()
    cluster.set_key(short, "min_free_mb", "1000000000")
    await in_thread(cluster.start, short)
    async with kvorum.open_kv(cluster.url) as kv:
        with pytest.raises(errors.NoSpace) as caught:
            async with asyncio.timeout(60):
                while True:
                    await kv.set(("more",), 1)
                    await asyncio.sleep(0.02)
        assert f"node n{short + 1}" in str(caught.value)
        assert caught.value.outcome == "not applied"
        await kv.delete(("before", 0))
        with pytest.raises(errors.NoSpace):
            await kv.enqueue("more")
        await in_thread(cluster.terminate, short)
        cluster.config(short).write_text(original)
        await in_thread(cluster.start, short)
        async with asyncio.timeout(60):
            while True:
                try:
                    await kv.set(("more",), 2)
                    break
                except errors.NoSpace:
                    await asyncio.sleep(0.05)


async def test_damage_is_found_by_the_scan_and_the_state_is_rebuilt(tmp_path: Path) -> None:
    cluster = GrowingCluster(tmp_path, scrub_interval_s=1)
    with cluster:
        await write(cluster, "before")
        async with kvorum.open_kv(cluster.url) as kv:
            await kv.set(("marked",), b"something that stands nowhere else")
        await in_thread(same_state, cluster, 0, 1, 2)
        struck = (await in_thread(cluster.followers))[0]
        state = cluster.data_dir(struck) / "state" / "data.mdb"
        content = await in_thread(state.read_bytes)
        places = [found.start() for found in re.finditer(b"something that stands nowhere", content)]
        assert places
        with state.open("r+b") as file:
            for place in places:
                file.seek(place)
                file.write(b"S")
        async with asyncio.timeout(60):
            await in_thread(cluster.wait_until_gone, struck)
        assert "the state is damaged" in cluster.log(struck).read_text()
        assert (cluster.data_dir(struck) / "raft" / "FAULT").exists()
        await in_thread(cluster.start, struck)
        await write(cluster, "after")
        await in_thread(same_state, cluster, 0, 1, 2)


async def test_a_planned_stop_of_the_leader_waits_for_no_election(tmp_path: Path) -> None:
    settings = {"election_timeout_min_ms": 4_000, "election_timeout_max_ms": 6_000}
    cluster = GrowingCluster(tmp_path, **settings)
    with cluster:
        leader = await in_thread(cluster.leader)
        longest = 0.0
        ended = asyncio.Event()

        async def work() -> int:
            nonlocal longest
            done = 0
            while not ended.is_set():
                pace = pace_of(cluster)
                await kv.set(("busy", done), done)
                longest = max(longest, pace.seconds())
                done += 1
            return done

        async with kvorum.open_kv(cluster.url) as kv:
            working = asyncio.create_task(work())
            await asyncio.sleep(0.3)
            assert await in_thread(cluster.terminate, leader) == 0
            await asyncio.sleep(0.3)
            ended.set()
            done = await working
            assert [entry.value async for entry in kv.list(prefix=("busy",))] == list(range(done))
        print(f"longest write over a planned restart: {longest * 1000:.0f} ms")
        # An election would have taken four seconds.
        assert longest < 1.5
        assert (await in_thread(cluster.leader)) != leader


async def test_a_process_that_crashed_does_not_trust_its_state_and_one_that_was_killed_does(tmp_path: Path) -> None:
    cluster = GrowingCluster(tmp_path)
    with cluster:
        await write(cluster, "before")
        await in_thread(same_state, cluster, 0, 1, 2)
        struck = (await in_thread(cluster.followers))[0]
        log = cluster.log(struck)

        async def again(number: int) -> str:
            """Die of the signal, start, and return what was logged meanwhile."""
            known = len(log.read_text())
            os.kill(cluster.pid(struck), number)
            await in_thread(cluster.wait_until_gone, struck)
            await in_thread(cluster.start, struck)
            await in_thread(same_state, cluster, 0, 1, 2)
            return log.read_text()[known:]

        for _ in range(2):
            assert "starting anew" not in await again(signal.SIGKILL)
        crashed = await again(signal.SIGABRT)  # as LMDB does when it meets a page that cannot be
        assert "the process before this one crashed" in crashed
        assert "starting anew" in crashed
        assert "starting anew" not in await again(signal.SIGKILL), "once is enough"
