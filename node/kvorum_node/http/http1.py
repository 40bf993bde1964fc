"""HTTP/1.1: what Node, aiohttp, curl and health checks speak. One request at a time, kept alive in between.

The library h11 knows the protocol; here it is fed in pieces. While a request is under way nothing more is fed, so what
a client sends ahead waits in the connection's inbox.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import h11

from ..unquoted import unquoted
from .app import App
from .connection import Connection
from .exchange import Exchange
from .message import Request

MAX_HEAD: Final = 16_384
"""Bytes of a request line and its headers."""
MAX_CHUNK: Final = 65_536
"""Bytes of a body sent in one step."""
MAX_DISCARDED: Final = 4 * 1_048_576
"""Bytes of a refused body that are thrown away before the connection is closed: a client that is still sending does not
read the answer otherwise."""


class Http1:
    """`kvorum_node.http.connection.Codec`."""

    def __init__(self, connection: Connection, app: App, loop: asyncio.AbstractEventLoop, date: Callable[[], bytes]):
        self._connection = connection
        self._app = app
        self._loop = loop
        self._date = date
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._exchange: Exchange | None = None
        self._out: list[bytes] = []
        self._short = False
        self._last = False
        """The connection is to be closed after this answer."""

    # ---- Codec

    piece = 1_024

    def accepts_input(self) -> bool:
        return self._exchange is None or not self._exchange.whole

    def receive(self, data: bytes) -> int:
        self._h11.receive_data(data)
        self._advance()
        return len(data)

    def send_some(self) -> bool:
        exchange = self._exchange
        if exchange is None or not exchange.has_something or self._worth_waiting(exchange):
            return False
        response = exchange.response
        assert response is not None
        if not exchange.head_sent:
            exchange.head_sent = True
            headers = response.fields(self._date())
            if self._last or not exchange.whole:
                self._last = True
                headers.append((b"connection", b"close"))
            reason = HTTPStatus(response.status).phrase
            self._put(h11.Response(status_code=response.status, headers=headers, reason=reason))
        elif exchange.chunks:
            self._put(h11.Data(data=bytes(exchange.take(MAX_CHUNK))))
        elif exchange.ended:
            self._put(h11.EndOfMessage())
            exchange.end_sent = True
            if exchange.whole or self._h11.they_are_waiting_for_100_continue:
                self._finish()
        return True

    def flush(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def busy(self) -> bool:
        return self._exchange is not None

    def midway(self) -> bool:
        return bool(self._h11.trailing_data[0])

    def check(self, now: float) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.overdue(now):
            self._connection.abort()

    def drain(self) -> None:
        self._last = True
        if self._exchange is not None:
            self._exchange.end_stream()

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    # ---- inside

    def _worth_waiting(self, exchange: Exchange) -> bool:
        """A refused body that is short is read to its end, so that the connection lives on."""
        return self._short and not exchange.whole and not self._h11.they_are_waiting_for_100_continue

    def _advance(self) -> None:
        """Take what is complete."""
        while self.accepts_input():
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._broken(error)
                return
            if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                break
            exchange = self._exchange
            if isinstance(event, h11.Request):
                self._begin(event)
                if self._exchange is None:
                    return
            elif exchange is not None and isinstance(event, h11.Data):
                exchange.receive(bytes(event.data))
                if exchange.discarded > MAX_DISCARDED:
                    self._connection.close()
                    return
            elif exchange is not None and isinstance(event, h11.EndOfMessage):
                exchange.complete()
                if exchange.end_sent:
                    self._finish()
        exchange = self._exchange
        if exchange is not None and not exchange.received and self._h11.they_are_waiting_for_100_continue:
            self._put(h11.InformationalResponse(status_code=100, headers=[]))

    def _begin(self, event: h11.Request) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in between may have read it by the other one: where the next request begins is anybody's guess.
            self._broken(h11.RemoteProtocolError("both content-length and transfer-encoding", 400))
            return
        path = event.target.decode("latin-1").partition("?")[0]
        method, connection = event.method.decode("latin-1"), self._connection
        head = Request(method, path, headers, b"", connection.peer, connection.scheme, connection)
        self._exchange = Exchange(self._app, head, self._loop, self._has_something)
        self._connection.note_request(under_way=True)
        length = headers.get("content-length")
        size = None if length is None else int(length)  # h11 has looked at it
        self._short = size is not None and size <= MAX_CHUNK
        self._exchange.begin(size)

    def _has_something(self, _: Exchange) -> None:
        self._connection.wake()

    def _finish(self) -> None:
        """The answer is out."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
        if self._last or self._h11.our_state is h11.MUST_CLOSE or self._h11.their_state is not h11.DONE:
            self._connection.close()
            return
        self._h11.start_next_cycle()
        self._connection.note_request(under_way=False)
        self._advance()

    def _broken(self, error: h11.RemoteProtocolError) -> None:
        self._connection.blame("http1", f"broke the rules of HTTP/1.1: {unquoted(error)!r}")
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [(b"content-length", b"0"), (b"connection", b"close"), (b"date", self._date())]
            self._put(h11.Response(status_code=error.error_status_hint, headers=headers))
            self._put(h11.EndOfMessage())
        self._connection.close()

    def _put(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._out.append(data)
