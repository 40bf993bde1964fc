"""The end of a connection of the HTTP port, which TLS makes harder: it has no half of an end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvorum_node.http import connection
from kvorum_node.http.server import HttpServer
from tests.integration.kv_connect.test_hostile import Echo, until
from tests.integration.tls.secure import Certificates, client_context


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[HttpServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Certificates(tmp_path, nodes=1).pair("n1"))
    server = HttpServer(Echo(), "127.0.0.1", 0, tls=lambda: context)
    await server.start()
    yield server
    await server.stop()
    assert server.statistics()["http_connections"] == 0


class SlowReader:
    """A client that reads from the socket only when it is told to."""

    def __init__(self, client: socket.socket) -> None:
        client.setblocking(False)
        self._socket = client
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context(None).wrap_bio(self._in, self._out)
        self._loop = asyncio.get_running_loop()

    async def _flush(self) -> None:
        await self._loop.sock_sendall(self._socket, self._out.read())

    async def _more(self) -> bool:
        data = await self._loop.sock_recv(self._socket, 65_536)
        self._in.write(data)
        return bool(data)

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                assert await self._more()
        await self._flush()

    async def write(self, data: bytes) -> None:
        self._tls.write(data)
        await self._flush()

    async def read_all(self) -> int:
        """Bytes until the node says that this is all."""
        got = 0
        while True:
            try:
                data = self._tls.read(65_536)
                got += len(data)
                if not data:
                    return got
            except ssl.SSLWantReadError:
                assert await self._more(), "cut off without an end"


async def test_an_answer_is_not_lost_because_the_client_sends_on(
    port: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after TLS's goodbye is an error, and the reset that follows takes along what is on its way: so it is
    not said while the client sends."""
    monkeypatch.setattr(connection, "CLOSE_STALL", 10.0)
    monkeypatch.setattr(connection, "WRITE_STALL", 10.0)
    with socket.create_connection(port.addresses[0]) as raw:
        client = SlowReader(raw)
        await client.shake_hands()
        await client.write(b"GET /some HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        await until(lambda: bool(port._connections) and all(one._closing for one in port._connections))
        for _ in range(20):
            await client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.sleep(0.02)  # a client at its own pace, for some times the node's patience
        async with asyncio.timeout(20):
            assert await client.read_all() > 40 * 65_536


async def test_a_client_that_waits_for_the_end_gets_it_soon(port: HttpServer) -> None:
    reader, writer = await asyncio.open_connection(*port.addresses[0], ssl=client_context(None))
    writer.write(b"POST / HTTP/1.0\r\ncontent-length: 3\r\n\r\nabc")
    async with asyncio.timeout(connection.CLOSE_STALL / 2):
        assert (await reader.read()).endswith(b"\r\n\r\nabc")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_a_client_that_never_stops_is_cut(port: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLOSE_STALL", 0.5)
    _, writer = await asyncio.open_connection(*port.addresses[0], ssl=client_context(None))
    writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    async with asyncio.timeout(20):
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
    await until(lambda: not port._connections)
