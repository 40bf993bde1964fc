"""Deadlines, route, reads, watches and consumers, each alone."""

import asyncio
import random

import pytest

from kvorum import errors
from kvorum._proto import kvorum_pb2 as pb
from kvorum.cluster import ClusterBackend
from kvorum.cluster.consumers import MAX_BYTES as MOST_CONSUMERS
from kvorum.cluster.consumers import Consumers
from kvorum.cluster.counters import Counters
from kvorum.cluster.deadlines import Deadlines
from kvorum.cluster.reads import MAX_LISTS, Reads
from kvorum.cluster.route import AVOIDED, Route, name, parse
from kvorum.cluster.watches import MAX_BYTES as MOST_WATCHES
from kvorum.cluster.watches import Watches
from tests.unit.cluster.fake_node import FakeNode, FakeStream

OVERLOADED = pb.READ_STATUS_OVERLOADED

# ---- deadlines


async def test_items_expire_in_time_never_early_and_not_at_all_when_taken_out() -> None:
    loop = asyncio.get_running_loop()
    expired: dict[str, float] = {}
    all_there = asyncio.Event()

    def expire(item: str) -> None:
        expired[item] = loop.time()
        if len(expired) == 3:
            all_there.set()

    deadlines: Deadlines[str] = Deadlines(loop, expire)
    now = loop.time()
    due = {"late": now + 0.15, "soon": now + 0.03, "past": now - 1}
    for item, deadline in due.items():
        deadlines.add(deadline, item)
    deadlines.add(now + 0.05, "taken out").pop("taken out", None)
    await asyncio.wait_for(all_there.wait(), 60)
    assert list(expired) == ["past", "soon", "late"]
    for item, at in expired.items():
        assert at >= due[item]


async def test_items_of_one_moment_expire_in_the_order_in_which_they_came() -> None:
    loop = asyncio.get_running_loop()
    expired: list[object] = []
    all_there = asyncio.Event()

    def expire(item: object) -> None:
        expired.append(item)
        if len(expired) == 50:
            all_there.set()

    deadlines: Deadlines[object] = Deadlines(loop, expire)
    items = [object() for _ in range(50)]  # a set orders them by their addresses
    due = loop.time() + 0.02
    for item in reversed(items):
        deadlines.add(due, item)
    await asyncio.wait_for(all_there.wait(), 60)
    assert expired == items[::-1]


async def test_an_item_may_be_added_while_others_expire_and_close_forgets_all() -> None:
    loop = asyncio.get_running_loop()
    second = loop.create_future()

    def expire(item: str) -> None:
        if item == "first":
            deadlines.add(loop.time() + 0.01, "second")
        else:
            second.set_result(item)

    deadlines: Deadlines[str] = Deadlines(loop, expire)
    deadlines.add(loop.time() + 0.01, "first")
    assert await asyncio.wait_for(second, 60) == "second"
    deadlines.add(loop.time() + 0.01, "third")
    deadlines.close()
    done = loop.create_future()
    loop.call_later(0.05, done.set_result, None)
    await done  # a third expiry would be an InvalidStateError in `expire`


async def test_buckets_that_were_emptied_long_before_their_time_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.deadlines.MANY", 50)
    loop = asyncio.get_running_loop()
    expired = loop.create_future()
    deadlines: Deadlines[str] = Deadlines(loop, expired.set_result)
    day = loop.time() + 86_400
    kept = [deadlines.add(day + number, f"kept {number}") for number in range(20)]
    for number in range(10_000):
        deadlines.add(day + number, "taken out").pop("taken out")
    assert len(deadlines._buckets) == len(deadlines._order) <= 51
    assert [len(bucket) for bucket in kept] == [1] * 20
    assert all(bucket in deadlines._buckets.values() for bucket in kept)
    deadlines.add(loop.time() + 0.01, "due")
    assert await asyncio.wait_for(expired, 60) == "due"
    deadlines.close()


# ---- route


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


A, B, C = ("a", 1), ("b", 2), ("c", 3)


def route(*addresses: tuple[str, int]) -> tuple[Route, Clock]:
    clock = Clock()
    return Route(addresses or (A, B, C), clock, random.Random(1)), clock


def test_addresses_come_in_turn_and_a_hint_first() -> None:
    way, _ = route()
    first = [way.next() for _ in range(6)]
    assert first[:3] == first[3:]
    assert sorted(first[:3]) == [A, B, C]
    way.follow(("elsewhere", 9))
    assert way.next() == ("elsewhere", 9)
    assert way.next() == first[0]


def test_the_first_retry_comes_at_once_then_the_delay_grows_to_a_second_with_jitter() -> None:
    way, _ = route()
    delays = []
    for _ in range(12):
        delays.append(way.delay())
        way.failed(way.next(), "refused")
    assert delays[:2] == [0, 0]
    assert 0.025 <= delays[2] <= 0.05
    assert all(0.5 <= delay <= 1.0 for delay in delays[8:])
    assert len(set(delays[8:])) > 1
    way.succeeded(A)
    assert way.delay() == 0


def test_a_hint_to_an_address_that_has_just_failed_is_not_used_unless_it_was_elected_since() -> None:
    way, clock = route()
    assert way.usable(A, 5)
    way.saw_term(5)
    way.failed(A, "refused")
    assert not way.usable(A, 5)
    assert way.usable(A, 6), "it is back, and leads"
    way.failed(B, "it knows no leader", dead=False)
    assert way.usable(B, 0), "it may have become the leader meanwhile"
    clock.now += AVOIDED
    assert way.usable(A, 5)


def test_an_address_that_has_just_failed_is_skipped_while_there_are_others() -> None:
    way, clock = route()
    first, second, third = (way.next() for _ in range(3))
    way.failed(first, "silent for 2.5 s")
    assert [way.next() for _ in range(4)] == [second, third, second, third]
    way.failed(second, "refused")
    way.failed(third, "refused")
    assert sorted(way.next() for _ in range(3)) == [A, B, C]
    clock.now += AVOIDED
    assert sorted(way.next() for _ in range(3)) == [A, B, C]


def test_nodes_that_point_at_each_other_are_not_asked_in_a_tight_loop() -> None:
    way, _ = route()
    for _ in range(10):
        way.follow(A)
    assert way.delay() >= 0.5


ADVERTISED = ("n1", 7401)


def test_a_node_is_looked_for_at_the_given_address_where_it_was_met() -> None:
    way, clock = route(A, B)
    assert way.place("n1", ADVERTISED) == ADVERTISED, "nobody has been met: what is told is all there is"
    way.met(A, "n1")
    assert way.place("n1", ADVERTISED) == A
    assert way.place("n2", ADVERTISED) == ADVERTISED, "another node"
    assert way.place("n1", B) == B, "what is told was given: the node has moved there"
    assert way.place("n1", None) == A
    way.failed(A, "refused")
    assert way.place("n1", ADVERTISED) == ADVERTISED, "perhaps it has moved"
    clock.now += AVOIDED
    assert way.place("n1", ADVERTISED) == A
    way.met(A, "n2")
    assert way.place("n1", ADVERTISED) == ADVERTISED, "another node is there now"


def test_once_an_advertised_address_has_failed_given_ones_are_tried_where_nobody_was_met() -> None:
    way, clock = route()
    way.met(A, "n0")
    assert way.place("n1", ADVERTISED) == ADVERTISED
    way.failed(ADVERTISED, "no such host")
    clock.now += AVOIDED
    assert way.place("n1", ADVERTISED) == B
    way.failed(B, "refused")
    assert way.place("n1", ADVERTISED) == C
    way.met(C, "n1")
    way.failed(C, "refused")
    assert way.place("n1", ADVERTISED) == C, "what is told does not work here"
    assert way.place("n2", ("n2", 7401)) == ("n2", 7401), "no stranger is left that has not just failed"
    clock.now += AVOIDED
    assert way.place("n2", ("n2", 7401)) == B
    way.succeeded(("n2", 7401))
    assert way.place("n3", ADVERTISED) == ADVERTISED, "advertised addresses work, it seems"


def test_who_was_met_at_an_address_that_nobody_gave_is_not_kept() -> None:
    way, _ = route()
    way.met(ADVERTISED, "n1")
    assert way.known_place("n1", None) is None


def test_memory_of_hinted_addresses_is_bounded() -> None:
    way, _ = route()
    for number in range(1_000):
        way.failed((f"made-up-{number}", 1), "refused")
    assert len(way._failed_at) <= 3 + 65


def test_problems_name_every_address() -> None:
    way, _ = route(A, B, A)
    assert way.problems() == ""
    way.failed(B, "connection refused")
    assert way.problems() == "a:1: not answered yet; b:2: connection refused"


def test_a_route_is_hopeless_only_when_every_address_refused_for_good() -> None:
    way, _ = route(A, B)
    hopeless = []
    for address, final in ((A, True), (B, False), (B, True), (A, False), (A, True)):
        way.failed(address, "another cluster", final=final)
        hopeless.append(way.hopeless)
    assert hopeless == [False, False, True, False, True]
    way.succeeded(A)
    assert not way.hopeless
    way.failed(A, "another cluster", final=True)
    way.met(A, "n1")
    way.failed(B, "another cluster", final=True)
    assert not way.hopeless, "one of them has let us in since"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("n1:7401", ("n1", 7401)),
        ("[::1]:7401", ("::1", 7401)),
        ("", None),
        ("n1", None),
        (":7401", None),
        ("n1:0", None),
        ("n1:70000", None),
        ("n1:x", None),
        ("n1:²", None),
        ("n1:" + "9" * 5_000, None),
    ],
)
def test_addresses_are_parsed_and_written(text: str, address: tuple[str, int] | None) -> None:
    assert parse(text) == address
    if address is not None:
        assert name(address) == text


# ---- reads


class ReadPromise:
    def __init__(self) -> None:
        self.result: pb.ReadResult | None = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def set_result(self, result: pb.ReadResult, /) -> None:
        self.result = result

    def set_exception(self, exception: BaseException, /) -> None:
        self.error = exception


def submit(reads: Reads, consistency: pb.Consistency = pb.CONSISTENCY_STRONG) -> ReadPromise:
    promise = ReadPromise()
    reads.submit(pb.Read(keys=[b"k"], consistency=consistency), promise, 1.0)
    return promise


def asked(reads: Reads, *, leading: bool = True) -> list[int]:
    frame = pb.ClientFrame()
    assert reads.fill(frame, 100, leading=leading) == len(frame.reads)
    return [read.id for read in frame.reads]


def test_strong_reads_wait_for_the_leader_others_do_not() -> None:
    reads = Reads(Counters())
    submit(reads)
    submit(reads, pb.CONSISTENCY_EVENTUAL)
    submit(reads, pb.CONSISTENCY_BOUNDED)
    assert asked(reads, leading=False) == [2, 3]
    assert asked(reads, leading=True) == [1]


def test_reads_are_asked_again_after_a_break_and_after_refusals_that_may_pass() -> None:
    reads = Reads(Counters())
    promise = submit(reads)
    assert asked(reads) == [1]
    assert asked(reads) == []
    reads.connection_lost()
    assert asked(reads) == [1]
    for status in (pb.READ_STATUS_NO_LEADER, pb.READ_STATUS_OVERLOADED, pb.READ_STATUS_TOO_OLD, 77):
        refusal = pb.ReadResult(id=1, status=status)  # type: ignore[arg-type]
        assert reads.answered([refusal]) == (status == pb.READ_STATUS_NO_LEADER)
        assert asked(reads) == []
        reads.retry_refused()
        assert asked(reads) == [1]
    reads.answered([pb.ReadResult(id=1, status=pb.READ_STATUS_OK, read_versionstamp=b"stamp")])
    assert promise.result is not None and promise.result.read_versionstamp == b"stamp"
    reads.connection_lost()
    assert asked(reads) == []


def test_an_invalid_read_is_told_at_once() -> None:
    reads = Reads(Counters())
    promise = submit(reads)
    asked(reads)
    reads.answered([pb.ReadResult(id=1, status=pb.READ_STATUS_INVALID, message="too many keys")])
    assert isinstance(promise.error, errors.InvalidArgument)
    assert "too many keys" in str(promise.error)


def rows(*keys: bytes) -> pb.RangeResult:
    return pb.RangeResult(entries=[pb.KvEntry(key=key) for key in keys])


def test_slices_of_a_large_answer_are_joined_and_voided_by_a_break_or_a_refusal() -> None:
    reads = Reads(Counters())
    promise = submit(reads)
    asked(reads)
    torn = pb.ReadResult(id=1, more=True, ranges=[rows(b"torn"), rows()])
    reads.answered([torn])
    reads.connection_lost()
    asked(reads)
    reads.answered([torn, pb.ReadResult(id=1, status=pb.READ_STATUS_TOO_OLD)])
    reads.retry_refused()
    asked(reads)
    reads.answered([pb.ReadResult(id=1, more=True, ranges=[rows(b"a"), rows()])])
    reads.answered([pb.ReadResult(id=1, more=True, ranges=[rows(b"b"), rows(b"x")])])
    counted = pb.ReadResult(id=1, more=True, ranges=[rows(), pb.RangeResult(count=7)])
    reads.answered([counted, counted])
    last = pb.ReadResult(
        id=1,
        status=pb.READ_STATUS_OK,
        ranges=[rows(), rows(b"y")],
        entries=[pb.KvEntry(key=b"p")],
        read_versionstamp=b"s",
        time_ms=5,
    )
    last.ranges[1].count = 2
    reads.answered([last])
    assert promise.result is not None
    assert [[entry.key for entry in part.entries] for part in promise.result.ranges] == [[b"a", b"b"], [b"x", b"y"]]
    assert [entry.key for entry in promise.result.entries] == [b"p"]
    assert (promise.result.status, promise.result.read_versionstamp) == (pb.READ_STATUS_OK, b"s")
    assert ([part.count for part in promise.result.ranges], promise.result.time_ms) == ([0, 16], 5)


def test_a_node_cannot_fill_memory_with_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.reads.MAX_ANSWER", 1_000)
    reads = Reads(Counters())
    promise = submit(reads)
    asked(reads)
    for _ in range(20):
        reads.answered([pb.ReadResult(id=1, more=True, ranges=[rows(b"k" * 100)])])
    assert isinstance(promise.error, errors.Unavailable)


def test_no_more_lists_are_on_the_stream_than_keep_a_node_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.reads.MAX_LISTS", 20)
    reads = Reads(Counters())
    promises = []
    for _ in range(20 + 10):
        promises.append(ReadPromise())
        reads.submit(pb.Read(ranges=[pb.ReadRange(end=b"z")]), promises[-1], 1.0)
    submit(reads)
    first = asked(reads)
    assert len(first) == 20 + 1 and not reads.has_place
    promises[0].error = errors.Closed()  # cancelled: the node does not know of it
    assert asked(reads) == []
    reads.answered([pb.ReadResult(id=2, more=True, ranges=[rows(b"a")])])
    assert not reads.has_place
    reads.answered([pb.ReadResult(id=number, status=status) for number, status in ((1, 1), (2, 1), (3, OVERLOADED))])
    assert reads.has_place and asked(reads) == [20 + number for number in (1, 2, 3)]
    reads.connection_lost()
    assert len(asked(reads)) == 20 + 1


async def test_lists_that_wait_for_a_place_go_when_others_are_answered(
    nodes: list[FakeNode], backend: ClusterBackend
) -> None:
    under_way: list[int] = []
    most = 0

    async def answer_some(stream: FakeStream, frame: pb.ClientFrame) -> bool:
        nonlocal most
        under_way.extend(read.id for read in frame.reads)
        most = max(most, len(under_way))
        answers, under_way[:] = under_way[:50], under_way[50:]
        found = [pb.ReadResult(id=number, status=pb.READ_STATUS_OK, ranges=[rows(b"k")]) for number in answers]
        stream.send(pb.ServerFrame(reads=found))
        return True

    nodes[0].hook = answer_some
    read = pb.Read(ranges=[pb.ReadRange(end=b"z")])
    asking = [backend.read(pb.Read.FromString(read.SerializeToString()), timeout=30) for _ in range(4 * MAX_LISTS)]
    found = await asyncio.gather(*asking)
    assert len(found) == 4 * MAX_LISTS and MAX_LISTS - 50 < most <= MAX_LISTS


def test_reads_are_bounded() -> None:
    reads = Reads(Counters(), max_pending=1)
    submit(reads)
    with pytest.raises(errors.Overloaded):
        submit(reads)


# ---- watches


def event(watch_id: int, stamp: int, *versionstamps: bytes) -> pb.WatchEvent:
    entries = [pb.KvEntry(key=b"k", versionstamp=versionstamp) for versionstamp in versionstamps]
    return pb.WatchEvent(id=watch_id, entries=entries, read_versionstamp=bytes([stamp]))


async def test_the_newest_snapshot_replaces_what_was_not_fetched() -> None:
    watches = Watches(asyncio.get_running_loop())
    watch = watches.start([b"k"])
    frame = pb.ClientFrame()
    assert watches.fill(frame, b"newest", 10) == 1
    assert frame.watches[0].min_versionstamp == b"newest"
    watches.events([event(1, 1, b"v1"), event(1, 2, b"v2"), event(1, 3, b"v3")])
    assert (await watch.next())[0].versionstamp == b"v3"
    nothing_more = asyncio.ensure_future(watch.next())
    watches.events([event(1, 2, b"v2")])
    done, _ = await asyncio.wait([nothing_more], timeout=0.02)
    assert not done, "an older state than the one already seen"
    watches.events([event(1, 4, b"v3")])
    assert (await nothing_more)[0].versionstamp == b"v3", "a raw repetition on a living stream is passed on"


async def test_after_a_reconnect_an_unchanged_snapshot_is_dropped_and_a_changed_one_is_not() -> None:
    watches = Watches(asyncio.get_running_loop())
    watch = watches.start([b"k", b"l"])
    watches.fill(pb.ClientFrame(), b"", 10)
    watches.events([event(1, 5, b"v1", b"")])
    await watch.next()
    watches.connection_lost()
    watches.events([event(1, 6, b"v9", b"")])  # of the old stream
    frame = pb.ClientFrame()
    watches.fill(frame, b"\x02", 10)
    assert [(again.id, list(again.keys), again.min_versionstamp) for again in frame.watches] == [
        (1, [b"k", b"l"], b"\x05")
    ]
    waiting = asyncio.ensure_future(watch.next())
    watches.events([event(1, 7, b"v1", b"")])
    done, _ = await asyncio.wait([waiting], timeout=0.02)
    assert not done
    watches.events([event(1, 8, b"v1", b"v2")])
    assert [entry.versionstamp for entry in await waiting] == [b"v1", b"v2"]


async def test_a_watch_that_a_node_ends_starts_again_or_fails() -> None:
    watches = Watches(asyncio.get_running_loop())
    watch, other = watches.start([b"k"]), watches.start([b"k"])
    watches.fill(pb.ClientFrame(), b"", 10)
    watches.events([pb.WatchEvent(id=1, error="no leader", retryable=True), pb.WatchEvent(id=2, error="too many keys")])
    with pytest.raises(errors.InvalidArgument, match="too many keys"):
        await other.next()
    assert watches.has_refused
    watches.retry_refused()
    frame = pb.ClientFrame()
    watches.fill(frame, b"", 10)
    assert [again.id for again in frame.watches] == [1]
    watches.stop(watch)
    frame = pb.ClientFrame()
    watches.fill(frame, b"", 10)
    assert list(frame.stop_watches) == [1]


# ---- consumers


class Rig:
    """Consumers with everything they call."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.wakes = 0
        self.given_back: list[pb.Delivery] = []
        self.now = 0.0
        self.consumers = Consumers(self.counters, self._wake, self.given_back.append, clock=lambda: self.now)

    def _wake(self) -> None:
        self.wakes += 1

    def frame(self, session: bytes = b"s1") -> pb.ClientFrame:
        frame = pb.ClientFrame()
        self.consumers.fill(frame, session, 100)
        return frame


def delivery(consumer: int, number: int, attempt: int = 1) -> pb.Delivery:
    return pb.Delivery(consumer=consumer, message_id=b"m%d" % number, lease_id=b"l%d" % number, attempt=attempt)


async def test_a_lease_is_delivered_once_reported_before_its_settle_and_named_after_a_reconnect() -> None:
    rig = Rig()
    got: list[bytes] = []
    consumer = rig.consumers.start("q", 10, 2, lambda message: got.append(message.lease_id))
    start = rig.frame().consumers[0]
    assert (start.id, start.queue, start.credits, start.concurrency, len(start.held)) == (1, "q", 10, 2, 0)
    rig.consumers.deliveries([delivery(1, 1), delivery(1, 2, attempt=2), delivery(1, 1), delivery(1, 3)], b"s1")
    assert got == [b"l1", b"l2", b"l3"]
    consumer.started(b"l1")
    consumer.started(b"l1")
    consumer.started(b"l2")
    consumer.started(b"unknown")
    assert [(report.consumer, list(report.lease_ids)) for report in rig.frame().started] == [(1, [b"l1", b"l2"])]
    assert len(rig.frame().started) == 0
    consumer.settled(b"l1")
    rig.consumers.connection_lost()
    again = rig.frame().consumers[0]
    assert [(held.message_id, held.lease_id, held.started) for held in again.held] == [
        (b"m2", b"l2", True),
        (b"m3", b"l3", False),
    ]
    rig.consumers.deliveries([delivery(1, 1), delivery(1, 2), delivery(1, 4)], b"s1")
    assert got == [b"l1", b"l2", b"l3", b"l4"]
    assert (rig.counters.deliveries, rig.counters.redeliveries, rig.counters.duplicate_deliveries) == (4, 1, 3)


async def test_what_was_let_go_is_forgotten_in_time_and_said_again_after_a_reconnect() -> None:
    rig = Rig()
    consumer = rig.consumers.start("q", 2, 1, lambda _: None, expiring=True)
    rig.frame()
    for number in range(1_200):
        rig.consumers.deliveries([delivery(1, number)], b"s1")
        consumer.started(b"l%d" % number)
        if number:
            consumer.started(b"l%d" % number)
    rig.consumers.connection_lost()
    frame = rig.frame()
    assert [held.lease_id for held in frame.consumers[0].held] == [b"l0", b"l1199"]  # l0 is still in somebody's hands
    assert [(report.consumer, list(report.lease_ids)) for report in frame.started] == [(1, [b"l1199"])]
    assert len(rig.frame().started) == 0
    consumer.settled(b"l1199")
    rig.consumers.connection_lost()
    assert len(rig.frame().started) == 0
    rig.consumers.deliveries([delivery(1, 1_198)], b"s1")
    assert rig.counters.duplicate_deliveries == 1


async def test_what_was_let_go_under_another_session_is_not_said_again() -> None:
    rig = Rig()
    consumer = rig.consumers.start("q", 2, 1, lambda _: None, expiring=True)
    rig.frame()
    rig.consumers.deliveries([delivery(1, 1)], b"s1")
    consumer.started(b"l1")
    consumer.started(b"l1")
    rig.consumers.connection_lost()
    assert len(rig.frame(b"s2").started) == 0


async def test_leases_of_an_old_session_are_not_named_under_a_new_one() -> None:
    rig = Rig()
    rig.consumers.start("q", 10, 2, lambda _: None)
    rig.frame()
    rig.consumers.deliveries([delivery(1, 1)], b"s1")
    rig.consumers.connection_lost()
    assert len(rig.frame(b"s2").consumers[0].held) == 0


async def test_what_comes_after_close_is_given_back() -> None:
    rig = Rig()
    consumer = rig.consumers.start("q", 10, 2, lambda _: None)
    never = rig.consumers.start("q", 10, 2, lambda _: None)
    await never.close()
    rig.frame()
    await consumer.close()
    await consumer.close()
    assert list(rig.frame().stop_consumers) == [1]
    rig.consumers.deliveries([delivery(1, 1)], b"s1")
    assert [message.message_id for message in rig.given_back] == [b"m1"]
    assert not rig.consumers.open


async def test_a_settled_lease_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.consumers.REMEMBERED", 2)
    rig = Rig()
    consumer = rig.consumers.start("q", 10, 2, lambda _: None)
    for number in range(4):
        rig.consumers.deliveries([delivery(1, number)], b"s1")
        consumer.settled(b"l%d" % number)
    assert [consumer.knows(b"l%d" % number) for number in range(4)] == [False, False, True, True]


async def test_frames_of_registrations_are_bounded() -> None:
    rig = Rig()
    watches = Watches(asyncio.get_running_loop())
    for _ in range(30):
        rig.consumers.start("q", 10, 2, lambda _: None)
        watches.start([b"k"])
    assert [rig.consumers.fill(pb.ClientFrame(), b"s1", 12) for _ in range(4)] == [12, 12, 6, 0]
    assert [watches.fill(pb.ClientFrame(), b"", 12) for _ in range(4)] == [12, 12, 6, 0]


async def test_frames_of_registrations_are_bounded_in_bytes() -> None:
    rig = Rig()
    watches = Watches(asyncio.get_running_loop())
    for number in range(100):
        watches.start([b"k" * 2_049] * 10)
        consumer = rig.consumers.start("q", 1_000, 1, lambda _: None)
        rig.consumers.deliveries([delivery(consumer.id, 1_000 * number + lease) for lease in range(1_000)], b"s1")
    for most, fill in (
        (MOST_WATCHES, lambda frame: watches.fill(frame, b"", 1_000)),
        (MOST_CONSUMERS, lambda frame: rig.consumers.fill(frame, b"s1", 1_000)),
    ):
        counts = []
        while count := fill(frame := pb.ClientFrame()):
            counts.append(count)
            assert frame.ByteSize() < most + 50_000
        assert sum(counts) == 100 and len(counts) > 1


async def test_who_has_ended_is_told_on_the_next_connection_what_was_on_its_way_to_it() -> None:
    rig = Rig()
    consumer = rig.consumers.start("q", 10, 2, lambda _: None)
    rig.frame()
    rig.consumers.deliveries([delivery(1, 1)], b"s1")
    await consumer.close()
    assert list(rig.frame().stop_consumers) == [1]
    rig.consumers.connection_lost()
    again = rig.frame().consumers[0]
    assert (again.id, again.queue != "q", [held.lease_id for held in again.held]) == (1, True, [b"l1"])
    rig.consumers.deliveries([delivery(1, 1), delivery(1, 2)], b"s1")
    assert [message.message_id for message in rig.given_back] == [b"m2"]
    rig.now += 11
    assert list(rig.frame().stop_consumers) == [1]
    rig.consumers.connection_lost()
    assert not rig.frame().ListFields()


async def test_who_ends_while_there_is_no_connection_is_registered_once_more_unless_the_session_is_new() -> None:
    rig = Rig()
    first = rig.consumers.start("q", 10, 2, lambda _: None)
    rig.frame()
    rig.consumers.connection_lost()
    await first.close()
    assert [(start.id, start.queue != "q") for start in rig.frame().consumers] == [(1, True)]
    rig.consumers.connection_lost()
    assert not rig.frame(b"s2").ListFields()


async def test_those_that_have_ended_leave_their_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.cluster.consumers.MAX_CONSUMERS", 3)
    rig = Rig()
    ended = [rig.consumers.start("q", 1, 1, lambda _: None) for _ in range(3)]
    rig.frame()
    for one in ended:
        await one.close()
    rig.consumers.connection_lost()
    assert [start.id for start in rig.frame().consumers] == [1, 2, 3]
    rig.consumers.start("q", 1, 1, lambda _: None)
    assert not rig.frame().consumers
    assert list(rig.frame().stop_consumers) == [1]
    assert [start.id for start in rig.frame().consumers] == [4]


async def test_a_leader_is_listened_to_for_a_while_after_the_last_consumer_has_ended() -> None:
    rig = Rig()
    one = rig.consumers.start("q", 1, 1, lambda _: None)
    rig.frame()
    assert not rig.consumers.ending
    await one.close()
    rig.now = 9.0
    assert rig.consumers.ending
    rig.consumers.connection_lost()
    rig.frame()  # says again that it has ended: ten seconds from now on
    rig.now = 18.0
    assert rig.consumers.ending
    rig.now = 19.1
    assert not rig.consumers.ending
    await rig.consumers.start("q", 1, 1, lambda _: None).close()
    assert not rig.consumers.ending, "a consumer that no node knew has nothing on its way"
