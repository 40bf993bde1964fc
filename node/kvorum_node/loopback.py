"""The session client's connection to its own node, without gRPC in between.

On the node that leads, writes of KV Connect would go through a socket to this very process: a third of what they cost
there, measured. So the client's connection and the node's stream are put together by two short queues. Both sides are
the ones that the wire has: numbering, repeats and leases cannot tell the difference.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster.connection import Connection
from kvorum.cluster.route import Address
from kvorum.tls import ChannelTls

from .api.stream import Stream
from .api.unary import Unary
from .service import NodeService

logger = logging.getLogger("kvorum.node")

FRAMES: Final = 2
"""Frames that wait, either way: whoever writes more waits, and what comes meanwhile goes into one frame."""


class LoopbackConnection(Connection):
    """`kvorum.cluster.connection.Connection` to the node that `service` is the inside of."""

    def __init__(self, service: NodeService, node_id: str, address: Address, loop: asyncio.AbstractEventLoop) -> None:
        self._service = service
        self._node_id = node_id
        super().__init__(address, loop)

    async def status(self, timeout: float, token: str = "") -> pb.StatusResponse:
        """The node's own account of itself; nothing to wait for."""
        return Unary(self._service).own_status()

    def _open_channel(self, target: str, tls: ChannelTls | None) -> Any:
        return _Channel(lambda context: Stream(self._service, self._node_id, context))


class _Channel:
    """What a connection uses of `grpc.aio.Channel`."""

    def __init__(self, stream: Callable[[Any], Stream]) -> None:
        self._stream = stream
        self._calls: list[_Call] = []

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., "_Call"]:
        """The one method that is called here: the stream."""

        def begin(**_: Any) -> _Call:
            call = _Call(self._stream)
            self._calls.append(call)
            return call

        return begin

    async def close(self) -> None:
        """End the streams."""
        for call in self._calls:
            call.cancel()
            await asyncio.wait([call.serving])


class _Call:
    """A stream's two ends: `write` and `read` are the client's, `_Context` is the node's."""

    def __init__(self, stream: Callable[[Any], Stream]) -> None:
        self._to_node: asyncio.Queue[Any] = asyncio.Queue(FRAMES)
        self._from_node: asyncio.Queue[Any] = asyncio.Queue(FRAMES)
        self.serving = asyncio.get_running_loop().create_task(self._serve(stream(_Context(self))))

    async def write(self, frame: pb.ClientFrame) -> None:
        await self._to_node.put(frame.SerializeToString())

    async def done_writing(self) -> None:
        await self._to_node.put(grpc.aio.EOF)

    async def read(self) -> Any:
        data = await self._from_node.get()
        return data if data is grpc.aio.EOF else pb.ServerFrame.FromString(data)

    def cancel(self) -> None:
        self.serving.cancel()

    async def next_for_node(self) -> Any:
        return await self._to_node.get()

    async def give(self, data: bytes) -> None:
        await self._from_node.put(data)

    async def _serve(self, stream: Stream) -> None:
        try:
            await stream.run()
        except Exception:  # the client begins anew, as after a broken connection
            logger.exception("a stream of this node to itself ended by a fault")
        await self._from_node.put(grpc.aio.EOF)


class _Context:
    """What a stream uses of `grpc.aio.ServicerContext`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    async def read(self) -> Any:
        return await self._call.next_for_node()

    async def write(self, data: bytes) -> None:
        await self._call.give(data)
