"""Clients that leave out the last byte of what they say: what a node holds of that has a bound, and whoever says
everything goes on being served."""

import asyncio
from pathlib import Path

from kvorum_node.dev_cluster import DevCluster, in_thread
from tests.integration.cluster_fixture import PATIENT

from .siege import RECOVERY, Siege, describe, unnoticed
from .test_attacks import LOG, SLOW

LIMIT_MB = 64
SECONDS = 12.0
ELSE = 400 << 20
"""Bytes that it needs for them besides."""


async def test_what_has_come_in_part_has_a_bound(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path, settings={**PATIENT, "unfinished_requests_mb": LIMIT_MB})
    try:
        await in_thread(cluster.start_all)
        siege = Siege(cluster, cluster.leader())
        outcome = await siege.run("grpc_half_messages", seconds=SECONDS)
        figures = await siege._figures()
        told = f"{describe(outcome)}, {figures['kvorum_api_connections_shut_total']:.0f} connections shut"
        print(told)
        assert outcome.counts["MiB"] > 3 * LIMIT_MB, f"the attack is too small: {told}"
        assert outcome.memory < (LIMIT_MB << 20) + ELSE + unnoticed(outcome, SECONDS), told
        assert figures["kvorum_api_connections_shut_total"] > 0, told
        assert not outcome.log and not outcome.left and outcome.log_bytes < LOG, told
        assert outcome.grpc.times and not outcome.grpc.refused and outcome.grpc.worst < SLOW, told
        async with asyncio.timeout(RECOVERY):
            while (await siege._figures())["kvorum_api_unfinished_bytes"]:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.2)
    finally:
        cluster.stop()
