"""`kvorum status`: every node is asked on its own, so that it works when the cluster does not."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import click

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cli.session import (
    UNAVAILABLE,
    Options,
    database_options,
    note,
    print_json,
    print_table,
    require_existing,
    runs,
)
from kvorum.cluster.connection import Connection, NodeFailed
from kvorum.cluster.route import Address, name
from kvorum.embedded import open_embedded
from kvorum.target import Cluster

_COLUMNS = (
    "Node",
    "Address",
    "Role",
    "Term",
    "Leader",
    "Applied",
    "Committed",
    "Durable",
    "State hash",
    "Version",
    "Up",
)


@click.command("status")
@database_options
@runs
async def status_command(options: Options) -> int | None:
    """Show what each node of a cluster says about itself."""
    require_existing(options)
    target = options.target
    seconds = options.timeout / timedelta(seconds=1)
    if not isinstance(target, Cluster):
        backend = await open_embedded(target.path)
        try:
            answer: pb.StatusResponse | NodeFailed = await backend.status(timeout=seconds)
        finally:
            await backend.close()
        answers = [(target.path or ":memory:", answer)]
    else:
        asked = await asyncio.gather(*(_ask(address, seconds, options) for address in target.addresses))
        answers = [(name(address), answer) for address, answer in zip(target.addresses, asked, strict=True)]
    if options.as_json:
        for address, answer in answers:
            print_json(_as_json(address, answer))
    else:
        print_table(_COLUMNS, [_row(address, answer) for address, answer in answers])
    for address, answer in answers:
        if isinstance(answer, NodeFailed):
            note(f"kvorum: {address}: {answer.problem}")
    for line in _strangers([answer for _, answer in answers if isinstance(answer, pb.StatusResponse)]):
        note(line)
    leads = isinstance(target, Cluster) and not _has_leader([answer for _, answer in answers])
    if leads:
        note("kvorum: no node that answered knows a leader")
    return UNAVAILABLE if leads else None


async def _ask(address: Address, seconds: float, options: Options) -> pb.StatusResponse | NodeFailed:
    connection = Connection(address, asyncio.get_running_loop(), options.channel_tls)
    try:
        return await connection.status(seconds, options.shown_token)
    except NodeFailed as failure:
        return failure
    finally:
        await connection.close()


def _has_leader(answers: Sequence[pb.StatusResponse | NodeFailed]) -> bool:
    return any(isinstance(answer, pb.StatusResponse) and answer.leader.node_id for answer in answers)


def _strangers(statuses: Sequence[pb.StatusResponse]) -> list[str]:
    """A line if the nodes are not of one cluster."""
    clusters: dict[str, list[str]] = {}
    for status in statuses:
        if status.cluster_id:
            clusters.setdefault(status.cluster_id.hex(), []).append(status.node_id)
    if len(clusters) < 2:
        return []
    told = "; ".join(f"{', '.join(sorted(nodes))}: {cluster}" for cluster, nodes in clusters.items())
    return [f"kvorum: WARNING: these nodes are of different clusters, and clients write here and there: {told}"]


def _row(address: str, answer: pb.StatusResponse | NodeFailed) -> tuple[str, ...]:
    if isinstance(answer, NodeFailed):
        return ("?", address, "no answer", *[""] * (len(_COLUMNS) - 3))
    return (
        answer.node_id,
        address,
        answer.role,
        str(answer.term),
        answer.leader.node_id,
        f"{answer.applied_index:,}",
        f"{answer.commit_index:,}",
        f"{answer.durable_index:,}",
        answer.state_hash.hex()[:12],
        answer.version,
        str(timedelta(seconds=answer.uptime_ms // 1_000)),
    )


def _as_json(address: str, answer: pb.StatusResponse | NodeFailed) -> dict[str, object]:
    if isinstance(answer, NodeFailed):
        return {"address": address, "error": answer.problem}
    return {
        "address": address,
        "node": answer.node_id,
        "cluster": answer.cluster_id.hex(),
        "role": answer.role,
        "term": answer.term,
        "leader": answer.leader.node_id or None,
        "leader_address": answer.leader.address or None,
        "applied_index": answer.applied_index,
        "commit_index": answer.commit_index,
        "last_log_index": answer.last_log_index,
        "durable_index": answer.durable_index,
        "state_hash": answer.state_hash.hex(),
        "version": answer.version,
        "uptime_ms": answer.uptime_ms,
        "wall_ms": answer.wall_ms or None,
        "time_ms": answer.time_ms or None,
        "peers": [
            {
                "node": peer.node_id,
                "address": peer.address,
                "connected": peer.connected,
                "match_index": peer.match_index,
                "voter": peer.voter,
            }
            for peer in answer.peers
        ],
        "statistics": dict(answer.statistics),
    }
