"""Bytes on the HTTP port, of either version, in pieces: whatever comes, the node notes no fault of its own, and when
the connection is gone nothing of it is left.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from kvorum_node.http.app import App
from kvorum_node.http.connection import PREFACE, Connection
from kvorum_node.http.http2 import MAX_RESETS
from kvorum_node.http.server import HttpServer
from tests.fuzz import connect_read, connect_write
from tests.fuzz.choices import Choices
from tests.fuzz.local_node import LocalNode, local_node

_PATHS = (b"/v2/atomic_write", b"/v2/snapshot_read", b"/v2/watch", b"/", b"/metrics", b"/livez", b"/nothing")
_READ = connect_read.SEEDS[1]


def _http1(*parts: bytes) -> bytes:
    return b"\0\x3f" + b"".join(parts)


def _http2(*frames: Frame) -> bytes:
    return b"\1\x3f" + b"".join(frame.serialize() for frame in frames)


def _head(number: int, path: bytes, *, end: bool = False, method: bytes = b"POST") -> HeadersFrame:
    fields = [(b":method", method), (b":path", path), (b":scheme", b"http"), (b":authority", b"x")]
    fields += [(b"authorization", b"Bearer t"), (b"content-length", b"%d" % (0 if end else len(_READ)))]
    flags = ["END_HEADERS", "END_STREAM"] if end else ["END_HEADERS"]
    return HeadersFrame(number, data=Encoder().encode(fields, huffman=False), flags=flags)


def _resets(count: int, *first: Frame) -> bytes:
    """Requests that are reset before they are whole. `first` shifts those that come when the node has had enough."""
    encoder = Encoder()
    frames: list[Frame] = [SettingsFrame(0), *first]
    fields = [(b":method", b"POST"), (b":path", b"/v2/watch"), (b":scheme", b"http")]
    fields += [(b":authority", b"x"), (b"authorization", b"Bearer t")]
    for number in range(1, 2 * count, 2):
        frames.append(HeadersFrame(number, data=encoder.encode(fields), flags=["END_HEADERS"]))
        frames.append(DataFrame(number, data=b"x"))
        frames.append(RstStreamFrame(number, error_code=8))
    return _http2(*frames)


SEEDS = [
    _resets(MAX_RESETS + 8),
    _resets(MAX_RESETS + 8, PingFrame(0)),
    _resets(MAX_RESETS + 8, PingFrame(0), PingFrame(0)),
    _http1(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 3),
    _http1(b"HEAD /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    _http1(
        b"POST /v2/snapshot_read HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: %d\r\n\r\n"
        % len(_READ),
        _READ,
    ),
    _http1(
        b"POST /v2/atomic_write HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nTransfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n\r\n%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n"
        % (len(connect_write.SEEDS[1]), connect_write.SEEDS[1]),
    ),
    _http1(
        b"POST /v2/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 7\r\n\r\n",
        connect_read.SEEDS[5][:7],
    ),
    _http1(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / "),
    _http1(b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"),
    _http2(SettingsFrame(0), _head(1, b"/livez", end=True, method=b"GET"), PingFrame(0, opaque_data=b"12345678")),
    _http2(
        SettingsFrame(0, settings={4: 10, 5: 16_384}),
        _head(1, b"/v2/snapshot_read"),
        DataFrame(1, data=_READ, flags=["END_STREAM"]),
        WindowUpdateFrame(1, window_increment=100),
        WindowUpdateFrame(0, window_increment=100),
    ),
    _http2(
        SettingsFrame(0),
        _head(1, b"/v2/watch"),
        DataFrame(1, data=_READ[:7]),
        RstStreamFrame(1, error_code=8),
        _head(3, b"/v2/atomic_write"),
        DataFrame(3, data=_READ, flags=["END_STREAM"]),
        PriorityFrame(5, depends_on=3, stream_weight=2, exclusive=True),
        GoAwayFrame(0, last_stream_id=0, error_code=0),
    ),
    _http2(
        SettingsFrame(0),
        HeadersFrame(1, data=b"\x82\x86", flags=[]),
        ContinuationFrame(1, data=b"\x84\x41\x01x", flags=["END_HEADERS"]),
        SettingsFrame(0, flags=["ACK"]),
    ),
    b"\2" + bytes(range(200)),
    b"\2" + bytes((at * 37) % 256 for at in range(300)),
]


@contextmanager
def opened() -> Iterator[Callable[[bytes], None]]:
    with local_node() as node, node.app() as app:
        yield partial(check, node, app)


def check(node: LocalNode, app: App, data: bytes) -> None:
    if len(data) < 2:
        return
    kind, size = data[0] % 3, (1, 7, 100, 10_000)[data[1] % 4]
    content = data[2:] if kind == 0 else PREFACE + (data[2:] if kind == 1 else _frames(data[2:]))
    node.run(_talk(node, app, content, max(size, len(content) // 2_000)))  # a byte at a time only if they are few


def _frames(data: bytes) -> bytes:
    """Frames of all types, on few streams, most of them as they should be."""
    choices, encoder = Choices(data), Encoder()
    parts = [SettingsFrame(0).serialize()]
    while choices.left and len(parts) < 200:
        number = choices.byte() % 8 * 2 + 1
        kind = choices.byte() % 12
        if kind < 4:
            fields = [
                (b":method", b"POST"),
                (b":path", choices.pick(_PATHS)),
                (b":scheme", b"http"),
                (b":authority", b"x"),
            ]
            fields.append((b"authorization", b"Bearer t") if not choices.chance() else (choices.raw(5), choices.raw(9)))
            block = encoder.encode(fields, huffman=False)
            flags = ["END_HEADERS", "END_STREAM"] if choices.chance() else ["END_HEADERS"]
            parts.append(HeadersFrame(number, data=block, flags=flags).serialize())
        elif kind < 6:
            body = choices.pick((_READ, *connect_write.SEEDS[:3], b"", b"x" * 16_384))
            parts.append(DataFrame(number, data=body, flags=["END_STREAM"] if choices.chance() else []).serialize())
        elif kind == 6:
            parts.append(RstStreamFrame(number, error_code=choices.byte()).serialize())
        elif kind == 7:
            where = number if choices.chance() else 0
            parts.append(
                WindowUpdateFrame(where, window_increment=choices.pick((1, 1 << 20, (1 << 31) - 1))).serialize()
            )
        elif kind == 8:
            settings = {choices.byte() % 9: choices.number() % (1 << 32)}
            parts.append(SettingsFrame(0, settings=settings).serialize())
        elif kind == 9:
            parts.append(PingFrame(0, opaque_data=b"12345678").serialize())
        else:  # a frame of any kind and size, which may not be what it says
            content = choices.raw(choices.byte() % 40)
            parts.append(bytes((0, 0, len(content), choices.byte(), choices.byte(), 0, 0, 0, number)) + content)
    return b"".join(parts)


class _Transport:
    """What a connection uses of asyncio's."""

    def __init__(self) -> None:
        self.closed = self.ended = False
        self.written = 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        assert not self.ended, "written after the end"
        self.written += len(data)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close


async def _talk(node: LocalNode, app: App, content: bytes, size: int) -> None:
    server = HttpServer(app, "127.0.0.1", 0)
    transport: Any = _Transport()
    connection = Connection(server)
    connection.connection_made(transport)
    for at in range(0, len(content), size):
        if transport.closed:
            break
        connection.data_received(content[at : at + size])
        if at % (8 * size) == 0:
            await asyncio.sleep(0)
    for turn in range(500):
        await asyncio.sleep(0)
        if turn > 12 and not connection.scheduled:
            break
    connection.check(node.now() + 1_000)
    connection.drain()
    connection.connection_lost(None)
    for _ in range(200):
        if len(asyncio.all_tasks()) <= node.tasks:
            break
        await asyncio.sleep(0.001)
    figures = app.statistics()
    for name in ("watches", "request_bytes", "answer_bytes"):
        assert figures[f"kv_connect_{name}"] == 0, figures
    assert server.statistics()["http_connections"] == 0
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert len(left) < node.tasks, left
    assert transport.written < 64 * len(content) + 1_000_000
