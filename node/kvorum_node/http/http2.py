"""HTTP/2 by prior knowledge: what Deno speaks, on one connection for everything it does.

The library h2 knows the protocol's states; here it is fed in pieces, and asked for a frame of one stream after the
other. A stream whose window is closed waits outside the line until it opens. Against floods: a stream is paid for by a
completed answer, so a client that only opens and resets streams is cut off after some; the rest (pings, settings,
empty frames) costs its sender as much as us, in the small share of the loop that all connections have together.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import GoAwayFrame

from ..unquoted import unquoted
from .app import App
from .connection import PREFACE, Connection
from .exchange import Exchange
from .message import Request

MAX_STREAMS: Final = 512
MAX_HEADERS: Final = 8_192
"""Bytes of a request's headers, both as sent and unpacked: unpacking them costs almost a microsecond a byte, in one
go."""
MAX_FRAMES: Final = 4
"""Frames worked off in one step."""
WINDOW: Final = 1_048_576
"""Bytes of one body that a client may send before it hears from us; four times that for all of a connection."""
MAX_RESETS: Final = 200
"""Streams that a client may open and reset; an answered one gives it one back."""
_HEADERS: Final = 1
_GOAWAY: Final = 7
_CONTINUATION: Final = 9
MAX_LATE: Final = 16
"""Requests of one connection that may be given up because the client was too slow."""
MAX_DISCARDED: Final = 4 * 1_048_576
"""Bytes of a refused body that are thrown away before its stream is reset."""


class _Protocol(h2.connection.H2Connection):
    """Remembers fewer of the streams that are over: 65,536 would be megabytes for each connection that lives long."""

    MAX_CLOSED_STREAMS = 4_096


class Http2:
    """`kvorum_node.http.connection.Codec`."""

    def __init__(self, connection: Connection, app: App, loop: asyncio.AbstractEventLoop, date: Callable[[], bytes]):
        self._connection = connection
        self._app = app
        self._loop = loop
        self._date = date
        self._h2 = _Protocol(
            h2.config.H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                codes.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
                codes.INITIAL_WINDOW_SIZE: WINDOW,
                codes.ENABLE_PUSH: 0,
            },
        )
        self._h2.decoder.max_header_list_size = MAX_HEADERS
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(4 * WINDOW)
        self._exchanges: dict[int, Exchange] = {}
        self._ids: dict[Exchange, int] = {}
        self._line: deque[int] = deque()
        """Streams that have something to send, each once."""
        self._in_line: set[int] = set()
        self._starved: set[int] = set()
        """Streams that wait for the connection's window."""
        self._blocked: set[int] = set()
        """Streams whose window is closed."""
        self._resets = MAX_RESETS
        self._late = 0
        self._draining = False
        self._extra = b""
        self._skip = len(PREFACE)
        self._dropping = False
        """The frame that is coming is not for the library."""
        self._leaving = False
        """The client has said goodbye; what is under way is answered."""
        self._frame_head = b""

    # ---- Codec

    piece = 16_384

    def accepts_input(self) -> bool:
        return True

    def receive(self, data: bytes) -> int:
        taken, frames = self._frames(data)
        if taken < 0:
            self._cut_off("headers", "sends headers that are too large")
            return len(data)
        try:
            events = self._h2.receive_data(frames)
        except h2.exceptions.ProtocolError as error:
            self._connection.blame("http2", f"broke the rules of HTTP/2: {unquoted(error)!r}")
            self._connection.close()
            return taken
        for event in events:
            self._take(event)
        if self._leaving and not self._exchanges:
            self._connection.close()
        return taken

    def send_some(self) -> bool:
        while self._line:
            number = self._line.popleft()
            self._in_line.discard(number)
            exchange = self._exchanges.get(number)
            if exchange is not None and exchange.has_something:
                self._send(number, exchange)
                return True
        return False

    def flush(self) -> bytes:
        data = self._h2.data_to_send()
        if self._extra:
            data, self._extra = data + self._extra, b""
        return data

    def busy(self) -> bool:
        return bool(self._exchanges)

    def midway(self) -> bool:
        return bool(self._skip or self._frame_head)

    def check(self, now: float) -> None:
        late = [number for number, exchange in self._exchanges.items() if exchange.overdue(now)]
        self._late += len(late)
        if self._late > MAX_LATE:
            # What is on its way of their bodies would be worked off long after they were given up.
            self._cut_off("late", "is too slow with everything")
            return
        for number in late:
            self._reset(number, h2.errors.ErrorCodes.CANCEL)
        if late:
            self._connection.wake()

    def drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        # The library would end the connection with it; what is under way shall still be answered.
        self._extra += GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id, error_code=0).serialize()
        for exchange in list(self._exchanges.values()):
            exchange.end_stream()

    def close(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.close()
        self._exchanges.clear()
        self._ids.clear()

    # ---- input

    def _frames(self, data: bytes) -> tuple[int, bytes]:
        """How many of these bytes are done with, and what the library is to have of them: a few frames. -1: nothing of
        this connection any more.

        The library collects up to a megabyte of headers from many frames, and then unpacks them in one go; no client
        needs more than one. A goodbye is kept from it: it would take what is under way for ended.
        """
        at = count = 0
        kept: list[bytes] = []
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                if not self._dropping:
                    kept.append(data[at : at + step])
                self._skip -= step
                at += step
                continue
            if count == MAX_FRAMES:
                break
            step = min(9 - len(self._frame_head), len(data) - at)
            self._frame_head += data[at : at + step]
            at += step
            if len(self._frame_head) == 9:
                head, self._frame_head = self._frame_head, b""
                self._skip = int.from_bytes(head[:3], "big")
                count += 1
                kind = head[3]
                if kind == _CONTINUATION or (kind == _HEADERS and self._skip > MAX_HEADERS):
                    return -1, b""
                self._dropping = kind == _GOAWAY
                if self._dropping:
                    self._leaving = True
                else:
                    kept.append(head)
        return at, b"".join(kept)

    def _cut_off(self, key: str, what: str) -> None:
        self._connection.blame(key, f"{what}: cut off")
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        self._connection.close()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            self._data(event)
        elif isinstance(event, h2.events.StreamEnded):
            exchange = self._exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.complete()
                if exchange.end_sent:
                    self._forget(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self._forget(event.stream_id)
            self._resets -= 1
            if self._resets < 0:
                self._cut_off("resets", "resets streams without end")
        elif isinstance(event, h2.events.WindowUpdated):
            self._unblock(event.stream_id)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._unblock_all()

    def _begin(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id
        assert number is not None
        if self._draining or self._app.full:
            self._h2.reset_stream(number, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        head, length = _head_of(event, self._connection)
        exchange = Exchange(self._app, head, self._loop, self._has_something)
        self._exchanges[number] = exchange
        self._ids[exchange] = number
        self._connection.note_request(under_way=True)
        exchange.begin(length)

    def _data(self, event: h2.events.DataReceived) -> None:
        number, counted = event.stream_id, event.flow_controlled_length or 0
        assert number is not None
        exchange = self._exchanges.get(number)
        if exchange is not None:
            exchange.receive(event.data or b"")
            if exchange.discarded > MAX_DISCARDED:
                self._reset(number, h2.errors.ErrorCodes.NO_ERROR)
                exchange = None
        if counted and exchange is not None:
            self._h2.acknowledge_received_data(counted, number)
        elif counted:
            # Its stream is over; the connection's window is everybody's.
            self._h2.increment_flow_control_window(counted)

    # ---- output

    def _has_something(self, exchange: Exchange) -> None:
        number = self._ids.get(exchange)
        if number is not None and number not in self._blocked and number not in self._starved:
            self._queue(number)
            self._connection.wake()

    def _queue(self, number: int) -> None:
        if number not in self._in_line:
            self._in_line.add(number)
            self._line.append(number)

    def _unblock(self, number: int | None) -> None:
        """A window has opened: of one stream, or (0) of the connection, for which only some may be waiting."""
        if number:
            if number in self._blocked:
                self._blocked.discard(number)
                self._queue(number)
            return
        for starved in self._starved:
            self._queue(starved)
        self._starved.clear()

    def _unblock_all(self) -> None:
        """All windows may have opened."""
        self._starved |= self._blocked
        self._blocked.clear()
        self._unblock(0)

    def _send(self, number: int, exchange: Exchange) -> None:
        """The head if it was not sent, and one frame of the body."""
        connection, response = self._h2, exchange.response
        assert response is not None
        try:
            if not exchange.head_sent:
                exchange.head_sent = True
                headers = [(b":status", b"%d" % response.status), *response.fields(self._date())]
                nothing = exchange.ended and not exchange.chunks
                connection.send_headers(number, headers, end_stream=nothing)
                if nothing:
                    self._answered(number)
                    return
            if exchange.chunks:
                room = min(connection.local_flow_control_window(number), connection.max_outbound_frame_size)
                if room <= 0:
                    (self._starved if connection.outbound_flow_control_window <= 0 else self._blocked).add(number)
                    return
                data = exchange.take(room)
                last = exchange.ended and not exchange.chunks
                connection.send_data(number, bytes(data), end_stream=last)
                if last:
                    self._answered(number)
                elif exchange.chunks:
                    self._queue(number)
            elif exchange.ended:
                connection.end_stream(number)
                self._answered(number)
        except (h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError):
            self._forget(number)  # the client has closed it meanwhile

    def _answered(self, number: int) -> None:
        exchange = self._exchanges[number]
        exchange.end_sent = True
        self._resets = min(MAX_RESETS, self._resets + 1)
        if exchange.whole:
            self._forget(number)

    def _reset(self, number: int, code: h2.errors.ErrorCodes) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # it is closed already
            self._h2.reset_stream(number, code)
        self._forget(number)

    def _forget(self, number: int) -> None:
        exchange = self._exchanges.pop(number, None)
        self._blocked.discard(number)
        self._starved.discard(number)
        if exchange is not None:
            del self._ids[exchange]
            exchange.close()
            if not self._exchanges:
                self._connection.note_request(under_way=False)
                if self._leaving:
                    self._connection.close()


def _head_of(event: h2.events.RequestReceived, connection: Connection) -> tuple[Request, int | None]:
    """The request without its body, and the length of that if it was told."""
    headers: dict[str, str] = {}
    for name, value in event.headers or ():
        headers[bytes(name).decode("latin-1")] = bytes(value).decode("latin-1")
    method, path = headers.pop(":method", ""), headers.pop(":path", "")
    scheme = headers.pop(":scheme", "http")
    if connection.scheme == "https":
        scheme = "https"  # else a proxy may know better
    authority = headers.pop(":authority", "")
    if authority:
        headers["host"] = authority
    length = headers.get("content-length", "")
    head = Request(method, path.partition("?")[0], headers, b"", connection.peer, scheme, connection)
    return head, int(length) if length.isascii() and length.isdigit() and len(length) < 20 else None
