"""What waits on a stream, and the frames made of it."""

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.api.outbox import FRAME_TARGET, MAX_BYTES, READS, RESULTS, Outbox
from kvorum_node.watches import Watch


class Bench:
    def __init__(self) -> None:
        self.wakes = 0
        self.stored: dict[bytes, pb.Delivery] = {}
        self.outbox = Outbox(self._wake, load=lambda message_id, lease_id: self.stored.get(lease_id), take=self._event)
        self.events: dict[Watch, pb.WatchEvent] = {}

    def _wake(self) -> None:
        self.wakes += 1

    def _event(self, watch: Watch) -> pb.WatchEvent | None:
        return self.events.get(watch)

    def frames(self) -> list[pb.ServerFrame]:
        found = []
        while frame := self.outbox.next_frame():
            assert len(frame) <= limits.MAX_FRAME_SIZE
            found.append(pb.ServerFrame.FromString(frame))
        return found


def delivery(number: int, size: int) -> pb.Delivery:
    return pb.Delivery(consumer=1, message_id=b"m%011d" % number, lease_id=b"l%011d" % number, payload=bytes(size))


def test_everything_that_waits_is_one_frame() -> None:
    bench = Bench()
    bench.outbox.put(RESULTS, pb.ResultGroup(session=b"s" * 10).SerializeToString())
    bench.outbox.put(READS, pb.ReadResult(id=7).SerializeToString())
    bench.outbox.put_session(b"0123456789")
    bench.outbox.put_delivery(delivery(1, 10))
    bench.outbox.put_leader(pb.Leader(node_id="n1", term=3))
    bench.outbox.put_pong(9)
    (frame,) = bench.frames()
    assert frame.results[0].session == b"s" * 10
    assert frame.reads[0].id == 7
    assert frame.session.session == b"0123456789"
    assert frame.deliveries[0].message_id == b"m%011d" % 1
    assert (frame.leader.node_id, frame.leader.term, frame.pong) == ("n1", 3, 9)
    assert bench.wakes == 6
    assert bench.outbox.size == 0


def test_frames_keep_their_limit_and_the_order() -> None:
    bench = Bench()
    for number in range(40):
        bench.outbox.put(READS, pb.ReadResult(id=number, message="x" * 300_000).SerializeToString())
    frames = bench.frames()
    assert len(frames) >= 3
    assert [read.id for frame in frames for read in frame.reads] == list(range(40))


def test_the_newest_leader_wins_and_an_unknown_one_erases_it() -> None:
    bench = Bench()
    bench.outbox.put_leader(pb.Leader(node_id="n1", address="a:1", term=3))
    bench.outbox.put_leader(pb.Leader(term=4))
    (frame,) = bench.frames()
    assert frame.leader == pb.Leader(term=4)


def test_each_session_has_a_frame_of_its_own() -> None:
    bench = Bench()
    bench.outbox.put_session(b"first")
    bench.outbox.put_session(b"")
    assert [frame.session.session for frame in bench.frames()] == [b"first", b""]


def test_a_slow_clients_deliveries_are_kept_by_name_only() -> None:
    bench = Bench()
    for number in range(200):
        item = delivery(number, 60_000)
        bench.stored[item.lease_id] = item
        bench.outbox.put_delivery(item)
    kept = sum(len(item) for item in bench.outbox._deliveries if isinstance(item, bytes))
    assert kept <= FRAME_TARGET + 70_000
    del bench.stored[delivery(150, 0).lease_id]  # settled meanwhile
    got = [item.message_id for frame in bench.frames() for item in frame.deliveries]
    assert got == [b"m%011d" % number for number in range(200) if number != 150]


def test_a_dirty_watch_is_taken_once_however_often_it_was_touched() -> None:
    bench = Bench()
    watch = Watch([b"k"], lambda _: None)
    bench.events[watch] = pb.WatchEvent(id=5)
    for _ in range(3):
        bench.outbox.put_watch(watch)
    assert [event.id for frame in bench.frames() for event in frame.watches] == [5]
    bench.outbox.put_watch(watch)
    bench.outbox.drop_watch(watch)
    assert bench.frames() == []


def test_the_error_comes_last_and_once() -> None:
    bench = Bench()
    bench.outbox.put_error("first", final=True)
    bench.outbox.put_error("second", final=False)
    for number in range(3):
        bench.outbox.put(READS, pb.ReadResult(id=number, message="x" * 2_000_000).SerializeToString())
    frames = bench.frames()
    assert [frame.error for frame in frames] == ["", "first"]
    assert frames[-1].error_is_final


def test_answers_that_nobody_reads_overflow() -> None:
    bench = Bench()
    while not bench.outbox.overflows:
        bench.outbox.put(READS, bytes(1_000_000))
    assert bench.outbox.size <= MAX_BYTES + 1_100_000
