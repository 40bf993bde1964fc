"""One TCP connection: which version of HTTP it speaks, and work in small steps.

A connection never works in the callback that brings its data. It asks for a turn, and the server gives all connections
together a few milliseconds in each turn of the loop, so whatever clients send, consensus has its share (rules J1). What
has not been worked off stays in the connection's inbox; when that is full, nothing more is read from the socket.
"""

import asyncio
import logging
import socket
from collections import deque
from typing import Final, Protocol, cast

from kvorum_raft.quiet_log import QuietLog

_logger = logging.getLogger("kvorum.http")

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_INBOX: Final = 65_536
"""Bytes of input that wait before reading pauses."""
MAX_UNSENT: Final = 131_072
"""Bytes in the socket's buffer above which nothing more is produced."""
HEAD_TIMEOUT: Final = 10.0
"""Seconds that the head of a request may take, once it has begun or the connection is new."""
IDLE_TIMEOUT: Final = 120.0
"""Seconds without a request before a connection is closed. Well above what clients keep theirs for: closing one that
is just being used is an error for them."""
CLOSE_STALL: Final = 5.0
"""Seconds that the last bytes of a closed connection, and the client's own end, may take."""
LINGER: Final = 0.1
"""Seconds of silence of the client before the end of TLS is said."""
MAX_DISCARDED: Final = 1_048_576
"""Bytes that a client may send on a connection that is over."""
WRITE_STALL: Final = 30.0
"""Seconds in which the client must read something of what is in the socket's buffer."""


class Codec(Protocol):
    """One version of HTTP on one connection."""

    piece: int
    """Bytes of input that it takes in one step."""

    def accepts_input(self) -> bool: ...
    def receive(self, data: bytes) -> int:
        """Take input; how many of these bytes were taken."""
        ...

    def send_some(self) -> bool:
        """Produce a little output; False if there is none."""
        ...

    def flush(self) -> bytes:
        """The bytes produced so far."""
        ...

    def busy(self) -> bool:
        """Requests are under way."""
        ...

    def midway(self) -> bool:
        """Something has come that is not whole yet."""
        ...

    def check(self, now: float) -> None:
        """End what is too slow."""
        ...

    def drain(self) -> None:
        """Take no more requests; end what would not end by itself."""
        ...

    def close(self) -> None:
        """The connection is gone."""
        ...


class Host(Protocol):
    """What a connection needs of its server."""

    loop: asyncio.AbstractEventLoop
    quiet: QuietLog
    draining: bool

    def schedule(self, connection: "Connection") -> None: ...
    def made(self, connection: "Connection") -> bool: ...
    def lost(self, connection: "Connection") -> None: ...
    def codec(self, connection: "Connection", *, version_2: bool) -> Codec: ...


class Connection(asyncio.Protocol):
    """See the module."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._inbox: deque[bytes] = deque()
        self._inbox_size = 0
        self._reading_paused = False
        self._writing_paused = False
        self._paused_at = 0.0
        self._codec: Codec | None = None
        self._transport: asyncio.Transport | None = None
        self._quiet_since = host.loop.time()
        self._midway_since: float | None = None
        self._served = False
        self._closing = False
        self._discarded = 0
        self._linger: asyncio.TimerHandle | None = None
        self._heard_since_close = False
        self.scheduled = False
        self.peer = ""
        self.scheme = "http"

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's has no common ancestor with asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = name[0] if name else ""
        if transport.get_extra_info("ssl_object") is not None:
            self.scheme = "https"
        transport.set_write_buffer_limits(high=MAX_UNSENT)
        # A client whose machine is gone closes nothing, and a watch's signs of life are too small to fill a buffer.
        raw = transport.get_extra_info("socket")
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_STALL * 1000))
        if not self._host.made(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        self._inbox.clear()
        if self._codec is not None:
            self._codec.close()
            self._codec = None  # it knows this connection: together they would wait for the collector of cycles
        self._host.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._heard_since_close = True
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED:
                self.abort()
            return
        self._inbox.append(data)
        self._inbox_size += len(data)
        if self._inbox_size > MAX_INBOX and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._host.schedule(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._paused_at = self._host.loop.time()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._host.schedule(self)

    # ---- the server's side

    def wake(self) -> None:
        """There is something to send."""
        self._host.schedule(self)

    def turn(self) -> None:
        """Take one step; asks for another turn if something is left."""
        if self._transport is None or self._writing_paused or self._closing:
            return
        try:
            more = self._step()
            self._write()
        except Exception:  # one connection's trouble is nobody else's
            _logger.exception("a connection from %s is cut after a fault of this node", self.peer)
            self.abort()
            return
        if more:
            self._host.schedule(self)

    def check(self, now: float) -> None:
        """Called every second: end what takes too long."""
        codec = self._codec
        if self._writing_paused and now - self._paused_at > WRITE_STALL:
            self.abort()
        elif self._closing:
            if now - self._quiet_since > CLOSE_STALL:
                self.abort()
        elif codec is not None and codec.busy():
            self._midway_since = None
            codec.check(now)
        elif self.scheduled:
            pass  # it is waiting for us
        elif self._served and (codec is None or not codec.midway()):
            self._midway_since = None
            if now - self._quiet_since > IDLE_TIMEOUT:
                self.close()
        else:
            # A half-received head is not idleness, and must not hold a place for long.
            if self._midway_since is None:
                self._midway_since = now if self._served else self._quiet_since
            if now - self._midway_since > HEAD_TIMEOUT:
                self.abort()

    def idle_for(self, now: float) -> float:
        """Seconds without a request; endless if it never made one, 0 while one is under way."""
        if self._codec is not None and self._codec.busy():
            return 0.0
        return now - self._quiet_since if self._served else float("inf")

    def note_request(self, *, under_way: bool) -> None:
        """A request began, or the last one is over."""
        self._served = True
        self._quiet_since = self._host.loop.time()
        if not under_way and self._host.draining:
            self.close()

    def drain(self) -> None:
        """Take no more requests."""
        codec = self._codec
        if codec is not None:
            codec.drain()
        if codec is None or not codec.busy():
            self.close()
        else:
            self._host.schedule(self)

    def close(self) -> None:
        """Send what is there and the end, and wait for the client to close as well, not for long.

        Closing at once would not do: what the client has sent meanwhile would be answered by the kernel with a reset,
        and that can overtake answers which are still on their way. They would be lost, and a write sent again.
        """
        transport = self._transport
        if self._closing or transport is None:
            return
        self._write()
        self._closing = True
        self._quiet_since = self._host.loop.time()
        self._inbox.clear()
        if transport.is_closing():
            return
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()
        try:
            if self.scheme == "https":
                self._linger = self._host.loop.call_later(LINGER, self._part)
            else:
                transport.write_eof()
        except OSError:
            transport.abort()  # the client is gone

    def _part(self) -> None:
        """TLS has no half of an end: after its goodbye, whatever the client still sends is an error, and cuts it off
        from what it has not read. So first it gets the time to stop, which is short when it sends nothing."""
        if self._heard_since_close:
            self._heard_since_close = False
            self._linger = self._host.loop.call_later(LINGER, self._part)
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def blame(self, key: str, what: str) -> None:
        """Log what the client did wrong; once in a while, since it can do it at will."""
        self._host.quiet.warning(key, f"a connection from {self.peer} {what}")

    # ---- inside

    def _step(self) -> bool:
        codec = self._codec
        if codec is None:
            codec = self._codec = self._decide()
            if codec is None:
                return False
        if codec.send_some():
            return True
        if not self._inbox or not codec.accepts_input():
            return False
        data = self._inbox.popleft()
        piece = codec.piece
        if len(data) > piece:
            self._inbox.appendleft(data[piece:])
            data = data[:piece]
        taken = codec.receive(data)
        if taken < len(data):
            self._inbox.appendleft(data[taken:])
        self._inbox_size -= taken
        if self._reading_paused and self._inbox_size <= MAX_INBOX // 2 and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        return True

    def _decide(self) -> Codec | None:
        """HTTP/2 has a preface that no request of HTTP/1.1 looks like."""
        data = b"".join(self._inbox)
        begin = data[: len(PREFACE)]
        version_2 = begin == PREFACE
        if not version_2 and PREFACE.startswith(begin):
            return None
        self._inbox = deque((data,))
        return self._host.codec(self, version_2=version_2)

    def _write(self) -> None:
        if self._closing:
            return  # the end was sent
        if self._codec is not None and self._transport is not None and not self._transport.is_closing():
            data = self._codec.flush()
            if data:
                self._transport.write(data)
