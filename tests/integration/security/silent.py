"""Calls that are begun and never say anything: heads of HTTP/2 streams to a gRPC port, with no message behind them."""

import asyncio
from collections import Counter

import h2.config
import h2.connection
import h2.events


class SilentCalls:
    """A connection with as many silent calls as the server lets it have."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._news = asyncio.Event()
        self.ended = 0
        """Calls that the server has ended."""
        self.words: Counter[str] = Counter()
        """What it said of them."""
        self.over = ""
        """Why there is no connection any more."""

    async def __aenter__(self) -> "SilentCalls":
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._h2.initiate_connection()
        self._writer.write(self._h2.data_to_send())
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()

    async def begin(self, path: str, count: int) -> None:
        """Send so many heads."""
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", f"{self._host}:{self._port}"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        for _ in range(count):
            self._h2.send_headers(self._h2.get_next_available_stream_id(), head)
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()

    async def all_ended(self, count: int) -> None:
        """Wait until the server has ended so many calls."""
        while self.ended < count:
            self._news.clear()
            await self._news.wait()

    async def _listen(self) -> None:
        said = "closed by the server"
        try:
            while data := await self._reader.read(65_536):
                for event in self._h2.receive_data(data):
                    if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
                        said_of = dict(event.headers or ())
                        if b"grpc-status" in said_of:
                            self.words[said_of.get(b"grpc-message", b"").decode()] += 1
                    elif isinstance(event, h2.events.StreamEnded):
                        self.ended += 1
                    elif isinstance(event, h2.events.ConnectionTerminated):
                        said = f"told to go: {event.error_code} {event.additional_data!r}"
                self._news.set()
                self._writer.write(self._h2.data_to_send())
        except OSError as error:
            said = f"{said}, {error}"
        self.over = said
