"""Reads of one key each: batches, and what a caller sees of them over fake nodes."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvorum import Kv, errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend
from kvorum.cluster.counters import Counters
from kvorum.cluster.points import FULL, Batch, Points
from tests.pace import Witness
from tests.unit.cluster.fake_node import FakeNode, FakeState, FakeStream, put
from tests.unit.cluster.steps import until

STRONG, LOCAL = pb.CONSISTENCY_STRONG, pb.CONSISTENCY_EVENTUAL


@dataclass
class Kept:
    """A promise that remembers what it was told."""

    result: bytes | None = None
    error: BaseException | None = None

    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def exception(self) -> BaseException | None:
        return self.error

    def set_result(self, result: bytes) -> None:
        if self.done():
            raise asyncio.InvalidStateError
        self.result = result

    def set_exception(self, exception: BaseException) -> None:
        assert not self.done()
        self.error = exception


@dataclass
class Rig:
    """Points with everything they call."""

    max_pending: int = 10_000
    counters: Counters = field(default_factory=Counters)
    open: list[Batch] = field(default_factory=list)
    singly: list[Batch] = field(default_factory=list)
    wakes: int = 0

    def __post_init__(self) -> None:
        self.points = Points(
            self.counters,
            began=self.open.append,
            ended=self.open.remove,
            wake=self._wake,
            otherwise=self.singly.append,
            max_pending=self.max_pending,
        )
        self.points.known = True

    def _wake(self) -> None:
        self.wakes += 1

    def submit(
        self,
        number: int = 0,
        *,
        moment: int = 1,
        timeout: float = 1.0,
        consistency: "pb.Consistency" = STRONG,
        max_age_ms: int = 0,
    ) -> Kept:
        promise = Kept()
        self.points.submit(b"%d" % number, promise, moment, timeout, consistency, max_age_ms)
        return promise

    def many(self, count: int, **more: int) -> list[Kept]:
        return [self.submit(number, **more) for number in range(count)]  # type: ignore[arg-type]

    def go(self, operations: int = 500, *, leading: bool = True, newest: bytes = b"newest") -> list[pb.PointReads]:
        frame = pb.ClientFrame()
        count = self.points.fill(frame, newest, operations, leading=leading)
        assert count == sum(len(reads.keys) for reads in frame.point_reads)
        return list(frame.point_reads)

    def answer(self, reads: pb.PointReads, first: int = 0, last: int | None = None) -> bool:
        """Each key is its own row."""
        answer = pb.PointAnswers(id=reads.id, status=pb.READ_STATUS_OK, rows=list(reads.keys)[first:last])
        return self.points.answered([answer])

    def refuse(self, reads: pb.PointReads, status: "pb.ReadStatus", message: str = "") -> bool:
        return self.points.answered([pb.PointAnswers(id=reads.id, status=status, message=message)])


def sizes(sent: list[pb.PointReads]) -> list[int]:
    return [len(reads.keys) for reads in sent]


def test_reads_of_a_moment_are_one_message_and_are_answered_in_order() -> None:
    rig = Rig()
    promises = rig.many(5)
    assert rig.wakes == 1
    (reads,) = rig.go()
    assert [*reads.keys] == [b"0", b"1", b"2", b"3", b"4"]
    assert (reads.consistency, reads.max_age_ms, reads.min_versionstamp) == (STRONG, 0, b"")
    assert rig.go() == []
    assert rig.points.expecting
    assert rig.answer(reads) is False
    assert [promise.result for promise in promises] == [*reads.keys]
    assert (rig.open, rig.points.expecting) == ([], False)
    assert rig.points.answered([pb.PointAnswers(id=reads.id, status=pb.READ_STATUS_OK, rows=[b"x"])]) is False


def test_what_asks_for_something_else_or_ends_at_another_time_is_another_batch() -> None:
    rig = Rig()
    rig.submit()
    for more in (
        {"moment": 2},
        {"moment": 2, "timeout": 2.0},
        {"consistency": LOCAL},
        {"consistency": pb.CONSISTENCY_BOUNDED, "max_age_ms": 5},
        {"consistency": pb.CONSISTENCY_BOUNDED, "max_age_ms": 6},
        {"consistency": pb.CONSISTENCY_BOUNDED, "max_age_ms": 6},
    ):
        rig.submit(**more)  # type: ignore[arg-type]
    assert len(rig.open) == 6
    sent = rig.go(leading=False)
    assert [(reads.consistency, reads.max_age_ms, reads.min_versionstamp) for reads in sent] == [
        (LOCAL, 0, b"newest"),
        (pb.CONSISTENCY_BOUNDED, 5, b"newest"),
    ], "as many as may be on their way; strong ones wait for a leader"
    rig.answer(sent[0])
    assert sizes(rig.go()) == [1, 1, 1, 2]


def test_a_few_wait_for_an_answer_while_others_are_on_their_way_and_a_full_batch_does_not() -> None:
    rig = Rig()
    first = (rig.submit(1), rig.go()[0])
    second = (rig.submit(2), rig.go()[0])
    rig.many(3)
    assert rig.go() == []
    rig.many(FULL - 3)
    assert sizes(rig.go()) == [FULL]
    rig.many(3)
    assert rig.go() == []
    wakes = rig.wakes
    rig.answer(first[1])
    assert (rig.wakes, rig.go()) == (wakes, [])
    rig.answer(second[1])
    assert (rig.wakes, sizes(rig.go())) == (wakes + 1, [3])


def test_reads_that_end_at_different_times_go_together_as_if_they_were_one_batch() -> None:
    rig = Rig()
    for number in range(FULL + 10):
        rig.submit(number, moment=number, timeout=1.0 + number)
    first = rig.go()
    assert sizes(first) == [1] * FULL
    assert rig.go() == []
    for reads in first:
        rig.answer(reads)
    assert sizes(rig.go()) == [1] * 10


def test_those_that_need_no_leader_do_not_wait_for_those_that_do() -> None:
    rig = Rig()
    for number in (1, 2):
        rig.submit(number)
        rig.go()
    rig.submit(3)
    rig.submit(4, consistency=LOCAL)
    assert [reads.consistency for reads in rig.go()] == [LOCAL]


def test_frames_are_bounded() -> None:
    rig = Rig()
    rig.many(5 * FULL)
    assert sizes(rig.go(2 * FULL + 5)) == [FULL, FULL]
    assert rig.go(FULL - 1) == []
    assert sizes(rig.go()) == [FULL] * 3


def test_a_read_that_comes_after_the_frame_joins_no_batch_that_is_on_its_way() -> None:
    rig = Rig()
    early = rig.submit(1)
    (reads,) = rig.go()
    late = rig.submit(2)
    rig.answer(reads)
    assert (early.result, late.result) == (b"1", None)
    assert [*rig.go()[0].keys] == [b"2"]


def test_answers_come_in_pieces_and_a_break_asks_for_the_rest() -> None:
    rig = Rig()
    promises = rig.many(10)
    (reads,) = rig.go()
    rig.answer(reads, 0, 4)
    promises[7].set_result(b"its caller is gone")
    rig.points.connection_lost()
    rig.answer(reads, 4)
    assert [promise.result for promise in promises[:5]] == [b"0", b"1", b"2", b"3", None]
    (again,) = rig.go()
    assert again.id != reads.id
    assert [*again.keys] == [b"4", b"5", b"6", b"8", b"9"]
    assert rig.counters.retries == 5
    rig.answer(again, 0, 2)
    rig.answer(again, 2)
    assert all(promise.done() for promise in promises)
    assert (rig.open, rig.points.expecting) == ([], False)


def test_a_break_repeats_in_order_and_before_what_waits() -> None:
    rig = Rig()
    for number in (1, 2):
        rig.submit(number)
        rig.go()
    rig.submit(3)
    rig.points.connection_lost()
    assert [reads.keys[0] for reads in rig.go()] == [b"1", b"2", b"3"]
    rig.points.connection_lost()
    rig.points.connection_lost()
    assert [reads.keys[0] for reads in rig.go()] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("status", "text"),
    [(pb.READ_STATUS_NO_LEADER, "no leader"), (pb.READ_STATUS_OVERLOADED, "overloaded"), (99, "status 99")],
)
def test_what_is_refused_waits_for_its_retry(status: "pb.ReadStatus", text: str) -> None:
    rig = Rig()
    promises = rig.many(3)
    (reads,) = rig.go()
    rig.answer(reads, 0, 1)
    assert rig.refuse(reads, status) == (status == pb.READ_STATUS_NO_LEADER)
    assert (rig.points.has_refused, rig.points.refusals, rig.open[0].last_refusal) == (True, 1, text)
    assert rig.go() == []
    assert not any(promise.done() for promise in promises[1:])
    rig.points.retry_refused()
    assert not rig.points.has_refused
    (again,) = rig.go()
    assert [*again.keys] == [b"1", b"2"]
    rig.answer(again)
    assert (promises[2].result, rig.points.refusals) == (b"2", 0)


def test_what_is_refused_goes_again_on_another_connection_without_waiting() -> None:
    rig = Rig()
    rig.submit(1)
    rig.refuse(rig.go()[0], pb.READ_STATUS_NO_LEADER)
    rig.points.connection_lost()
    assert (rig.points.has_refused, sizes(rig.go())) == (False, [1])


def test_an_invalid_batch_ends_with_the_nodes_words() -> None:
    rig = Rig()
    promises = rig.many(2)
    rig.refuse(rig.go()[0], pb.READ_STATUS_INVALID, "a key has at most 2,049 bytes")
    assert all(isinstance(promise.error, errors.InvalidArgument) for promise in promises)
    assert "2,049" in str(promises[0].error)
    assert rig.open == []


@pytest.mark.parametrize("where", ["waiting", "sent", "refused"])
def test_a_batch_ends_in_its_moment_wherever_it_is(where: str) -> None:
    rig = Rig()
    promises = rig.many(3)
    promises[0].set_result(b"gone")
    if where != "waiting":
        (reads,) = rig.go()
        if where == "refused":
            rig.refuse(reads, pb.READ_STATUS_OVERLOADED)
    rig.points.expired(rig.open[0], lambda: errors.DeadlineExceeded("too late"))
    assert [type(promise.error) for promise in promises[1:]] == [errors.DeadlineExceeded] * 2
    assert (rig.open, rig.points.expecting, rig.points.has_refused) == ([], False, False)
    later = rig.submit(9)
    assert rig.go()[0].keys == [b"9"]
    assert not later.done()


def test_all_are_given_up_or_only_those_that_are_sent() -> None:
    rig = Rig()
    sent = rig.submit(1)
    rig.go()
    refused = rig.submit(2)
    rig.refuse(rig.go()[0], pb.READ_STATUS_OVERLOADED)
    waiting = rig.submit(3)
    rig.points.give_up_all(errors.Closed, sent_only=True)
    assert (sent.done(), refused.done(), waiting.done()) == (True, False, False)
    rig.points.give_up_all(errors.Closed)
    assert refused.done() and waiting.done()
    assert (rig.open, rig.points.expecting) == ([], False)


def test_more_than_may_be_under_way_are_refused_until_some_end_or_are_cancelled() -> None:
    rig = Rig(max_pending=3)
    promises = rig.many(3)
    for _ in range(2):
        with pytest.raises(errors.Overloaded, match="3 reads are under way already"):
            rig.submit()
    (reads,) = rig.go()
    rig.answer(reads)
    waiting = rig.many(3)
    waiting[1].set_result(b"cancelled")
    rig.submit(7)
    assert [*rig.go()[0].keys] == [b"0", b"2", b"7"]
    assert all(promise.done() for promise in promises)


def test_a_batch_of_which_one_may_not_be_read_is_asked_singly() -> None:
    rig = Rig()
    promises = rig.many(4)
    (reads,) = rig.go()
    rig.answer(reads, 0, 1)
    promises[2].set_result(b"its caller is gone")
    assert rig.refuse(reads, pb.READ_STATUS_DENIED, "read ('b',)") is False
    assert [batch.keys for batch in rig.singly] == [[b"1", b"3"]]
    assert (rig.open, rig.points.expecting, rig.points.has_refused) == ([], False, False)


def test_a_node_that_does_not_know_them_is_asked_otherwise() -> None:
    rig = Rig()
    rig.points.known = False
    rig.many(3)
    assert rig.go() == []
    assert [batch.keys for batch in rig.singly] == [[b"0", b"1", b"2"]]
    assert (rig.open, rig.points.expecting) == ([], False)


# ---- over fake nodes

Connect = Callable[..., "asyncio.Future[ClusterBackend]"]


@pytest.fixture(params=["together", "singly"])
async def kv(request: pytest.FixtureRequest, nodes: list[FakeNode], open_backend: Connect) -> Kv:
    """Over nodes that know PointReads, and over older ones."""
    for node in nodes:
        node.knows_points = request.param == "together"
    backend = await open_backend()
    for number in range(50):
        await backend.write(put(b"\x02k\x00\x15" + bytes((number,)), b"%d" % number), timeout=5)
    return Kv(backend, timeout=5.0)


async def test_gets_share_frames_and_find_what_is_there(kv: Kv, nodes: list[FakeNode]) -> None:
    before = len(nodes[0].frames)
    entries = await asyncio.gather(*(kv.get(("k", number)) for number in range(1, 60)))
    assert [entry.value for entry in entries] == [b"%d" % number for number in range(1, 50)] + [None] * 10
    assert [entry.key for entry in entries] == [("k", number) for number in range(1, 60)]
    assert all(bool(entry) == (entry.value is not None) for entry in entries)
    assert len(nodes[0].frames) == before + 1
    asked_together = sum(len(frame.point_reads) for frame in nodes[0].frames)
    if nodes[0].knows_points:
        # Two, if a step of the time of deadlines fell between them.
        assert asked_together in {1, 2}
    assert sum(len(frame.reads) for frame in nodes[0].frames) == (0 if nodes[0].knows_points else 59)


async def test_full_batches_that_are_answered_together_part_again(
    nodes: list[FakeNode], open_backend: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvorum.cluster.client.WIDTH", 1e6)  # all of it is one moment

    async def together(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        answers = [
            pb.PointAnswers(id=reads.id, status=pb.READ_STATUS_OK, rows=[b""] * len(reads.keys))
            for reads in frame.point_reads
        ]
        stream.send(pb.ServerFrame(point_answers=answers))
        return True

    nodes[0].hook = together
    kv = Kv(await open_backend(), timeout=5.0)

    async def twice(number: int) -> None:
        for _ in range(2):
            assert not await kv.get(("k", number))

    await asyncio.gather(*(twice(number) for number in range(3 * FULL)))
    asked = [[len(reads.keys) for reads in frame.point_reads] for frame in nodes[0].frames]
    assert asked[:2] == [[FULL] * 3, [FULL]], "the first is on its way before the others were answered"
    assert [size for frame in asked[2:] for size in frame] == [FULL] * 2


async def test_gets_outlive_a_broken_stream_and_a_change_of_nodes(
    kv: Kv, state: FakeState, nodes: list[FakeNode]
) -> None:
    asked = asyncio.Event()

    async def swallow(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        asked.set()
        return True

    nodes[0].hook = swallow
    gets = [asyncio.create_task(kv.get(("k", number))) for number in range(1, 6)]
    await until(asked)
    nodes[1].knows_points = not nodes[1].knows_points
    state.leader = nodes[1]
    await nodes[0].kill()
    assert [(await get).value for get in gets] == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_get_ends_in_time_and_says_why(kv: Kv, state: FakeState) -> None:
    state.lead(None)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with Witness(0.26):
        with pytest.raises(errors.DeadlineExceeded, match=r"no answer within 200 ms .*no leader"):
            await kv.get(("k", 1), timeout=200)
    assert loop.time() - begun >= 0.199
    assert (await kv.get(("k", 1), consistency="eventual")).value == b"1", "which needs no leader"


async def test_a_get_that_needs_no_leader_is_never_older_than_what_was_seen(kv: Kv, nodes: list[FakeNode]) -> None:
    await kv.get(("k", 1))
    await kv.get(("k", 1), consistency="bounded", max_age=5)
    frame = nodes[0].frames[-1]
    (asked,) = (*frame.point_reads, *frame.reads)
    assert (asked.consistency, asked.max_age_ms) == (pb.CONSISTENCY_BOUNDED, 5)
    assert asked.min_versionstamp == nodes[0].state.stamp


async def test_cancelled_gets_leave_the_others_alone_and_nothing_behind(
    kv: Kv, nodes: list[FakeNode], caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()
    let_go = asyncio.Event()

    async def hold(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        asked.set()
        await let_go.wait()
        return False

    nodes[0].hook = hold
    gets = [asyncio.create_task(kv.get(("k", number))) for number in range(1, 6)]
    await until(asked)
    gets[1].cancel()
    let_go.set()
    done = await asyncio.gather(*gets, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, False, False, False]
    nodes[0].hook = None
    assert (await kv.get(("k", 7))).value == b"7"


async def test_a_caller_that_is_cancelled_as_its_error_comes_leaves_no_log_line(
    kv: Kv, nodes: list[FakeNode], caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    async def swallow(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        asked.set()
        return True

    nodes[0].hook = swallow
    get = asyncio.create_task(kv.get(("k", 1)))
    await until(asked)
    backend = kv._link.backend
    assert isinstance(backend, ClusterBackend)
    backend._points.give_up_all(errors.Closed)
    backend._reads.give_up_all(errors.Closed)
    get.cancel()
    await asyncio.gather(get, return_exceptions=True)
    del get
    gc.collect()
    assert caplog.records == []


async def test_a_get_is_answered_beside_one_that_is_denied(
    kv: Kv, nodes: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvorum.cluster.connection.SILENCE", 1_000.0)  # no ping that takes along what was forgotten
    forbidden = b"\x02k\x00\x15\x02"

    async def judge(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        if not any(forbidden in asked.keys for asked in (*frame.reads, *frame.point_reads)):
            return False
        answer = pb.ServerFrame()
        for points in frame.point_reads:
            answer.point_answers.add(id=points.id, status=pb.READ_STATUS_DENIED, message="no right to read")
        for read in frame.reads:
            denied = forbidden in read.keys
            entries = [] if denied else [stream.node.state.row(key) for key in read.keys]
            status = pb.READ_STATUS_DENIED if denied else pb.READ_STATUS_OK
            answer.reads.add(id=read.id, status=status, entries=entries)
        stream.send(answer)
        return True

    nodes[0].hook = judge
    mine, other = await asyncio.gather(kv.get(("k", 1)), kv.get(("k", 2)), return_exceptions=True)
    assert isinstance(other, errors.PermissionDenied)
    assert not isinstance(mine, BaseException) and mine.value == b"1"


async def test_closing_ends_gets(kv: Kv, nodes: list[FakeNode]) -> None:
    asked = asyncio.Event()

    async def swallow(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        asked.set()
        return True

    nodes[0].hook = swallow
    get = asyncio.create_task(kv.get(("k", 1)))
    await until(asked)
    await kv.close()
    with pytest.raises(errors.Closed):
        await get
    with pytest.raises(errors.Closed):
        await kv.get(("k", 1))


async def test_a_row_that_cannot_be_read_names_its_key(kv: Kv, state: FakeState) -> None:
    state.rows[b"\x02bad\x00"] = pb.KvEntry(key=b"\x02bad\x00", value=b"\xff\x0f", versionstamp=bytes(10), encoding=1)  # type: ignore[arg-type]
    with pytest.raises(errors.DataError, match="bad"):
        await kv.get(("bad",))
