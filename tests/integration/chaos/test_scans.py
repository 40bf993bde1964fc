"""Long lists, while the nodes that serve them die and the data grows under them."""

import asyncio
from pathlib import Path

import kvorum
from bench.load import Writers, fill, rejoined
from bench.scans import Lists, file_sizes
from kvorum_node.dev_cluster import in_thread
from tests.integration.cluster_fixture import ThreeNodes


async def test_lists_whose_server_is_killed_go_on_and_leave_no_readers_behind(tmp_path: Path) -> None:
    # P45: reader slots run out or go stale after kill -9 in the middle of scans; then the file grows without bound
    with ThreeNodes(tmp_path) as cluster:
        async with kvorum.open_kv(cluster.url) as kv, Writers(kv, 8, rate=200.0, keys=500) as writers:
            keys = await fill(kv, 2, size=1_000)
            await asyncio.sleep(1.0)  # the writers have written each of their keys
            before = file_sizes(cluster)
            lists, ended = Lists(kv, keys), asyncio.Event()
            listing = asyncio.gather(*(lists.over_and_over(ended) for _ in range(40)))
            for _ in range(3):
                await asyncio.sleep(0.3)
                assert not listing.done()
                victim = await in_thread(cluster.leader)
                await in_thread(cluster.kill, victim)
                await in_thread(cluster.start, victim)
                await in_thread(rejoined, cluster, victim)
            ended.set()
            await listing
            assert lists.finished >= 40
            assert lists.wrong == 0
            assert not writers.errors
        after = file_sizes(cluster)
        assert all(now <= 2 * earlier for earlier, now in zip(before, after, strict=True)), (before, after)
        readers = [cluster.status(number).statistics["readers"] for number in range(cluster.nodes)]
        assert max(readers) <= 4, "those of the lists are gone"


async def test_lists_go_on_while_the_data_grows_a_hundredfold(tmp_path: Path) -> None:
    # P44: resizing the map while other transactions live: assertion
    with ThreeNodes(tmp_path) as cluster:
        async with kvorum.open_kv(cluster.url) as kv:
            keys = await fill(kv, 1, size=4_000)
            before = file_sizes(cluster)
            lists, ended = Lists(kv, keys), asyncio.Event()
            listing = asyncio.gather(*(lists.over_and_over(ended) for _ in range(8)))
            await fill(kv, 100, root="grown")
            assert not listing.done()
            ended.set()
            await listing
            assert lists.finished >= 8
            assert lists.wrong == 0
        after = file_sizes(cluster)
        assert all(now > 40 * earlier for earlier, now in zip(before, after, strict=True)), (before, after)
