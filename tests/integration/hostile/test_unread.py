"""Clients that live and take nothing, for longer than the other attacks last: what a node holds for them has a bound,
and whoever takes what it asks for goes on being served."""

import asyncio
import re
from pathlib import Path

import pytest

import kvorum
from kvorum_node.dev_cluster import DevCluster, in_thread
from tests.integration.cluster_fixture import PATIENT

from .siege import RECOVERY, Siege, describe
from .test_attacks import LOG, MEMORY, SLOW

LIMIT_MB = 64
UNDER_WAY = 40 << 20
"""Bytes that may be read at the moment at which nothing is free any more: a slice for each place of the reader."""


class Watched:
    """What a node says that it holds, at most."""

    def __init__(self, siege: Siege) -> None:
        self._siege = siege
        self.most = 0.0
        self.figures: dict[str, float] = {}

    async def watch(self) -> None:
        while True:
            figures = await self._siege._figures()
            self.figures = figures or self.figures
            self.most = max(self.most, figures.get("kvorum_api_unread_bytes", 0.0))
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["grpc_closed_windows", "grpc_unread_answers"])
async def test_what_is_not_taken_has_a_bound(tmp_path: Path, name: str) -> None:
    cluster = DevCluster(tmp_path, settings={**PATIENT, "unread_answers_mb": LIMIT_MB})
    try:
        await in_thread(cluster.start_all)
        siege = Siege(cluster, cluster.leader())
        await siege.fill()
        watched = Watched(siege)
        watching = asyncio.create_task(watched.watch())
        outcome = await siege.run(name, seconds=8.0)
        watching.cancel()
        told = f"{describe(outcome)}, at most {int(watched.most):,} bytes held"
        print(told)
        assert LIMIT_MB << 19 < watched.most < (LIMIT_MB << 20) + UNDER_WAY, told
        assert outcome.memory < MEMORY, told
        assert not outcome.log and not outcome.left and outcome.log_bytes < LOG, told
        assert outcome.grpc.times and not outcome.grpc.refused and outcome.grpc.worst < SLOW, told
        async with asyncio.timeout(RECOVERY):
            while (await siege._figures())["kvorum_api_unread_bytes"]:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.2)
        if name == "grpc_closed_windows":  # the others answer no ping: gRPC may drop them before their calls are due
            assert watched.figures["kvorum_api_unread_ended_total"] > 0, told
            assert watched.figures["kvorum_api_connections_shut_total"] > 0, told
    finally:
        cluster.stop()


async def test_idle_lists_keep_nobody_out(tmp_path: Path) -> None:
    """Thousands of them, for all of which there is room, and a client that lists a few rows."""
    cluster = DevCluster(tmp_path, settings={**PATIENT, "unread_answers_mb": 4_096})
    try:
        await in_thread(cluster.start_all)
        siege = Siege(cluster, cluster.leader())
        await siege.fill()
        async with kvorum.open_kv(cluster.url) as kv:
            for number in range(10):
                await kv.set(("row", number), number)
            attack = asyncio.create_task(siege.run("grpc_idle_lists", seconds=15.0))
            async with asyncio.timeout(20):
                while (await siege._figures()).get("kvorum_kv_lists_open", 0) < 100:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.05)
            listed = 0
            while not attack.done() and listed < 5:
                found = [entry.value async for entry in kv.list(prefix=("row",), consistency="eventual")]
                assert found == list(range(10))
                listed += 1
            assert not attack.done(), f"{listed} lists were answered while others held and wanted all places"
            outcome = await attack
        told = describe(outcome)
        print(told)
        assert re.search("'asked': [0-9]{2}", told), f"each asks for 200 lists: {told}"
        assert not outcome.log and not outcome.left and not outcome.grpc.refused, told
    finally:
        cluster.stop()
