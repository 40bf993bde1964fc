"""KV Connect by hand, over both versions of HTTP: what the real clients do, and what none should."""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.settings
import h11

from kvorum_node._proto import datapath_pb2 as dp

PATIENCE = 40.0
"""Seconds for an answer; requests are held for up to 30."""
TOKEN = {"authorization": "Bearer a-token-of-the-tests"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode()


class Http1:
    """One connection of HTTP/1.1; one request after the other."""

    def __init__(self, address: str, *, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._h11 = h11.Connection(h11.CLIENT)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()

    async def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        answer, _ = await asyncio.wait_for(self._begin(method, path, body, headers), PATIENCE)
        async for data in self._body():
            answer.body += data
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        return answer

    async def stream(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> "Frames":
        answer, _ = await asyncio.wait_for(self._begin("POST", path, body, headers), PATIENCE)
        return Frames(answer, self._body())

    def stop_reading(self) -> None:
        """From now on what the node sends stays in the kernel's buffers."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def write_request(self, path: str) -> None:
        """Send a request and do not wait for anything."""
        self.writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())

    async def _begin(self, method: str, path: str, body: bytes, headers: dict[str, str] | None) -> tuple[Answer, None]:
        fields = {"host": self._address, **TOKEN, **(headers or {})}
        if "transfer-encoding" not in fields:
            fields["content-length"] = str(len(body))
        send = self._h11.send
        self.writer.write(send(h11.Request(method=method, target=path, headers=list(fields.items()))) or b"")
        if body:
            self.writer.write(send(h11.Data(data=body)) or b"")
        self.writer.write(send(h11.EndOfMessage()) or b"")
        await self.writer.drain()
        event = await self._next()
        assert isinstance(event, h11.Response), event
        found = {name.decode(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, found), None

    async def _body(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await asyncio.wait_for(self.reader.read(65_536), PATIENCE))
        return event


@dataclass
class _Stream:
    answer: "asyncio.Future[Answer]"
    data: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)


class Http2:
    """One connection of HTTP/2 by prior knowledge, as Deno opens it; any number of requests at a time."""

    def __init__(self, address: str, *, window: int = 2_097_152, tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._tls = tls
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._window = window
        self._streams: dict[int, _Stream] = {}
        self._sent = asyncio.Event()
        self._buffer = b""
        self.going_away = False
        self.goodbye = 0
        """The error code of the GOAWAY."""
        self.resets: list[int] = []
        self.closed = asyncio.Event()
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), ssl=self._tls)
        codes = h2.settings.SettingCodes
        initial = {codes.ENABLE_PUSH: 0, codes.INITIAL_WINDOW_SIZE: self._window}
        self._h2.local_settings = h2.settings.Settings(client=True, initial_values=initial)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(4_900_000)
        self.flush()
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self.writer.wait_closed()

    async def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        stream = await self.send(method, path, body, headers)
        answer = await asyncio.wait_for(stream.answer, PATIENCE)
        while (data := await asyncio.wait_for(stream.data.get(), PATIENCE)) is not None:
            answer.body += data
        return answer

    async def stream(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> "Frames":
        stream = await self.send("POST", path, body, headers)
        return Frames(await asyncio.wait_for(stream.answer, PATIENCE), self._body(stream))

    def stop_reading(self) -> None:
        """From now on what the node sends stays in the kernel's buffers; its windows are as wide as can be."""
        self._h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
        self._h2.increment_flow_control_window(1 << 30)
        self.flush()
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def write_request(self, path: str) -> None:
        """Send a request and do not wait for anything."""
        self._start("POST", path, True, {})
        self.flush()

    def ignore_limits(self) -> None:
        """Open as many streams as one likes."""
        self._h2.remote_settings = h2.settings.Settings(
            client=False, initial_values={h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 1 << 20}
        )

    async def begin(self, method: str, path: str, body: bytes) -> _Stream:
        """A request whose body never ends."""
        stream = self._start(method, path, False, {})
        self._h2.send_data(self.last_stream, body)
        self.flush()
        return stream

    def _start(self, method: str, path: str, whole: bool, headers: dict[str, str]) -> _Stream:
        number = self.last_stream = self._h2.get_next_available_stream_id()
        fields = {":method": method, ":path": path, ":scheme": "http", ":authority": self._address}
        stream = self._streams[number] = _Stream(asyncio.get_running_loop().create_future())
        self._h2.send_headers(number, list((fields | TOKEN | headers).items()), end_stream=whole)
        return stream

    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str] | None) -> _Stream:
        if self.closed.is_set():
            raise ConnectionResetError("the node has closed the connection")
        stream = self._start(method, path, not body, headers or {})
        number = self.last_stream
        while body:
            room = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size, len(body))
            if room <= 0:
                self._sent.clear()
                self.flush()
                await asyncio.wait_for(self._sent.wait(), PATIENCE)
                continue
            self._h2.send_data(number, body[:room], end_stream=room == len(body))
            body = body[room:]
        self.flush()
        return stream

    def reset(self, number: int) -> None:
        self._h2.reset_stream(number, 8)
        self.flush()

    def open_window(self, size: int) -> None:
        """Let the newest stream send so much more."""
        self._h2.increment_flow_control_window(size, self.last_stream)
        self.flush()

    def flush(self) -> None:
        self.writer.write(self._h2.data_to_send())

    async def _body(self, stream: _Stream) -> AsyncIterator[bytes]:
        while (data := await asyncio.wait_for(stream.data.get(), PATIENCE)) is not None:
            yield data

    async def _receive(self) -> None:
        while data := await self._read():
            self._buffer += data
            for event in self._h2.receive_data(self._without_goodbye()):
                self._take(event)
            self.flush()
        self.closed.set()
        for stream in self._streams.values():
            stream.data.put_nowait(None)
            if not stream.answer.done():
                stream.answer.set_exception(ConnectionResetError("the node closed the connection"))
                stream.answer.exception()

    def _without_goodbye(self) -> bytes:
        """Whole frames, but for GOAWAY: the library would take no more answers after it, as clients must."""
        taken = b""
        while len(self._buffer) >= 9:
            size = 9 + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < size:
                break
            frame, self._buffer = self._buffer[:size], self._buffer[size:]
            if frame[3] == 7:
                self.going_away = True
                self.goodbye = int.from_bytes(frame[13:17], "big")
            else:
                taken += frame
        return taken

    async def _read(self) -> bytes:
        try:
            return await self.reader.read(65_536)
        except ConnectionError:
            return b""

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            headers = {str(name): str(value) for name, value in event.headers or ()}
            self._streams[event.stream_id or 0].answer.set_result(Answer(int(headers[":status"]), headers))
        elif isinstance(event, h2.events.DataReceived):
            self._streams[event.stream_id or 0].data.put_nowait(event.data or b"")
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
        elif isinstance(event, h2.events.StreamEnded):
            self._streams[event.stream_id or 0].data.put_nowait(None)
        elif isinstance(event, h2.events.StreamReset):
            self.resets.append(int(event.error_code or 0))
            stream = self._streams[event.stream_id or 0]
            stream.data.put_nowait(None)
            if not stream.answer.done():
                stream.answer.set_exception(ConnectionResetError(f"the stream was reset: {event.error_code}"))
                stream.answer.exception()
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._sent.set()


class Frames:
    """A watch's stream, frame by frame."""

    def __init__(self, answer: Answer, chunks: AsyncIterator[bytes]) -> None:
        self.answer = answer
        self._chunks = chunks
        self._buffer = b""

    async def next(self) -> dp.WatchOutput | None:
        """A frame: None for a sign of life. Raises EOFError when the stream has ended."""
        data = await self.raw()
        return dp.WatchOutput.FromString(data) if data else None

    async def raw(self) -> bytes:
        while True:
            if len(self._buffer) >= 4:
                (size,) = struct.unpack("<L", self._buffer[:4])
                if len(self._buffer) >= 4 + size:
                    data, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
                    return data
            try:
                self._buffer += await anext(self._chunks)
            except StopAsyncIteration:
                raise EOFError from None

    async def event(self) -> dp.WatchOutput:
        """The next frame that is more than a sign of life."""
        while (frame := await self.next()) is None:
            pass
        return frame

    async def end(self) -> None:
        """Read until the node ends the stream."""
        try:
            while True:
                await self.raw()
        except EOFError:
            return


Client = Http1 | Http2
CLIENTS: dict[str, type[Http1] | type[Http2]] = {"http1": Http1, "http2": Http2}

V8 = dp.VE_V8
LE64 = dp.VE_LE64
BYTES = dp.VE_BYTES
HELLO = b"\xff\x0f\x22\x05hello"


def key(*parts: str) -> bytes:
    """Of strings without zeros."""
    return b"".join(b"\x02" + part.encode() + b"\0" for part in parts)


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def mutation(
    name: bytes, value: bytes | None = HELLO, kind: int = dp.M_SET, encoding: int = V8, **more: object
) -> dp.AtomicWrite:
    """A write of one mutation."""
    write = dp.AtomicWrite()
    made = write.mutations.add(key=name, mutation_type=kind, **more)  # type: ignore[arg-type]
    if value is not None:
        made.value.data, made.value.encoding = value, encoding  # type: ignore[assignment]
    return write


def sum_of(name: bytes, number: int) -> dp.AtomicWrite:
    return mutation(name, u64(number), dp.M_SUM, LE64)


async def metadata(client: Client, body: bytes = b'{"supportedVersions":[1,2,3]}', **headers: str) -> Answer:
    return await client.request("POST", "/", body, {"content-type": "application/json", **headers})


async def write(client: Client, request: dp.AtomicWrite | bytes, **headers: str) -> Answer:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return await client.request("POST", "/v2/atomic_write", body, headers)


async def done(client: Client, request: dp.AtomicWrite | bytes) -> bytes:
    """A write that must succeed; its versionstamp."""
    answer = await write(client, request)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-protobuf"), answer
    output = dp.AtomicWriteOutput.FromString(answer.body)
    assert output.status == dp.AW_SUCCESS and len(output.versionstamp) == 10 and not output.failed_checks, output
    return output.versionstamp


async def read(client: Client, *ranges: dp.ReadRange, **headers: str) -> dp.SnapshotReadOutput:
    """A read that must succeed."""
    body = dp.SnapshotRead(ranges=ranges).SerializeToString()
    answer = await client.request("POST", "/v2/snapshot_read", body, headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-protobuf"), answer
    output = dp.SnapshotReadOutput.FromString(answer.body)
    assert output.status == dp.SR_SUCCESS and output.read_is_strongly_consistent and not output.read_disabled
    assert len(output.ranges) == len(ranges)
    return output


async def get(client: Client, name: bytes, **headers: str) -> dp.KvEntry | None:
    """As Deno gets a key."""
    output = await read(client, dp.ReadRange(start=name, end=name + b"\0", limit=1), **headers)
    return output.ranges[0].values[0] if output.ranges[0].values else None


async def watch(client: Client, *keys: bytes, **headers: str) -> Frames:
    """A watch that must begin."""
    request = dp.Watch(keys=[dp.WatchKey(key=name) for name in keys])
    frames = await client.stream("/v2/watch", request.SerializeToString(), headers)
    assert (frames.answer.status, frames.answer.headers["content-type"]) == (200, "application/octet-stream")
    return frames
