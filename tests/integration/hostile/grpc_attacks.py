"""More clients that mean harm, against the gRPC port: they break the rules of HTTP/2, of gRPC, and of the stream.

Run it for any attack, of this module or of `attacks`: see there.
"""

import asyncio
import contextlib
import random

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from kvorum._proto import kvorum_pb2 as pb
from tests.integration.hostile.attacks import (
    ATTACKS,
    INITIAL_WINDOW,
    LARGE,
    STREAM,
    Plan,
    all_of,
    attack,
    begin,
    body,
    crowd,
    head,
    main,
    nonsense,
    odd,
)
from tests.integration.hostile.half_sent import HalfSent

__all__ = ["ATTACKS"]

GRPC = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))
HELLO = pb.ClientFrame(hello=pb.Hello(protocol=1, client="hostile"))
UNARY = b"/kvorum.v1.Kv/Get"


def message(data: bytes, *, flags: int = 0, size: int | None = None) -> bytes:
    """As gRPC puts it into a stream's data; `size`: what it says instead of the truth."""
    return bytes((flags,)) + (len(data) if size is None else size).to_bytes(4, "big") + data


def data_of(number: int, data: bytes) -> bytes:
    """DATA frames that do not end the stream."""
    return b"".join(DataFrame(number, data=data[at : at + 16_384]).serialize() for at in range(0, len(data), 16_384))


def frame(**parts: object) -> bytes:
    """A message of the stream, with its hello."""
    made = pb.ClientFrame(**parts)  # type: ignore[arg-type]
    made.hello.CopyFrom(HELLO.hello)
    return message(made.SerializeToString())


LARGE_READ = frame(
    point_reads=[
        pb.PointReads(id=1, keys=[LARGE + b"%04d" % row for row in range(500)], consistency=pb.CONSISTENCY_EVENTUAL)
    ]
)
"""Asks for 32 MiB."""


LARGE_LISTS = frame(
    reads=[
        pb.Read(
            id=1 + row,
            ranges=[pb.ReadRange(start=LARGE + b"%04d" % row, end=LARGE + b"\xff", limit=100 if row % 2 else 3)],
            consistency=pb.CONSISTENCY_EVENTUAL,
        )
        for row in range(500)
    ]
)
"""Asks for 1.6 GiB, in lists of many slices and of one."""
LARGE_WATCHES = frame(
    watches=[
        pb.StartWatch(id=number, keys=[LARGE + b"%04d" % (number + at) for at in range(10)]) for number in range(40)
    ]
    + [pb.StartWatch(id=number, start=LARGE, end=LARGE + b"\xff", since=bytes(9) + b"\1") for number in range(40, 80)]
)
UNARY_LIST = pb.Read(
    ranges=[pb.ReadRange(start=LARGE, end=LARGE + b"\xff", limit=60)], consistency=pb.CONSISTENCY_EVENTUAL
).SerializeToString()
"""3.7 MiB in one answer."""


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a live client does, so that nobody takes it for a frozen one; until the node cuts the connection. Raises
    OSError."""
    try:
        while True:
            at = await reader.readexactly(9)
            got, length = Frame.parse_frame_header(memoryview(at))
            content = await reader.readexactly(length)
            if isinstance(got, PingFrame) and "ACK" not in got.flags:
                writer.write(PingFrame(0, opaque_data=content, flags=["ACK"]).serialize())
            elif isinstance(got, SettingsFrame) and "ACK" not in got.flags:
                writer.write(SettingsFrame(0, flags=["ACK"]).serialize())
    except asyncio.IncompleteReadError:
        raise OSError("the node has cut the connection") from None


async def _read_to_the_end(plan: Plan, reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(max(0.0, plan.left)):
        while await reader.read(65_536):
            pass


@attack
async def grpc_big_heads(plan: Plan) -> None:
    """Bombs in HPACK, continuations without an end, and more headers than anybody takes."""
    pair = b"\0\1a" + b"\x7f\x80\x7f" + b"v" * 16_000
    large = b"\x40\6x-bomb\x7f\xa1\x1e" + b"y" * 4_000  # goes into the table
    bomb = b"\x83\x86\x84" + large + b"\xbe" * 16_000  # and is repeated from there: 64 MB
    many = b"\x83\x86\x84" + b"".join(b"\0\2%02x\1v" % (number % 256) for number in range(2_500))

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            if which % 4 == 0:
                whole = HeadersFrame(1, data=bomb[:16_384], flags=["END_HEADERS"])
                await plan.send(writer, begin() + whole.serialize())
            elif which % 4 == 1:
                whole = HeadersFrame(1, data=many, flags=["END_HEADERS"])
                await plan.send(writer, begin() + whole.serialize())
            else:
                await plan.send(writer, begin() + HeadersFrame(1, data=b"\x83\x86\x84", flags=[]).serialize())
                block = pair[:16_384] if which % 4 == 2 else b""
                for _ in range(2_000):
                    await plan.send(writer, ContinuationFrame(1, data=block, flags=[]).serialize() * 5)
            await _read_to_the_end(plan, reader)

    await crowd(plan, 8, one)


@attack
async def grpc_made_resets(plan: Plan) -> None:
    """Calls that the node itself has to reset, since their client breaks the rules of their streams."""

    def broken(number: int, kind: int) -> bytes:
        if kind == 0:
            return DataFrame(number, data=message(b"", size=0xFFFFFFFF)).serialize()
        if kind == 1:
            return WindowUpdateFrame(number, window_increment=1).serialize()[:-4] + bytes(4)
        return body(number, b"") + DataFrame(number, data=b"x").serialize()

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            number = 1
            while plan.left > 0 and not reader.at_eof():
                parts = [
                    head(stream, STREAM, *GRPC) + data_of(stream, LARGE_READ) + broken(stream, which % 3)
                    for stream in odd(20, number)
                ]
                number += 40
                plan.counts["streams"] += 20
                await plan.send(writer, b"".join(parts))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await reader.read(1 << 20)

    await crowd(plan, 6, one)


@attack
async def grpc_unread_answers(plan: Plan) -> None:
    """Streams whose window is closed, each of which asks for 32 MiB."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=0))
            for number in odd(100):
                await plan.send(writer, head(number, STREAM, *GRPC) + data_of(number, LARGE_READ))
                plan.counts["asked"] += 1
            await plan.linger(reader)

    await crowd(plan, 4, one)


async def crowd_of_idle(plan: Plan, clients: int, calls: list[tuple[bytes, bytes]]) -> None:
    """Clients that make these calls (path and message), answer pings, and take the first bytes of each answer."""

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=500) + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            for number, (path, asked) in zip(odd(len(calls)), calls, strict=True):
                await plan.send(writer, head(number, path, *GRPC) + data_of(number, asked))
                plan.counts["asked"] += 1
            async with asyncio.timeout(max(0.0, plan.left)):
                await answer_pings(reader, writer)

    await crowd(plan, clients, one)


@attack
async def grpc_closed_windows(plan: Plan) -> None:
    """Calls of all kinds that ask for much. Their client lives, answers pings, takes the first bytes of each and no
    more; it comes back whenever it is cut off."""
    kinds = [(STREAM, LARGE_READ), (STREAM, LARGE_LISTS), (STREAM, LARGE_WATCHES), (UNARY, message(UNARY_LIST))]

    await crowd_of_idle(plan, 8, [kinds[number % len(kinds)] for number in range(100)])


@attack
async def grpc_idle_lists(plan: Plan) -> None:
    """Lists of many slices, of which nothing is taken but the first bytes: each holds a place of the reader, and most
    wait for one."""
    asked = frame(
        reads=[
            pb.Read(
                id=1 + row,
                ranges=[pb.ReadRange(start=LARGE + b"%04d" % row, end=LARGE + b"\xff", limit=100)],
                consistency=pb.CONSISTENCY_EVENTUAL,
            )
            for row in range(200)
        ]
    )

    await crowd_of_idle(plan, 12, [(STREAM, asked)] * 2)


@attack
async def grpc_future_reads(plan: Plan) -> None:
    """Reads that wait for a state which will never come, as many as go; the answers are read."""
    reads = [
        pb.PointReads(id=1, keys=[LARGE] * 1_000, min_versionstamp=b"\xff" * 10, consistency=pb.CONSISTENCY_EVENTUAL)
    ]
    asked = message(pb.ClientFrame(point_reads=reads).SerializeToString())

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            await plan.send(writer, head(1, STREAM, *GRPC) + data_of(1, message(HELLO.SerializeToString())))
            while plan.left > 0 and not reader.at_eof():
                await plan.send(writer, data_of(1, asked))
                plan.counts["reads"] += 1_000
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await reader.read(1 << 20)

    await crowd(plan, 4, one)


@attack
async def grpc_window_games(plan: Plan) -> None:
    """Windows that open and close for many waiting streams with each small frame."""

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin(window=0))
            await plan.send(
                writer,
                b"".join(head(number, STREAM, *GRPC) + data_of(number, frame(ping=1)) for number in odd(100)),
            )
            games = (
                [WindowUpdateFrame(0, window_increment=1)]
                if which % 2
                else [SettingsFrame(0, settings={INITIAL_WINDOW: 1}), SettingsFrame(0, settings={INITIAL_WINDOW: 0})]
            )
            plan.counts["streams"] += 100
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            while plan.left > 0 and not reader.at_eof():
                await plan.send(writer, all_of(games) * 200)

    await crowd(plan, 4, one)


@attack
async def grpc_half_messages(plan: Plan) -> None:
    """Messages as large as they may be, of which the last byte never comes, in many calls of each connection: most of
    them streams that have said hello."""
    size = 4 << 20
    half = message(b"", size=size)
    greeted = message(HELLO.SerializeToString()) + half
    kinds = [(UNARY, half), (STREAM, half), *[(STREAM, greeted)] * 8]

    async def one(_: int) -> None:
        async with plan.connection() as (reader, writer):
            calls = {number: kinds[number // 2 % len(kinds)] for number in odd(100)}
            heads = [head(number, path, *GRPC) for number, (path, _) in calls.items()]
            await plan.send(writer, begin() + b"".join(heads))
            begun = {number: first for number, (_, first) in calls.items()}
            sender = HalfSent(reader, writer, begun, size - 1)
            try:
                async with asyncio.timeout(max(0.0, plan.left)):
                    await sender.run()
            finally:
                plan.counts["MiB"] += sender.sent >> 20
                plan.counts["ended"] += len(sender.ended)

    await crowd(plan, 8, one)


@attack
async def grpc_nonsense(plan: Plan) -> None:
    """Frames that break the rules of HTTP/2 in every way."""
    await nonsense(plan)


@attack
async def grpc_garbage(plan: Plan) -> None:
    """Messages that are none, or not whole, or not a client's, or not where they belong; a stream for each."""
    rng = random.Random(5)
    hello = message(HELLO.SerializeToString())
    server = pb.ServerFrame(
        hello=pb.HelloReply(protocol=1, node_id="n9"), results=[pb.ResultGroup(results=[pb.WriteResult(seq=1)])]
    )
    bad = [
        lambda: message(rng.randbytes(rng.randrange(1, 2_000))),
        lambda: hello + message(rng.randbytes(rng.randrange(1, 2_000))),
        lambda: hello + hello,
        lambda: message(server.SerializeToString()),
        lambda: hello + message(server.SerializeToString()),
        lambda: message(pb.ClientFrame(ping=1).SerializeToString()) + hello,
        lambda: message(b"x", flags=1),
        lambda: hello + message(b"x", flags=255),
        lambda: message(b"x", size=5_000_000),
        lambda: hello + message(b"", size=0x7FFFFFFF),
        lambda: hello + b"\0\0\0",
        lambda: rng.randbytes(400),
    ]

    async def one(which: int) -> None:
        async with plan.connection() as (reader, writer):
            await plan.send(writer, begin() + WindowUpdateFrame(0, window_increment=1 << 30).serialize())
            number = 1
            while plan.left > 0 and not reader.at_eof():
                path = UNARY if which % 4 == 3 else STREAM
                parts = []
                for stream in odd(20, number):
                    make = bad[stream // 2 % len(bad)]
                    end = body(stream, b"") if stream % 3 else b""
                    parts.append(head(stream, path, *GRPC) + data_of(stream, make()) + end)
                number += 40
                plan.counts["streams"] += 20
                await plan.send(writer, b"".join(parts))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read(1 << 20)

    await crowd(plan, 4, one)


if __name__ == "__main__":
    asyncio.run(main())
