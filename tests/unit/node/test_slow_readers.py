"""Clients that ask and do not read: what waits for them makes room for others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node import reads, unread
from kvorum_node.api.stream import Stream
from tests.fuzz.local_node import LocalNode, local_node
from tests.unit.node.harness import Node
from tests.unit.node.test_service import KEY, Points, set_op

OK, OVERLOADED, NO_LEADER = pb.READ_STATUS_OK, pb.READ_STATUS_OVERLOADED, pb.READ_STATUS_NO_LEADER


class Slow(Points):
    """Reads whose owner has no room, until it is told to give up."""

    def __init__(self, node: Node, count: int) -> None:
        self._node = node
        super().__init__(node, *[KEY] * count)
        self.room = False
        self.gave_up = False
        node.timers.settle()
        assert len(self.kept) == 1
        node.service.reads.no_room(self, self._give_up)

    def _give_up(self) -> None:
        self.gave_up = True
        self._node.service.reads.forget(self.kept)


def statuses(points: Points) -> list[int]:
    return [answer.status for answer in points.answers]


def test_who_takes_nothing_makes_room_for_others_after_a_while(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_WAITING", 100)
    slow, refused = Slow(node, 100), Points(node, KEY)
    node.timers.settle()
    assert (statuses(refused), slow.gave_up) == ([OVERLOADED], False)
    node.timers.advance(reads.SLOW_PATIENCE)
    served = Points(node, KEY)
    node.timers.settle()
    assert (statuses(served), slow.gave_up) == ([OK], True)
    figures = node.service.reads.statistics()
    assert (figures["reads_under_way"], figures["reads_slow"], figures["reads_given_up"]) == (0, 0, 1)


def test_whoever_takes_nothing_for_longest_goes_first_and_no_more_than_need_to(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "MAX_WAITING", 100)
    slow = [Slow(node, 40) for _ in range(3)]
    node.service.reads.has_room(slow[0])  # it has read on, and stands still again
    node.service.reads.no_room(slow[0], slow[0]._give_up)
    node.timers.advance(reads.SLOW_PATIENCE + 1)
    served = Points(node, KEY)
    node.timers.settle()
    assert [one.gave_up for one in slow] == [False, True, False]
    assert statuses(served) == [OK]


def test_there_are_only_so_many_of_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_SLOW", 2)
    slow = [Slow(node, 1) for _ in range(3)]
    assert [one.gave_up for one in slow] == [False] * 3, "for a moment anybody may be slow"
    node.timers.advance(reads.SLOW_PATIENCE)
    slow.append(Slow(node, 1))
    assert [one.gave_up for one in slow] == [True, False, False, False]


def test_reads_of_the_future_make_room_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_WAITING", 100)
    waiting = [Points(node, KEY, min_versionstamp=b"\xff" * 10) for _ in range(100)]
    node.timers.settle()
    served = Points(node, KEY)
    node.timers.settle()
    assert statuses(served) == [OK]
    assert [statuses(one) for one in waiting] == [[NO_LEADER]] * 100
    figures = node.service.reads.statistics()
    assert (figures["reads_under_way"], figures["reads_behind"]) == (0, 0)


class Call:
    """A gRPC context whose client says these frames, and reads as long as it likes to."""

    def __init__(self, *frames: pb.ClientFrame, reads: bool) -> None:
        self.sent: asyncio.Queue[pb.ServerFrame] = asyncio.Queue()
        hello = pb.ClientFrame(hello=pb.Hello(protocol=1))
        self._frames = [frame.SerializeToString() for frame in (hello, *frames)]
        self._reads = reads

    async def read(self) -> Any:
        if not self._frames:
            await asyncio.Event().wait()
        return self._frames.pop(0)

    async def write(self, frame: bytes) -> None:
        if not self._reads:
            await asyncio.Event().wait()
        self.sent.put_nowait(pb.ServerFrame.FromString(frame))


def test_a_stream_that_is_not_read_is_cut_off_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_WAITING", 100)
    monkeypatch.setattr(reads, "SLOW_PATIENCE", 0.0)
    monkeypatch.setattr(unread, "AHEAD", 1_000)

    async def check(node: LocalNode) -> None:
        await node.backend.write(set_op(value=bytes(10_000)).SerializeToString(), timeout=10)
        # The first answer is all that may lie there; the others wait for the client.
        asked = [pb.PointReads(id=at, keys=[KEY] * at, consistency=pb.CONSISTENCY_EVENTUAL) for at in (1, 150)]
        stands_still = asyncio.Event()
        no_room = node.service.reads.no_room

        def noted(owner: object, give_up: Callable[[], None]) -> None:
            stands_still.set()
            no_room(owner, give_up)

        monkeypatch.setattr(node.service.reads, "no_room", noted)
        silent = Call(*(pb.ClientFrame(point_reads=[one]) for one in asked), reads=False)
        slow = asyncio.create_task(Stream(node.service, "n1", silent).run())
        await stands_still.wait()
        assert node.service.statistics()["reads_under_way"] == 150
        question = pb.PointReads(id=9, keys=[KEY], consistency=pb.CONSISTENCY_EVENTUAL)
        other = Call(pb.ClientFrame(point_reads=[question]), reads=True)
        running = asyncio.create_task(Stream(node.service, "n1", other).run())
        await slow
        answers: list[pb.PointAnswers] = []
        while not answers:
            answers += (await other.sent.get()).point_answers
        assert [answer.status for answer in answers] == [OK]
        assert node.service.statistics()["reads_under_way"] == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with local_node() as node:
        node.run(check(node))
