"""The wire protocol by hand: what a client library of another language would do, and what it must not."""

import asyncio
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from kvorum._proto import kvorum_pb2 as pb

PATIENCE = 60.0


def set_op(key: bytes, value: bytes = b"v", **more: object) -> bytes:
    op = pb.AtomicWrite()
    op.mutations.add(key=key, type=pb.MUTATION_TYPE_SET, value=value, encoding=pb.VALUE_ENCODING_BYTES, **more)
    return op.SerializeToString()


def enqueue_op(payload: bytes, queue: str = "q", **more: Any) -> bytes:
    op = pb.AtomicWrite()
    op.enqueues.add(queue=queue, payload=payload, **more)
    return op.SerializeToString()


def settle_op(delivery: pb.Delivery, kind: int = pb.SETTLE_KIND_ACK) -> bytes:
    op = pb.AtomicWrite()
    op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind)
    return op.SerializeToString()


class RawStream:
    """One stream to one node, frame by frame."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._call: Any = self._channel.stream_stream("/kvorum.v1.Kv/Stream")()
        self.seen = pb.ServerFrame()
        """Everything that came, merged."""
        self.session = b""
        self._seq = 0

    async def __aenter__(self) -> "RawStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call.cancel()
        await self._channel.close()

    async def send(self, frame: pb.ClientFrame | bytes) -> None:
        await self._call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())

    async def next(self) -> pb.ServerFrame | None:
        """The next frame; None when the stream has ended."""
        try:
            data = await asyncio.wait_for(self._call.read(), PATIENCE)
        except grpc.aio.AioRpcError:
            return None
        if data is grpc.aio.EOF:
            return None
        frame = pb.ServerFrame.FromString(data)
        self.seen.MergeFrom(frame)
        return frame

    async def until(self, part: str, count: int = 1) -> Any:
        """Read on until `count` of a part came (a repeated field's list, or the message)."""
        while True:
            value = getattr(self.seen, part)
            if hasattr(value, "__len__") and not isinstance(value, str):
                if len(value) >= count:
                    return value
            elif part in ("hello", "session", "leader"):
                if self.seen.HasField(part):  # type: ignore[arg-type]
                    return value
            elif value:
                return value
            assert await self.next() is not None, f"the stream ended before {part} came: {self.seen}"

    async def end(self) -> pb.ServerFrame:
        """Read to the end; what came."""
        while await self.next() is not None:
            pass
        return self.seen

    async def greet(self, **fields: object) -> pb.HelloReply:
        await self.send(pb.ClientFrame(hello=pb.Hello(protocol=1, client="raw", **fields)))  # type: ignore[arg-type]
        return await self.until("hello")  # type: ignore[no-any-return]

    async def open_session(self) -> bytes:
        await self.send(pb.ClientFrame(open_session=pb.OpenSession(client="raw")))
        self.session = (await self.until("session")).session
        assert len(self.session) == 10, f"no session was opened: {self.seen}"
        return self.session

    async def write(self, *ops: bytes, seq: int | None = None) -> list[pb.WriteResult]:
        """Commit operations as one group and wait for all answers."""
        frame = pb.ClientFrame()
        frame.writes.session = self.session
        wanted = set()
        for op in ops:
            self._seq += 1
            number = self._seq if seq is None else seq
            wanted.add(number)
            frame.writes.writes.add(seq=number, op=op)
        self.seen.ClearField("results")
        await self.send(frame)
        while True:
            results = [result for group in self.seen.results for result in group.results]
            if wanted <= {result.seq for result in results}:
                return results
            assert await self.next() is not None, "the stream ended"
