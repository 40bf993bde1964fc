"""Topics, subscriptions, recurring messages."""

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store.queues import topics
from kvorum_node.store.records import RETAINED
from tests.unit.store.harness import (
    DONE,
    FULL,
    START_MS,
    Replica,
    define,
    define_schedule,
    define_topic,
    enqueue,
    names,
    subscribe,
    sweep,
    tick,
)

REPLICA_VERSION = 3


# ---- topics and schedules


def test_a_topic_copies_to_each_subscription(replica: Replica) -> None:
    session = replica.session()
    replica.apply(subscribe("t", "a"), subscribe("t", "b"), define("b", max_backlog=1))
    assert replica.commit(enqueue(b"1", topic="t", dedup_id=b"d")).outcome == DONE
    assert replica.commit(enqueue(b"1", topic="t", dedup_id=b"d")).duplicates == [], "per subscription, not reported"
    for queue in ("a", "b"):
        assert [delivery.payload for delivery in replica.lease(session, queue=queue, count=9)] == [b"1"]
    before = replica.store.state_hash()
    assert replica.commit(enqueue(b"2", topic="t")).outcome == FULL, "one full queue refuses all"
    assert replica.store.state_hash() == before
    replica.apply(subscribe("t", "b", remove=True))
    assert replica.commit(enqueue(b"2", topic="t")).outcome == DONE
    assert replica.commit(enqueue(b"3", topic="nobody's")).outcome == DONE
    assert replica.queue("a").messages == 2
    replica.apply(define_topic("t", remove=True))
    replica.commit(enqueue(b"4", topic="t"))
    assert replica.queue("a").messages == 2


def test_a_write_cannot_make_too_many_copies(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.apply(*[subscribe("t", f"q{at}") for at in range(5)])
    before = replica.store.state_hash()
    for name in ("MAX_COPIES", "MAX_COPIED_SIZE"):
        with monkeypatch.context() as patch:
            patch.setattr(topics, name, 14)
            answer = replica.commit(*[enqueue(b"x", topic="t") for _ in range(3)])
        assert (answer.outcome, "topics make" in answer.message) == (pb.OUTCOME_RANGE_ERROR, True)
        assert replica.store.state_hash() == before


def test_a_subscription_that_starts_in_the_past(replica: Replica) -> None:
    """It gets everything once and in order, also what is published while it is filled."""
    session = replica.session()
    replica.apply(define_topic("t", 1_000))
    for at in range(6):
        replica.commit(*[enqueue(b"%d" % (at * 100 + number), topic="t") for number in range(100)])
        replica.now_ms += 10
    result = replica.apply(subscribe("t", "q", since_ms=50))
    assert result.outputs == [limits.QUEUE_CHUNK]
    assert result.earliest_expiry_ms == replica.now_ms
    replica.commit(enqueue(b"600", topic="t"))
    replica.scrub()
    replica.apply(sweep())
    assert replica.queue("q").messages == 501, "a sweep goes on where nobody repeats the command"
    replica.scrub()
    replica.commit(enqueue(b"601", topic="t"))
    assert replica.apply(subscribe("t", "q", since_ms=50)).outputs == [0]
    payloads = [delivery.payload for delivery in replica.lease(session, queue="q", count=1_000)]
    assert payloads == [b"%d" % at for at in range(100, 602)]


def test_a_topic_retains_no_longer_than_it_must(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.apply(define_topic("t", 100))
    for _ in range(3):
        replica.commit(enqueue(topic="t"))
        replica.now_ms += 60
    (info,), _ = snapshot_topics(replica)
    assert info.retained == 2, "each publish trims"
    assert replica.store.next_expiry_ms() == START_MS + 100
    for _ in range(4):
        replica.now_ms += 100
        replica.apply(sweep())
    (info,), _ = snapshot_topics(replica)
    assert (info.retained, info.retained_bytes) == (0, 0)
    assert replica.store.next_expiry_ms() is None
    monkeypatch.setattr(topics, "MAX_TOPIC_MESSAGES", 3)
    for _ in range(5):
        replica.commit(enqueue(topic="t"))
    (info,), _ = snapshot_topics(replica)
    assert info.retained == 3
    replica.apply(define_topic("t", remove=True))
    replica.scrub()
    replica.apply(sweep())
    assert names(replica, RETAINED) == []
    assert replica.store.next_expiry_ms() is None
    replica.scrub()


def snapshot_topics(replica: Replica) -> tuple[list[pb.TopicInfo], bytes]:
    with replica.store.snapshot() as snapshot:
        return snapshot.topic_infos(b"", 10)


def test_a_tick_happens_once(replica: Replica) -> None:
    session = replica.session()
    message = enqueue(b"tick", queue="q", headers=pb.Headers(fields={"a": "b"}).SerializeToString())
    at = START_MS + 100
    result = replica.apply(define_schedule("s", message, at))
    assert result.schedules_changed
    assert replica.apply(tick("s", at, at + 100)).outputs == [False], "not yet"
    replica.now_ms = at
    assert replica.apply(tick("s", at, at + 100), tick("s", at, at + 100)).outputs == [True, False]
    (held,) = replica.lease(session, queue="q", count=9)
    headers = pb.Headers.FromString(held.headers)
    assert (headers.tick_ms, dict(headers.fields), held.message_id[10:]) == (at, {"a": "b"}, b"\x10\x00")
    replica.now_ms += 100
    assert replica.apply(tick("s", at + 100, at + 200, skip=True)).outputs == [True]
    assert replica.lease(session, queue="q", count=9) == []
    replica.apply(define("q", max_backlog=1))
    replica.now_ms += 100
    assert replica.apply(tick("s", at + 200, 0)).outputs == [True]
    assert replica.queue("q").messages == 2, "a full queue takes it"
    with replica.store.snapshot() as snapshot:
        info = snapshot.schedule_info("s")
        assert info is not None
        assert (info.next_ms, info.last_ms) == (0, at + 200)
        assert snapshot.schedule_infos(b"", 10) == ([info], b"")
        assert snapshot.schedule_info("other") is None
    assert replica.apply(tick("s", 0, at)).outputs == [False]
    assert replica.apply(define_schedule("s", None)).schedules_changed
    assert not replica.apply(define_schedule("s", None)).schedules_changed
    assert replica.store.statistics()["schedules"] == 0
