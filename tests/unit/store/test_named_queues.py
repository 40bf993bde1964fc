"""Queues of data version 3, by example. Random traffic against a model is in test_queue_model."""

from pathlib import Path

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import QueueFacts
from kvorum_node.store.queues import deaths
from kvorum_node.store.queues.formats import Payload
from kvorum_node.store.queues.policies import Policy, attempts, pause_before
from kvorum_node.store.records import TIMER
from tests.unit.store.harness import (
    DONE,
    EXTEND,
    FAILED,
    GONE,
    LOST,
    REJECT,
    RETRY,
    RETURN,
    STALE,
    START_MS,
    V8,
    Replica,
    cancel,
    close_sessions,
    define,
    define_topic,
    each,
    enqueue,
    group,
    last_id,
    lease,
    names,
    put,
    release,
    remove_queue,
    requeue,
    reschedule,
    settle,
    subscribe,
    sweep,
    write,
)

REPLICA_VERSION = 3


# ---- failures and dead letters


def test_a_message_that_fails_for_good_is_kept_with_its_history(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", max_attempts=3, backoff=pb.Backoff(delays_ms=[10])))
    replica.commit(enqueue(b"job", queue="q", group="g", headers=pb.Headers(reply_to="me").SerializeToString()))
    mid = last_id(replica)
    (first,) = replica.lease(session, queue="q")
    assert (first.group, first.attempt) == ("g", 1)
    replica.commit(settle(first, RETRY, reason="no luck"))
    assert replica.store.next_due_ms("q") == START_MS + 10
    replica.now_ms += 10
    (second,) = replica.lease(session, queue="q")
    replica.apply(release(second, counts=True))
    (third,) = replica.lease(session, queue="q")
    replica.now_ms += 5
    replica.commit(settle(third, RETRY, reason="\u00e4" * 500))
    info = replica.info(mid)
    assert info is not None
    assert info.state == pb.MESSAGE_STATE_DEAD
    assert [(one.attempt, one.at_ms - START_MS, one.kind, one.reason[:7]) for one in info.failures] == [
        (1, 0, FAILED, "no luck"),
        (2, 10, LOST, ""),
        (3, 15, FAILED, "\u00e4" * 7),
    ]
    origin = info.origin
    assert (origin.queue, origin.message_id, origin.enqueued_at_ms, origin.died_at_ms, origin.attempts) == (
        "q", mid, START_MS, START_MS + 15, 3,
    )  # fmt: skip
    shown = replica.queue("q")
    assert (shown.messages, shown.dead, shown.failed, shown.lost, shown.died) == (0, 1, 2, 1, 1)
    assert replica.commit(reschedule(mid, 5)).outcome == GONE
    assert replica.apply(requeue("q")).outputs == [1]
    assert replica.apply(requeue("q")).outputs == [0]
    (again,) = replica.lease(session, queue="q")
    assert (again.payload, again.group, again.attempt, again.headers) == (b"job", "g", 1, first.headers)
    assert again.message_id != mid
    assert again.message_id[10:] == (4_096).to_bytes(2, "big")
    assert not again.failures
    assert not again.HasField("origin")
    replica.scrub()


def test_a_dead_letter_queue(replica: Replica) -> None:
    session = replica.session()
    replica.apply(
        define("q", dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="dlq", max_attempts=1),
        define("dlq", ordered=True),
    )
    replica.commit(enqueue(b"one", queue="q"), enqueue(b"two", queue="q", group="g"))
    one, two = replica.lease(session, queue="q", count=5)
    replica.commit(settle(two, RETRY, reason="2"), settle(one, REJECT, reason="1"))
    (first,) = replica.lease(session, queue="dlq", count=5, consumer=4)[:1]
    assert (first.payload, first.group, first.attempt) == (b"two", "g", 1), "in the order of deaths"
    assert (first.origin.queue, first.origin.message_id, first.origin.attempts) == ("q", two.message_id, 1)
    assert [(one.kind, one.reason) for one in first.failures] == [(FAILED, "2")]
    replica.commit(settle(first, REJECT))
    assert [info.payload for info in replica.peek("dlq", pb.PEEK_KIND_DEAD)] == [b"two"], "never in a circle"
    assert replica.apply(requeue("dlq", to_origin=True)).outputs == [0], "the other one is in somebody's hands"
    replica.apply(close_sessions(session))
    (held,) = replica.store.leases()
    replica.apply(release(pb.Delivery(message_id=held.message_id, lease_id=held.lease_id), counts=False))
    assert replica.apply(requeue("dlq", to_origin=True)).outputs == [1]
    assert [info.payload for info in replica.peek("q")] == [b"one"]
    assert replica.apply(requeue("dlq")).outputs == [1], "it is a message of the dead letter queue again"
    assert replica.apply(requeue("dlq", to_origin=True)).outputs == [1]
    assert sorted(info.payload for info in replica.peek("q")) == [b"one", b"two"]
    assert not any(info.HasField("origin") for info in replica.peek("q"))
    replica.scrub()


def test_only_the_first_and_the_last_failures_are_kept(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", max_attempts=30, backoff=pb.Backoff(delays_ms=[0])))
    replica.commit(enqueue(queue="q"))
    mid = last_id(replica)
    for number in range(14):
        (held,) = replica.lease(session, queue="q")
        replica.commit(settle(held, RETRY, reason=str(number)))
    info = replica.info(mid)
    assert info is not None
    assert [one.attempt for one in info.failures] == [1, *range(6, 15)]
    assert len(info.failures) == limits.MAX_FAILURES


def test_the_policy_is_read_when_it_is_needed(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(queue="q"), enqueue(queue="q", backoff=[7]))
    plain, own = replica.lease(session, queue="q", count=2)
    replica.apply(define("q", backoff=pb.Backoff(delays_ms=[40]), lease_ms=900))
    replica.commit(settle(plain, RETRY), settle(own, RETRY))
    due = {info.message_id: info.due_ms - START_MS for info in replica.peek("q")}
    assert due == {plain.message_id: 40, own.message_id: 7}
    assert replica.store.queue_facts("q") == QueueFacts(900, 0, False, 0)


def test_backoff_grows_up_to_its_cap() -> None:
    policy = Policy(exponential=(100, 200, 1_500, 0))
    plain = Payload(0, None, (), b"")
    assert [pause_before(policy, plain, bytes(12), attempt) for attempt in range(1, 8)] == [
        100, 200, 400, 800, 1_500, 1_500, 1_500,
    ]  # fmt: skip
    assert attempts(policy, plain) == 20
    jittered = policy._replace(exponential=(100, 100, 100, 30))
    delays = {pause_before(jittered, plain, number.to_bytes(12, "big"), 1) for number in range(200)}
    assert min(delays) == 70
    assert max(delays) == 100
    assert pause_before(jittered, plain, bytes(12), 1) == pause_before(jittered, plain, bytes(12), 1)
    assert pause_before(Policy(exponential=(3_600_000, 10_000, 3_600_000, 0)), plain, bytes(12), 1_000) == 3_600_000
    assert attempts(policy, plain._replace(backoff=())) == 1
    assert attempts(policy._replace(max_attempts=7), plain._replace(backoff=(1,))) == 7
    assert pause_before(policy, plain._replace(backoff=(1, 9)), bytes(12), 5) == 9, "the last step is repeated"


def test_undelivered_messages_do_not_make_an_entry_too_large(replica: Replica) -> None:
    """Each becomes ten values of 64 KiB; beyond some megabytes the sweeps write them."""
    session = replica.session()
    big = bytes(60_000)
    count = 12
    for at in range(count):
        replica.commit(
            enqueue(
                big, queue="q", group="g" if at % 4 == 3 else None, keys=[b"%d-%d" % (at, key) for key in range(10)]
            )
        )
    held = replica.lease(session, queue="q", count=count)
    result = replica.apply(group(each(*[settle(delivery, REJECT) for delivery in held])))
    assert list(result.outputs[0].results[0].failed_checks) == []
    assert result.earliest_expiry_ms == START_MS
    written = sum(len(row.value) for row in replica.rows(limit=1_000))
    assert written <= deaths.WRITTEN_AT_ONCE
    shown = replica.queue("q")
    assert shown.leased == 0
    assert shown.messages > 0
    dying = held[-1].message_id
    assert replica.commit(cancel(dying)).outcome == GONE
    assert replica.commit(settle(held[-1])).outcome == STALE
    assert not replica.lease(session, queue="q", count=count)[1:], "at most a head that moved up"
    replica.scrub()
    sweeps = 0
    while replica.store.next_expiry_ms() is not None:
        before = sum(len(row.value) for row in replica.rows(limit=1_000))
        assert replica.apply(sweep()).outputs[0] > 0
        after = sum(len(row.value) for row in replica.rows(limit=1_000))
        assert after - before <= deaths.WRITTEN_AT_ONCE + 10 * len(big)
        sweeps += 1
    assert sweeps > 0
    assert len(replica.rows(limit=1_000)) == 10 * len(held)
    replica.scrub()


def test_a_queue_with_dying_messages_is_removed(replica: Replica) -> None:
    session = replica.session()
    for at in range(10):
        replica.commit(enqueue(bytes(60_000), queue="q", keys=[b"%d-%d" % (at, key) for key in range(10)]))
    held = replica.lease(session, queue="q", count=10)
    replica.apply(group(each(*[settle(delivery, REJECT) for delivery in held])))
    assert replica.queue("q").messages > 0
    while replica.apply(remove_queue("q")).outputs[0]:
        pass
    assert replica.queue("q") == pb.QueueInfo()
    assert names(replica, TIMER) == []
    replica.scrub()


# ---- groups


def test_a_group_is_delivered_one_after_the_other(replica: Replica) -> None:
    session = replica.session()
    replica.commit(*[enqueue(b"%d" % at, queue="q", group="ab"[at % 2]) for at in range(6)])
    first, second = replica.lease(session, queue="q", count=9)
    assert [first.payload, second.payload] == [b"0", b"1"]
    assert replica.lease(session, queue="q", count=9) == []
    replica.now_ms += 10
    result = replica.apply(group(write(settle(first))), lease(session, queue="q", count=9))
    assert [grant.delivery.payload for grant in result.granted] == [b"2"], "the next head in the same entry"
    replica.commit(settle(second, RETRY, 50))
    assert replica.lease(session, queue="q", count=9) == [], "a retried head keeps its group back"
    replica.now_ms += 50
    (again,) = replica.lease(session, queue="q", count=9)
    assert again.payload == b"1"
    replica.commit(settle(again, REJECT))
    (next_one,) = replica.lease(session, queue="q", count=9)
    assert next_one.payload == b"3", "a poisoned head goes, and the group goes on"
    replica.scrub()


def test_groups_take_turns(replica: Replica) -> None:
    session = replica.session()
    for at in range(20):
        replica.commit(enqueue(b"a%d" % at, queue="q", group="a"))
    replica.commit(enqueue(b"b0", queue="q", group="b"), enqueue(b"c0", queue="q"))
    order = []
    for _ in range(5):
        replica.now_ms += 1
        (held,) = replica.lease(session, queue="q")
        order.append(held.payload)
        replica.commit(settle(held))
    assert order == [b"a0", b"b0", b"c0", b"a1", b"a2"]


def test_an_ordered_queue_is_one_group_of_what_has_none(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", ordered=True))
    replica.commit(enqueue(b"1", queue="q"), enqueue(b"2", queue="q"), enqueue(b"3", queue="q", group=""))
    assert [held.payload for held in replica.lease(session, queue="q", count=9)] == [b"1", b"3"]
    assert not replica.peek("q", pb.PEEK_KIND_READY)
    (waiting,) = [info for info in replica.peek("q") if info.state == pb.MESSAGE_STATE_WAITING]
    assert waiting.payload == b"2"
    assert replica.commit(reschedule(waiting.message_id, 70)).outcome == DONE
    replica.commit(
        *[settle(pb.Delivery(message_id=one.message_id, lease_id=one.lease_id)) for one in replica.store.leases()]
    )
    assert replica.store.next_due_ms("q") == START_MS + 70


def test_what_a_topic_makes_in_a_commit_stands_behind_its_enqueues(replica: Replica) -> None:
    """Numbers from 4,096 on: the head of a group is the first by id, whichever came first to apply."""
    session = replica.session()
    replica.apply(define_topic("t"), subscribe("t", "q"))
    replica.commit(enqueue(b"copy", topic="t", group="g"), enqueue(b"direct", queue="q", group="g"))
    (first,) = replica.lease(session, queue="q", count=5)
    assert first.payload == b"direct"
    replica.commit(settle(first))
    (second,) = replica.lease(session, queue="q", count=5)
    assert second.payload == b"copy"
    replica.scrub()


# ---- verdicts


def test_extending_a_lease(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", lease_ms=700))
    replica.commit(enqueue(queue="q"), enqueue(queue="r"))
    (held,) = replica.lease(session, queue="q")
    (other,) = replica.lease(session, queue="r")
    assert (held.lease_ms, other.lease_ms) == (700, 0)
    result = replica.apply(
        group(write(settle(held, EXTEND)), write(settle(held, EXTEND, 5_000)), write(settle(other, EXTEND)))
    )
    assert result.extended == [(held.lease_id, 700), (held.lease_id, 5_000), (other.lease_id, 0)]
    assert result.ended == []
    assert [lease.lease_ms for lease in replica.store.leases()] == [5_000, 0]
    assert replica.store.delivery(held.message_id, held.lease_id) is not None
    assert replica.commit(settle(held)).outcome == DONE
    assert replica.commit(settle(held, EXTEND)).outcome == STALE
    refused = replica.apply(group(write(settle(other, EXTEND, 9), settle(held))))
    assert refused.extended == [], "a commit that was refused extends nothing"


def test_leases_come_in_pages(replica: Replica) -> None:
    session = replica.session()
    replica.commit(*[enqueue(queue="q") for _ in range(5)])
    replica.lease(session, queue="q", count=5)
    everything = replica.store.leases()
    assert replica.store.leases(limit=2) == everything[:2]
    assert replica.store.leases(everything[1].message_id, 2) == everything[2:4]
    assert replica.store.leases(everything[4].message_id) == []


def test_independent_settles(replica: Replica) -> None:
    session = replica.session()
    replica.commit(*[enqueue(b"%d" % at, queue="q", keys=[b"k"]) for at in range(4)])
    one, two, three, four = replica.lease(session, queue="q", count=4)
    replica.commit(settle(two))
    ops = each(
        settle(one),
        settle(two),
        settle(three, REJECT),
        settle(four, RETRY, 5),
        cancel(four.message_id),
        cancel(bytes(12)),
    )
    command = group(ops, session=session)
    answer = replica.apply(command).outputs[0].results[0]
    assert (answer.outcome, list(answer.failed_checks), answer.deleted) == (DONE, [1, 5], 0)
    assert replica.get(b"k") == (V8, b"2")
    again = replica.apply(command).outputs[0].results[0]
    assert (again.outcome, list(again.failed_checks)) == (DONE, [1, 5]), "the stored answer"
    assert replica.queue("q").messages == 0
    mixed = each(settle(one))
    mixed.mutations.append(put(b"a"))
    assert replica.apply(group(mixed)).outputs[0].results[0].outcome == pb.OUTCOME_INVALID


def test_cancelling_and_rescheduling(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(queue="q", delay_ms=500))
    mid = last_id(replica)
    assert replica.commit(reschedule(mid, 20)).outcome == DONE
    assert replica.store.next_due_ms("q") == START_MS + 20
    replica.now_ms += 20
    (held,) = replica.lease(session, queue="q")
    for verdict in (cancel(mid), reschedule(mid, 0)):
        answer = replica.commit(put(b"a"), verdict)
        assert answer.outcome == GONE
        assert replica.get(b"a") is None, "the whole commit"
    replica.commit(settle(held, RETURN))
    assert replica.commit(cancel(mid)).outcome == DONE
    assert replica.commit(cancel(mid)).outcome == GONE
    assert replica.queue("q").messages == 0
    assert replica.store.next_due_ms("q") is None


def test_at_most_once(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(b"1", queue="q", group="g", dedup_id=b"d"), enqueue(b"2", queue="q", group="g"))
    result = replica.apply(lease(session, queue="q", count=5, take=True))
    (grant,) = result.granted
    assert (grant.delivery.payload, grant.delivery.taken, len(grant.delivery.lease_id)) == (b"1", True, 12)
    assert result.ready == {"q": START_MS}
    assert replica.store.leases() == []
    assert replica.commit(settle(grant.delivery)).outcome == STALE
    shown = replica.queue("q")
    assert (shown.messages, shown.delivered, shown.done) == (1, 1, 1)
    assert replica.commit(enqueue(queue="q", dedup_id=b"d")).duplicates == [], "done frees the id"


def test_nobody_wants_deliveries(tmp_path: Path) -> None:
    one, two = Replica(tmp_path / "one", data_version=3), Replica(tmp_path / "two", data_version=3)
    two.store.wants_deliveries = False
    for replica in (one, two):
        session = replica.session()
        replica.commit(enqueue(b"x", queue="q"), enqueue(b"y", queue="q"))
        replica.apply(lease(session, queue="q", consumer=5), lease(session, queue="q", take=True))
    assert one.store.state_hash() == two.store.state_hash()
    session = two.session()
    two.commit(enqueue(b"z", queue="q"))
    result = two.apply(lease(session, queue="q", consumer=6), lease(session, queue="q", take=True))
    assert result.granted == []
    (leased,) = result.leased
    assert (leased.session, leased.consumer) == (session, 6)
    delivery = two.store.delivery(leased.message_id, leased.lease_id)
    assert delivery is not None
    assert delivery.payload == b"z"
    two.commit(enqueue(b"taken", queue="q"))
    assert [grant.delivery.payload for grant in two.apply(lease(session, queue="q", take=True)).granted] == [b"taken"]
    for replica in (one, two):
        replica.store.close()
