"""Leases that end although their holders live, and those that are extended."""

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.queue.hands import HandsBook, HeldLease
from kvorum_node.queue.lapses import Lapses, Verdicts
from tests.unit.node.harness import Node, Receiver, VirtualTimers

EXTEND = pb.SETTLE_KIND_EXTEND
RETRY = pb.SETTLE_KIND_RETRY


def batch(payload: bytes) -> pb.Batch:
    return pb.Batch.FromString(payload)


def test_an_expiring_lease_ends_although_its_consumer_lives(node: Node) -> None:
    node.define(lease_ms=2_000)
    slow = Receiver(node, node.open_session(), expiring=True)
    node.enqueue(b"slow")
    slow.started(slow.got[0])
    other = Receiver(node, node.open_session(), number=2)
    node.timers.advance(1.8)
    assert other.got == []
    node.timers.advance(0.3)
    (again,) = [delivery for receiver in (slow, other) for delivery in receiver.got if delivery.attempt == 2]
    assert again.payload == b"slow"
    assert node.settle_message(slow.got[0]) == pb.OUTCOME_STALE_LEASE


def test_one_that_was_not_started_gets_its_attempt_back(node: Node) -> None:
    node.define(lease_ms=1_000)
    holder = Receiver(node, node.open_session(), expiring=True, credits=2)
    node.enqueue(b"a", settle=False)
    node.enqueue(b"b")
    holder.started(holder.got[0])
    node.service.delivery.stop_consumer(holder.consumer)  # its session lives on
    other = Receiver(node, node.open_session(), number=5)
    node.timers.advance(1.1)
    # The consumer is gone, so the report of the first ones may have been lost: `concurrency` is 1.
    assert {delivery.payload: delivery.attempt for delivery in other.got} == {b"a": 2, b"b": 1}


def test_a_consumer_that_is_stuck_gets_nothing_in_place_of_what_has_lapsed(node: Node) -> None:
    node.define(lease_ms=500, max_attempts=100)
    session = node.open_session()
    stuck = Receiver(node, session, expiring=True, credits=1)
    node.enqueue(b"x")
    stuck.started(stuck.got[0])
    quick = Receiver(node, node.open_session(), expiring=True, credits=1)
    node.timers.advance(0.6)
    assert (len(stuck.got), quick.payloads) == (1, [b"x"])
    node.timers.advance(5)
    assert (len(stuck.got), len(quick.got)) == (1, 1), "nobody says anything, so nobody gets anything"
    assert node.queue(counts=True).ready == 1
    stuck.started(stuck.got[0])  # out of its hands
    node.timers.settle()
    assert (len(stuck.got), len(quick.got)) == (2, 1)
    assert node.settle_message(quick.got[0]) == pb.OUTCOME_STALE_LEASE  # and so is this
    node.timers.advance(0.6)
    assert (len(stuck.got), len(quick.got)) == (2, 2)
    held = [pb.HeldLease(message_id=stuck.got[1].message_id, lease_id=stuck.got[1].lease_id)]
    node.timers.advance(0.6)
    again = Receiver(node, session, expiring=True, credits=1, held=held)
    assert again.got == [], "it says that it still holds what has lapsed"
    assert Receiver(node, session, expiring=True, credits=1).payloads == [b"x"]


def test_what_is_settled_while_its_lapse_is_in_the_log_holds_no_credit(node: Node) -> None:
    node.define(lease_ms=500)
    receiver = Receiver(node, node.open_session(), expiring=True, credits=1)
    node.enqueue(b"x")
    node.consensus.held = True
    node.timers.advance(0.6)
    results = node.write(_ack(receiver.got[0]), settle=False)
    node.consensus.release()
    node.timers.settle()
    assert [result.outcome for result in results] == [pb.OUTCOME_STALE_LEASE]
    assert len(receiver.got) == 2
    assert node.settle_message(receiver.got[1]) == pb.OUTCOME_DONE
    node.enqueue(b"y")
    assert receiver.payloads == [b"x", b"x", b"y"]
    assert not node.service.delivery._lapsed


def _ack(delivery: pb.Delivery) -> pb.AtomicWrite:
    op = pb.AtomicWrite()
    op.settles.add(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=pb.SETTLE_KIND_ACK)
    return op


def test_an_extended_lease_ends_when_it_was_extended_to(node: Node) -> None:
    node.define(lease_ms=2_000)
    session = node.open_session()
    worker = Receiver(node, session, expiring=True, credits=1)
    node.enqueue(b"long")
    other = Receiver(node, node.open_session(), number=2)
    for _ in range(10):
        node.timers.advance(1.5)
        assert node.settle_message(worker.got[0], EXTEND) == pb.OUTCOME_DONE
    assert node.settle_message(worker.got[0], EXTEND, delay_ms=60_000) == pb.OUTCOME_DONE
    node.timers.advance(59)
    assert other.got == [] and len(worker.got) == 1
    assert node.settle_message(worker.got[0], EXTEND, delay_ms=500) == pb.OUTCOME_DONE
    node.timers.advance(0.6)
    assert len(other.got) + len(worker.got) == 2
    assert node.settle_message(worker.got[0], EXTEND) == pb.OUTCOME_STALE_LEASE


def test_an_extension_outlasts_a_lost_connection(node: Node) -> None:
    node.define(lease_ms=1_000)
    worker = Receiver(node, node.open_session())
    node.enqueue(b"x")
    assert node.settle_message(worker.got[0], EXTEND, delay_ms=10_000) == pb.OUTCOME_DONE
    worker.die()
    other = Receiver(node, node.open_session())
    node.timers.advance(9.8)
    assert other.got == []
    node.timers.advance(0.5)
    assert other.payloads == [b"x"]


def test_a_new_leader_gives_an_expiring_lease_a_full_period(node: Node) -> None:
    node.define(lease_ms=2_000)
    session = node.open_session()
    worker = Receiver(node, session, expiring=True)
    node.enqueue(b"x")
    node.timers.advance(1.5)
    node.consensus.depose()
    node.timers.advance(30)
    node.consensus.elect()
    took_office = node.timers.time()
    held = [pb.HeldLease(message_id=worker.got[0].message_id, lease_id=worker.got[0].lease_id, started=True)]
    again = Receiver(node, session, expiring=True, held=held)
    node.timers.advance(10)
    assert [delivery.attempt for delivery in again.got[:1]] == [2]
    assert 2.0 <= again.times[0] - took_office <= 2.1


@pytest.mark.parametrize(("extended_ms", "end"), [(None, 2.0), (5_000, 5.0)])
def test_an_expiring_lease_of_a_consumer_that_is_not_heard_of_again_ends_under_a_new_leader(
    node: Node, extended_ms: int | None, end: float
) -> None:
    node.define(lease_ms=2_000)
    session = node.open_session()
    gone = Receiver(node, session, expiring=True)
    node.enqueue(b"x")
    if extended_ms is not None:
        assert node.settle_message(gone.got[0], EXTEND, delay_ms=extended_ms) == pb.OUTCOME_DONE
    node.service.delivery.stop_consumer(gone.consumer)
    node.consensus.depose()
    node.consensus.elect()
    took_office = node.timers.time()
    other = Receiver(node, node.open_session(), number=2)  # the session of the first one is connected all the time
    node.timers.advance(end + 0.1)
    assert other.payloads == [b"x"] and end <= other.times[0] - took_office
    assert not node.service.delivery._lapses.ending


def test_a_lease_that_does_not_expire_outlasts_a_change_of_leader(node: Node) -> None:
    node.define(lease_ms=2_000)
    kept = Receiver(node, node.open_session())
    node.enqueue(b"x")
    node.service.delivery.stop_consumer(kept.consumer)
    node.consensus.depose()
    node.consensus.elect()
    other = Receiver(node, node.open_session(), number=2)
    node.timers.advance(60)
    assert other.got == []


@pytest.mark.parametrize("expiring", [True, False])
def test_an_extension_that_comes_into_the_log_before_a_release_wins(node: Node, expiring: bool) -> None:
    node.define(lease_ms=2_000)
    holder = Receiver(node, node.open_session(), expiring=expiring)
    node.enqueue(b"x")
    granted = node.timers.time()
    if not expiring:
        holder.die()
    node.timers.advance(1.5)
    node.consensus.held = True
    op = pb.AtomicWrite(settles=[held_by(holder, EXTEND, 3_000)])
    results = node.write(op)
    node.timers.advance(1.0)
    releases = [batch(payload) for payload in node.consensus.payloads if payload != b""]
    assert releases[-1].commands[-1].release.known == node.store.applied_index, "it lapsed, for all that was known"
    node.consensus.release()
    extended = node.timers.time()
    node.timers.settle()
    assert [result.outcome for result in results] == [pb.OUTCOME_DONE]
    other = Receiver(node, node.open_session(), number=2)
    node.timers.advance(2.8)
    assert other.got == [] and len(holder.got) == 1 and len(node.store.leases()) == 1
    node.timers.advance(0.3)
    assert len(other.got) == 1 and other.times[0] - extended >= 3.0
    assert other.times[0] - granted < 6.0
    assert node.settle_message(holder.got[0], EXTEND) == pb.OUTCOME_STALE_LEASE


def test_a_release_does_not_win_twice_over_an_extension_that_it_knows(node: Node) -> None:
    node.define(lease_ms=1_000)
    holder = Receiver(node, node.open_session(), expiring=True)
    node.enqueue(b"x")
    for _ in range(3):
        node.timers.advance(0.9)
        assert node.settle_message(holder.got[0], EXTEND) == pb.OUTCOME_DONE
    node.service.delivery.stop_consumer(holder.consumer)
    node.timers.advance(1.1)
    assert node.store.leases() == []


def test_a_consumer_that_extends_and_is_stuck_gets_nothing_in_place_of_what_has_lapsed(node: Node) -> None:
    node.define(lease_ms=5_000)
    node.define("other", lease_ms=500)
    stuck = Receiver(node, node.open_session(), expiring=True, credits=1)
    node.enqueue(b"first")
    other = Receiver(node, node.open_session(), number=7, queue="other", expiring=True, credits=1)
    node.enqueue(b"x", queue="other")
    node.timers.advance(1)
    assert len(other.got) == 1 and node.service.delivery._lapsed, "so settles are looked at"
    assert node.settle_message(stuck.got[0], EXTEND) == pb.OUTCOME_DONE
    node.timers.advance(20)
    assert len(stuck.got) == 1, "its credit is used until it is heard of"
    quick = Receiver(node, node.open_session(), number=2)
    assert quick.payloads == [b"first"]


def held_by(receiver: Receiver, kind: "pb.SettleKind", delay_ms: int) -> pb.Settle:
    (delivery,) = receiver.got
    return pb.Settle(message_id=delivery.message_id, lease_id=delivery.lease_id, kind=kind, delay_ms=delay_ms)


@pytest.mark.parametrize("expiring", [True, False])
def test_a_hundred_thousand_leases_have_no_timers_of_their_own_and_lapse_in_small_parts(
    expiring: bool,
) -> None:
    timers = VirtualTimers()
    book = HandsBook()
    released: list[tuple[float, int]] = []

    def release(verdicts: Verdicts, due: bool) -> None:
        assert due
        released.append((timers.time(), len(verdicts)))

    lapses = Lapses(book, timers, period=lambda queue: 30.0, release=release)
    for number in range(100_000):
        lease = HeldLease(b"m%011d" % number, b"l%011d" % number, "q", (b"s%d" % (number % 100), 1), 0.0, 30.0)
        book.hold(lease)
        if expiring:
            lapses.expire(lease)
    lapses.took_office()
    assert len(timers._heap) <= 2
    timers.advance(29.9)
    assert not released
    timers.advance(1.1)
    assert sum(count for _, count in released) == 100_000
    assert max(count for _, count in released) <= 1_000
    # Between two parts the loop turns: it is an event of its own.
    assert len(released) >= 100
