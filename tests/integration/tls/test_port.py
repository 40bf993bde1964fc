"""`TlsPort` on both event loops: whatever comes in place of a handshake, and what is counted."""

import asyncio
import contextlib
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from kvorum_raft.tls_port import TlsPort
from tests.integration.raft.harness import wait_until
from tests.integration.tls.secure import Certificates, client_context, hello_bytes

PATIENCE = 1.0
HALF_OPEN = 40
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


class Desk:
    """A port, and what it reported."""

    def __init__(self, certificates: Certificates) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificates.pair("n1"))
        self.reports: Counter[str] = Counter()
        self.port = TlsPort(
            Echo,
            lambda: context,
            patience=PATIENCE,
            half_open=HALF_OPEN,
            report=lambda where, kind, text: self.reports.update([kind]),
            plain_answer=b"use TLS",
        )

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.port.sockets[0].getsockname()[:2]
        return host, port

    async def says(self, data: bytes, *, end: bool) -> bytes:
        """What a client hears that sends this, until it is cut off; `end`: it says that this was all."""
        reader, writer = await asyncio.open_connection(*self.place)
        found = b""
        with contextlib.suppress(OSError):
            writer.write(data)
            if end:
                writer.write_eof()
            async with asyncio.timeout(20):
                found = await reader.read()
        writer.transport.abort()
        return found

    async def is_served(self) -> None:
        reader, writer = await asyncio.open_connection(*self.place, ssl=client_context(None))
        writer.write(b"hello")
        async with asyncio.timeout(20):
            assert await reader.readexactly(5) == b"hello"
        writer.transport.abort()

    async def all_gone(self) -> None:
        await wait_until(lambda: self.port.waiting == 0, what="end of all newcomers")


@contextlib.asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[Desk]:
    made = Desk(Certificates(folder, nodes=1))
    await made.port.start("127.0.0.1", 0, 128)
    try:
        yield made
    finally:
        made.port.close()
        await made.port.wait_closed()


def run(loop: str, test: Callable[[Desk], object], folder: Path) -> None:
    async def whole() -> None:
        async with desk(folder) as made:
            await test(made)  # type: ignore[misc]
            await made.is_served()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())


both = pytest.mark.parametrize("loop", LOOPS)


@both
def test_mutated_handshakes(loop: str, tmp_path: Path) -> None:
    """Each is over at once, none leaves anything behind, and each is counted once."""

    async def test(made: Desk) -> None:
        rng, whole = random.Random(7), hello_bytes()
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(rng.randrange(4)):
                data[rng.randrange(1, len(data))] = rng.randrange(256)
            kept = rng.choice((len(data), rng.randrange(1, len(data))))
            await made.says(bytes(data[:kept]), end=True)
        await made.all_gone()
        counters = made.port.counters
        assert sum(counters.values()) == 200
        assert counters["tls_not_tls"] == counters["tls_crowded_out"] == 0
        assert counters["tls_failed"] > 5

    run(loop, test, tmp_path)


@both
def test_each_kind_is_counted_and_reported(loop: str, tmp_path: Path) -> None:
    async def test(made: Desk) -> None:
        assert await made.says(b"GET / HTTP/1.1\r\n\r\n", end=False) == b"use TLS"
        assert await made.says(b"\x80noise", end=False) == b""
        assert await made.says(b"", end=True) == b""
        assert await made.says(b"", end=False) == b""  # says nothing
        await made.says(hello_bytes()[:-5], end=False)  # says nothing more
        await made.says(b"\x16\x03\x01\x00\x05hello", end=False)
        await made.all_gone()
        counters = made.port.counters
        assert counters["tls_not_tls"] == made.reports["not_tls"] == 2
        assert counters["tls_too_slow"] == made.reports["too_slow"] == 2
        assert counters["tls_failed"] == made.reports["failed"] == 1
        assert counters["tls_gone"] == 1  # not worth a line
        assert counters["tls_accepted"] == 0

    run(loop, test, tmp_path)


@both
def test_a_crowd_is_bounded_and_its_oldest_go(loop: str, tmp_path: Path) -> None:
    async def test(made: Desk) -> None:
        silent = [await asyncio.open_connection(*made.place) for _ in range(3 * HALF_OPEN)]
        await made.is_served()
        counters = made.port.counters
        assert made.port.waiting <= HALF_OPEN
        assert counters["tls_crowded_out"] >= 2 * HALF_OPEN
        oldest, _ = silent[0]
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError):
                assert await oldest.read() == b""
        for _, writer in silent:
            writer.transport.abort()
        await made.all_gone()

    run(loop, test, tmp_path)


@both
def test_a_crowd_that_comes_at_once_is_bounded_too(loop: str, tmp_path: Path) -> None:
    """Connections that wait in the kernel are taken without a pause: the limit holds for them all the same, and those
    that stay are the newest."""

    async def whole() -> None:
        made = Desk(Certificates(tmp_path, nodes=1))
        await made.port.bind("127.0.0.1", 0, 128)
        crowd = [socket.create_connection(made.place) for _ in range(2 * HALF_OPEN)]
        seen: list[int] = []
        try:
            made.port.take()
            while made.port.counters["tls_crowded_out"] < HALF_OPEN or made.port.waiting > HALF_OPEN:
                seen.append(made.port.waiting)
                await asyncio.sleep(0)
            assert max(seen) <= HALF_OPEN + 1  # the newest is there before the oldest goes
            crowd[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
            crowd[-1].setblocking(False)
            async with asyncio.timeout(20):
                assert await asyncio.get_running_loop().sock_recv(crowd[-1], 100) == b"use TLS"
                crowd[0].setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(crowd[0], 100) == b""
        finally:
            for one in crowd:
                one.close()
            made.port.close()
            await made.port.wait_closed()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())


@both
def test_a_port_that_closes_leaves_nothing(loop: str, tmp_path: Path) -> None:
    async def whole() -> None:
        async with desk(tmp_path) as made:
            place = made.place
            reader, writer = await asyncio.open_connection(*place)
            writer.write(hello_bytes()[:20])
            silent, other = await asyncio.open_connection(*place)
            await wait_until(lambda: made.port.waiting == 2, what="newcomers")
        for one in (reader, silent):
            with contextlib.suppress(OSError):
                assert await one.read() == b""
        for end in (writer, other):
            end.transport.abort()
        with pytest.raises(OSError):
            await asyncio.open_connection(*place)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(whole())
