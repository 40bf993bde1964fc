"""Connections of gRPC, shut from outside: those that are meant, by the names that gRPC has for them."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from kvorum_node.api.connections import shut

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """Listens for IPv6 and IPv4 at once, as gRPC does, and keeps what comes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.number: int = self._listening.getsockname()[1]
        self._accepted: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, sock=self._listening)

    def _take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.append(writer)

    async def connect(self, host: str) -> Pair:
        before = len(self._accepted)
        pair = await asyncio.open_connection(host, self.number)
        async with asyncio.timeout(30):
            while len(self._accepted) == before:  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.01)
        return pair

    async def stop(self) -> None:
        self._server.close()
        for writer in self._accepted:
            writer.close()
        await self._server.wait_closed()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    await made.start()
    yield made
    await made.stop()


def own_port(pair: Pair) -> int:
    return int(pair[1].get_extra_info("sockname")[1])


async def test_the_connections_of_a_peer_are_shut_and_no_others(port: Port) -> None:
    other = Port()
    await other.start()
    v4, v6, stays, elsewhere = [
        await where.connect(host)
        for where, host in ((port, "127.0.0.1"), (port, "::1"), (port, "127.0.0.1"), (other, "127.0.0.1"))
    ]
    local, remote = socket.socketpair()  # neither address nor port
    peers = {f"ipv4:127.0.0.1:{own_port(v4)}", f"ipv6:%5B::1%5D:{own_port(v6)}"}
    wrong_port = {f"ipv4:127.0.0.1:{own_port(elsewhere)}"}
    try:
        assert shut(port.number, peers | wrong_port) == 2
        async with asyncio.timeout(30):
            assert await v4[0].read() == b"" == await v6[0].read()
        assert shut(port.number, {"ipv4:192.0.2.1:1"}) == 0
        for _, writer in (stays, elsewhere):
            writer.write(b"alive")
            await writer.drain()
        assert not stays[0].at_eof() and not elsewhere[0].at_eof()
    finally:
        for one in (local, remote):
            one.close()
        for _, writer in (v4, v6, stays, elsewhere):
            writer.close()
        await other.stop()
