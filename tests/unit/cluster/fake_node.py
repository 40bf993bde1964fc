"""A scripted cluster:
real gRPC servers in this process, a state machine in a dictionary, and hooks for every misdeed.
"""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.entry import packed

CLUSTER_ID = b"0123456789abcdef"


@dataclass
class FakeSession:
    ack_below: int = 1
    results: dict[int, tuple[int, pb.WriteResult]] = field(default_factory=dict)


@dataclass
class FakeState:
    """What a majority has: shared by all nodes of a fake cluster. Decides writes exactly as rules C1 says."""

    cluster_id: bytes = CLUSTER_ID
    leader: "FakeNode | None" = None
    index: int = 0
    rows: dict[bytes, pb.KvEntry] = field(default_factory=dict)
    sessions: dict[bytes, FakeSession] = field(default_factory=dict)
    executed: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    """(session, seq, op) of each write that had an effect, in order."""
    streams: set["FakeStream"] = field(default_factory=set)
    nodes: "list[FakeNode]" = field(default_factory=list)

    def open_session(self) -> bytes:
        self.index += 1
        session = self.index.to_bytes(8, "big") + b"\0\0"
        self.sessions[session] = FakeSession()
        return session

    def apply(self, group: pb.WriteGroup) -> pb.ResultGroup:
        self.index += 1
        answer = pb.ResultGroup(session=group.session, stamp_prefix=self.index.to_bytes(8, "big"))
        session = self.sessions.get(group.session)
        if session is not None and group.ack_below > session.ack_below:
            session.ack_below = group.ack_below
            for seq in [seq for seq in session.results if seq < group.ack_below]:
                del session.results[seq]
        for number, write in enumerate(group.writes):
            result = answer.results.add(seq=write.seq)
            if session is None:
                result.outcome = pb.OUTCOME_SESSION_EXPIRED
            elif write.seq < session.ack_below:
                result.outcome = pb.OUTCOME_ABANDONED
            elif write.seq in session.results:
                digest, stored = session.results[write.seq]
                if digest != zlib.crc32(write.op):
                    result.outcome = pb.OUTCOME_SEQ_REUSED
                else:
                    result.CopyFrom(stored)
            elif write.seq >= session.ack_below + limits.SESSION_WINDOW:
                result.outcome = pb.OUTCOME_WINDOW
            else:
                self._execute(group.session, write, number, result)
                stored = pb.WriteResult()
                stored.CopyFrom(result)
                stored.stamp_prefix = answer.stamp_prefix
                session.results[write.seq] = (zlib.crc32(write.op), stored)
        return answer

    def _execute(self, session: bytes, write: pb.Write, number: int, result: pb.WriteResult) -> None:
        self.executed.append((session, write.seq, write.op))
        op = pb.AtomicWrite.FromString(write.op)
        stamp = self.index.to_bytes(8, "big") + number.to_bytes(2, "big")
        for index, check in enumerate(op.checks):
            row = self.rows.get(check.key)
            if (b"" if row is None else row.versionstamp) != check.versionstamp:
                result.failed_checks.append(index)
        if result.failed_checks:
            result.outcome = pb.OUTCOME_CHECK_FAILED
            return
        for mutation in op.mutations:
            if mutation.type == pb.MUTATION_TYPE_DELETE:
                self.rows.pop(mutation.key, None)
            else:
                self.rows[mutation.key] = pb.KvEntry(
                    key=mutation.key, value=mutation.value, encoding=mutation.encoding, versionstamp=stamp
                )
        result.outcome = pb.OUTCOME_DONE
        result.number = number
        for stream in self.streams:
            stream.touch({mutation.key for mutation in op.mutations})

    def row(self, key: bytes) -> pb.KvEntry:
        return self.rows.get(key) or pb.KvEntry(key=key)

    @property
    def stamp(self) -> bytes:
        return self.index.to_bytes(8, "big") + b"\xff\xff"

    def lead(self, node: "FakeNode | None") -> None:
        """Make a node the leader, and tell every stream."""
        self.leader = node
        for stream in self.streams:
            stream.send(pb.ServerFrame(leader=self.hint()))

    def hint(self) -> pb.Leader:
        leader = self.leader
        if leader is None:
            return pb.Leader()
        return pb.Leader(node_id=leader.id, address=leader.advertised or leader.address)


class FakeStream:
    """One client's stream on one node."""

    def __init__(self, node: "FakeNode") -> None:
        self.node = node
        self.hello: pb.Hello | None = None
        self.out: asyncio.Queue[pb.ServerFrame | None] = asyncio.Queue()
        self.watches: dict[int, list[bytes]] = {}
        self.consumers: dict[int, pb.StartConsumer] = {}
        self.broken = asyncio.Event()

    def send(self, frame: pb.ServerFrame) -> None:
        self.out.put_nowait(frame)

    def end(self) -> None:
        """End the stream in an orderly way, after what was sent."""
        self.out.put_nowait(None)

    def break_off(self) -> None:
        """Cut the stream at once; what was sent and not written yet is lost."""
        self.broken.set()

    def touch(self, keys: set[bytes]) -> None:
        for watch_id, watched in self.watches.items():
            if keys & set(watched):
                self.emit(watch_id)

    def emit(self, watch_id: int) -> None:
        state = self.node.state
        event = pb.WatchEvent(id=watch_id, read_versionstamp=state.stamp)
        event.entries.extend(state.row(key) for key in self.watches[watch_id])
        self.send(pb.ServerFrame(watches=[event]))

    def answer(self, frame: pb.ClientFrame) -> None:
        """What a faithful node does with a frame."""
        state, node = self.node.state, self.node
        leading = state.leader is node
        if frame.ping:
            self.send(pb.ServerFrame(pong=frame.ping))
        if frame.HasField("open_session") and leading:
            self.send(pb.ServerFrame(session=pb.SessionOpened(session=state.open_session())))
        if frame.HasField("writes"):
            self.send(
                pb.ServerFrame(results=[state.apply(frame.writes)])
                if leading
                else refuse(frame.writes, pb.OUTCOME_NOT_LEADER, leader=state.hint())
            )
        for read in frame.reads:
            result = pb.ReadResult(id=read.id, status=pb.READ_STATUS_OK, read_versionstamp=state.stamp)
            if read.consistency == pb.CONSISTENCY_STRONG and not leading:
                result.status = pb.READ_STATUS_NO_LEADER
            else:
                result.entries.extend(state.row(key) for key in read.keys)
            self.send(pb.ServerFrame(reads=[result]))
        for points in frame.point_reads:
            answers = pb.PointAnswers(id=points.id, status=pb.READ_STATUS_OK, read_versionstamp=state.stamp)
            if points.consistency == pb.CONSISTENCY_STRONG and not leading:
                answers.status = pb.READ_STATUS_NO_LEADER
            else:
                answers.rows.extend(packed(state.row(key)) for key in points.keys)
            self.send(pb.ServerFrame(point_answers=[answers]))
        for watch in frame.watches:
            self.watches[watch.id] = list(watch.keys)
            self.emit(watch.id)
        for watch_id in frame.stop_watches:
            self.watches.pop(watch_id, None)
        for consumer in frame.consumers:
            self.consumers[consumer.id] = consumer
        for consumer_id in frame.stop_consumers:
            self.consumers.pop(consumer_id, None)


def refuse(group: pb.WriteGroup, outcome: int, leader: pb.Leader | None = None, message: str = "") -> pb.ServerFrame:
    """A frame that answers every write of a group with one outcome."""
    results = [pb.WriteResult(seq=write.seq, outcome=outcome, message=message) for write in group.writes]  # type: ignore[arg-type]
    return pb.ServerFrame(results=[pb.ResultGroup(session=group.session, results=results)], leader=leader)


Hook = Callable[[FakeStream, pb.ClientFrame], Awaitable[bool | None]]
"""Called with each frame; True means that the frame was dealt with."""


class FakeNode:
    """One gRPC server.

    `hook` intercepts frames, `greet` may replace the HelloReply, `frozen` stops all reading and writing.
    """

    def __init__(self, state: FakeState, node_id: str) -> None:
        self.state = state
        self.id = node_id
        self.port = 0
        self.advertised = ""
        """What nodes tell as its address, if not that at which it listens."""
        self.hook: Hook | None = None
        self.greet: Callable[[pb.Hello], pb.ServerFrame] | None = None
        self.frames: list[pb.ClientFrame] = []
        self.streams: list[FakeStream] = []
        self.knows_points = True
        self.traces = False
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.asked_for_status = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def target(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {
            "Stream": grpc.stream_stream_rpc_method_handler(
                self._stream,
                request_deserializer=pb.ClientFrame.FromString,
                response_serializer=lambda frame: frame if isinstance(frame, bytes) else frame.SerializeToString(),
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self._status,
                request_deserializer=pb.StatusRequest.FromString,
                response_serializer=pb.StatusResponse.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("kvorum.v1.Kv", handlers)])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def kill(self) -> None:
        """All connections break, the port is closed."""
        if self._server is not None:
            server, self._server = self._server, None
            for stream in self.streams:
                stream.break_off()
            await server.stop(None)

    def freeze(self) -> None:
        self.thawed.clear()

    def thaw(self) -> None:
        self.thawed.set()

    async def _status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        self.asked_for_status.set()
        await self.thawed.wait()
        return pb.StatusResponse(node_id=self.id, cluster_id=self.state.cluster_id, role="leader")

    async def _stream(self, requests: AsyncIterator[pb.ClientFrame], context: Any) -> AsyncIterator[Any]:
        stream = FakeStream(self)
        self.streams.append(stream)
        self.state.streams.add(stream)
        reader = asyncio.create_task(self._read(stream, requests))
        broken = asyncio.create_task(stream.broken.wait())
        try:
            while True:
                getter = asyncio.create_task(stream.out.get())
                await asyncio.wait([getter, broken], return_when=asyncio.FIRST_COMPLETED)
                if not getter.done() or stream.broken.is_set():
                    getter.cancel()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                await self.thawed.wait()
                if (frame := getter.result()) is None:
                    return
                yield frame
        finally:
            self.state.streams.discard(stream)
            broken.cancel()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self, stream: FakeStream, requests: AsyncIterator[pb.ClientFrame]) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.UsageError):
            async for frame in requests:
                await self.thawed.wait()
                if frame.HasField("hello"):
                    stream.hello = frame.hello
                    reply = pb.HelloReply(
                        protocol=1,
                        cluster_id=self.state.cluster_id,
                        node_id=self.id,
                        leader=self.state.hint(),
                        point_reads=self.knows_points,
                        traces=self.traces,
                    )
                    stream.send(self.greet(frame.hello) if self.greet else pb.ServerFrame(hello=reply))
                    continue
                self.frames.append(frame)
                if self.hook is not None and await self.hook(stream, frame):
                    continue
                stream.answer(frame)
        stream.end()

    # ---- what tests ask

    def writes(self) -> list[pb.WriteGroup]:
        return [frame.writes for frame in self.frames if frame.HasField("writes")]


def put(key: bytes, value: bytes = b"v", *checks: tuple[bytes, bytes]) -> bytes:
    """A serialised AtomicWrite that sets a key."""
    write = pb.AtomicWrite()
    for checked, stamp in checks:
        write.checks.add(key=checked, versionstamp=stamp)
    write.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES)
    return write.SerializeToString()
