"""Requests that have come only in part: what is taken for one, and whose go when that is too much."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api import leaving, unfinished
from kvorum_node.api.connections import received
from kvorum_node.api.gate import Gate
from kvorum_node.api.server import ApiServer
from kvorum_node.api.unfinished import AT_ONCE, FRAME, HEAD, PATIENCE, PULSE, SETTLED, SMALL, Call, Unfinished
from kvorum_node.unread import Unread
from kvorum_raft.quiet_log import QuietLog
from tests.fuzz.local_node import LocalNode, local_node
from tests.integration.hostile.attacks import STREAM, begin, head
from tests.integration.hostile.grpc_attacks import GRPC, HELLO, UNARY, message
from tests.integration.hostile.half_sent import USUAL_WINDOW, HalfSent

MEGABYTE = 1_048_576
LIMIT = 64 * MEGABYTE


class Bench:
    """Connections of which the system tells what a test says, with calls that end when they are told to."""

    def __init__(self) -> None:
        self.unfinished = Unfinished(LIMIT, self._end, self._shut, QuietLog(logging.getLogger("test"), float))
        self.received: dict[str, int] = {}
        self.ended: list[str] = []
        self.shut: list[str] = []
        self.why = ""
        self.now = asyncio.get_running_loop().time()

    def call(self, peer: str) -> Call:
        task = asyncio.create_task(asyncio.Event().wait(), name=peer)
        self.unfinished.begin(task, peer)
        self.received.setdefault(peer, 0)
        return self.unfinished.calls[task]

    def comes(self, peer: str, size: int, *whole: Call) -> None:
        """Bytes have come by a connection; these calls have messages of them, which were each of that size."""
        self.received[peer] += size
        for call in whole:
            call.heard += size // len(whole) + FRAME

    def look(self, seconds: float = 1.0) -> int:
        """What is held after so long."""
        self.now += seconds
        self.unfinished.look(self.received, self.now)
        return self.unfinished.held

    async def close(self) -> None:
        tasks = list(self.unfinished.calls)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: "asyncio.Task[object]", why: str) -> None:
        self.ended.append(task.get_name())
        self.why = why

    def _shut(self, peers: set[str]) -> None:
        self.shut += sorted(peers)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.close()


async def test_what_comes_before_the_loop_has_taken_a_call_is_held(bench: Bench) -> None:
    """A loop that is behind takes no calls, while gRPC receives as fast as the network brings."""
    bench.received["new"] = 10 * MEGABYTE
    assert bench.look() == 10 * MEGABYTE
    bench.comes("new", 10 * MEGABYTE)
    assert 20 * MEGABYTE - PULSE <= bench.look() <= 20 * MEGABYTE
    call = bench.call("new")
    bench.comes("new", MEGABYTE, call)
    bench.look()
    call.says_all(20 * MEGABYTE)
    assert bench.look() < MEGABYTE
    bench.received["other"] = 2 * LIMIT
    bench.look()
    assert bench.shut == ["other"]
    del bench.received["other"]
    assert bench.look() < MEGABYTE


async def test_nobodys_call_is_ended_for_what_came_before_a_call_was_taken(bench: Bench) -> None:
    bench.call("slow")
    bench.comes("slow", MEGABYTE)
    bench.look()
    bench.received["new"] = LIMIT - 2 * MEGABYTE
    assert bench.look(PATIENCE + 1) > bench.unfinished.high
    assert bench.ended == bench.shut == []
    bench.call("new")
    bench.look(PATIENCE + 1)
    assert bench.ended == ["new"]


async def test_a_quiet_connection_without_a_call_is_not_looked_at(bench: Bench) -> None:
    bench.received["quiet"] = SMALL
    assert bench.look() == 0
    assert not bench.unfinished._connections


async def test_what_has_come_and_was_not_heard_is_held(bench: Bench) -> None:
    call = bench.call("a")
    bench.comes("a", 5 * MEGABYTE)
    assert bench.look() == pytest.approx(5 * MEGABYTE - HEAD - PULSE, abs=PULSE)
    bench.comes("a", MEGABYTE)
    held = bench.look()
    assert held == pytest.approx(6 * MEGABYTE - HEAD - 2 * PULSE, abs=PULSE)
    call.heard += 6 * MEGABYTE
    bench.comes("a", SMALL)
    assert bench.look() == 0


async def test_what_came_before_all_calls_were_heard_is_not_held(bench: Bench) -> None:
    """Messages that do not count, as they were broken off, or by what a strange client adds to them."""
    first, second = bench.call("a"), bench.call("a")
    bench.comes("a", 5 * MEGABYTE)
    first.heard += 1
    assert bench.look(SETTLED + 1) > 4 * MEGABYTE, "the other one may have all of it"
    first.heard += 1
    second.heard += 1
    assert bench.look() > 4 * MEGABYTE, "it came before that"
    bench.comes("a", MEGABYTE)
    first.heard += 1
    second.heard += 1
    assert bench.look(SETTLED - 1) > 5 * MEGABYTE, "it may have come before what was heard"
    first.heard += 1
    second.heard += 1
    assert bench.look(2.0) == MEGABYTE
    second.whole = True
    first.heard += 1
    assert bench.look(SETTLED + 1) == 0, "who has said all is waited for no more"


@pytest.mark.parametrize(("size", "pieces"), [(20, 1), (1_000, 1), (3 * MEGABYTE, 192)])
async def test_a_busy_connection_with_an_idle_call_is_not_taken_for_one_that_holds(
    bench: Bench, size: int, pieces: int
) -> None:
    """Over days, with what HTTP/2 and TLS add to each piece of a message."""
    bench.call("a")
    busy = bench.call("a")
    for _ in range(1_000):
        bench.received["a"] += 50 * (size + 5 + pieces * 31)
        busy.heard += 50 * (size + FRAME)
        assert bench.look() == 0
    bench.comes("a", 5 * MEGABYTE)
    assert bench.look() > 4 * MEGABYTE, "nothing is saved up"


async def test_calls_that_come_and_go_are_not_either(bench: Bench) -> None:
    bench.call("a")
    for _ in range(300):
        tasks = []
        for _ in range(100):
            call = bench.call("a")
            bench.received["a"] += 400 + 1_000
            call.says_all(1_000)
            tasks += [task for task, known in bench.unfinished.calls.items() if known is call]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bench.look() < 200_000, "but for the newest"
    assert len(bench.unfinished.calls) == 1


async def test_connections_that_are_gone_are_forgotten(bench: Bench) -> None:
    bench.call("a")
    bench.call("b")
    bench.comes("a", 5 * MEGABYTE)
    bench.look()
    del bench.received["a"]
    await bench.close()
    assert bench.look() == 0
    assert list(bench.unfinished._connections) == ["b"]
    bench.call("b")
    bench.received["b"] = MEGABYTE
    bench.look()
    bench.received["b"] = 100_000
    assert 99_000 < bench.look() <= 100_000, "another one of the same name"


async def test_whoever_holds_most_is_ended_when_it_was_silent_for_long(bench: Bench) -> None:
    for peer, calls, size in (("large", 10, 20), ("larger", 10, 30), ("small", 1, 1)):
        for _ in range(calls):
            bench.call(peer)
        bench.comes(peer, size * MEGABYTE)
    assert bench.look(PATIENCE - 1) > LIMIT // 2
    assert not bench.ended, "it may be slow"
    bench.look(2.0)
    assert bench.ended == ["larger"] * 7, "until half is held"
    assert f"of at most {LIMIT:,} (MAX_UNFINISHED_SIZE, unfinished_requests_mb)" in bench.why
    bench.look()
    assert len(bench.ended) == 7, "they are on their way"
    assert bench.unfinished.statistics()["unfinished_ended"] == 7
    assert not bench.shut


async def test_not_all_are_ended_at_once(bench: Bench) -> None:
    for _ in range(3 * AT_ONCE):
        bench.call("a")
    bench.comes("a", LIMIT)
    bench.look(PATIENCE + 1)
    assert len(bench.ended) == AT_ONCE
    bench.look()
    assert len(bench.ended) == pytest.approx(3 * AT_ONCE / 2, abs=1)


async def test_the_largest_connections_are_shut_when_all_is_held(bench: Bench) -> None:
    for number in range(10):
        bench.call(f"p{number}")
        bench.comes(f"p{number}", (number + 1) * 2 * MEGABYTE)
    bench.look()
    assert bench.shut == ["p5", "p6", "p7", "p8", "p9"]
    assert not bench.ended


async def test_an_idle_node_with_many_connections_looks_at_few(bench: Bench) -> None:
    call = bench.call("a")
    bench.comes("a", SMALL)
    call.heard = 1
    assert bench.look() == 0
    assert call.seen == 0
    bench.comes("a", 1)
    assert bench.look() > SMALL - HEAD - 3 * PULSE
    assert call.seen == 1


# ---- with gRPC


class Client:
    """A connection with one call, which says so much and no more."""

    def __init__(self, port: int, path: bytes, begun: bytes, size: int, window: int = USUAL_WINDOW) -> None:
        """`window` is what it takes of answers, in bytes."""
        self._port = port
        self._head = begin(window=window) + head(1, path, *GRPC)
        self._begun = {1: begun}
        self._size = size

    async def __aenter__(self) -> HalfSent:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._head)
        sender = HalfSent(reader, self._writer, self._begun, self._size)
        self._life = asyncio.create_task(sender.run())
        return sender

    async def __aexit__(self, *_: object) -> None:
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        self._writer.transport.abort()


async def until(condition: Callable[[], object]) -> None:
    """LocalNode bounds it."""
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)


def look_always(monkeypatch: pytest.MonkeyPatch, patience: float = PATIENCE) -> None:
    for name, value in (("LOOK", 0.01), ("RARELY", 0.0), ("IDLE", 0), ("PATIENCE", patience)):
        monkeypatch.setattr(unfinished, name, value)


def run(check: Callable[[LocalNode, ApiServer], Coroutine[Any, Any, None]]) -> None:
    async def served(node: LocalNode) -> None:
        server = ApiServer(node.service, "n1", "127.0.0.1:0")
        await server.start()
        try:
            await check(node, server)
        finally:
            await server.stop()

    with local_node() as node:
        node.run(served(node))


@pytest.mark.parametrize("path", [STREAM, UNARY])
@pytest.mark.parametrize("greeted", [True, False])
def test_a_call_that_is_sent_in_part_is_ended(path: bytes, greeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    look_always(monkeypatch, patience=0.0)
    size = 4 * MEGABYTE
    begun = message(HELLO.SerializeToString()) if greeted and path == STREAM else b""

    async def check(_: LocalNode, server: ApiServer) -> None:
        requests = server._gate.unfinished
        requests.high = 3 * MEGABYTE
        async with Client(server.port, path, begun + message(b"", size=size), size - 1) as client:
            await until(lambda: client.ended)
            assert requests.ended == 1
            await until(lambda: requests.held < SMALL)
            assert not requests.calls

    run(check)


def test_a_connection_whose_ended_call_does_not_go_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client takes not even the answer to its hello, so gRPC holds the end of the call, and what has come of it."""
    look_always(monkeypatch, patience=0.0)
    monkeypatch.setattr(leaving, "SHORT_PATIENCE", 0.0)
    size = 4 * MEGABYTE

    async def check(node: LocalNode, server: ApiServer) -> None:
        requests = server._gate.unfinished
        begun = message(HELLO.SerializeToString()) + message(b"", size=size)
        async with Client(server.port, STREAM, begun, size - 1, window=0) as client:
            await until(lambda: any(holding.since for holding in node.service.unread._holdings))
            requests.high = 3 * MEGABYTE
            await until(lambda: server.statistics()["connections_shut"])
            await until(lambda: requests.held < SMALL)
            assert requests.ended == 1 and not client.ended and not requests.calls

    run(check)


class Beginning:
    """The context of a call whose metadata takes a while to be sent."""

    def __init__(self) -> None:
        self.sending = asyncio.Event()
        self.sent = asyncio.Event()
        self.why = ""

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    async def send_initial_metadata(self, _: object) -> None:
        self.sending.set()
        await self.sent.wait()

    async def abort(self, code: grpc.StatusCode, why: str) -> None:
        assert self.sent.is_set(), "gRPC refuses, and the call never ends"
        self.why = why


async def test_a_call_is_ended_when_its_metadata_is_sent() -> None:
    quiet = QuietLog(logging.getLogger("test"), float)
    gate = Gate(Unread(LIMIT, asyncio.get_running_loop()), LIMIT, quiet)
    context = Beginning()

    async def handler(_: object) -> Any:
        return grpc.stream_stream_rpc_method_handler(None)

    watched = await gate.intercept_service(handler, SimpleNamespace(method=STREAM.decode()))
    call = asyncio.create_task(watched.stream_stream(None, context))
    await context.sending.wait()
    gate._end(call, "it says nothing")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done()
    context.sent.set()
    await call
    assert context.why == "it says nothing"


def test_the_connection_that_holds_most_is_shut_when_all_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    look_always(monkeypatch)
    size = 4 * MEGABYTE

    async def check(_: LocalNode, server: ApiServer) -> None:
        requests = server._gate.unfinished
        requests.limit, requests.high = 6 * MEGABYTE, 5 * MEGABYTE
        begun = message(b"", size=size)
        async with Client(server.port, STREAM, begun, size // 2) as small:
            await until(lambda: small.done)
            async with Client(server.port, STREAM, begun, size - 1) as large:
                await until(lambda: server.statistics()["connections_shut"])
                await until(lambda: 0 < requests.held < 3 * MEGABYTE)
                assert len(requests.calls) == 1 and not small.ended and large.sent > small.sent
        await until(lambda: not requests.calls)

    run(check)


def test_a_large_frame_on_a_slow_link_is_taken_beside_those_that_hold_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is answered, whatever happens to the others."""
    look_always(monkeypatch, patience=0.0)
    padding = MEGABYTE
    frame = pb.ClientFrame(ping=5).SerializeToString() + b"\xfa\x7f" + _varint(padding)  # a field that nobody knows

    async def check(_: LocalNode, server: ApiServer) -> None:
        requests = server._gate.unfinished
        requests.limit, requests.high = 20 * MEGABYTE, 4 * MEGABYTE
        hello = message(HELLO.SerializeToString())
        good = Client(server.port, STREAM, hello + message(frame, size=len(frame) + padding), padding - 1)
        size = 4 * MEGABYTE
        async with good as slow:
            await until(lambda: slow.done)
            for count in range(1, 4):
                async with Client(server.port, STREAM, hello + message(b"", size=size), size - 1) as other:
                    await until(lambda: other.ended)
                assert requests.ended == count
                await until(lambda: requests.held < 2 * MEGABYTE)
            assert not slow.ended
            slow.finish(1)
            await until(lambda: b"\x05" in slow.got)

    run(check)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes((*made, number))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_what_is_heard_of_calls_of_all_kinds_is_counted(host: str) -> None:
    """By connections that gRPC and the system name in their own ways."""

    async def check(node: LocalNode) -> None:
        server = ApiServer(node.service, "n1", "[::]:0")
        await server.start()
        requests = server._gate.unfinished
        try:
            async with grpc.aio.insecure_channel(f"{host}:{server.port}") as channel:
                stream = channel.stream_stream("/kvorum.v1.Kv/Stream")()
                await stream.write(HELLO.SerializeToString())
                await stream.read()
                watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
                await watch.read()
                spoken, asked = requests.calls.values()
                assert (spoken.heard, spoken.whole) == (FRAME + HELLO.ByteSize(), False)
                assert (asked.heard, asked.whole) == (FRAME, True)
                (name,) = requests._connections
                assert received(server.port)[name] > 300
                await stream.write(pb.ClientFrame(ping=1).SerializeToString())
                await stream.read()
                assert spoken.heard == 2 * FRAME + HELLO.ByteSize() + 2
                await channel.unary_unary("/kvorum.v1.Kv/Status")(b"")
                stream.cancel()
                watch.cancel()
                await until(lambda: not requests.calls)
                assert requests._connections[name].heard == 3 * HEAD + 4 * FRAME + HELLO.ByteSize() + 2
        finally:
            await server.stop()

    with local_node() as node:
        node.run(check(node))


async def test_connections_are_looked_at_when_the_memory_grows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "LOOK", 0.0)
    monkeypatch.setattr(unfinished, "RARELY", 1e9)
    used, looks, turns = 50 * LIMIT, 0, 0

    def memory() -> int:
        nonlocal turns
        turns += 1
        return used

    def look(_: int) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return {}

    async def turn() -> None:
        """Several, at least one of which sees what is used now."""
        end = turns + 5
        while turns < end:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0)

    monkeypatch.setattr(unfinished, "memory", memory)
    monkeypatch.setattr(unfinished, "received", look)
    watching = asyncio.create_task(bench.unfinished.watch(1))
    async with asyncio.timeout(30):
        await turn()
        assert looks == 1, "the first one"
        used += LIMIT // 8
        await turn()
        assert looks == 1
        used += 1
        await turn()
        assert looks == 2
        used -= LIMIT
        await turn()
        used += LIMIT // 4
        await turn()
        assert looks == 3, "what was free again meanwhile counts"
        bench.unfinished.held = bench.unfinished.high + 1
        monkeypatch.setattr(bench.unfinished, "look", lambda received, now: None)
        await turn()
        assert looks > 5, "while much is held"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
