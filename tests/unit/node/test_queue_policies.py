"""Delivery by the policies of queues: leases of their own, expiring ones, bounds, pauses, at most once, groups."""

import random
from collections.abc import Callable, Sequence

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.queue import TakeRoom
from kvorum_node.queue.followers import MAX_MISSES
from tests.unit.node.harness import Node, Receiver

EXTEND = pb.SETTLE_KIND_EXTEND
RETRY = pb.SETTLE_KIND_RETRY


def batch(payload: bytes) -> pb.Batch:
    return pb.Batch.FromString(payload)


# ---- deadlines


def test_each_queue_has_its_lease(node: Node) -> None:
    node.define("short", lease_ms=1_000)
    node.define("long", lease_ms=60_000)
    session = node.open_session()
    lost = [Receiver(node, session, number=number, queue=queue) for number, queue in enumerate(("short", "long", ""))]
    for queue in ("short", "long", ""):
        node.enqueue(b"m", queue=queue)
    assert [[delivery.lease_ms for delivery in receiver.got] for receiver in lost] == [[1_000], [60_000], [30_000]]
    died = node.timers.time()
    for receiver in lost:
        node.service.delivery.stop_consumer(receiver.consumer)
    node.service.disconnected(session)
    other = node.open_session()
    others = [Receiver(node, other, number=number, queue=queue) for number, queue in enumerate(("short", "long", ""))]
    node.timers.advance(120)
    for receiver, lease in zip(others, (1.0, 60.0, 30.0), strict=True):
        (at,) = receiver.times
        assert lease <= at - died <= lease + 0.1  # rules F2: lease + 1 s


def _lost_after_silence(node: Node, silent: Sequence[float], *, apart: float = 0.0) -> float:
    """A holder of a lease loses its connections, one after the other, each of which has been silent for so many
    seconds. Returns when another consumer has its message, in seconds from the end of the last one."""
    session = node.open_session()
    lost = Receiver(node, session)
    for _ in silent[1:]:
        node.service.connected(session)
    node.enqueue()
    assert len(lost.got) == 1
    other = Receiver(node, node.open_session())
    node.service.delivery.stop_consumer(lost.consumer)
    for number, seconds in enumerate(silent):
        node.timers.advance(apart if number else 0.0)
        node.service.disconnected(session, seconds)
    ended = node.timers.time()
    node.timers.advance(120)
    (at,) = other.times
    return at - ended


@pytest.mark.parametrize(
    ("lease", "silent", "after"),
    [
        (30.0, 0.0, 30.0),
        (30.0, 2.0, 30.0),  # it pings no more often than that: the end of its connection is its last sign of life
        (30.0, 8.0, 22.0),  # rules F2: counted from its last sign of life, not from when that was noticed
        (30.0, 300.0, 20.0),  # no keepalive takes longer: it was not expected to say anything
        (9.0, 8.0, 2.0),  # it may have been this node that stood still
        (1.0, 8.0, 1.0),
    ],
)
def test_the_time_until_a_frozen_holder_is_noticed_is_part_of_its_lease(
    make_node: Callable[..., Node], lease: float, silent: float, after: float
) -> None:
    assert after <= _lost_after_silence(make_node(lease=lease), [silent]) <= after + 0.1


def test_a_holder_is_as_silent_as_the_one_of_its_connections_that_was_heard_of_last(
    make_node: Callable[..., Node],
) -> None:
    """The client's program blocks its loop, and the heartbeat goes on; then both are cut off."""
    for silent in ([300.0, 5.0], [5.0, 300.0]):
        assert 25.0 <= _lost_after_silence(make_node(), silent) <= 25.1
    assert 24.0 <= _lost_after_silence(make_node(), [5.0, 300.0], apart=1.0) <= 24.1


def test_a_holder_that_was_silent_and_comes_back_loses_nothing(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=5.0)
    session = node.open_session()
    holder = Receiver(node, session)
    node.enqueue()
    (got,) = holder.got
    other = Receiver(node, node.open_session())
    node.service.delivery.stop_consumer(holder.consumer)
    node.service.disconnected(session, 8.0)
    node.timers.advance(1.9)
    node.service.connected(session)
    held = [pb.HeldLease(message_id=got.message_id, lease_id=got.lease_id)]
    Receiver(node, session, number=holder.consumer.holder[1], held=held)
    node.timers.advance(120)
    assert other.got == []


def test_p79_the_lease_of_the_node_holds_where_a_queue_names_none(make_node: Callable[..., Node]) -> None:
    """P79: a crashed worker's jobs come back after hours → kill −9 → ≤ lease + 1 s by default."""
    node = make_node(lease=2.0)
    lost, other = (Receiver(node, node.open_session()) for _ in range(2))
    for _ in range(4):
        node.enqueue()
    assert [delivery.lease_ms for delivery in lost.got] == [2_000, 2_000]
    lost.die()
    died = node.timers.time()
    node.timers.advance(3)
    assert len(other.got) == 4 and 2.0 <= other.times[-1] - died <= 3.0


def test_p83_a_dead_worker_of_a_queue_gives_back_to_that_queue(node: Node) -> None:
    """P83: worker for queue 1 only, dead worker of queue 2 → queue 2 job returns to queue 2; nothing older than
    lease × 2 stays leased."""
    node.define("one", lease_ms=1_000)
    node.define("two", lease_ms=1_000)
    one = Receiver(node, node.open_session(), queue="one")
    two = Receiver(node, node.open_session(), queue="two")
    node.enqueue(b"long work", queue="two")
    two.die()
    node.timers.advance(2)
    assert one.got == [] and node.store.leases() == []
    again = Receiver(node, node.open_session(), queue="two")
    assert again.payloads == [b"long work"]


def test_a_change_of_the_lease_acts_at_once(node: Node) -> None:
    node.define(lease_ms=3_600_000)
    lost = Receiver(node, node.open_session())
    node.enqueue(b"stuck")
    lost.die()
    other = Receiver(node, node.open_session())
    node.timers.advance(100)
    assert other.got == []
    node.define(lease_ms=2_000)
    node.timers.advance(0.1)
    assert other.payloads == [b"stuck"]
    node.define(lease_ms=1_000)
    other.die()
    node.define(lease_ms=50_000)
    last = Receiver(node, node.open_session())
    node.timers.advance(49)
    assert last.got == []
    node.timers.advance(2)
    assert last.payloads == [b"stuck"]


def test_p62_attempts_are_counted_over_crashes_and_end_with_the_dead_letters(node: Node) -> None:
    """P62: crash the consumer 6 times, max 5 → attempts 1…5 then DLQ."""
    node.define(lease_ms=1_000, max_attempts=5)
    node.enqueue(b"poison")
    attempts = []
    for _ in range(6):
        victim = Receiver(node, node.open_session())
        for delivery in victim.got:
            attempts.append(delivery.attempt)
            victim.started(delivery)
        victim.die()
        node.timers.advance(2)
    assert attempts == [1, 2, 3, 4, 5]
    info = node.queue()
    assert (info.messages, info.dead, info.lost) == (0, 1, 5)


def test_p88_a_killed_workers_message_is_listed_as_leased_and_comes_again_with_its_history(node: Node) -> None:
    """P88: kill −9 worker; look in CLI → listed as leased → redelivered, with history."""
    node.define(lease_ms=5_000)
    session = node.open_session()
    victim = Receiver(node, session)
    node.enqueue(b"running")
    victim.started(victim.got[0])
    victim.die()
    (info,) = node.call(peek=pb.Peek(queue="q", kind=pb.PEEK_KIND_LEASED)).messages
    assert (info.state, info.attempt, info.session) == (pb.MESSAGE_STATE_LEASED, 1, session)
    node.timers.advance(6)
    (info,) = node.call(peek=pb.Peek(queue="q")).messages
    assert info.state == pb.MESSAGE_STATE_READY
    assert [(failure.attempt, failure.kind) for failure in info.failures] == [(1, pb.FAILURE_KIND_LOST)]
    assert Receiver(node, node.open_session()).got[0].attempt == 2


# ---- bounds and pauses


def test_no_more_in_flight_than_the_policy_says(node: Node) -> None:
    node.define(max_in_flight=3)
    receivers = [Receiver(node, node.open_session(), credits=10) for _ in range(2)]
    for number in range(10):
        node.enqueue(b"%d" % number)
    done: set[bytes] = set()
    for round_ in range(10):
        assert node.queue().leased == min(3, 10 - round_)
        waiting = [delivery for receiver in receivers for delivery in receiver.got if delivery.lease_id not in done]
        done.add(waiting[0].lease_id)
        assert node.settle_message(waiting[0]) == pb.OUTCOME_DONE
    assert len(done) == 10


def test_a_bound_that_is_reached_is_not_asked_again(node: Node) -> None:
    node.define(max_in_flight=1)
    receiver = Receiver(node, node.open_session(), credits=10)
    for _ in range(3):
        node.enqueue()
    entries = len(node.consensus.payloads)
    node.timers.advance(60)
    assert len(node.consensus.payloads) == entries
    node.define(max_in_flight=2)
    assert len(receiver.got) == 2
    node.define()
    assert len(receiver.got) == 3


def test_a_paused_queue_hands_out_nothing_until_it_goes_on(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    assert node.call(pause=pb.PauseQueue(name="q", paused=True)).status == pb.READ_STATUS_OK
    for number in range(3):
        node.enqueue(b"%d" % number)
    node.enqueue(b"later", delay_ms=5_000)
    entries = len(node.consensus.payloads)
    node.timers.advance(60)
    assert receiver.got == [] and len(node.consensus.payloads) == entries
    assert node.queue().paused
    assert node.call(pause=pb.PauseQueue(name="q")).status == pb.READ_STATUS_OK
    assert receiver.payloads == [b"0", b"1", b"2", b"later"]


def test_a_pause_holds_over_a_change_of_leader(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    node.call(pause=pb.PauseQueue(name="q", paused=True))
    node.enqueue(b"x")
    node.consensus.depose()
    node.consensus.elect()
    node.timers.advance(5)
    assert receiver.got == []
    node.call(pause=pb.PauseQueue(name="q"))
    assert receiver.payloads == [b"x"]


# ---- at most once


def test_what_is_taken_is_gone_and_its_credit_comes_back_when_it_is_begun_with(node: Node) -> None:
    taker = Receiver(node, node.open_session(), take=True, credits=2)
    for number in range(5):
        node.enqueue(b"%d" % number)
    assert taker.payloads == [b"0", b"1"]
    assert all(delivery.taken and delivery.lease_id for delivery in taker.got)
    assert node.store.leases() == [] and node.queue().messages == 3
    taker.started(taker.got[0])
    node.timers.settle()
    assert taker.payloads == [b"0", b"1", b"2"]
    taker.started(*taker.got[1:])
    node.timers.settle()
    assert taker.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert node.queue().done == 5


def test_what_was_taken_never_comes_again(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    session = node.open_session()
    taker = Receiver(node, session, take=True)
    node.enqueue(b"once")
    assert taker.payloads == [b"once"]
    taker.die()
    node.timers.advance(5)
    node.consensus.depose()
    node.consensus.elect()
    node.service.connected(session)
    again = Receiver(node, session, take=True, credits=1)
    node.timers.advance(5)
    assert again.got == []
    node.enqueue(b"next")
    assert again.payloads == [b"next"], "what was on the way to the lost connection holds no credit"


def test_takers_wait_until_all_members_know_how_to_take(node: Node) -> None:
    node.service.proposer._common_data_version = lambda: 2
    taker = Receiver(node, node.open_session(), take=True)
    node.enqueue(b"x")
    node.timers.advance(10)
    assert taker.got == []
    node.service.proposer._common_data_version = lambda: 3
    node.timers.advance(1.5)
    assert taker.payloads == [b"x"]


def test_what_is_on_its_way_to_a_taker_is_bounded(node: Node) -> None:
    waiting = 0
    room = TakeRoom(lambda: waiting)
    got: list[pb.Delivery] = []

    def sink(delivery: pb.Delivery) -> None:
        nonlocal waiting
        waiting += delivery.ByteSize()
        got.append(delivery)

    for _ in range(300):
        node.enqueue(bytes(60_000), settle=False)
    node.timers.settle()
    request = pb.StartConsumer(id=1, queue="q", credits=limits.MAX_CREDITS, take=True)
    consumer = node.service.delivery.start_consumer(node.open_session(), request, sink, None, room)
    node.timers.advance(1)
    assert 50 < len(got) < 150 and waiting < 9 * 1_048_576 and room.blocked
    assert room.reserved == 0
    seen = len(got)
    waiting = 0
    node.service.delivery.resume(consumer)
    node.timers.advance(1)
    assert len(got) > seen


@pytest.mark.parametrize("credits", [limits.MAX_CREDITS, 200])
def test_two_takers_of_one_connection_are_both_served(node: Node, credits: int) -> None:
    for _ in range(300):
        node.enqueue(b"x", queue="a", settle=False)
    node.enqueue(b"y", queue="b", settle=False)
    node.timers.settle()
    session = node.open_session()
    room = TakeRoom(lambda: 0)  # the client reads at once
    got = {"a": 0, "b": 0}
    consumers = []

    def frame_written() -> None:
        if room.blocked:
            room.blocked = False
            for consumer in consumers:
                node.service.delivery.resume(consumer)

    def sink(delivery: pb.Delivery) -> None:
        got[delivery.queue] += 1
        node.timers.call_later(0.002, frame_written)
        node.timers.call_later(0.003, node.service.delivery.started, session, delivery.consumer, (delivery.lease_id,))

    for number, queue in enumerate("ab", 1):
        request = pb.StartConsumer(id=number, queue=queue, credits=credits, take=True)
        consumers.append(node.service.delivery.start_consumer(session, request, sink, None, room))
    node.timers.advance(60)
    assert got == {"a": 300, "b": 1} and room.reserved == 0


def test_places_that_were_kept_for_nothing_go_to_the_next_taker(node: Node) -> None:
    """No frame is written that would tell."""
    session = node.open_session()
    room = TakeRoom(lambda: 0)
    got: list[bytes] = []

    def sink(delivery: pb.Delivery) -> None:
        got.append(delivery.payload)

    first, second = (
        node.service.delivery.start_consumer(
            session, pb.StartConsumer(id=number, queue=queue, credits=1_000, take=True), sink, None, room
        )
        for number, queue in enumerate("ab", 1)
    )
    assert first.take and second.take
    op = pb.AtomicWrite(checks=[pb.Check(key=b"\x02k\x00", versionstamp=bytes(10))])
    for _ in range(500):
        op.enqueues.add(queue="a", payload=b"never")
    node.write(op, settle=False)
    node.enqueue(b"b", queue="b", settle=False)
    node.timers.settle()
    assert got == [b"b"]


# ---- groups


def test_the_next_of_a_group_comes_with_the_entry_of_the_acknowledgement(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=10)
    for number in range(20):
        node.enqueue(b"%d" % number, group="g")
    entries: list[int] = []
    for number in range(20):
        assert receiver.payloads == [b"%d" % other for other in range(number + 1)]
        assert receiver.got[number].group == "g"
        before = len(node.consensus.payloads)
        node.settle_message(receiver.got[number])
        entries.append(len(node.consensus.payloads) - before)
    # The first one shows that something follows.
    assert entries == [2] + [1] * 19


def test_where_nothing_follows_an_acknowledgement_carries_no_lease_for_long(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=10)
    for number in range(3):
        node.enqueue(b"%d" % number, group="g")
    for number in range(3):
        node.settle_message(receiver.got[number])
    carried = []
    for number in range(3, 20):
        node.enqueue(b"%d" % number)
        before = len(node.consensus.payloads)
        node.settle_message(receiver.got[number])
        (entry,) = [batch(payload) for payload in node.consensus.payloads[before:]]
        carried.append(any(command.HasField("lease") for command in entry.commands))
    assert 1 <= sum(carried) <= MAX_MISSES and not any(carried[-5:])
    assert not node.service.delivery._followers


def test_a_consumer_without_room_is_given_nothing_with_its_acknowledgement(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=1)
    for number in range(5):
        node.enqueue(b"%d" % number, group="g")
    for number in range(5):
        assert len(receiver.got) == number + 1
        op = pb.AtomicWrite(checks=[pb.Check(key=b"\x02k\x00", versionstamp=bytes(10))])
        delivery = receiver.got[number]
        op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_ACK)
        assert node.write(op)[0].outcome == pb.OUTCOME_CHECK_FAILED
        assert len(receiver.got) == number + 1
        node.settle_message(delivery)


@pytest.mark.parametrize("seed", range(6))
def test_groups_stay_in_order_over_crashes_and_leader_changes(make_node: Callable[..., Node], seed: int) -> None:
    rng = random.Random(seed)
    node = make_node()
    node.define(lease_ms=500, max_attempts=1_000, max_in_flight=rng.choice([None, 2]))
    groups = ["a", "b", "c"]
    sent = {group: [b"%s%03d" % (group.encode(), number) for number in range(20)] for group in groups}
    for number in range(20):
        for group in groups:
            node.enqueue(sent[group][number], group=group, delay_ms=rng.choice([0, 0, 200]), settle=False)
    node.timers.settle()
    done: dict[str, list[bytes]] = {group: [] for group in groups}
    live: list[Receiver] = []
    for _ in range(2_000):
        if all(len(done[group]) == 20 for group in groups):
            break
        match rng.randrange(12):
            case 0 if len(live) < 3:
                live.append(Receiver(node, node.open_session(), credits=4, expiring=rng.random() < 0.3))
            case 1 if live:
                live.pop(rng.randrange(len(live))).die()
            case 2 if rng.random() < 0.3:
                node.consensus.depose()
                node.timers.advance(rng.random())
                node.consensus.elect()
            case _ if live:
                receiver = rng.choice(live)
                if receiver.got:
                    delivery = receiver.got.pop(0)
                    kind = rng.choice([pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_ACK, RETRY])
                    receiver.started(delivery)
                    outcome = node.settle_message(delivery, kind, delay_ms=20 if kind == RETRY else None)
                    if outcome == pb.OUTCOME_DONE and kind == pb.SETTLE_KIND_ACK:
                        done[delivery.group].append(delivery.payload)
        node.timers.advance(rng.random() / 10)
        assert all(len(receiver.got) <= 4 for receiver in live)
    assert done == sent
