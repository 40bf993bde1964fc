"""Messages: deliveries are granted in the log, and only the current lease counts (rules F)."""

import random
from collections import Counter
from pathlib import Path

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum.limits import DEFAULT_BACKOFF
from kvorum_node.store import LeaseInfo
from tests.unit.store.harness import (
    START_MS,
    V8,
    Replica,
    close_sessions,
    enqueue,
    group,
    lease,
    put,
    release,
    settle,
    write,
)

ACK, RETRY = pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY
REJECT, RETURN = pb.SETTLE_KIND_REJECT, pb.SETTLE_KIND_RETURN
DONE, STALE = pb.OUTCOME_DONE, pb.OUTCOME_STALE_LEASE


def test_enqueue_lease_ack(replica: Replica) -> None:
    base = replica.store.statistics()["rows"]
    session = replica.session()
    result = replica.apply(group(write(put(b"a"), enqueue(b"one", queue="work"), enqueue(b"two", queue="work"))))
    assert result.ready == {"work": START_MS}
    index = replica.store.applied_index
    replica.now_ms += 5
    first, second = replica.lease(session, queue="work", consumer=7, count=10)
    lease_index = replica.store.applied_index
    assert first == pb.Delivery(
        consumer=7,
        message_id=index.to_bytes(8, "big") + b"\x00\x00\x00\x00",
        lease_id=lease_index.to_bytes(8, "big") + b"\x00\x00\x00\x00",
        attempt=1,
        payload=b"one",
        queue="work",
        enqueued_at_ms=START_MS,
    )
    assert (second.payload, second.message_id[-1], second.lease_id[-1]) == (b"two", 1, 1)
    assert replica.store.leases() == [
        LeaseInfo(first.message_id, first.lease_id, "work", session, 7, 1),
        LeaseInfo(second.message_id, second.lease_id, "work", session, 7, 1),
    ]
    assert replica.store.delivery(first.message_id, first.lease_id) == first
    assert replica.store.delivery(first.message_id, second.lease_id) is None
    assert replica.lease(session, queue="work") == []
    result = replica.apply(group(write(settle(first)), write(settle(second))))
    assert result.ended == [first.lease_id, second.lease_id]
    assert replica.store.leases() == []
    assert replica.store.delivery(first.message_id, first.lease_id) is None
    assert replica.store.statistics()["messages"] == 0
    assert replica.store.statistics()["rows"] == base + 2  # the session, the key


def test_an_enqueue_belongs_to_its_commit(replica: Replica) -> None:
    session = replica.session()
    result = replica.apply(group(write(pb.Check(key=b"no", kind=pb.CHECK_KIND_EXISTS), enqueue())), lease(session))
    assert result.outputs[1] == 0
    assert result.granted == []
    assert result.ready == {}


def test_a_lease_in_the_entry_of_its_enqueue(replica: Replica) -> None:
    session = replica.session()
    result = replica.apply(group(write(enqueue(b"x"))), lease(session, consumer=3, count=5))
    assert result.outputs[1] == 1
    ((granted_to, consumer, delivery),) = result.granted
    assert (granted_to, consumer, delivery.payload) == (session, 3, b"x")


def test_queues_are_apart_whatever_their_names(replica: Replica) -> None:
    session = replica.session()
    names = ["", "a", "aa", "a\x00", "ä" * 128, "z" * 256]
    replica.apply(group(write(*(enqueue(name.encode(), queue=name) for name in names))))
    for name in names:
        assert replica.store.next_due_ms(name) == START_MS
        (delivery,) = replica.lease(session, queue=name, count=10)
        assert (delivery.queue, delivery.payload.decode()) == (name, name)
        assert replica.store.next_due_ms(name) is None
    assert replica.store.next_due_ms("z" * 257) is None
    assert replica.lease(session, queue="z" * 257) == []


def test_due_times(replica: Replica) -> None:
    session = replica.session()
    result = replica.apply(
        group(write(enqueue(b"late", delay_ms=500)), write(enqueue(b"soon", delay_ms=100)), write(enqueue(b"now")))
    )
    assert result.ready == {"": START_MS}
    assert [delivery.payload for delivery in replica.lease(session, count=10)] == [b"now"]
    assert replica.store.next_due_ms("") == START_MS + 100
    replica.now_ms = START_MS + 99
    assert replica.lease(session) == []
    replica.now_ms = START_MS + 500
    assert [delivery.payload for delivery in replica.lease(session, count=10)] == [b"soon", b"late"]


def test_messages_of_one_due_time_come_in_order_of_their_ids(replica: Replica) -> None:
    session = replica.session()
    replica.apply(group(*(write(enqueue(b"%d" % at)) for at in range(5))))
    replica.commit(enqueue(b"5"))
    assert [delivery.payload for delivery in replica.lease(session, count=4)] == [b"0", b"1", b"2", b"3"]
    assert [delivery.payload for delivery in replica.lease(session, count=4)] == [b"4", b"5"]


def test_default_backoff_then_dropped(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue())
    for attempt, step in enumerate((*DEFAULT_BACKOFF, None), 1):
        (delivery,) = replica.lease(session)
        assert delivery.attempt == attempt
        result = replica.apply(group(write(settle(delivery, RETRY))))
        assert result.outputs[0].results[0].outcome == DONE
        if step is None:
            assert result.ready == {}
        else:
            assert result.ready == {"": replica.now_ms + step}
            replica.now_ms += step - 1
            assert replica.lease(session) == []
            replica.now_ms += 1
    assert replica.store.statistics()["messages"] == 0


def test_own_backoff_and_own_delay(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(backoff=[10, 20], keys=[b"dead"]))
    (delivery,) = replica.lease(session)
    assert replica.apply(group(write(settle(delivery, RETRY, 77)))).ready == {"": replica.now_ms + 77}
    replica.now_ms += 77
    (delivery,) = replica.lease(session)
    replica.now_ms += 1_000  # the handler took its time: the delay counts from the verdict
    assert replica.apply(group(write(settle(delivery, RETRY)))).ready == {"": replica.now_ms + 20}
    replica.now_ms += 20
    (delivery,) = replica.lease(session)
    assert delivery.attempt == 3
    result = replica.apply(group(write(settle(delivery, RETRY, 5))))
    assert result.ready == {}, "the last failure undelivers, whatever delay was asked for"
    assert replica.get(b"dead") == (V8, b"job")


def test_no_retry(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(backoff=[], keys=[b"dead"]))
    (delivery,) = replica.lease(session)
    replica.commit(settle(delivery, RETRY))
    assert replica.get(b"dead") == (V8, b"job")


def test_reject_writes_every_undelivered_key(replica: Replica) -> None:
    session = replica.session()
    replica.commit(put(b"dead", b"old", expire_in_ms=50))
    long = b"k" * 2_048
    replica.commit(enqueue(b"payload", keys=[b"dead", long]))
    (delivery,) = replica.lease(session)
    result = replica.apply(group(write(put(b"other")), write(settle(delivery, REJECT))))
    index = replica.store.applied_index
    assert result.changed_keys == [b"other", b"dead", long]
    assert result.ended == [delivery.lease_id]
    for key in (b"dead", long):
        entry = replica.entry(key)
        assert (entry.value, entry.encoding) == (b"payload", V8)
        assert entry.versionstamp == index.to_bytes(8, "big") + b"\x00\x01"
    assert replica.store.next_expiry_ms() is None
    assert replica.store.statistics()["messages"] == 0


def test_return_gives_attempt_and_place_back(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(b"first"))
    replica.now_ms += 10
    replica.commit(enqueue(b"second"))
    (delivery,) = replica.lease(session)
    replica.now_ms += 10
    result = replica.apply(group(write(settle(delivery, RETURN))))
    assert result.ready == {"": START_MS}
    first, second = replica.lease(session, count=2)
    assert (first.payload, first.attempt) == (b"first", 1)
    assert first.lease_id != delivery.lease_id
    assert second.payload == b"second"


def test_a_settle_with_effects_is_one_commit(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue())
    (delivery,) = replica.lease(session)
    failing = write(settle(delivery), put(b"effect"), pb.Check(key=b"no", kind=pb.CHECK_KIND_EXISTS))
    assert replica.apply(group(failing)).outputs[0].results[0].outcome == pb.OUTCOME_CHECK_FAILED
    replica.commit(put(b"text"))
    bad_sum = pb.Mutation(key=b"text", type=pb.MUTATION_TYPE_ADD, value=b"\xff\x0fI\x02", encoding=V8)
    result = replica.apply(group(write(settle(delivery), put(b"effect"), bad_sum)))
    assert result.outputs[0].results[0].outcome == pb.OUTCOME_TYPE_ERROR
    assert result.ended == []
    assert len(replica.store.leases()) == 1
    result = replica.apply(group(write(enqueue(queue="x")), write(settle(delivery, RETRY, 5), bad_sum)))
    assert (result.ready, result.ended) == ({"x": replica.now_ms}, [])
    replica.lease(session, queue="x")
    assert len(replica.store.leases()) == 2
    assert replica.commit(settle(delivery), put(b"effect")).outcome == DONE
    assert len(replica.store.leases()) == 1
    before = replica.store.state_hash()
    result_again = replica.commit(settle(delivery), put(b"effect", b"again"))
    assert (result_again.outcome, replica.store.state_hash()) == (STALE, before)


def test_a_message_settled_twice_in_a_commit(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue())
    (delivery,) = replica.lease(session)
    assert replica.commit(settle(delivery), settle(delivery)).outcome == STALE
    assert len(replica.store.leases()) == 1


@pytest.mark.parametrize("kind", [ACK, RETRY, REJECT, RETURN])
def test_a_stale_lease_changes_nothing(replica: Replica, kind: pb.SettleKind) -> None:
    session = replica.session()
    replica.commit(enqueue(backoff=[0, 0]))
    (old,) = replica.lease(session)
    replica.apply(release(old, counts=True))
    (new,) = replica.lease(session)
    before = replica.store.state_hash()
    for message_id, lease_id in (
        (old.message_id, old.lease_id),
        (new.message_id, b""),
        (new.message_id, new.lease_id[:-1]),
        (b"\x00" * 12, new.lease_id),
        (b"", b""),
        (b"m" * 700, new.lease_id),
    ):
        stale = pb.Settle(message_id=message_id, lease_id=lease_id, kind=kind)
        assert replica.commit(stale).outcome == STALE
    assert replica.store.state_hash() == before
    assert replica.commit(settle(new)).outcome == DONE


def test_a_ready_message_cannot_be_settled_without_a_lease(replica: Replica) -> None:
    replica.commit(enqueue())
    message_id = replica.store.applied_index.to_bytes(8, "big") + b"\x00" * 4
    assert replica.commit(pb.Settle(message_id=message_id, kind=ACK)).outcome == STALE


def test_p62_lapses_use_up_attempts(replica: Replica) -> None:
    """P62: a consumer that crashes each time gets attempts 1 to 5, then the message is undelivered."""
    session = replica.session()
    replica.commit(enqueue(keys=[b"dead"], backoff=[100] * 4))
    for attempt in range(1, 6):
        (delivery,) = replica.lease(session)
        assert delivery.attempt == attempt
        result = replica.apply(release(delivery, counts=True))
        assert result.ended == [delivery.lease_id]
        assert result.ready == ({"": replica.now_ms} if attempt < 5 else {}), "a lapse makes it ready at once"
    assert result.changed_keys == [b"dead"]
    assert replica.get(b"dead") == (V8, b"job")
    assert replica.lease(session) == []


def test_unstarted_leases_give_their_attempt_back(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(backoff=[]))
    for _ in range(4):
        (delivery,) = replica.lease(session)
        assert delivery.attempt == 1
        replica.apply(release(delivery, counts=False))
    replica.apply(release(delivery, delivery, counts=True))  # stale
    (delivery,) = replica.lease(session)
    assert delivery.attempt == 1


def test_leases_outlive_their_session(replica: Replica) -> None:
    session, other = replica.session(), replica.session()
    replica.commit(enqueue())
    (delivery,) = replica.lease(session)
    replica.apply(close_sessions(session))
    assert [info.session for info in replica.store.leases()] == [session]
    assert replica.lease(session) == []
    result = replica.apply(group(write(settle(delivery)), session=other))
    assert result.outputs[0].results[0].outcome == DONE, "judged by the lease id alone"


def test_leases_need_a_session_that_exists_or_none(replica: Replica) -> None:
    replica.commit(enqueue())
    assert replica.lease(b"\x00" * 10) == []
    assert replica.lease(b"x" * 600) == []
    assert len(replica.lease(b"")) == 1


def test_lease_counts_are_bounded(replica: Replica) -> None:
    session = replica.session()
    replica.apply(group(*(write(*(enqueue() for _ in range(100))) for _ in range(11))))
    assert replica.lease(session, count=0) == []
    assert len(replica.lease(session, count=4_000_000_000)) == 1_000
    assert len(replica.lease(session, count=4_000_000_000)) == 100


@pytest.mark.parametrize(
    "message",
    [
        enqueue(queue="q" * 257),
        enqueue(delay_ms=(1 << 64) - 1),
        enqueue(keys=[b""]),
        enqueue(keys=[b"k" * 2_049]),
        enqueue(backoff=[1] * 65_536),
    ],
)
def test_what_the_leader_should_have_refused_is_a_result(replica: Replica, message: pb.Enqueue) -> None:
    before = replica.store.state_hash()
    assert replica.commit(message).outcome == pb.OUTCOME_INVALID
    assert replica.commit(put(b"a"), message).outcome == pb.OUTCOME_INVALID
    assert replica.store.state_hash() == before


def test_leases_survive_a_restart(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(), enqueue())
    (delivery,) = replica.lease(session)
    before = replica.store.leases()
    replica.reopen(clean=False)
    assert replica.store.leases() == before
    assert replica.store.next_due_ms("") == START_MS
    assert replica.store.delivery(delivery.message_id, delivery.lease_id) == delivery


@pytest.mark.parametrize("seed", range(5))
def test_invariants_over_random_histories(tmp_path: Path, seed: int) -> None:
    """At most one valid lease for a message, attempts = leases - returned ones <= allowed, settles name the current
    lease."""
    rng = random.Random(seed)
    replica = Replica(tmp_path / "state")
    sessions = [replica.session() for _ in range(3)]
    current: dict[bytes, pb.Delivery] = {}
    old: list[pb.Delivery] = []
    attempts: Counter[bytes] = Counter()
    allowed: dict[bytes, int] = {}
    enqueued = ended = 0

    def forget(delivery: pb.Delivery) -> None:
        old.append(delivery)
        del current[delivery.message_id]

    for _ in range(250):
        replica.now_ms += rng.randrange(20)
        roll = rng.random()
        if roll < 0.3:
            steps = [rng.randrange(30) for _ in range(rng.randrange(4))]
            replica.commit(enqueue(b"%d" % enqueued, delay_ms=rng.choice((0, 0, 15)), keys=[b"dead"], backoff=steps))
            allowed[replica.store.applied_index.to_bytes(8, "big") + b"\x00" * 4] = 1 + len(steps)
            enqueued += 1
        elif roll < 0.55:
            for delivery in replica.lease(rng.choice(sessions), count=rng.randrange(1, 4)):
                assert delivery.message_id not in current, "two valid leases"
                attempts[delivery.message_id] += 1
                assert delivery.attempt == attempts[delivery.message_id] <= allowed[delivery.message_id]
                current[delivery.message_id] = delivery
        elif roll < 0.8 and current:
            delivery = rng.choice(sorted(current.values(), key=lambda held: held.lease_id))
            kind = rng.choice((ACK, RETRY, REJECT, RETURN))
            assert replica.commit(settle(delivery, kind)).outcome == DONE
            forget(delivery)
            attempts[delivery.message_id] -= kind == RETURN
            ended += kind in (ACK, REJECT) or (kind == RETRY and delivery.attempt == allowed[delivery.message_id])
        elif roll < 0.9 and current:
            delivery = rng.choice(sorted(current.values(), key=lambda held: held.lease_id))
            counts = rng.random() < 0.5
            assert replica.apply(release(delivery, counts=counts)).ended == [delivery.lease_id]
            forget(delivery)
            attempts[delivery.message_id] -= not counts
            ended += counts and delivery.attempt == allowed[delivery.message_id]
        elif old:
            assert replica.commit(settle(rng.choice(old), ACK)).outcome == STALE
        if rng.random() < 0.05:
            replica.reopen(clean=False)
        assert {info.lease_id for info in replica.store.leases()} == {held.lease_id for held in current.values()}
        assert replica.store.statistics()["messages"] == enqueued - ended
    replica.check_hash()
    replica.store.close()
