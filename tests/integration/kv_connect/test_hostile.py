"""Clients that are slow, huge, cut off or ill-meaning, against the HTTP server alone: they are limited, and others do
not notice.

The application behind it answers at once, so that whatever takes long is the server's or the client's doing.
"""

import asyncio
import itertools
import os
import socket
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest

from kvorum_node.http import connection, exchange, http2, server
from kvorum_node.http.budget import Budget, Share
from kvorum_node.http.message import OCTETS, Refusal, Request, Response, text
from kvorum_node.http.server import HttpServer
from tests.pace import BUSY, Pace

from .wire import CLIENTS, Http1, Http2

LIMIT = 100_000
SLOWER = min(BUSY, 4.0)


class Echo:
    """POST / gives the body back, /none is refused, /stream never ends, /slow waits for `go`, /big answers much."""

    def __init__(self) -> None:
        self.bodies = Budget(1_000_000, "requests")
        self.go = asyncio.Event()
        self.under_way = 0
        self.streams = 0
        self.sent = 0
        self.handled = 0
        self.full = False

    def admit(self, head: Request) -> int:
        if head.path == "/none":
            raise Refusal(401, "no")
        return LIMIT

    def share(self) -> Share:
        return Share(self.bodies)

    def refused(self, refusal: Refusal, head: Request) -> Response:
        return refusal.response()

    async def handle(self, request: Request) -> Response:
        self.handled += 1
        try:
            if request.path == "/slow":
                await self.go.wait()
            if request.path == "/stream":
                return Response(200, OCTETS, stream=self._stream())
            if request.path == "/big":
                return Response(200, OCTETS, [b"x" * 65_536] * 200)
            if request.path == "/some":
                return Response(200, OCTETS, [b"x" * 65_536] * 40)
            return Response(200, OCTETS, (request.body,)) if request.body else text(200, "ok")
        finally:
            self.handled -= 1

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        self.streams += 1
        try:
            while True:
                self.sent += 1
                yield b"x" * 10_000
        finally:
            self.streams -= 1


@pytest.fixture
def app() -> Echo:
    return Echo()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """All patience is short, as far as the machine lets it be."""
    for module, name, value in (
        (server, "LOOK", 0.05),
        (connection, "HEAD_TIMEOUT", 0.3),
        (connection, "WRITE_STALL", 0.5),
        (connection, "CLOSE_STALL", 0.3),
        (exchange, "BODY_TIMEOUT", 0.4),
        (exchange, "STALL", 0.5),
    ):
        monkeypatch.setattr(module, name, value * SLOWER)


@pytest.fixture
async def port(app: Echo) -> AsyncIterator[HttpServer]:
    started = HttpServer(app, "127.0.0.1", 0, max_connections=20)
    await started.start()
    yield started
    await started.stop()
    assert app.bodies.held == 0 and app.handled == app.under_way == 0 and app.streams == 0
    assert started.statistics()["http_connections"] == 0


def address(port: HttpServer) -> str:
    return "{}:{}".format(*port.addresses[0])


async def raw(port: HttpServer, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*port.addresses[0])
    writer.write(data)
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await turn_of_the_loop()


async def turn_of_the_loop() -> None:
    await asyncio.sleep(0)


async def others_are_served(port: HttpServer) -> None:
    for version in CLIENTS.values():
        async with version(address(port)) as client:
            pace = Pace()
            assert (await client.request("POST", "/", b"hello")).body == b"hello"
            assert pace.seconds() < 2


async def is_cut_off(reader: asyncio.StreamReader) -> bytes:
    """What came until the end."""
    try:
        async with asyncio.timeout(10):
            return await reader.read(-1)
    except ConnectionError:
        return b""


# ---- slow ones


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"PRI * HTTP",
        b"POST / HTTP/1.1\r\nhost: x\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc",
    ],
    ids=["nothing", "half a preface", "half a head", "half a body"],
)
async def test_a_request_that_does_not_come_on_is_cut_off(port: HttpServer, begin: bytes) -> None:
    reader, writer = await raw(port, begin)
    begun, pace = time.monotonic(), Pace()
    await others_are_served(port)
    assert await is_cut_off(reader) == b""
    assert pace.seconds() < 5
    assert time.monotonic() - begun > 0.2
    writer.close()


async def test_a_head_that_drips_is_cut_off(port: HttpServer) -> None:
    reader, writer = await raw(port, b"GET / HTTP/1.1\r\nhost: x\r\n")
    ended = asyncio.ensure_future(is_cut_off(reader))
    pace = Pace()
    while not ended.done():
        writer.write(b"x: y\r\n")
        await asyncio.wait([ended], timeout=0.05)
    assert pace.seconds() < 3
    writer.close()


async def test_half_a_body_over_http2_resets_its_stream_and_no_other(port: HttpServer, app: Echo) -> None:
    async with Http2(address(port)) as client:
        half = await client.begin("POST", "/", b"half")
        for _ in range(int(40 * SLOWER)):
            assert (await client.request("POST", "/", b"x")).body == b"x"
            await asyncio.sleep(0.02)
        with pytest.raises(ConnectionResetError):
            await half.answer
        assert app.bodies.held == 0


@pytest.mark.parametrize("version", CLIENTS)
async def test_an_answer_that_nobody_reads_is_given_up(port: HttpServer, app: Echo, version: str) -> None:
    """13 MB do not fit into any buffer."""
    async with CLIENTS[version](address(port)) as client:
        client.stop_reading()
        client.write_request("/big")
        await until(lambda: port.statistics()["http_connections"] == 1)
        await others_are_served(port)
        await until(lambda: port.statistics()["http_connections"] == 0)


@pytest.mark.parametrize("version", CLIENTS)
async def test_an_endless_answer_is_produced_as_fast_as_it_is_read(port: HttpServer, app: Echo, version: str) -> None:
    async with CLIENTS[version](address(port)) as client:
        client.stop_reading()
        client.write_request("/stream")
        await until(lambda: app.streams == 1)
        await asyncio.sleep(0.3)
        # What the kernel's buffers and our own take; not what a second of a tight loop would give.
        assert app.sent * 10_000 < 12_000_000
        await until(lambda: app.streams == 0)


# ---- huge ones


@pytest.mark.parametrize("version", CLIENTS)
async def test_a_body_beyond_the_limit_is_refused(port: HttpServer, app: Echo, version: str) -> None:
    for headers in ({}, {"transfer-encoding": "chunked"} if version == "http1" else {"content-length": str(LIMIT + 1)}):
        async with CLIENTS[version](address(port)) as client:
            answer = await client.request("POST", "/", b"x" * (LIMIT + 1), headers)
            assert (answer.status, answer.text) == (
                413,
                f"The body of a request to this path has at most {LIMIT} bytes.",
            )
    async with CLIENTS[version](address(port)) as client:
        assert (await client.request("POST", "/", b"x" * LIMIT)).status == 200


async def test_a_body_without_end_is_not_taken_for_long(port: HttpServer, app: Echo) -> None:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    _, writer = await raw(port, head)
    sent = 0
    try:
        async with asyncio.timeout(20):
            while True:
                writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
                await writer.drain()
                sent += 65_536
                assert app.bodies.held <= LIMIT
    except ConnectionError:
        pass
    assert sent < 64_000_000
    writer.close()
    await others_are_served(port)


async def test_bodies_of_those_who_may_not_ask_are_never_held(port: HttpServer, app: Echo) -> None:
    async with Http2(address(port)) as client:
        answers = await asyncio.gather(*(client.request("POST", "/none", b"x" * 50_000) for _ in range(50)))
        assert {answer.status for answer in answers} == {401}
    assert app.bodies.most == 0


async def test_held_bytes_have_a_bound_and_503_comes_above_it(port: HttpServer, app: Echo) -> None:
    async with Http2(address(port)) as client:
        held = [asyncio.ensure_future(client.request("POST", "/slow", b"x" * 90_000)) for _ in range(11)]
        await until(lambda: app.handled == 11)
        assert app.bodies.held == 990_000
        answer = await client.request("POST", "/slow", b"x" * 90_000)
        assert (answer.status, app.handled) == (503, 11)
        assert answer.text.startswith("The server is temporarially unavailable, try again later. (")
        assert app.bodies.most <= 1_000_000
        app.go.set()
        assert {(await task).status for task in held} == {200}


async def test_large_heads_are_refused(port: HttpServer) -> None:
    reader, writer = await raw(port, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000 + b"\r\n\r\n")
    assert (await is_cut_off(reader)).startswith(b"HTTP/1.1 431 ")
    writer.close()
    for size in (9_000, 12_000, 60_000):
        async with Http2(address(port)) as client:
            await client.send("GET", "/", b"", {"x": "y" * size})
            await asyncio.wait_for(client.closed.wait(), 10)
    # A megabyte of packed headers in many frames would take a second to unpack.
    async with Http2(address(port)) as client:
        client.writer.write(struct.pack(">BHBBL", 0, 16_000, 1, 0, 1) + bytes(16_000))
        for _ in range(60):
            client.writer.write(struct.pack(">BHBBL", 0, 16_000, 9, 0, 1) + bytes(16_000))
        await asyncio.wait_for(client.closed.wait(), 10)
        assert client.goodbye == 11  # ENHANCE_YOUR_CALM, and not after a second's work
    await others_are_served(port)


# ---- many


async def test_connections_have_a_limit_and_the_oldest_idle_one_makes_room(port: HttpServer) -> None:
    idle = [await raw(port) for _ in range(20)]
    async with Http1(address(port)) as client:
        assert (await client.request("POST", "/", b"x")).body == b"x"
        assert port.statistics()["http_connections"] <= 20
    assert await is_cut_off(idle[0][0]) == b""
    for _, writer in idle:
        writer.close()


async def test_when_all_connections_are_busy_a_new_one_is_turned_away(port: HttpServer, app: Echo) -> None:
    request = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    busy = [await raw(port, request) for _ in range(20)]
    await until(lambda: app.handled == 20)
    reader, writer = await raw(port, request)
    assert await is_cut_off(reader) == b""
    writer.close()
    app.go.set()
    for reader, writer in busy:
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
    assert port.statistics()["http_connections_turned_away"] == 1


async def test_streams_beyond_the_limit_end_their_connection(port: HttpServer, app: Echo) -> None:
    """A client that does not keep to what it was told."""
    async with Http2(address(port)) as client:
        client.ignore_limits()
        for _ in range(http2.MAX_STREAMS + 10):
            await client.send("POST", "/slow", b"", {})
        await asyncio.wait_for(client.closed.wait(), 10)
    await until(lambda: app.handled == 0)
    await others_are_served(port)


async def test_opening_and_resetting_streams_is_cut_off(port: HttpServer, app: Echo) -> None:
    async with Http2(address(port)) as client:
        for _ in range(http2.MAX_RESETS * 3):
            if client.closed.is_set():
                break
            await client.send("POST", "/slow", b"", {})
            client.reset(client.last_stream)
            await asyncio.sleep(0)
        await asyncio.wait_for(client.closed.wait(), 10)
        assert client.goodbye == 11  # ENHANCE_YOUR_CALM
    await others_are_served(port)


async def test_a_client_that_cancels_now_and_then_is_not_cut_off(port: HttpServer) -> None:
    async with Http2(address(port)) as client:
        for _ in range(http2.MAX_RESETS * 2):
            await client.send("POST", "/slow", b"", {})
            client.reset(client.last_stream)
            await client.request("POST", "/", b"x")


async def test_a_flood_of_pings_is_given_its_share_of_the_loop_and_no_more(
    port: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's turns stay short, so everybody else has the loop in between."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT", 10.0)
    ticks = itertools.count()
    # A clock by which each step takes a millisecond, half of what a turn may.
    monkeypatch.setattr(server, "perf_counter", lambda: next(ticks) / 1000)
    settings = struct.pack(">BHBBL", 0, 0, 4, 0, 0)
    floods = [await raw(port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings) for _ in range(15)]
    ping = struct.pack(">BHBBL", 0, 8, 6, 0, 0) + bytes(8)
    flooding = True

    async def flood(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        try:
            while flooding:
                writer.write(ping * 500)
                await writer.drain()
                await reader.read(65_536)
        except ConnectionError:
            pass

    tasks = [asyncio.ensure_future(flood(writer, reader)) for reader, writer in floods]
    async with Http2(address(port)) as client:
        for _ in range(20):
            assert (await client.request("POST", "/", b"x")).body == b"x"
    turns = port.statistics()
    assert turns["http_steps"] > 200 and turns["http_steps"] <= 2 * turns["http_turns"], turns
    flooding = False
    for _, writer in floods:
        writer.close()
    await asyncio.gather(*tasks)


# ---- nonsense


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBL", 0, 4, 1, 4, 1) + b"\xff\xff\xff\xff",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBL", 0, 4, 0, 0, 7) + b"data",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    ],
)
async def test_nonsense_is_cut_off(port: HttpServer, data: bytes) -> None:
    reader, writer = await raw(port, data)
    await is_cut_off(reader)
    writer.close()
    await others_are_served(port)


async def test_random_bytes_after_a_good_start(port: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it is, it is the client's fault: this node's log has no error."""
    for _ in range(150):
        start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">BHBBL", 0, 0, 4, 0, 0)
        kind, flags, stream = os.urandom(1)[0] % 10, os.urandom(1)[0], os.urandom(1)[0] % 4
        body = os.urandom(os.urandom(1)[0] % 40)
        _, writer = await raw(port, start + struct.pack(">BHBBL", 0, len(body), kind, flags, stream) + body)
        writer.write(os.urandom(200))
        await writer.drain()
        writer.close()
    await others_are_served(port)
    assert not [record for record in caplog.records if record.levelname == "ERROR"], caplog.text


async def test_those_who_leave_midway_leave_nothing_behind(port: HttpServer, app: Echo) -> None:
    for path in ("/slow", "/stream"):
        async with Http2(address(port)) as two, Http1(address(port)) as one:
            for client in (one, two):
                client.write_request(path)
            await until(lambda: app.handled + app.streams == 2)
        await until(lambda: app.handled == app.streams == 0)
    assert app.bodies.held == 0


async def test_two_lengths_of_one_body_are_refused(port: HttpServer, app: Echo) -> None:
    """Else what a proxy in between took for a body would be carried out as a request."""
    inner = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    reader, writer = await raw(port, head % (len(inner) + 5) + inner)
    answer = await is_cut_off(reader)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    writer.close()


# ---- manners


async def test_a_client_that_says_goodbye_still_gets_its_answers(port: HttpServer, app: Echo) -> None:
    async with Http2(address(port)) as client:
        asked = [asyncio.ensure_future(client.request("POST", "/slow", b"x")) for _ in range(3)]
        await until(lambda: app.handled == 3)
        client.writer.write(struct.pack(">BHBBL", 0, 8, 7, 0, 0) + bytes(8))
        await turn_of_the_loop()
        app.go.set()
        assert [(await task).status for task in asked] == [200] * 3
        await asyncio.wait_for(client.closed.wait(), 5)


async def test_requests_sent_ahead_are_answered_in_order(port: HttpServer) -> None:
    one = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n"
    reader, writer = await raw(port, b"".join(one + b"%03d" % number for number in range(50)))
    for number in range(50):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(3) == b"%03d" % number
    writer.close()


async def test_a_client_that_asks_before_it_sends_a_body_is_told_to_go_on(port: HttpServer) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nexpect: 100-continue\r\n\r\n"
    reader, writer = await raw(port, head % (b"/", 3))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
    writer.write(b"abc")
    assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
    writer.close()
    reader, writer = await raw(port, head % (b"/none", 3))
    assert (await is_cut_off(reader)).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_an_answer_is_not_lost_because_the_client_sends_on(
    port: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed at once is reset by what comes after; the reset takes along what is on its way."""
    monkeypatch.setattr(connection, "CLOSE_STALL", 10.0)
    monkeypatch.setattr(connection, "WRITE_STALL", 10.0)
    with socket.create_connection(port.addresses[0]) as client:
        client.setblocking(False)
        client.sendall(b"GET /some HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        loop, got = asyncio.get_running_loop(), 0
        # The node has said everything: what the client has not read is in the kernel's buffers.
        await until(lambda: bool(port._connections) and all(one._closing for one in port._connections))
        for _ in range(10):
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await turn_of_the_loop()
        while data := await loop.sock_recv(client, 65_536):
            got += len(data)
    assert got > 40 * 65_536


async def test_http_1_0_gets_a_whole_answer_and_the_end(port: HttpServer) -> None:
    reader, writer = await raw(port, b"POST / HTTP/1.0\r\ncontent-length: 3\r\n\r\nabc")
    assert (await is_cut_off(reader)).endswith(b"\r\n\r\nabc")
    writer.close()


async def test_draining_lets_answers_out_and_ends_streams(port: HttpServer, app: Echo) -> None:
    place = port.addresses[0]
    async with Http2(address(port)) as two, Http1(address(port)) as one:
        slow = [asyncio.ensure_future(client.request("POST", "/slow", b"x")) for client in (one, two)]
        stream = asyncio.ensure_future(two.request("POST", "/stream"))
        await until(lambda: app.handled == 2 and app.streams == 1)
        draining = asyncio.ensure_future(port.drain(10))
        assert (await stream).status == 200
        assert not draining.done()
        app.go.set()
        assert [(await task).status for task in slow] == [200, 200]
        await asyncio.wait_for(draining, 5)
        assert two.going_away
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*place)
