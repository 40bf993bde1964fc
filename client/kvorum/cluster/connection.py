"""One bidirectional gRPC stream to one node, and the news of its death.

Sending is pulled: the writer asks for the next frame when gRPC has taken the last one, so everything that queued up
meanwhile goes into one frame, and a node that does not read holds the writer up instead of filling a buffer.

A frozen node (SIGSTOP, a cable pulled) closes nothing. HTTP/2's keepalive would notice, but only in steps that
servers punish if they are short, and a process that is stopped while its kernel answers is seen no earlier. So while
something is expected from the node we send pings of our own after a second of silence, and end the stream when 1.5 s
more bring no frame at all.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from kvorum import errors, limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import tls_trouble
from kvorum.cluster.route import Address, name
from kvorum.tls import ChannelTls

PULSE: Final = 0.5
"""Seconds between looks at a connection."""
SILENCE: Final = 1.0
"""Seconds without a frame after which a ping is sent, if one is expected."""
PATIENCE: Final = 1.5
"""Seconds that an unanswered ping may be old."""
FAREWELL: Final = 0.5
"""Seconds that a node gets to take a Goodbye."""
MAX_RECEIVED: Final = 2 * limits.MAX_FRAME_SIZE
"""Bytes of one frame from a node. Twice the limit, so that a newer node that counts differently is not cut off."""

UNREADABLE: Final = "it sent a frame that cannot be read"
"""What is wrong when gRPC, which logs the reason, gives None for a frame."""

WRONG_PORT: Final = (
    "this does not look like the client port of a kvorum node (the HTTP port for KV Connect is usually the client port"
    " + 1; kvorum:// needs the client port)"
)

ChannelOptions = tuple[tuple[str, int | str], ...]
OPTIONS: Final[ChannelOptions] = (
    ("grpc.max_receive_message_length", MAX_RECEIVED),
    ("grpc.max_send_message_length", limits.MAX_FRAME_SIZE),
    # Reconnecting is our business. Shared subchannels would make a new channel wait for an old one's back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)


class NodeFailed(Exception):
    """A node could not be used.

    `final`: it said itself that trying again is pointless. `dead`: nothing was heard of it; False if it can be spoken
    to, as far as anybody knows.
    """

    def __init__(self, problem: str, *, final: bool = False, dead: bool = True) -> None:
        super().__init__(problem)
        self.problem = problem
        self.final = final
        self.dead = dead


def describe(error: grpc.RpcError) -> str:
    """What a person wants to know of a gRPC error."""
    code, details = error.code(), error.details() or ""
    if is_foreign(error):
        return WRONG_PORT
    if (trouble := tls_trouble.explain(details)) is not None:
        return trouble
    if _closed_at_once(error):
        # It took the connection, and closed it before a word of HTTP/2: so do the peers' port, and a node that ends.
        return f"connection closed at once: if that lasts, {WRONG_PORT}"
    for sign, meaning in (
        ("Connection refused", "connection refused"),
        ("No route to host", "no route to the host"),
        ("Network is unreachable", "the network is unreachable"),
        ("DNS resolution failed", "the name cannot be resolved"),
        ("Name or service not known", "the name cannot be resolved"),
        ("Connection reset", "connection reset"),
        ("Socket closed", "connection closed"),
        ("Internal error from Core", "the stream was cut off"),
    ):
        if sign in details:
            return meaning
    first = details.strip().splitlines()[0][:200] if details.strip() else ""
    label = code.name.lower().replace("_", " ")
    return f"{label}: {first}" if first else label


def _closed_at_once(error: grpc.RpcError) -> bool:
    details = error.details() or ""
    return "failed to connect" in details and ("Socket closed" in details or "Connection reset" in details)


async def explain(error: grpc.RpcError, address: Address, tls: ChannelTls | None) -> tuple[str, bool]:
    """What a person wants to know of a call that failed, and whether waiting is pointless unless somebody changes
    something; may ask the port about TLS."""
    if _closed_at_once(error):
        shows = tls is not None and tls.shows_certificate
        trouble = await tls_trouble.ask(address, secure=tls is not None, shows_certificate=shows)
        return trouble or describe(error), trouble is not None
    misfit = error.code() == grpc.StatusCode.UNIMPLEMENTED or tls_trouble.explain(error.details() or "") is not None
    return describe(error), misfit


def is_foreign(error: grpc.RpcError) -> bool:
    """Whether something answered that is no client port: an HTTP server, or gRPC without our service."""
    details = error.details() or ""
    return error.code() == grpc.StatusCode.UNIMPLEMENTED or any(
        sign in details for sign in ("http1.x server", "Failed parsing HTTP/2", "Received http2 header with status")
    )


def open_channel(target: str, tls: ChannelTls | None, options: ChannelOptions) -> Any:
    """A `grpc.aio.Channel`."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.credentials(), options=(*options, *tls.options))


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call in the name of a token; empty: in nobody's."""
    return (("authorization", f"Bearer {token}"),) if token else ()


class Connection:
    """A stream: `greet`, then `start`; `ended` tells why it is over; `close` must be called."""

    def __init__(self, address: Address, loop: asyncio.AbstractEventLoop, tls: ChannelTls | None = None) -> None:
        self.address = address
        self._tls = tls
        self._has_socket = False
        """What is at the other end is a port, and not a part of this process."""
        self.ended: asyncio.Future[NodeFailed] = loop.create_future()
        self._loop = loop
        self._channel = self._open_channel(name(address), tls)
        self._call: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._dirty = True
        self._waker: asyncio.Future[None] | None = None
        self._farewell: pb.ClientFrame | None = None
        self._pulse: asyncio.TimerHandle | None = None
        self._pulse_at = 0.0
        self._heard_at = 0.0
        self._pinged_at: float | None = None
        self._ping = 0
        self._ping_due = False

    def _open_channel(self, target: str, tls: ChannelTls | None) -> Any:
        self._has_socket = True
        return open_channel(target, tls, OPTIONS)

    async def greet(self, hello: pb.Hello, timeout: float) -> pb.ServerFrame:
        """Open the stream and return the node's first frame, which holds its HelloReply. Errors: NodeFailed."""
        self._call = self._channel.stream_stream(
            "/kvorum.v1.Kv/Stream",
            request_serializer=pb.ClientFrame.SerializeToString,
            response_deserializer=pb.ServerFrame.FromString,
        )(wait_for_ready=False)
        try:
            async with asyncio.timeout(timeout):
                await self._call.write(pb.ClientFrame(hello=hello))
                frame = await self._call.read()
        except TimeoutError:
            raise NodeFailed(f"no answer within {timeout:.2g} s") from None
        except grpc.RpcError as error:
            # A client that was never connected was given the wrong port. For another one it will pass: something on
            # the way, such as a proxy, answers in a node's place.
            problem, refused = await self._explain(error)
            raise NodeFailed(problem, final=refused and not hello.cluster_id) from error
        except asyncio.InvalidStateError:
            raise NodeFailed("connection closed") from None
        if frame is grpc.aio.EOF:
            raise NodeFailed("the node ended the stream")
        if frame is None:
            raise NodeFailed(UNREADABLE)
        if frame.error:
            raise NodeFailed(frame.error, final=frame.error_is_final)
        if not frame.HasField("hello"):
            raise NodeFailed("it did not answer Hello: not a kvorum node")
        assert isinstance(frame, pb.ServerFrame)
        return frame

    async def _explain(self, error: grpc.RpcError) -> tuple[str, bool]:
        if self._has_socket:
            return await explain(error, self.address, self._tls)
        return describe(error), False

    def start(
        self,
        fill: Callable[[pb.ClientFrame], bool],
        receive: Callable[[pb.ServerFrame], None],
        expecting: Callable[[], bool],
    ) -> None:
        """Send what `fill` puts into frames (False: nothing now, until `wake`), and hand frames to `receive`."""
        self._heard_at = self._loop.time()
        for pump in (self._pump_out(fill), self._pump_in(receive)):
            task = self._loop.create_task(pump)
            task.add_done_callback(self._pump_ended)
            self._tasks.append(task)
        self._expect_pulse(expecting)

    def wake(self) -> None:
        """There may be something to send."""
        if self._dirty:
            return  # the pump knows, and has not looked yet
        self._dirty = True
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def fail(self, problem: NodeFailed) -> None:
        """End the stream for this reason; the first one counts."""
        if not self.ended.done():
            self.ended.set_result(problem)

    async def status(self, timeout: float, token: str = "") -> pb.StatusResponse:
        """The node's own account of itself. Errors: NodeFailed; Unauthenticated."""
        call = self._channel.unary_unary(
            "/kvorum.v1.Kv/Status",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusResponse.FromString,
        )
        try:
            answer = await call(pb.StatusRequest(), timeout=timeout, metadata=bearer(token))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                raise errors.Unauthenticated(error.details() or "the node knows no such token") from error
            raise NodeFailed((await self._explain(error))[0]) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise NodeFailed("connection closed") from None  # so gRPC ends the calls of a channel that is closed
        assert isinstance(answer, pb.StatusResponse)
        return answer

    async def close(self, farewell: pb.ClientFrame | None = None) -> None:
        """Release everything; a farewell frame is sent if the node takes it soon."""
        if farewell is not None and self._tasks and not self.ended.done():
            self._farewell = farewell
            self.wake()
            await asyncio.wait([self.ended], timeout=FAREWELL)
        self.fail(NodeFailed("closed"))
        if self._pulse is not None:
            self._pulse.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()
        # gRPC's poller thread ends with the last object that refers to it; do not leave that to the garbage collector.
        self._call = self._channel = None
        self._tasks.clear()

    # ---- pumps

    async def _pump_out(self, fill: Callable[[pb.ClientFrame], bool]) -> None:
        write = self._call.write
        while True:
            if not self._dirty:
                self._waker = self._loop.create_future()
                await self._waker
                self._waker = None
            self._dirty = False
            frame = pb.ClientFrame()
            filled = fill(frame)
            if self._ping_due:
                self._ping_due = False
                self._ping += 1
                frame.ping = self._ping
                filled = True
            if filled:
                await write(frame)
                self._dirty = True
            elif self._farewell is not None:
                await write(self._farewell)
                await self._call.done_writing()
                return

    async def _pump_in(self, receive: Callable[[pb.ServerFrame], None]) -> None:
        read, end, clock = self._call.read, grpc.aio.EOF, self._loop.time
        while (frame := await read()) is not end:
            if frame is None:
                self.fail(NodeFailed(UNREADABLE, dead=False))
                return
            self._heard_at = clock()
            receive(frame)
            if frame.error:
                self.fail(NodeFailed(frame.error, final=frame.error_is_final, dead=False))
                return
        self.fail(NodeFailed("the node ended the stream", dead=False))

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # Ours to cancel, or gRPC's, when the call was cancelled under it.
            self.fail(NodeFailed("the stream was cancelled"))
        elif (error := task.exception()) is None:
            return
        elif isinstance(error, grpc.RpcError):
            self.fail(NodeFailed(describe(error), dead=False))
        elif isinstance(error, asyncio.InvalidStateError):
            # Writing to a call that is over; the reader knows why, and it runs in the same turn of the loop.
            self._loop.call_soon(self.fail, NodeFailed("connection closed", dead=False))
        else:
            self.fail(NodeFailed(f"{type(error).__name__}: {error}"))
            self._loop.call_exception_handler(
                {"message": "a frame from a kvorum node could not be handled", "exception": error, "task": task}
            )

    # ---- the pulse

    def _expect_pulse(self, expecting: Callable[[], bool]) -> None:
        self._pulse_at = self._loop.time() + PULSE
        self._pulse = self._loop.call_at(self._pulse_at, self._feel_pulse, expecting)

    def _feel_pulse(self, expecting: Callable[[], bool]) -> None:
        now = self._loop.time()
        if not expecting():
            self._pinged_at = None
        elif now - self._pulse_at > PULSE:
            # This process was held up, so frames may be waiting in the socket: look at them first.
            self._pinged_at = None if self._pinged_at is None else now
        elif self._pinged_at is not None and self._heard_at < self._pinged_at:
            if now - self._pinged_at >= PATIENCE:
                self.fail(NodeFailed(f"silent for {now - self._heard_at:.1f} s"))
                return
        elif now - self._heard_at >= SILENCE:
            self._pinged_at = now
            self._ping_due = True
            self.wake()
        else:
            self._pinged_at = None
        self._expect_pulse(expecting)
