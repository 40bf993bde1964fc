"""gRPC's stream between a client and a node, as both sides see it, over a simulated connection.

Both sides are the shipped ones: the client's `Connection` on a `Channel`, the node's `Stream` on a `Context`. Frames
are bytes on the way, as on a real wire.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from kvorum import tokens
from kvorum.cluster.connection import Connection
from kvorum.cluster.route import Address
from kvorum_node.api.stream import Stream
from kvorum_node.api.unary import Unary
from kvorum_node.service import NodeService
from tests.simulation.whole.clock import ProcessLoop
from tests.simulation.whole.network import End, Network

ROOT: Final = "the root token of the simulation"
"""Which all clients have, but the guest of `gates`."""
ROOT_HASH: Final = tokens.hash_of(ROOT.encode())
KEEPALIVE: Final = 1.0
PATIENCE: Final = 2.0
"""Seconds between HTTP/2 pings of a node, and until an unanswered one ends the connection."""
_PING: Final = b""


class RpcError(grpc.RpcError):  # type: ignore[misc]  # grpc is untyped
    """A stream that broke."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._details


class _Inbox:
    """Frames that came, and the end."""

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop
        self._frames: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False
        self.error: Exception | None = None

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._wake()

    def end(self, error: Exception | None) -> None:
        self.ended, self.error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """A frame, or EOF. Errors: RpcError."""
        while not self._frames:
            if self.ended:
                if self.error is not None:
                    raise RpcError(str(self.error))
                return grpc.aio.EOF
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._frames.pop(0)


class Call:
    """The client's end of a stream."""

    def __init__(self, network: Network, loop: ProcessLoop, target: str, encode: Any, decode: Any) -> None:
        self._encode, self._decode = encode, decode
        self._inbox = _Inbox(loop)
        self._end: End | None = None
        self._connecting = loop.create_task(network.connect(loop, target, PATIENCE))
        self._connecting.add_done_callback(self._connected)

    def _take(self, frame: bytes) -> None:
        if frame == _PING and self._end is not None:
            self._end.send(_PING)
        else:
            self._inbox.put(frame)

    def _connected(self, task: "asyncio.Task[End]") -> None:
        if task.cancelled():
            self._inbox.end(RpcError("cancelled"))
        elif (error := task.exception()) is not None:
            self._inbox.end(RpcError(str(error)))
        else:
            self._end = task.result()
            self._end.attach(self._take, self._inbox.end)

    async def write(self, frame: Any) -> None:
        """Errors: RpcError, InvalidStateError."""
        data = self._encode(frame)
        if self._connecting.done():
            # As long as `wait` takes for what is there already, without its futures: two turns of the loop.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        else:
            await asyncio.wait([self._connecting])
        if self._end is None:
            raise RpcError(str(self._inbox.error))
        if not self._end.open:
            raise asyncio.InvalidStateError("the call is over")
        self._end.send(data, len(data))

    async def read(self) -> Any:
        """Errors: RpcError."""
        frame = await self._inbox.get()
        return frame if frame is grpc.aio.EOF else self._decode(frame)

    async def done_writing(self) -> None:
        """The node learns it from the end of the connection."""

    def cancel(self) -> None:
        self._connecting.cancel()
        if self._end is not None:
            self._end.abort()


class Channel:
    """As much of `grpc.aio.Channel` as the client uses."""

    def __init__(self, network: Network, loop: ProcessLoop, target: str) -> None:
        self._network, self._loop, self._target = network, loop, target
        self._calls: list[Call] = []

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any) -> Callable[..., Call]:
        def start(**_: Any) -> Call:
            call = Call(self._network, self._loop, self._target, request_serializer, response_deserializer)
            self._calls.append(call)
            return call

        return start

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()


class SimConnection(Connection):
    """The shipped connection, over a simulated channel."""

    def __init__(self, network: Network, address: Address, loop: Any, credentials: Any = None) -> None:
        self._network = network
        super().__init__(address, loop, credentials)

    def _open_channel(self, target: str, credentials: Any) -> Any:
        assert isinstance(self._loop, ProcessLoop)
        return Channel(self._network, self._loop, target)


class Context:
    """The node's end of a stream: what `Stream` uses of `grpc.aio.ServicerContext`."""

    def __init__(self, loop: ProcessLoop, end: End) -> None:
        self._inbox = _Inbox(loop)
        self._end = end
        self.task: asyncio.Task[None] | None = None
        self._loop = loop
        self._heard_at = loop.time()
        self._ping()

    def begin(self, task: "asyncio.Task[None]") -> None:
        self.task = task
        self._end.attach(self._take, self._lost)

    def _take(self, frame: bytes) -> None:
        self._heard_at = self._loop.time()
        if frame != _PING:
            self._inbox.put(frame)

    def _ping(self) -> None:
        """A frozen client is one that does not answer, whatever its kernel says."""
        if self._end.open and self._loop.time() - self._heard_at > KEEPALIVE + PATIENCE:
            self._end.abort()
        elif self._end.open:
            self._end.send(_PING)
            self._loop.call_later(KEEPALIVE, self._ping)

    def _lost(self, error: Exception | None) -> None:
        self._inbox.end(error)
        if self.task is not None:
            self.task.cancel()

    async def read(self) -> Any:
        return await self._inbox.get()

    async def write(self, frame: bytes) -> None:
        if not self._end.open:
            raise RpcError("the call is over")
        self._end.send(frame, len(frame))
        await asyncio.sleep(0)

    def close(self) -> None:
        self._end.close()


class _Unlimited:
    """The context of a unary call without a deadline."""

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {ROOT}"),)


class StreamServer:
    """Stands for `ApiServer`: a `Stream` for each connection, and unary reads on a port of their own."""

    def __init__(self, network: Network, loop: ProcessLoop, service: NodeService, node_id: str, address: str) -> None:
        self._network, self._loop = network, loop
        self._service, self._node_id, self._address = service, node_id, address
        self._streams: dict[Stream, Context] = {}
        self._unary = Unary(service)
        self._gets: deque[asyncio.Task[None]] = deque(maxlen=64)

    def start(self) -> None:
        self._network.listen(self._address, self._loop, self._accept)
        self._network.listen(f"{self._loop.name}:3", self._loop, self._accept_get)

    def _accept_get(self, end: End) -> None:
        """Unary Get: one read a frame, of whichever node."""

        async def get(data: bytes) -> None:
            end.send((await self._unary.get(data, _Unlimited())).SerializeToString())

        end.attach(lambda data: self._gets.append(self._loop.create_task(get(data))), lambda error: None)

    def _accept(self, end: End) -> None:
        context = Context(self._loop, end)
        context.begin(self._loop.create_task(self._serve(context)))

    async def _serve(self, context: Context) -> None:
        stream = Stream(self._service, self._node_id, context)
        self._streams[stream] = context
        try:
            await stream.run()
        finally:
            del self._streams[stream]
            context.close()

    async def stop(self) -> None:
        """Tell clients to go elsewhere, and end."""
        for address in (self._address, f"{self._loop.name}:3"):
            self._network.stop_listening(address, self._loop)
        tasks = [context.task for context in self._streams.values() if context.task is not None]
        for stream in list(self._streams):
            stream.end("this node stops")
        if tasks:
            _, slow = await asyncio.wait(tasks, timeout=1.0)
            for task in slow:
                task.cancel()
