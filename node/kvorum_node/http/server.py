"""The HTTP server: HTTP/1.1 and HTTP/2 by prior knowledge on one port, in the node's own loop.

Written for this place, on h11 and h2, because of what the loop is for: consensus lives in it (rules J1). General
servers (hypercorn was tried) parse and answer in the callback that brings the bytes, for as long as that takes; have no
limit of connections; and let a client that does not read, or sends after it was refused, hold what it holds. Here all
connections share a few milliseconds of each turn of the loop, and everything that a client can hold has a bound.
"""

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from itertools import islice
from time import perf_counter
from typing import Final

from kvorum_raft.quiet_log import QuietLog
from kvorum_raft.tls_port import TlsPort

from ..descriptors import at_most
from .app import App
from .connection import CLOSE_STALL, Codec, Connection
from .http1 import Http1
from .http2 import Http2

logger = logging.getLogger("kvorum.http")

SHARE: Final = 0.0005
"""Seconds of one turn of the loop that all connections have together."""
MAX_CONNECTIONS: Final = 2_000
SPARED: Final = 5.0
"""Seconds without a request before a connection may have to make room: clients that keep one mean to use it again."""
CANDIDATES: Final = 32
"""Connections of which one may have to make room. Hundreds that come at once must not cost a look at thousands each."""
BACKLOG: Final = 1_024
LOOK: Final = 1.0
"""Seconds between looks for what takes too long."""
LOOKED_AT: Final = 64
"""Connections looked at in one turn of the loop."""
HANDSHAKE_TIMEOUT: Final = 10.0
HALF_OPEN: Final = 512
"""Connections that have not shaken hands yet."""
USE_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 39\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS: write https://.\r\n"
)
GRACE: Final = 1.0
"""Seconds that last answers have when the server stops."""


class HttpServer:
    """`start`, `drain`, `stop`; `kvorum_node.http.connection.Host`."""

    def __init__(
        self,
        app: App,
        host: str,
        port: int,
        *,
        max_connections: int = MAX_CONNECTIONS,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` is asked for each connection; None: in clear."""
        self._tls = tls
        self._app = app
        self._host, self._port = host, port
        self._max_connections = max_connections
        self.loop = asyncio.get_running_loop()
        self.quiet = QuietLog(logger, self.loop.time)
        self.draining = False
        self._server: asyncio.Server | TlsPort | None = None
        self._connections: dict[Connection, None] = {}
        self._line: deque[Connection] = deque()
        self._turning = False
        self._look: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self._date = b""
        self._date_of = 0
        self._turns = self._steps = 0
        self._seconds = self._longest = 0.0
        self._made = self._turned_away = 0

    async def start(self) -> None:
        """Bind and serve. Raises OSError if the address cannot be had."""
        if self._tls is None:
            self._server = await self.loop.create_server(
                lambda: Connection(self), self._host, self._port, backlog=BACKLOG, reuse_address=True
            )
        else:
            self._server = TlsPort(
                lambda: Connection(self),
                self._tls,
                patience=HANDSHAKE_TIMEOUT,
                half_open=at_most(HALF_OPEN, 1),
                report=self._tls_refused,
                plain_answer=USE_TLS,
                farewell=CLOSE_STALL,
            )
            await self._server.start(self._host, self._port, BACKLOG)
        self._plan_look()

    async def drain(self, patience: float) -> None:
        """Take no more requests; end endless answers; wait until the others are out, at most `patience` seconds."""
        if self.draining:
            return
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()
        await self._until_empty(patience)

    async def stop(self) -> None:
        """End everything."""
        await self.drain(GRACE)
        await self._until_empty(GRACE)
        for connection in list(self._connections):
            connection.abort()
        await self._until_empty(GRACE)
        if isinstance(self._server, TlsPort):
            await self._server.wait_closed()
        if self._look is not None:
            self._look.cancel()
            self._look = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """What it listens on."""
        sockets = self._server.sockets if self._server is not None else ()
        return [socket.getsockname()[:2] for socket in sockets]

    def statistics(self) -> dict[str, float]:
        """Seconds and counts."""
        port = self._server.statistics() if isinstance(self._server, TlsPort) else {}
        return {
            "http_connections": len(self._connections),
            "http_connections_made": self._made,
            "http_connections_turned_away": self._turned_away,
            "http_turns": self._turns,
            "http_steps": self._steps,
            "http_seconds": self._seconds,
            "http_longest_turn": self._longest,
            **{f"http_{name}": value for name, value in port.items()},
        }

    # ---- Host

    def schedule(self, connection: Connection) -> None:
        """Give it a turn."""
        if connection.scheduled:
            return
        connection.scheduled = True
        self._line.append(connection)
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def made(self, connection: Connection) -> bool:
        """A new connection; False: there is no room for it."""
        if len(self._connections) >= self._max_connections and not self._make_room():
            self._turned_away += 1
            return False
        self._made += 1
        self._connections[connection] = None
        return True

    def lost(self, connection: Connection) -> None:
        """It is gone."""
        self._connections.pop(connection, None)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def codec(self, connection: Connection, *, version_2: bool) -> Codec:
        """The version of HTTP that it speaks."""
        kind = Http2 if version_2 else Http1
        return kind(connection, self._app, self.loop, self._now)

    # ---- inside

    def _tls_refused(self, where: str, kind: str, text: str) -> None:
        """Counted by the port."""
        self.quiet.warning(f"tls {kind}", f"closed a connection from {where}: {text}")

    def _make_room(self) -> bool:
        """Cut a connection that never asked for anything, or has been quiet for long; False: there is none."""
        now, connections = self.loop.time(), self._connections
        candidates = list(islice(connections, CANDIDATES))
        for connection in candidates:  # at others the next time
            connections[connection] = connections.pop(connection)
        idle = max(candidates, key=lambda connection: connection.idle_for(now))
        if idle.idle_for(now) < SPARED:
            return False
        idle.abort()
        connections.pop(idle, None)
        return True

    def _turn(self) -> None:
        """Work for as long as one turn of the loop allows."""
        self._turning = False
        begun = now = perf_counter()
        line = self._line
        while line and now - begun < SHARE:
            connection = line.popleft()
            connection.scheduled = False
            connection.turn()
            self._steps += 1
            now = perf_counter()
        self._turns += 1
        self._seconds += now - begun
        self._longest = max(self._longest, now - begun)
        if line and not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def _plan_look(self) -> None:
        self._look = self.loop.call_later(LOOK, self._look_around)

    def _look_around(self) -> None:
        self._look_at(list(self._connections))

    def _look_at(self, connections: list[Connection]) -> None:
        """Some in each turn of the loop."""
        now = self.loop.time()
        for connection in connections[:LOOKED_AT]:
            connection.check(now)
        if len(connections) > LOOKED_AT:
            self._look = self.loop.call_later(0, self._look_at, connections[LOOKED_AT:])
        else:
            self._plan_look()

    async def _until_empty(self, patience: float) -> None:
        if self._connections:
            self._empty = self.loop.create_future()
            await asyncio.wait([self._empty], timeout=patience)

    def _now(self) -> bytes:
        """For the date header; made once a second."""
        now = int(time.time())
        if now != self._date_of:
            self._date_of, self._date = now, formatdate(now, usegmt=True).encode()
        return self._date
