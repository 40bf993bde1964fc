"""A port that speaks TLS, and nothing else unless told to: how connections are taken, and how many may be on their way.

asyncio's own server begins a handshake for whoever connects, whatever their number, and tells nobody how they ended.
Here connections that have not shaken hands are counted, few of them are worked on at a time (rules J1: a handshake is
half a millisecond of the loop that consensus lives in), each has a time limit, and if there are too many the oldest
goes: an honest one takes milliseconds. What does not begin as TLS does is closed unread, but for ports that also take
clear connections.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kvorum_raft.tls import SHUTDOWN_TIMEOUT

AT_ONCE: Final = 16
"""Handshakes that are worked on at a time; others wait."""
_HANDSHAKE: Final = 22
"""First byte of a TLS record that opens a connection."""
_NO_FILES: Final = 0.1
"""Seconds without taking connections when this process or machine has no descriptors left."""
_TURN: Final = 0.05
"""Seconds after which a handshake is not counted as being worked on: what costs the server is its first answer."""
Report = Callable[[str, str, str], None]


class TlsPort:
    """`start` (or `bind`, and later `take`), `close`, `wait_closed`. `protocol` makes an asyncio protocol, which is
    told of a connection when its handshake is done; `context` is asked for each.

    `patience` is seconds for a handshake, `half_open` how many connections may be without one. `report` is called with
    where from, a kind that is one of a few, and a sentence. `plain_answer` is what a client gets that begins with a
    letter. `in_clear` makes the protocol of connections that do not begin as TLS does; without it they are closed
    unread.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        context: Callable[[], ssl.SSLContext],
        *,
        patience: float,
        half_open: int,
        report: Report,
        plain_answer: bytes = b"",
        in_clear: Callable[[], asyncio.Protocol] | None = None,
        farewell: float = SHUTDOWN_TIMEOUT,
    ) -> None:
        """`farewell`: seconds that what is still to be sent, and the other side's end, may take when one is closed."""
        self._farewell = farewell
        self._protocol = protocol
        self._context = context
        self._patience = patience
        self._half_open = half_open
        self._report = report
        self._plain_answer = plain_answer
        self._in_clear = in_clear
        self._working = asyncio.Semaphore(AT_ONCE)
        self._sockets: list[socket.socket] = []
        self._takers: list[asyncio.Task[None]] = []
        self._newcomers: dict[asyncio.Task[None], _Newcomer] = {}
        self.counters = dict.fromkeys(
            ("tls_accepted", "tls_failed", "tls_not_tls", "tls_too_slow", "tls_crowded_out", "tls_gone"), 0
        )

    async def start(self, host: str | None, port: int, backlog: int) -> None:
        """Bind, and take connections. Raises OSError."""
        await self.bind(host, port, backlog)
        self.take()

    async def bind(self, host: str | None, port: int, backlog: int) -> None:
        """Whoever connects waits until connections are taken. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, place in dict.fromkeys(found):
                self._sockets.append(_listener(family, kind, protocol, place, backlog))
        except OSError:
            self.close()
            raise

    def take(self) -> None:
        """Take connections, from now on."""
        loop = asyncio.get_running_loop()
        self._takers = [loop.create_task(self._take(listener)) for listener in self._sockets]

    def close(self) -> None:
        """Take no more; those without a handshake are cut. The others are their protocols'."""
        for task in (*self._takers, *self._newcomers):
            task.cancel()
        if not self._takers:
            self._end_sockets()

    async def wait_closed(self) -> None:
        """Until that is done."""
        await asyncio.gather(*self._takers, *self._newcomers, return_exceptions=True)
        self._end_sockets()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """Those that it listens with."""
        return tuple(self._sockets)

    @property
    def waiting(self) -> int:
        """Connections without a handshake."""
        return len(self._newcomers)

    def statistics(self) -> dict[str, float]:
        """Counts since the start."""
        return {**self.counters, "tls_half_open": len(self._newcomers)}

    # ---- inside

    def _end_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    async def _take(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, place = await _accepted(listener)
                except OSError as error:
                    if error.errno == errno.ECONNABORTED:
                        continue  # that one is gone already
                    self._report("?", "no_room", f"cannot take connections: {error.strerror or error}")
                    await asyncio.sleep(_NO_FILES)
                    continue
                newcomer = _Newcomer(connection, str(place))
                task = loop.create_task(self._let_in(newcomer))
                self._newcomers[task] = newcomer
                task.add_done_callback(self._is_through)
                while len(self._newcomers) > self._half_open:
                    await self._crowd_out()
        finally:
            listener.close()

    async def _crowd_out(self) -> None:
        """End the oldest, and see it gone: while connections wait in the kernel, they are taken without a turn of the
        loop, in which nobody would go."""
        oldest = next((task for task in self._newcomers if not task.cancelling()), None)
        if oldest is None:
            await asyncio.sleep(0)  # all of them are ending
            return
        self.counters["tls_crowded_out"] += 1
        oldest.cancel()
        await asyncio.wait((oldest,))

    def _is_through(self, task: asyncio.Task[None]) -> None:
        """One way or the other; a task that was cancelled before its first step has done nothing at all."""
        newcomer = self._newcomers.pop(task)
        if newcomer.connection is not None:
            newcomer.connection.close()

    async def _let_in(self, newcomer: "_Newcomer") -> None:
        deadline = asyncio.get_running_loop().time() + self._patience
        connection, where = newcomer.connection, newcomer.where
        assert connection is not None
        try:
            connection.setblocking(False)
            async with asyncio.timeout_at(deadline):
                first = await _first_byte(connection)
                if first not in (None, _HANDSHAKE) and self._in_clear is not None:
                    newcomer.connection = None
                    await asyncio.get_running_loop().connect_accepted_socket(self._in_clear, connection)
                    return
                if first != _HANDSHAKE:
                    self._refuse_plain(connection, where, first)
                    return
                await self._working.acquire()
            newcomer.connection = None
            await self._shake_hands(connection, deadline)
            self.counters["tls_accepted"] += 1
        except TimeoutError:
            self._count("too_slow", where, f"no handshake within {self._patience:g} s")
        except ssl.SSLError as error:
            self._count("failed", where, reason(error))
        except OSError as error:
            timeout = isinstance(error, ConnectionAbortedError)  # what asyncio makes of a handshake without an end
            text = f"no handshake within {self._patience:g} s" if timeout else str(error)
            self._count("too_slow" if timeout else "gone", where, text)

    async def _shake_hands(self, connection: socket.socket, deadline: float) -> None:
        """Gives the turn that was acquired back: at the end, or soon, since who is slow costs nothing while waiting."""
        loop = asyncio.get_running_loop()
        turn = _Turn(self._working)
        timer = loop.call_later(_TURN, turn.end)
        try:
            await loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._context(),
                ssl_handshake_timeout=max(0.05, deadline - loop.time()),
                ssl_shutdown_timeout=self._farewell,
            )
        finally:
            timer.cancel()
            turn.end()

    def _refuse_plain(self, connection: socket.socket, where: str, first: int | None) -> None:
        if first is None:
            self._count("gone", where, "")
            return
        self._count("not_tls", where, f"what came is not TLS: its first byte is {first:#04x}")
        if self._plain_answer and chr(first).isascii() and chr(first).isalpha():
            with contextlib.suppress(OSError):
                connection.send(self._plain_answer)
                # What it sent is read, so that the kernel does not answer it with a reset that overtakes our answer.
                connection.shutdown(socket.SHUT_WR)
                connection.recv(65_536)

    def _count(self, kind: str, where: str, text: str) -> None:
        self.counters[f"tls_{kind}"] += 1
        if text:
            self._report(where, kind, text)


class _Newcomer:
    """A connection without a handshake. `connection` is None when the socket is the event loop's."""

    def __init__(self, connection: socket.socket, where: str) -> None:
        self.connection: socket.socket | None = connection
        self.where = where


class _Turn:
    """One of the handshakes that are worked on; ends once."""

    def __init__(self, working: asyncio.Semaphore) -> None:
        self._working: asyncio.Semaphore | None = working

    def end(self) -> None:
        working, self._working = self._working, None
        if working is not None:
            working.release()


def reason(error: ssl.SSLError) -> str:
    """What a person wants to know of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other side's certificate is not accepted: {error.verify_message}"
    text = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in text:
        return f"the other side does not accept this node's certificate or settings: {text}"
    return text


def _listener(family: int, kind: int, protocol: int, place: Any, backlog: int) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(place)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


async def _accepted(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection. Unlike the loop's own `sock_accept`, this loses none if it is cancelled in the turn in which
    one comes."""
    while True:
        try:
            return listener.accept()
        except (BlockingIOError, InterruptedError):
            await _readable(listener)


async def _first_byte(connection: socket.socket) -> int | None:
    """Wait for it, and leave it there; None if the connection ended before."""
    await _readable(connection)
    data = connection.recv(1, socket.MSG_PEEK)
    return data[0] if data else None


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
