"""Frames of the gRPC stream, and its unary calls: whatever a client sends, a stream ends at worst, with a reason, and
leaves nothing behind.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc.aio

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api.stream import Stream
from kvorum_node.api.unary import Unary
from tests.fuzz.local_node import LocalNode, local_node

_SET = pb.AtomicWrite(mutations=[pb.Mutation(key=b"k", type=pb.MUTATION_TYPE_SET, value=b"v", encoding=3)])  # type: ignore[arg-type]
_SESSION = b"s" * 10


def _cut(*frames: pb.ClientFrame | bytes) -> bytes:
    """An input of the stream: the frames, each behind its length in two bytes."""
    parts = [frame if isinstance(frame, bytes) else frame.SerializeToString() for frame in frames]
    return b"\0" + b"".join(len(part).to_bytes(2, "big") + part for part in parts)


SEEDS = [
    _cut(
        pb.ClientFrame(ping=3),
        pb.ClientFrame(
            writes=pb.WriteGroup(session=_SESSION, ack_below=1, writes=[pb.Write(seq=1, op=_SET.SerializeToString())])
        ),
    ),
    _cut(
        pb.ClientFrame(
            reads=[
                pb.Read(id=1, keys=[b"k", b""]),
                pb.Read(
                    id=2,
                    ranges=[pb.ReadRange(end=b"\xff", limit=3, reverse=True, keys_only=True)],
                    consistency=pb.CONSISTENCY_EVENTUAL,
                ),
                pb.Read(
                    id=3,
                    ranges=[pb.ReadRange(end=b"\xff", count_only=True)],
                    with_expiry=True,
                    min_versionstamp=bytes(10),
                ),
                pb.Read(
                    id=4,
                    keys=[b"k"],
                    consistency=pb.CONSISTENCY_BOUNDED,
                    max_age_ms=5,
                    min_versionstamp=bytes(7) + b"\xff\0\0",
                ),
            ]
        )
    ),
    _cut(
        pb.ClientFrame(
            point_reads=[
                pb.PointReads(id=1, keys=[b"k", b"", b"k" * 600], consistency=pb.CONSISTENCY_EVENTUAL),
                pb.PointReads(id=2, keys=[b"k"], min_versionstamp=bytes(10)),
                pb.PointReads(id=3, keys=[b"k"], consistency=pb.CONSISTENCY_BOUNDED, max_age_ms=5),
                pb.PointReads(id=4),
            ]
        )
    ),
    _cut(
        pb.ClientFrame(
            reads=[pb.Read(id=1, keys=[b"k"])],
            traces=[
                pb.Trace(traceparent=f"00-{'a' * 32}-{'b' * 16}-01", read=1),
                pb.Trace(traceparent="00-", write=1),
                pb.Trace(queue_call=9),
                pb.Trace(),
            ],
        )
    ),
    _cut(
        pb.ClientFrame(
            watches=[
                pb.StartWatch(id=1, keys=[b"k", b"k"]),
                pb.StartWatch(id=2, start=b"a", end=b"z", since=bytes(10)),
                pb.StartWatch(id=3, end=b"z", keys_only=True),
                pb.StartWatch(id=4, keys=[b"k"] * 11),
                pb.StartWatch(id=5, keys=[b"k"], start=b"a", end=b"b", since=b"short"),
            ],
            stop_watches=[1, 2, 99],
        ),
        pb.ClientFrame(stop_watches=[1, 3]),
    ),
    _cut(
        pb.ClientFrame(open_session=pb.OpenSession(client="fuzz")),
        pb.ClientFrame(
            consumers=[
                pb.StartConsumer(
                    id=1, queue="q", credits=3, concurrency=1,
                    held=[pb.HeldLease(message_id=bytes(12), lease_id=bytes(12), started=True)],
                )
            ],
            started=[pb.Started(consumer=1, lease_ids=[bytes(12), b""])],
            stop_consumers=[1, 7],
            goodbye=pb.Goodbye(release=True),
        ),
    ),
    b"\4" + _cut(
        pb.ClientFrame(
            hello=pb.Hello(protocol=1, token=f"kvo_{'0' * 16}_{'A' * 43}"),
            queue_calls=[
                pb.QueueCall(id=1, who_am_i=pb.WhoAmI()),
                pb.QueueCall(id=2, tokens=pb.ListTokens(limit=1)),
                pb.QueueCall(id=3, put_token=pb.PutToken(id=bytes(8), secret=bytes(32), name="n")),
                pb.QueueCall(id=4, remove_token=pb.RemoveToken(id=bytes(8))),
            ],
        ),
    ),
    b"\1" + pb.Read(keys=[b"k"]).SerializeToString(),
    b"\1" + pb.Read(ranges=[pb.ReadRange(end=b"\xff", limit=1_000)]).SerializeToString(),
    b"\2" + pb.WriteRequest(write=_SET).SerializeToString(),
    b"\3",
]  # fmt: skip


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    with local_node() as node:
        yield partial(check, node)


def check(node: LocalNode, data: bytes) -> None:
    kind = data[0] % 8 if data else 0
    if 1 <= kind <= 3:
        node.run(_unary(node, kind, data[1:]))
    else:
        node.run(_stream(node, data[1:], greeted=kind == 0))


class _Call:
    """As much of a gRPC context as a stream and a unary call use."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames[::-1]
        self.sent: list[pb.ServerFrame] = []

    async def read(self) -> Any:
        if not self._frames:
            # What was asked for gets a few turns to be done.
            for _ in range(5):
                await asyncio.sleep(0)
            return grpc.aio.EOF
        return self._frames.pop()

    async def write(self, frame: bytes) -> None:
        self.sent.append(pb.ServerFrame.FromString(frame))

    def time_remaining(self) -> float:
        return 0.2

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", "Bearer kvo_"),)

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert text
        raise _Aborted


class _Aborted(Exception):
    """As gRPC ends a call."""


async def _stream(node: LocalNode, data: bytes, *, greeted: bool) -> None:
    frames = [pb.ClientFrame(hello=pb.Hello(protocol=1, session=_SESSION)).SerializeToString()] if greeted else []
    while data:
        size = int.from_bytes(data[:2], "big")
        frames.append(data[2 : 2 + size])
        data = data[2 + size :]
    call = _Call(frames)
    stream = Stream(node.service, "n1", call)
    await stream.run()
    for frame in call.sent:
        assert frame.error != "internal error"
        for group in frame.results:
            assert all(result.outcome for result in group.results)
        for answer in frame.point_answers:
            assert answer.rows if answer.status == pb.READ_STATUS_OK else answer.message
    await _nothing_left(node)


async def _nothing_left(node: LocalNode) -> None:
    """Reads that wait for a versionstamp end by themselves, later; all else is gone at once."""
    for _ in range(200):
        figures = node.service.statistics()
        if not (figures["watches"] or figures["reads_under_way"] > figures["reads_behind"]):
            break
        await asyncio.sleep(0.005)
    assert figures["watches"] == 0, figures
    assert figures["reads_under_way"] == figures["reads_behind"], figures
    assert figures["reads_behind"] < 60_000


async def _unary(node: LocalNode, kind: int, data: bytes) -> None:
    unary = Unary(node.service)
    call = _Call([])
    try:
        if kind == 1:
            assert (await unary.get(data, call)).status
        elif kind == 2:
            assert (await unary.commit(data, call)).outcome
        else:
            await unary.status(data, call)
    except _Aborted:
        return
