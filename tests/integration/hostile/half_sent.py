"""Messages of gRPC that are sent in part, as fast as the node opens its windows for them."""

import asyncio
from collections.abc import Mapping

from hyperframe.frame import DataFrame, Frame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from tests.integration.hostile.attacks import INITIAL_WINDOW

USUAL_WINDOW = 65_535
PIECE = 16_384
"""Bytes of data in a frame: what everybody takes."""
ZEROS = bytes(PIECE)


class HalfSent:
    """A connection of HTTP/2 whose preface and heads are sent already. On each of its streams its part of `begun` is
    sent and then `size` zeros; none is ended."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begun: Mapping[int, bytes], size: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._begun = begun
        self._size = size
        self._at = dict.fromkeys(begun, 0)
        self._room = 0
        """Bytes that the node takes on all streams together."""
        self._windows = dict.fromkeys(begun, 0)
        """The same on each."""
        self._initial = 0
        self.sent = 0
        """Bytes."""
        self.ended: set[int] = set()
        """Streams that the node has ended."""
        self.got = bytearray()
        """Data of all streams, up to a window of it."""

    @property
    def done(self) -> bool:
        whole = {number: len(begun) + self._size for number, begun in self._begun.items()}
        return all(number in self.ended or at == whole[number] for number, at in self._at.items())

    def finish(self, number: int) -> None:
        """Send the one byte that is missing."""
        self._writer.write(DataFrame(number, data=b"\0").serialize())

    async def run(self) -> None:
        """Until the node cuts the connection, which raises OSError."""
        self._room = USUAL_WINDOW
        self._open(USUAL_WINDOW)
        try:
            while True:
                await self._send()
                await self._take()
        except asyncio.IncompleteReadError:
            raise OSError("the node has cut the connection") from None

    def _open(self, initial: int) -> None:
        more, self._initial = initial - self._initial, initial
        for number in self._windows:
            self._windows[number] += more

    async def _send(self) -> None:
        for number, begun in self._begun.items():
            at = self._at[number]
            while number not in self.ended:
                left = len(begun) - at
                size = min(PIECE, left if left > 0 else left + self._size, self._room, self._windows[number])
                if size <= 0:
                    break
                data = begun[at : at + size] if left > 0 else ZEROS[:size]
                self._writer.write(DataFrame(number, data=data).serialize())
                at = self._at[number] = at + size
                self._room -= size
                self._windows[number] -= size
                self.sent += size
                if self._writer.is_closing():
                    raise OSError("the node has cut the connection")
                if self._writer.transport.get_write_buffer_size() > 1 << 20:
                    await self._writer.drain()
        await self._writer.drain()

    async def _take(self) -> None:
        """One frame of the node's."""
        frame, length = Frame.parse_frame_header(memoryview(await self._reader.readexactly(9)))
        content = await self._reader.readexactly(length)
        number = frame.stream_id
        if isinstance(frame, WindowUpdateFrame):
            more = int.from_bytes(content, "big")
            if number == 0:
                self._room += more
            elif number in self._windows:
                self._windows[number] += more
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            frame.parse_body(memoryview(content))
            self._open(frame.settings.get(INITIAL_WINDOW, self._initial))
            self._writer.write(SettingsFrame(0, flags=["ACK"]).serialize())
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            self._writer.write(PingFrame(0, opaque_data=content, flags=["ACK"]).serialize())
        elif isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags:
            self.ended.add(number)
        elif isinstance(frame, DataFrame):
            self.got += content
