"""Whatever arrives on the peer port: the connection is closed, the node goes on."""

import asyncio
import contextlib
import pickle
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvorum_raft import wire
from kvorum_raft._proto import raft_pb2 as pb
from kvorum_raft.config import split_address
from tests.integration.raft.harness import Cluster, wait_until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start()
    await cluster.propose(10)
    yield cluster
    await cluster.propose(10)
    await cluster.settled()
    await cluster.stop()
    assert not cluster.faults


async def _send(cluster: Cluster, data: bytes, *, node_id: str = "n1") -> bytes:
    """What the node answers until it closes the connection."""
    host, port = split_address(cluster.config(node_id).own.peer_address)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    async with asyncio.timeout(8):
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
    writer.close()
    return answer


def _hello(cluster: Cluster, **changes: object) -> pb.Hello:
    hello = cluster.nodes["n2"].hello("n1")
    for name, value in changes.items():
        setattr(hello, name, value)
    return hello


GARBAGE = {
    "pickle": pickle.dumps({"type": "append_entries", "term": 10**6}),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "huge length": b"\xff\xff\xff\xff",
    "no length": b"\x00\x00\x00\x00",
    "not protobuf": b"\x00\x00\x00\x05\xff\xff\xff\xff\xff",
    "empty envelope": wire.encode(pb.Envelope(term=3)),
    "no hello": wire.encode(pb.Envelope(term=99, append=pb.Append(prev_index=1))),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_closes_the_connection_and_is_counted(cluster: Cluster, what: str) -> None:
    before = cluster.nodes["n1"].statistics()["peer_bad_inputs"]
    assert await _send(cluster, GARBAGE[what]) == b""
    assert cluster.nodes["n1"].statistics()["peer_bad_inputs"] == before + 1


async def test_random_bytes(cluster: Cluster) -> None:
    rng = random.Random(4)
    for _ in range(30):
        await _send(cluster, b"\xf0" + rng.randbytes(200))


async def test_a_truncated_frame_waits_no_longer_than_the_handshake(cluster: Cluster) -> None:
    frame = wire.encode(pb.Envelope(hello=_hello(cluster)))
    assert await _send(cluster, frame[:-3]) == b""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": b"f" * 16}, pb.Reject.FOREIGN),
        ({"protocol_min": 7, "protocol_max": 9}, pb.Reject.PROTOCOL),
        ({"node_id": "stranger", "incarnation": b"i" * 16, "formed": False}, pb.Reject.WRONG_NODE),
        ({"node_id": "stranger", "incarnation": b"i" * 16, "peer_address": ""}, pb.Reject.WRONG_NODE),
        ({"incarnation": b"i" * 16, "peer_address": "nowhere"}, pb.Reject.PROTOCOL),
        ({"incarnation": b"i" * 16, "formed": False, "joining": True}, pb.Reject.BUSY),
        ({"target": "n3"}, pb.Reject.WRONG_NODE),
        ({"incarnation": b"i" * 16, "formed": False}, pb.Reject.EMPTIED),
        ({"incarnation": b"short"}, pb.Reject.PROTOCOL),
        ({"generation": 0}, pb.Reject.ROLLED_BACK),
        ({"generation_ids": b"g" * 8}, pb.Reject.BUSY),  # a process with this folder is connected
    ],
)
async def test_who_may_not_take_part_is_told_why(cluster: Cluster, changes: dict[str, object], code: int) -> None:
    await wait_until(lambda: bool(cluster.nodes["n1"].cluster_id), what="cluster id")
    answer = await _send(cluster, wire.encode(pb.Envelope(hello=_hello(cluster, **changes))))
    (frame,) = wire.FrameReader(wire.MAX_HELLO).feed(answer)
    assert wire.decode(frame).reject.code == code
    assert wire.decode(frame).reject.text


async def test_nonsense_from_an_admitted_peer_closes_its_connection_only(cluster: Cluster) -> None:
    """It displaces the real peer's connection, which comes back."""
    host, port = split_address(cluster.config("n1").own.peer_address)
    term = cluster.nodes["n1"].status().term
    for body in (
        pb.Envelope(term=term, append=pb.Append(prev_index=0, entries=[b"damaged"])),
        pb.Envelope(term=term, hello=_hello(cluster)),
        pb.Envelope(formation=pb.Formation()),
    ):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(wire.encode(pb.Envelope(hello=_hello(cluster))))
        welcome = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        assert wire.decode(welcome).welcome.protocol == 1
        writer.write(wire.encode(body))
        writer.write(b"\xff" * 100)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()


async def test_many_silent_connections_leave_room_for_peers(cluster: Cluster) -> None:
    host, port = split_address(cluster.config("n1").own.peer_address)
    limit = cluster.config("n1").limits.handshakes
    silent = [await asyncio.open_connection(host, port) for _ in range(limit + 20)]
    closed = sum([await _closed(reader) for reader, _ in silent[limit:]])
    assert closed == 20
    for _, writer in silent:
        writer.close()
    await wait_until(lambda: len(cluster.nodes["n1"]._transport._strangers) == 0, what="closed connections")
    await cluster.stop("n3")
    await cluster.start("n3")
    await cluster.settled()


async def _closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(2):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True
