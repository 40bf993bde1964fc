"""Streams and calls while clients do not take what they asked for, and the node has no room for more."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hyperframe.frame import WindowUpdateFrame

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node import unread
from kvorum_node.api import leaving
from kvorum_node.api.server import ApiServer
from kvorum_node.api.stream import Stream
from kvorum_node.api.unary import Unary
from kvorum_node.lists import MAX_PLACES
from kvorum_node.unread import Holding
from tests.fuzz.local_node import LocalNode, local_node
from tests.integration.hostile.attacks import STREAM, begin, head
from tests.integration.hostile.grpc_attacks import GRPC, UNARY, answer_pings, data_of, message
from tests.unit.node.test_service import set_op

OK, OVERLOADED = pb.READ_STATUS_OK, pb.READ_STATUS_OVERLOADED
EVENTUAL = pb.CONSISTENCY_EVENTUAL
LARGE, SMALL = b"\x02large\0", b"\x02small\0"
LIST = pb.ReadRange(start=b"\x02", end=b"\x03", limit=100)


class Call:
    """A gRPC context. Its client takes frames while `reads` is set."""

    def __init__(self, *, reads: bool = True) -> None:
        self.taken: list[pb.ServerFrame] = []
        self.given: asyncio.Queue[bytes] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.news = asyncio.Event()
        self.writing = asyncio.Event()
        if reads:
            self.reads.set()
        self.say(hello=pb.Hello(protocol=1))

    def say(self, **parts: Any) -> None:
        self.given.put_nowait(pb.ClientFrame(**parts).SerializeToString())

    async def read(self) -> bytes:
        return await self.given.get()

    async def write(self, frame: bytes) -> None:
        self.writing.set()
        await self.reads.wait()
        self.writing.clear()
        self.taken.append(pb.ServerFrame.FromString(frame))
        self.news.set()

    async def until(self, condition: "Callable[[], Any]") -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    def points(self, number: int) -> list[pb.PointAnswers]:
        return [answer for frame in self.taken for answer in frame.point_answers if answer.id == number]

    def lists(self, number: int) -> list[pb.ReadResult]:
        return [answer for frame in self.taken for answer in frame.reads if answer.id == number]

    @property
    def results(self) -> int:
        """How many."""
        return sum(len(group.results) for frame in self.taken for group in frame.results)

    @property
    def events(self) -> list[pb.WatchEvent]:
        return [event for frame in self.taken for event in frame.watches]


def run(check: "Callable[[LocalNode], Coroutine[Any, Any, None]]") -> None:
    async def filled(node: LocalNode) -> None:
        for number in range(40):
            await node.backend.write(set_op(b"\x02row%02d\0" % number, bytes(60_000)).SerializeToString(), timeout=10)
        await node.backend.write(set_op(LARGE, bytes(60_000)).SerializeToString(), timeout=10)
        await node.backend.write(set_op(SMALL, b"small").SerializeToString(), timeout=10)
        await check(node)
        assert node.service.unread.held == 0

    with local_node() as node:
        node.run(filled(node))


async def until(condition: "Callable[[], Any]") -> None:
    """LocalNode bounds it."""
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)


async def ended(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Full:
    """Somebody has all of the node's room, until `end`."""

    def __init__(self, node: LocalNode) -> None:
        self._other = Holding(node.service.unread, lambda why: None)
        self._other.count(node.service.unread.limit)

    def end(self) -> None:
        self._other.close()


def test_reads_for_which_there_is_no_room_are_refused_and_small_ones_are_not() -> None:
    async def check(node: LocalNode) -> None:
        full, call = Full(node), Call()
        running = asyncio.create_task(Stream(node.service, "n1", call).run())
        await call.until(lambda: call.taken)
        call.say(point_reads=[pb.PointReads(id=1, keys=[SMALL], consistency=EVENTUAL)])
        await call.until(lambda: call.points(1))
        assert call.points(1)[0].rows[0].endswith(b"small")
        call.say(
            point_reads=[pb.PointReads(id=2, keys=[SMALL, LARGE], consistency=EVENTUAL)],
            reads=[
                pb.Read(id=3, keys=[LARGE], consistency=EVENTUAL),
                pb.Read(id=4, keys=[SMALL], consistency=EVENTUAL),
                pb.Read(id=5, ranges=[LIST], consistency=EVENTUAL),
                pb.Read(id=7, ranges=[pb.ReadRange(start=SMALL, end=b"\x03", limit=1)], consistency=EVENTUAL),
            ],
        )
        await call.until(lambda: len(call.points(2)) == 2 and all(call.lists(number) for number in (3, 4, 5, 7)))
        assert [answer.status for answer in call.points(2)] == [OK, OVERLOADED], "as far as it is small"
        assert [call.lists(number)[0].status for number in (3, 4, 5, 7)] == [OVERLOADED, OK, OVERLOADED, OK]
        for text in (call.points(2)[1].message, call.lists(3)[0].message, call.lists(5)[0].message):
            assert f"{node.service.unread.limit:,}" in text and "unread_answers_mb" in text
        figures = node.service.statistics()
        assert (figures["unread_refused"], figures["reads_under_way"]) == (3, 0)
        await until(lambda: not node.service.statistics()["lists_open"])
        assert node.service.lists.meter.codes()["overloaded"] == 1
        full.end()
        call.say(reads=[pb.Read(id=6, ranges=[LIST], consistency=EVENTUAL)])
        await call.until(lambda: call.lists(6) and not call.lists(6)[-1].more)
        assert sum(len(part.ranges[0].entries) for part in call.lists(6)) == 42
        await ended(running)

    run(check)


def test_what_can_be_had_later_waits_for_room() -> None:
    async def check(node: LocalNode) -> None:
        full, call = Full(node), Call()
        running = asyncio.create_task(Stream(node.service, "n1", call).run())
        call.say(
            watches=[
                pb.StartWatch(id=1, keys=[LARGE]),
                pb.StartWatch(id=2, start=b"\x02", end=b"\x03", since=bytes(9) + b"\1"),
            ],
            ping=7,
        )
        await call.until(lambda: any(frame.pong == 7 for frame in call.taken))
        await until(lambda: node.service.unread.queue)
        assert call.events == []
        full.end()
        await call.until(lambda: {event.id for event in call.events} == {1, 2})
        await ended(running)

    run(check)


@pytest.mark.parametrize(("count", "limit", "rows"), [(100, 100, 41), (400, 4, 4)])
def test_lists_do_not_begin_while_the_client_stands_still(count: int, limit: int, rows: int) -> None:
    wanted = pb.ReadRange(start=b"\x02row", end=b"\x03", limit=limit)

    async def check(node: LocalNode) -> None:
        call = Call()
        running = asyncio.create_task(Stream(node.service, "n1", call).run())
        await call.until(lambda: call.taken)
        call.reads.clear()
        call.say(reads=[pb.Read(id=number, ranges=[wanted], consistency=EVENTUAL) for number in range(1, count + 1)])
        await call.writing.wait()
        await settled(node)
        # Each of them is of 2.4 MB, or of a tenth. In gRPC's hands is a frame, and on its way what had begun by then.
        most = unread.AHEAD + 3 * 4 * 1_048_576 + 2 * MAX_PLACES * 330_000
        assert node.service.unread.held < most
        call.reads.set()
        await call.until(lambda: all(call.lists(at) and not call.lists(at)[-1].more for at in range(1, count + 1)))
        for at in range(1, count + 1):
            assert sum(len(part.ranges[0].entries) for part in call.lists(at)) == rows
            assert {part.status for part in call.lists(at)} == {OK}
        await ended(running)

    run(check)


async def settled(node: LocalNode) -> None:
    """Until nothing is added to what is held, and nothing is being read."""
    before: Any = None
    while before != (now := (node.service.unread.held, node.service.statistics()["list_slices"])):
        before = now
        await asyncio.sleep(0.1)


def test_a_client_that_does_not_read_is_not_heard_either() -> None:
    async def check(node: LocalNode) -> None:
        call = Call()
        running = asyncio.create_task(Stream(node.service, "n1", call).run())
        await call.until(lambda: call.taken)
        call.reads.clear()
        call.say(ping=1)
        await call.writing.wait()
        # What is wrong with each is told, in some 40 bytes.
        writes = pb.WriteGroup(session=b"wrong", writes=[pb.Write(seq=seq) for seq in range(1, 1_001)])
        for _ in range(400):
            call.say(writes=writes)
        before = -1
        while before != call.given.qsize():
            before = call.given.qsize()
            await asyncio.sleep(0.05)
        assert call.given.qsize() > 100
        assert node.service.unread.held < 2 * unread.AHEAD + 1_048_576
        call.reads.set()
        await call.until(lambda: call.results == 400_000)
        await ended(running)

    run(check)


def test_a_stream_that_stands_still_is_cut_off_when_others_need_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "SHORT_PATIENCE", 0.0)

    async def check(node: LocalNode) -> None:
        call = Call()
        stream = Stream(node.service, "n1", call)
        running = asyncio.create_task(stream.run())
        await call.until(lambda: call.taken)
        call.reads.clear()
        call.say(point_reads=[pb.PointReads(id=1, keys=[LARGE], consistency=EVENTUAL)])
        await call.writing.wait()
        full = Full(node)
        await running
        full.end()
        assert "unread_answers_mb" in stream.cut_off and "begin it anew" in stream.cut_off
        assert node.service.statistics()["unread_ended"] == 1

    run(check)


# ---- with gRPC


class Client:
    """HTTP/2 by hand, as `hostile` speaks it: it answers pings, and takes `window` bytes of each call."""

    def __init__(self, port: int, window: int) -> None:
        self._port = port
        self._window = window

    async def __aenter__(self) -> "Client":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        opened = WindowUpdateFrame(0, window_increment=1 << 30).serialize()
        self.writer.write(begin(window=self._window) + opened)
        self.life = asyncio.create_task(answer_pings(self.reader, self.writer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.life.cancel()
        await asyncio.gather(self.life, return_exceptions=True)
        self.writer.transport.abort()

    def ask(self, number: int, path: bytes, asked: bytes) -> None:
        self.writer.write(head(number, path, *GRPC) + data_of(number, asked))


@pytest.mark.parametrize(("path", "window"), [(STREAM, 500), (STREAM, 0), (UNARY, 500)])
def test_a_connection_whose_ended_calls_do_not_go_is_shut(
    path: bytes, window: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ended calls stay with gRPC for as long as their client opens no window; so do the bytes. With a window of 0 that
    is the first of all frames, when gRPC is most particular."""
    monkeypatch.setattr(unread, "SHORT_PATIENCE", 0.0)
    monkeypatch.setattr(leaving, "SHORT_PATIENCE", 0.0)
    read = pb.Read(id=1, ranges=[LIST], consistency=EVENTUAL)
    hello = pb.ClientFrame(hello=pb.Hello(protocol=1), reads=[read])
    asked = message((read if path == UNARY else hello).SerializeToString())

    async def check(node: LocalNode) -> None:
        server = ApiServer(node.service, "n1", "127.0.0.1:0")
        await server.start()
        try:
            async with Client(server.port, window) as client:
                client.ask(1, path, asked)
                least = 2_000_000 if window else 1
                held = node.service.unread._holdings
                await until(lambda: any(holding._sending >= least for holding in held))
                full = Full(node)
                with pytest.raises(OSError, match="cut"):
                    await client.life
                full.end()
            await until(lambda: not node.service.unread.held)
            await until(lambda: server.statistics()["connections_shut"])
            assert (server.statistics()["connections_shut"], server.statistics()["calls_leaving"]) == (1, 0)
        finally:
            await server.stop()

    run(check)
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


class Context:
    """Of a unary call."""

    def time_remaining(self) -> float:
        return 60.0

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"


def test_unary_reads_for_which_there_is_no_room_are_refused() -> None:
    async def check(node: LocalNode) -> None:
        unary = Unary(node.service)

        async def statuses() -> list[int]:
            asked = [pb.Read(keys=[SMALL]), pb.Read(keys=[LARGE]), pb.Read(ranges=[LIST])]
            return [(await unary.get(read.SerializeToString(), Context())).status for read in asked]

        assert await statuses() == [OK, OK, OK]
        full = Full(node)
        assert await statuses() == [OK, OVERLOADED, OVERLOADED]
        full.end()
        # More than half is held: as much as there is room for.
        limit = node.service.unread.limit
        node.service.unread.limit, node.service.unread.common, node.service.unread.high = 40_000_000, 30_000_000, 0
        assert await statuses() == [OK, OK, OVERLOADED], "a list of 2.4 MB, and a sixteenth of 30"
        node.service.unread.limit = limit
        meter = node.service.lists.meter
        await until(lambda: meter.done == 3)  # the thread is told that nothing more is wanted
        assert (meter.codes()["ok"], meter.codes()["overloaded"]) == (1, 2)

    run(check)


def test_a_page_of_a_queue_for_which_there_is_no_room_is_not_sent() -> None:
    async def check(node: LocalNode) -> None:
        stream = Stream(node.service, "n1", Call())
        page = pb.QueueReply(id=1, status=OK, messages=[pb.MessageInfo(payload=bytes(50_000))])
        small = pb.QueueReply(id=2, status=OK, queues=[pb.QueueInfo(name="q")])
        full = Full(node)
        for reply in (page, small):
            stream._queues._reply(reply)
        full.end()
        stream._queues._reply(page)
        replies = pb.ServerFrame.FromString(stream._outbox.next_frame()).queue_replies
        assert [(reply.id, reply.status) for reply in replies] == [(1, OVERLOADED), (2, OK), (1, OK)]
        assert "unread_answers_mb" in replies[0].message
        stream.close()
        stream._holding.close()

    run(check)


def test_messages_that_cannot_be_had_again_are_asked_for_when_there_is_room() -> None:
    async def check(node: LocalNode) -> None:
        stream = Stream(node.service, "n1", Call())
        room = stream._queues._take_room
        free = room.left()
        full = Full(node)
        assert (room.left(), room.blocked) == (0, True)
        full.end()
        await until(lambda: not room.blocked)
        assert room.left() == free
        node.service.unread.limit, node.service.unread.common = 40_000_000, 2_000_000
        assert 1 <= room.left() < 3, "little is free"
        node.service.unread.limit, node.service.unread.common = 1 << 30, 1 << 30
        stream.close()
        stream._holding.close()

    run(check)
