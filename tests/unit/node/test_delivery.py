"""Delivery in virtual time, over the real state machine."""

import random
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import ApplyResult
from kvorum_raft.errors import Overloaded
from kvorum_raft.seams import Applied
from tests.unit.node.harness import Node, Receiver


def batch(payload: bytes) -> pb.Batch:
    return pb.Batch.FromString(payload)


def test_a_waiting_consumer_is_served_in_the_entry_of_the_enqueue(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    entries = len(node.consensus.payloads)
    node.enqueue(b"hello")
    assert receiver.payloads == [b"hello"]
    assert receiver.got[0].attempt == 1
    new = [batch(payload) for payload in node.consensus.payloads[entries:]]
    assert [command.WhichOneof("command") for command in new[0].commands] == ["writes", "lease"]
    assert len(new) == 1


def test_a_failed_check_enqueues_nothing_and_gives_the_credit_back(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=1)
    op = pb.AtomicWrite()
    op.checks.add(key=b"\x02k\x00", versionstamp=bytes(10))
    op.enqueues.add(queue="q", payload=b"never")
    assert node.write(op)[0].outcome == pb.OUTCOME_CHECK_FAILED
    assert receiver.got == []
    assert receiver.consumer.reserved == 0
    node.enqueue(b"now")
    assert receiver.payloads == [b"now"]


def test_credits_bound_what_is_in_a_consumers_hands(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=3)
    for number in range(10):
        node.enqueue(b"%d" % number)
    assert receiver.payloads == [b"0", b"1", b"2"]
    for position in range(10):
        assert node.settle_message(receiver.got[position]) == pb.OUTCOME_DONE
        assert len(receiver.got) == min(10, position + 4)
    assert receiver.payloads == [b"%d" % number for number in range(10)]
    assert node.store.leases() == []


def test_a_backlog_is_drained_when_a_consumer_comes(node: Node) -> None:
    for number in range(500):
        node.enqueue(b"%d" % number, settle=False)
    node.timers.settle()
    receiver = Receiver(node, node.open_session(), credits=1000)
    node.timers.advance(1)
    assert receiver.payloads == [b"%d" % number for number in range(500)]


def test_consumers_share_the_work_evenly(node: Node) -> None:
    session, other = node.open_session(), node.open_session()
    receivers = [
        Receiver(node, session, number=1, credits=100, concurrency=2),
        Receiver(node, session, number=2, credits=100, concurrency=2),
        Receiver(node, other, number=1, credits=100, concurrency=2),
    ]
    for number in range(30):
        node.enqueue(b"%d" % number)
    assert [len(receiver.got) for receiver in receivers] == [10, 10, 10]


def test_an_idle_consumer_comes_before_the_stock_of_a_busy_one(node: Node) -> None:
    session = node.open_session()
    busy = Receiver(node, session, number=1, credits=100, concurrency=1)
    node.enqueue()
    node.enqueue()
    idle = Receiver(node, session, number=2, credits=100, concurrency=1)
    node.enqueue()
    assert (len(busy.got), len(idle.got)) == (2, 1)


def test_a_consumer_that_replaces_an_idle_one_is_served(node: Node) -> None:
    """A client reconnects before the node notices that the old stream is dead."""
    session = node.open_session()
    old, new = (Receiver(node, session, number=1) for _ in range(2))
    entries = len(node.consensus.payloads)
    node.enqueue(b"hello")
    assert (old.payloads, new.payloads) == ([], [b"hello"])
    assert len(node.consensus.payloads) == entries + 1
    node.service.delivery.stop_consumer(old.consumer)  # the old stream ends at last
    assert node.settle_message(new.got[0]) == pb.OUTCOME_DONE
    node.enqueue(b"again")
    assert new.payloads == [b"hello", b"again"]


def test_other_queues_are_left_alone(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), queue="a")
    node.enqueue(b"for b", queue="b")
    assert receiver.got == []


def test_p75_a_delay_beyond_the_lease_delivers_once(make_node: Callable[..., Node]) -> None:
    """P75: delay longer than the visibility timeout → run many times.

    Delay 30 s, lease 2 s, 3 consumers → delivered once at 30 s.
    """
    node = make_node(lease=2.0)
    receivers = [Receiver(node, node.open_session()) for _ in range(3)]
    begun = node.timers.time()
    node.enqueue(b"late", delay_ms=30_000, settle=False)
    node.timers.advance(29.99)
    assert [len(receiver.got) for receiver in receivers] == [0, 0, 0]
    node.timers.advance(60)
    got = [
        (at - begun, delivery)
        for receiver in receivers
        for at, delivery in zip(receiver.times, receiver.got, strict=True)
    ]
    assert len(got) == 1
    assert 30.0 <= got[0][0] <= 30.05
    assert node.settle_message(got[0][1]) == pb.OUTCOME_DONE


def test_p76_a_lost_consumers_messages_go_to_others(make_node: Callable[..., Node]) -> None:
    """P76: consumer prefetches 10, killed after 2 acks → the other 8 delivered elsewhere ≤ lease + 1 s."""
    node = make_node(lease=2.0)
    victim = Receiver(node, node.open_session(), credits=10)
    for number in range(10):
        node.enqueue(b"%d" % number)
    for delivery in victim.got[:2]:
        victim.started(delivery)
        node.settle_message(delivery)
    other = Receiver(node, node.open_session(), credits=10)
    victim.die()
    died = node.timers.time()
    node.timers.advance(1.9)
    assert other.got == []
    node.timers.advance(1.1)
    assert sorted(other.payloads) == [b"%d" % number for number in range(2, 10)]
    assert all(at <= died + 3.0 for at in other.times)
    # Rules F2: only the message that may have been started when the holder was lost has used up an attempt.
    assert Counter(delivery.attempt for delivery in other.got) == {1: 7, 2: 1}
    assert next(delivery for delivery in other.got if delivery.attempt == 2).payload == b"2"


def test_started_messages_count_when_their_holder_is_lost(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    victim = Receiver(node, node.open_session(), credits=6, concurrency=2)
    for number in range(6):
        node.enqueue(b"%d" % number)
    victim.started(victim.got[0], victim.got[4])
    victim.die()
    other = Receiver(node, node.open_session())
    node.timers.advance(2)
    attempts = {delivery.payload: delivery.attempt for delivery in other.got}
    # 0 and 4 were reported; 1 is among the first two, whose report may have been lost.
    assert attempts == {b"0": 2, b"1": 2, b"2": 1, b"3": 1, b"4": 2, b"5": 1}


def test_leases_are_renewed_while_the_session_is_connected(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    slow = Receiver(node, node.open_session())
    node.enqueue(b"slow work")
    other = Receiver(node, node.open_session())
    node.timers.advance(60)
    assert other.got == []
    assert node.settle_message(slow.got[0]) == pb.OUTCOME_DONE


def test_a_reconnect_within_the_lease_keeps_it(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=2.0)
    session = node.open_session()
    first = Receiver(node, session)
    node.enqueue(b"kept")
    node.enqueue(b"lost on the way")
    first.die()
    node.timers.advance(1.5)
    node.service.connected(session)
    kept = first.got[0]
    again = Receiver(
        node, session, held=[pb.HeldLease(message_id=kept.message_id, lease_id=kept.lease_id, started=True)]
    )
    assert again.payloads == [b"lost on the way"]
    assert again.got[0].lease_id == first.got[1].lease_id
    node.timers.advance(60)
    assert len(again.got) == 1
    assert node.settle_message(kept) == pb.OUTCOME_DONE
    assert node.settle_message(again.got[0]) == pb.OUTCOME_DONE


def test_what_an_ended_consumer_was_never_told_of_goes_back_when_its_number_stands_for_another_queue(
    node: Node,
) -> None:
    """A client says so after a change of the leader. It is not shown what it may not be allowed to see."""
    session = node.open_session()
    first = Receiver(node, session, credits=5)
    for payload in (b"kept", b"lost on the way"):
        node.enqueue(payload)
    kept = first.got[0]
    first.die()
    node.service.delivery.connected(session)
    held = [pb.HeldLease(message_id=kept.message_id, lease_id=kept.lease_id, started=True)]
    nowhere = Receiver(node, session, queue="elsewhere", held=held)
    assert nowhere.got == []
    other = Receiver(node, node.open_session())
    node.timers.advance(1)
    assert other.payloads == [b"lost on the way"]
    assert other.got[0].attempt == 1
    assert node.settle_message(kept) == pb.OUTCOME_DONE


def test_a_second_connection_keeps_the_session_alive(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    session = node.open_session()
    receiver = Receiver(node, session)
    node.enqueue()
    node.service.connected(session)
    receiver.die()
    node.timers.advance(10)
    assert node.settle_message(receiver.got[0]) == pb.OUTCOME_DONE


def test_goodbye_releases_at_once_and_counts_only_what_was_started(node: Node) -> None:
    session = node.open_session()
    leaving = Receiver(node, session, credits=5, concurrency=2)
    for number in range(3):
        node.enqueue(b"%d" % number)
    leaving.started(leaving.got[0])
    node.service.delivery.stop_session(session)
    assert node.service.delivery.goodbye(session) == 3
    other = Receiver(node, node.open_session())
    node.timers.advance(0.1)
    assert {delivery.payload: delivery.attempt for delivery in other.got} == {b"0": 2, b"1": 1, b"2": 1}


def test_a_grant_whose_consumer_has_just_stopped_goes_back(node: Node) -> None:
    session = node.open_session()
    gone = Receiver(node, session)
    node.consensus.held = True
    node.enqueue(b"x", settle=False)
    node.timers.settle()
    node.service.delivery.stop_consumer(gone.consumer)
    node.consensus.release()
    node.timers.settle()
    assert gone.got == []
    other = Receiver(node, session, number=2)
    assert [(delivery.payload, delivery.attempt) for delivery in other.got] == [(b"x", 1)]


def test_a_new_leader_gives_every_lease_a_full_period(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=2.0)
    lost = Receiver(node, node.open_session())
    node.enqueue(b"held by a lost consumer")
    lost.die()
    node.timers.advance(1.5)
    node.consensus.depose()
    node.timers.advance(30)
    node.consensus.elect()
    other = Receiver(node, node.open_session())
    node.timers.advance(1.9)
    assert other.got == []
    node.timers.advance(0.3)
    assert other.payloads == [b"held by a lost consumer"]


def test_a_new_leader_pushes_again_what_its_consumers_do_not_hold(node: Node) -> None:
    session = node.open_session()
    receiver = Receiver(node, session)
    node.consensus.depose()
    # Another leader grants a lease; its delivery is lost with its node.
    command = pb.Batch(data_version=1)
    command.commands.add().writes.writes.add(seq=1, op=_enqueue(b"granted elsewhere"))
    command.commands.add().lease.MergeFrom(pb.Lease(queue="q", session=session, consumer=1, count=1))
    node.consensus.apply(command.SerializeToString())
    assert receiver.got == []
    node.consensus.elect()
    node.timers.settle()
    assert receiver.payloads == [b"granted elsewhere"]


@pytest.mark.parametrize("when", ["in the middle", "before the news"])
def test_what_is_leased_while_this_node_takes_office_is_delivered(node: Node, when: str) -> None:
    """The entry began when nobody here wanted deliveries, so it says only what was leased."""
    session = node.open_session()
    receiver = Receiver(node, session, credits=1_000)
    node.consensus.depose()
    assert not node.store.wants_deliveries
    command = pb.Batch(data_version=3)
    for number in range(300):
        command.commands.add().writes.writes.add(seq=1, op=_enqueue(b"%d" % number))
    command.commands.add().lease.MergeFrom(pb.Lease(queue="q", session=session, consumer=1, count=300))
    index, time_ms = node.store.applied_index + 1, node.consensus.now_ms()
    steps = node.store.apply(index, time_ms, command.SerializeToString())
    next(steps)
    if when == "in the middle":
        node.consensus.elect()
        node.timers.settle()
    result = finish(steps)
    assert len(result.leased) == 300 and not result.granted
    if when == "before the news":
        node.consensus.elect()
    node.service._applied(Applied(index, time_ms, result))
    node.timers.settle()
    assert sorted(receiver.payloads) == sorted(b"%d" % number for number in range(300)), "each once"
    assert [node.settle_message(delivery) for delivery in receiver.got[:3]] == [pb.OUTCOME_DONE] * 3
    node.consensus.depose()
    assert not node.store.wants_deliveries


def test_what_is_leased_by_an_entry_with_nothing_else_is_delivered(node: Node) -> None:
    session = node.open_session()
    receiver = Receiver(node, session, credits=1_000)
    node.service.delivery.stop_consumer(receiver.consumer)
    for number in range(300):
        node.enqueue(b"%d" % number, settle=False)
    node.timers.settle()
    node.consensus.depose()
    receiver = Receiver(node, session, credits=1_000)
    command = pb.Batch(data_version=3)
    command.commands.add().lease.MergeFrom(pb.Lease(queue="q", session=session, consumer=1, count=300))
    index, time_ms = node.store.applied_index + 1, node.consensus.now_ms()
    steps = node.store.apply(index, time_ms, command.SerializeToString())
    next(steps)
    node.consensus.elect()
    result = finish(steps)
    assert result.leased and not (result.granted or result.ended or result.ready)
    node.service._applied(Applied(index, time_ms, result))
    node.timers.settle()
    assert len(receiver.got) == 300


def finish(steps: Generator[None, None, ApplyResult]) -> ApplyResult:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: ApplyResult = stop.value
            return result


def test_what_an_entry_leases_and_deletes_is_held_by_nobody(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    command = pb.Batch(data_version=3)
    command.commands.add().writes.writes.add(seq=1, op=_enqueue(b"x"))
    command.commands.add().lease.MergeFrom(pb.Lease(queue="q", session=receiver.session, consumer=1, count=1))
    command.commands.add().remove_queue.MergeFrom(pb.RemoveQueue(name="q"))
    node.consensus.apply(command.SerializeToString())
    assert receiver.got == [] and not node.service.delivery._book.leases


def test_a_deposed_leader_hands_out_nothing(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    node.consensus.depose()
    command = pb.Batch(data_version=1)
    command.commands.add().writes.writes.add(seq=1, op=_enqueue(b"x"))
    node.consensus.apply(command.SerializeToString())
    node.timers.advance(10)
    assert receiver.got == []
    node.consensus.elect()
    node.timers.settle()
    assert receiver.payloads == [b"x"]


def test_credits_come_back_when_a_lease_command_is_lost(node: Node) -> None:
    receiver = Receiver(node, node.open_session(), credits=1)
    node.consensus.held = True
    node.enqueue(b"lost", settle=False)
    node.timers.settle()
    assert receiver.consumer.reserved == 1
    node.consensus.depose()
    node.timers.settle()
    assert receiver.consumer.reserved == 0
    node.consensus.held = False
    node.consensus.elect()
    node.enqueue(b"next")
    assert receiver.payloads == [b"next"]


def test_retries_follow_the_backoff_schedule_and_end_undelivered(node: Node) -> None:
    receiver = Receiver(node, node.open_session())
    op = pb.AtomicWrite()
    op.enqueues.add(
        queue="q", payload=b"p", keys_if_undelivered=[b"\x02dead\x00"], backoff=pb.Backoff(delays_ms=[1000, 5000])
    )
    node.write(op)
    waits = [1.0, 5.0]
    for attempt, wait in enumerate(waits, 1):
        assert len(receiver.got) == attempt
        failed = node.timers.time()
        node.settle_message(receiver.got[-1], pb.SETTLE_KIND_RETRY)
        node.timers.advance(wait + 0.1)
        assert failed + wait <= receiver.times[-1] <= failed + wait + 0.1
    node.settle_message(receiver.got[-1], pb.SETTLE_KIND_RETRY)
    node.timers.advance(600)
    assert [delivery.attempt for delivery in receiver.got] == [1, 2, 3]
    with node.store.snapshot() as snapshot:
        assert snapshot.get(b"\x02dead\x00").value == b"p"


def test_a_stale_holder_cannot_settle(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    lost = Receiver(node, node.open_session())
    node.enqueue()
    lost.die()
    other = Receiver(node, node.open_session())
    node.timers.advance(1.5)
    assert node.settle_message(lost.got[0]) == pb.OUTCOME_STALE_LEASE
    assert node.settle_message(other.got[0]) == pb.OUTCOME_DONE


def test_a_reconnect_while_a_release_is_under_way_gets_nothing_stale(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    session = node.open_session()
    lost = Receiver(node, session, credits=1)
    node.enqueue(b"x")
    lost.die()
    node.consensus.held = True
    node.timers.advance(1.1)  # the lease has lapsed; its release is in the log, not applied
    node.service.connected(session)
    again = Receiver(node, session, credits=1)
    assert again.got == []
    node.consensus.release()
    node.timers.settle()
    assert [delivery.attempt for delivery in again.got] == [2]
    assert node.settle_message(again.got[0]) == pb.OUTCOME_DONE


def test_a_release_that_finds_no_room_is_proposed_again(make_node: Callable[..., Node]) -> None:
    node = make_node(lease=1.0)
    lost = Receiver(node, node.open_session())
    node.enqueue(b"x")
    lost.die()
    other = Receiver(node, node.open_session())
    node.consensus.refuse_with = Overloaded("full")
    node.timers.advance(3)
    assert other.got == []
    node.consensus.refuse_with = None
    node.timers.advance(0.5)
    assert other.payloads == [b"x"]


def test_nothing_is_left_in_memory(node: Node) -> None:
    for _ in range(3):
        session = node.open_session()
        receiver = Receiver(node, session)
        node.enqueue()
        node.settle_message(receiver.got[0])
        receiver.die()
    delivery = node.service.delivery
    assert not (delivery._asking.lines or len(delivery._book) or delivery._book.leases)
    assert delivery._lapses.is_idle


@pytest.mark.parametrize("seed", range(8))
def test_random_lives_deliver_every_message_to_one_settled_end(make_node: Callable[..., Node], seed: int) -> None:
    """Consumers come, die, return and settle at random, leaders change: each message ends acknowledged exactly
    once, none is lost.
    """
    rng = random.Random(seed)
    node = make_node(lease=1.0)
    sent, acknowledged = 0, Counter[bytes]()
    live: list[Receiver] = []
    settled: set[bytes] = set()

    def acknowledge(delivery: pb.Delivery) -> None:
        outcome = node.settle_message(delivery)
        settled.add(delivery.lease_id)
        assert outcome in (pb.OUTCOME_DONE, pb.OUTCOME_STALE_LEASE)
        if outcome == pb.OUTCOME_DONE:
            acknowledged[delivery.payload] += 1

    for _ in range(250):
        match rng.randrange(7):
            case 0 | 1:
                node.enqueue(
                    b"%d" % sent,
                    delay_ms=rng.choice([0, 0, 500]),
                    backoff=pb.Backoff(delays_ms=[10] * 60),
                    settle=False,
                )
                sent += 1
            case 2 if len(live) < 4:
                live.append(Receiver(node, node.open_session(), credits=rng.randint(1, 4)))
            case 3 if live and rng.random() < 0.4:
                live.pop(rng.randrange(len(live))).die()
            case 4 | 5 if live:
                waiting = [delivery for delivery in rng.choice(live).got if delivery.lease_id not in settled]
                if waiting:
                    acknowledge(rng.choice(waiting))
            case 6 if rng.random() < 0.2:
                node.consensus.depose()
                node.timers.advance(rng.random())
                node.consensus.elect()
        node.timers.advance(rng.random() / 4)
    for receiver in live:
        receiver.die()
    last = Receiver(node, node.open_session(), credits=1000)
    node.timers.advance(10)
    for delivery in list(last.got):
        acknowledge(delivery)
    # What the proposer lost with its leadership was answered as unknown; what was applied must have come to its end.
    assert set(acknowledged.values()) <= {1}
    with node.store.snapshot():
        assert node.store.statistics()["messages"] == 0
    assert len(acknowledged) > sent * 0.8
    assert node.store.leases() == []


def _enqueue(payload: bytes) -> bytes:
    op = pb.AtomicWrite()
    op.enqueues.add(queue="q", payload=payload)
    return op.SerializeToString()


def test_consumers_of_a_closed_session_are_told_once_and_ask_no_more(node: Node) -> None:
    session, other = node.open_session(), node.open_session()
    told: list[int] = []
    got: list[pb.Delivery] = []
    for number in (1, 2):
        request = pb.StartConsumer(id=number, queue="q", credits=10)
        node.service.delivery.start_consumer(session, request, got.append, partial(told.append, number))
    node.service.submit(pb.Command(close_sessions=pb.CloseSessions(sessions=[session])), lambda *_: None)
    node.timers.settle()
    node.enqueue(b"first")
    node.timers.advance(1)
    assert sorted(told) == [1, 2] and not got
    entries = len(node.consensus.payloads)
    node.timers.advance(60)
    assert len(node.consensus.payloads) == entries
    receiver = Receiver(node, other)
    assert receiver.payloads == [b"first"]
