"""Counts the requests that pass between a client and a node, and changes nothing about them.

A forwarder of bytes, so that a dying node looks to the client as it would without: connections break, and new ones are
refused. It reads along on the way to the node: requests of HTTP/1.1 by their length, those of HTTP/2 by its frames,
whose headers need not be understood to collect the bodies. (A proxy that ends the protocol on both sides would have to
answer in the node's place when that dies, and clients take an answer otherwise than a broken connection.)
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER = 9
DATA, PADDED, END_STREAM = 0, 0x8, 0x1
PIECE = 1 << 16


class RequestBodies:
    """Takes the bytes of one connection on their way to the server, and gives the bodies that are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._streams: dict[int, bytearray] = {}
        self._http2 = False

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Errors: ValueError for a request that this does not understand."""
        self._buffer += piece
        if not self._http2 and len(self._buffer) < len(PREFACE) and PREFACE.startswith(self._buffer):
            return
        if self._buffer.startswith(PREFACE):
            self._http2 = True
            del self._buffer[: len(PREFACE)]
        while (body := self._frame() if self._http2 else self._request()) is not None:
            if body:
                yield body

    def _frame(self) -> bytes | None:
        """The next frame's end of a body; empty if it ends none, None if it is not there yet."""
        length = int.from_bytes(self._buffer[:3])
        if len(self._buffer) < FRAME_HEADER or len(self._buffer) < FRAME_HEADER + length:
            return None
        kind, flags = self._buffer[3], self._buffer[4]
        stream = int.from_bytes(self._buffer[5:FRAME_HEADER]) & 0x7FFFFFFF
        content = bytes(self._buffer[FRAME_HEADER : FRAME_HEADER + length])
        del self._buffer[: FRAME_HEADER + length]
        if kind != DATA:
            return b""
        if flags & PADDED:
            content = content[1 : len(content) - content[0]]
        self._streams.setdefault(stream, bytearray()).extend(content)
        return bytes(self._streams.pop(stream)) if flags & END_STREAM else b""

    def _request(self) -> bytes | None:
        head, end, _ = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            return None
        length = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
        if length is None:
            raise ValueError(f"a request without a length: {head!r}")
        total = len(head) + len(end) + int(length[1])
        if len(self._buffer) < total:
            return None
        body = bytes(self._buffer[len(head) + len(end) : total])
        del self._buffer[:total]
        return body


class Tap:
    """A port on this machine that leads to `address`; `arrivals` counts what `pattern` finds in complete bodies.

    With a thread and a loop of its own. `with Tap(address, pattern) as tap: … tap.url`
    """

    def __init__(self, address: str, pattern: re.Pattern[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._pattern = pattern
        self.arrivals: Counter[str] = Counter()
        self.problems: list[str] = []
        self.connections = 0
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            node_reader, node_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()  # as if nobody listened
            return
        bodies = RequestBodies()

        def read_along(piece: bytes) -> None:
            for body in bodies.feed(piece):
                self.arrivals.update(name.decode() for name in self._pattern.findall(body))

        directions = [
            asyncio.create_task(self._forward(reader, node_writer, read_along)),
            asyncio.create_task(self._forward(node_reader, writer, None)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            writer.transport.abort()
            node_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, read_along: "Callable[[bytes], None] | None"
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE):
                if read_along is not None:
                    try:
                        read_along(piece)
                    except ValueError as problem:
                        self.problems.append(str(problem))
                writer.write(piece)
                await writer.drain()

    def __enter__(self) -> "Tap":
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()
