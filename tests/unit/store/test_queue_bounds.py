"""Bounds of queues: in number, in time, and of what one entry does."""

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Denied, QueueFacts, Unfinished
from kvorum_node.store.queues import deaths, tallies, walks
from kvorum_node.store.queues.formats import ready_prefix
from kvorum_node.store.records import DEDUP
from tests.unit.store.harness import (
    DONE,
    FULL,
    REJECT,
    RETRY,
    RETURN,
    START_MS,
    V8,
    Replica,
    all_of,
    define,
    enqueue,
    group,
    last_id,
    lease,
    names,
    pause,
    purge,
    put,
    release,
    remove_queue,
    requeue,
    settle,
    sweep,
    write,
)

REPLICA_VERSION = 3


# ---- limits of queues


def test_a_pause_and_a_bound_of_leases(replica: Replica) -> None:
    session = replica.session()
    result = replica.apply(define("q", max_in_flight=2), pause("q"))
    assert result.policies_changed == {"q"}
    replica.commit(*[enqueue(queue="q") for _ in range(5)])
    assert replica.lease(session, queue="q", count=5) == []
    assert replica.store.queue_facts("q") == QueueFacts(0, 2, True, 0)
    replica.apply(pause("q", False))
    held = replica.lease(session, queue="q", count=5)
    assert len(held) == 2
    assert replica.lease(session, queue="q", count=5) == []
    assert replica.store.queue_facts("q").leased == 2
    result = replica.apply(group(write(settle(held[0]))), lease(session, queue="q", count=5))
    assert len(result.granted) == 1
    assert replica.apply(define("q", max_in_flight=2)).policies_changed == set(), "nothing has changed"


def test_a_full_queue_refuses_the_whole_commit(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", max_backlog=2))
    before = replica.store.state_hash()
    answer = replica.commit(put(b"a"), enqueue(queue="r"), *[enqueue(queue="q") for _ in range(3)])
    assert answer.outcome == FULL
    assert "max_backlog" in answer.message
    assert replica.store.state_hash() == before
    assert replica.queue("r") == pb.QueueInfo()
    replica.commit(enqueue(queue="q"), enqueue(queue="q"))
    assert replica.commit(enqueue(queue="q")).outcome == FULL
    held = replica.lease(session, queue="q", count=2)
    assert replica.commit(enqueue(queue="q")).outcome == FULL, "leased ones count"
    assert replica.commit(settle(held[0]), enqueue(queue="q")).outcome == DONE
    replica.commit(settle(held[1], REJECT))
    replica.commit(enqueue(queue="q"))
    assert replica.apply(requeue("q")).outputs == [1], "what has died comes back all the same"
    assert replica.queue("q").messages == 3


def test_there_cannot_be_too_many_queues(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_QUEUES", 2)
    replica.commit(enqueue(queue="a"), enqueue(queue="b"))
    answer = replica.commit(enqueue(queue="c"))
    assert (answer.outcome, "MAX_QUEUES" in answer.message) == (FULL, True)
    assert replica.commit(enqueue(queue="a")).outcome == DONE
    (denied,) = replica.apply(define("c")).outputs
    assert isinstance(denied, Denied)
    assert denied.outcome == FULL
    while replica.apply(remove_queue("b")).outputs[0]:
        pass
    assert replica.commit(enqueue(queue="c")).outcome == DONE
    assert replica.store.statistics()["queues"] == 2


def test_an_inbox_leaves_nothing_behind(replica: Replica) -> None:
    session = replica.session()
    replica.apply()
    before = len(names(replica, b""))
    replica.commit(enqueue(queue="\x00me"))
    with replica.store.snapshot() as snapshot:
        assert snapshot.queue_infos("", b"", 10) == ([], b"")
    (held,) = replica.lease(session, queue="\x00me")
    replica.commit(settle(held, REJECT))
    assert len(names(replica, b"")) == before
    assert replica.store.statistics()["queues"] == 0


# ---- deduplication and time


def test_an_id_is_taken_once(replica: Replica) -> None:
    session = replica.session()
    replica.commit(enqueue(b"1", queue="q", dedup_id=b"d"))
    mid = last_id(replica)
    command = group(write(put(b"a"), enqueue(queue="q"), enqueue(b"2", queue="q", dedup_id=b"d")), session=session)
    for _ in range(2):
        answer = replica.apply(command).outputs[0].results[0]
        assert answer.outcome == DONE
        assert [(one.enqueue, one.message_id) for one in answer.duplicates] == [(1, mid)]
    assert replica.get(b"a") is not None
    assert (replica.queue("q").messages, replica.queue("q").duplicates) == (2, 1)
    assert not replica.commit(enqueue(queue="r", dedup_id=b"d")).duplicates, "an id is the queue's"
    single = replica.commit(enqueue(queue="q", dedup_id=b"d"))
    assert [(one.enqueue, one.message_id) for one in single.duplicates] == [(0, mid)]


def test_a_window_of_deduplication(replica: Replica) -> None:
    session = replica.session()
    result = replica.apply(group(write(enqueue(queue="q", dedup_id=b"d", window_ms=50))))
    assert result.earliest_expiry_ms == START_MS + 50
    assert replica.store.next_expiry_ms() == START_MS + 50
    (held,) = replica.lease(session, queue="q")
    replica.commit(settle(held))
    replica.now_ms += 49
    assert replica.apply(sweep()).outputs == [0]
    assert replica.commit(enqueue(queue="q", dedup_id=b"d")).duplicates, "done, and remembered"
    replica.now_ms += 1
    assert not replica.commit(enqueue(queue="q", dedup_id=b"d")).duplicates, "without waiting for a sweep"
    replica.scrub()
    replica.commit(enqueue(queue="q", dedup_id=b"e", window_ms=5))
    replica.now_ms += 5
    assert replica.apply(sweep()).outputs == [1]
    assert replica.store.next_expiry_ms() is None


def test_what_is_not_done_in_time_goes(replica: Replica) -> None:
    session = replica.session()
    replica.commit(
        enqueue(b"1", queue="q", ttl_ms=10, keys=[b"k"]), enqueue(b"2", queue="q", ttl_ms=10, group="g"),
        enqueue(b"3", queue="q", group="g"), enqueue(b"4", queue="q", ttl_ms=10),
    )  # fmt: skip
    held = {delivery.payload: delivery for delivery in replica.lease(session, queue="q", count=3)}
    replica.commit(settle(held[b"1"], RETURN), settle(held[b"2"], RETURN))
    replica.now_ms += 10
    assert replica.apply(sweep()).outputs == [3]
    assert replica.get(b"k") == (V8, b"1")
    (ready,) = replica.peek("q", pb.PEEK_KIND_READY)
    assert ready.payload == b"3", "the next of its group"
    replica.scrub()
    assert replica.commit(settle(held[b"4"], RETRY, 0)).outcome == DONE
    assert [info.payload for info in replica.peek("q")] == [b"3"], "one in somebody's hands goes when it is back"
    assert replica.queue("q").expired == 3


def test_a_leased_message_may_be_done_after_its_time(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", retention_ms=10))
    replica.commit(enqueue(queue="q"))
    (held,) = replica.lease(session, queue="q")
    replica.now_ms += 20
    replica.apply(sweep())
    assert replica.commit(settle(held)).outcome == DONE
    assert (replica.queue("q").done, replica.queue("q").expired) == (1, 0)


# ---- purging and removing


def test_purging_in_chunks(replica: Replica) -> None:
    session = replica.session()
    replica.commit(*[enqueue(queue="q", group=f"{at % 3}" if at % 2 else None) for at in range(600)])
    held = replica.lease(session, queue="q", count=2)
    counts: list[int] = []
    while not counts or counts[-1]:
        counts += replica.apply(purge("q")).outputs
        replica.scrub()
    assert sum(counts) == 598
    assert max(counts) <= limits.QUEUE_CHUNK
    assert replica.queue("q").messages == 2
    replica.commit(*[settle(delivery, REJECT) for delivery in held])
    assert replica.apply(purge("q", dead=True)).outputs == [2]
    assert replica.apply(purge("q", dead=True)).outputs == [0]


def test_a_chunk_is_bounded_in_bytes(replica: Replica) -> None:
    for _ in range(10):
        replica.commit(*[enqueue(bytes(64_000), queue="q") for _ in range(12)])
    (count,) = replica.apply(purge("q")).outputs
    assert 0 < count * 64_000 <= deaths.MOVED_AT_ONCE + 64_000


def test_removing_a_queue_leaves_nothing(replica: Replica) -> None:
    session = replica.session()
    replica.apply()
    before = set(names(replica, b""))
    replica.apply(define("q", ordered=True), pause("q"), pause("q", False))
    replica.commit(
        *[
            enqueue(queue="q", dedup_id=b"%d" % at, window_ms=at % 2 * 100, ttl_ms=50, delay_ms=at % 3)
            for at in range(20)
        ]
    )
    replica.commit(*[enqueue(queue="q", group="g") for _ in range(5)])
    for verdict in (REJECT, RETRY, None):
        for delivery in replica.lease(session, queue="q", count=1):
            if verdict is not None:
                replica.commit(settle(delivery, verdict, 0 if verdict == RETRY else None))
    ended: list[bytes] = []
    for _ in range(100):
        result = replica.apply(remove_queue("q", limit=3))
        ended += result.ended
        assert result.outputs[0] <= 3
        if not result.outputs[0]:
            break
    assert result.policies_changed == {"q"}
    assert len(ended) == 1
    assert set(names(replica, b"")) == before
    replica.scrub()


def test_what_expires_as_its_leases_end_does_not_make_an_entry_too_large(replica: Replica) -> None:
    session = replica.session()
    for at in range(12):
        keys = [b"%d-%d" % (at, key) for key in range(10)]
        replica.commit(enqueue(bytes(60_000), queue="q", keys=keys, ttl_ms=10))
    held = replica.lease(session, queue="q", count=12)
    replica.now_ms += 10
    replica.apply(sweep())
    replica.apply(release(*held, counts=False))
    assert 0 < sum(len(row.value) for row in replica.rows(limit=1_000)) <= deaths.WRITTEN_AT_ONCE
    replica.scrub()
    while replica.store.next_expiry_ms() is not None:
        assert replica.apply(sweep()).outputs[0] > 0
    shown = replica.queue("q")
    assert (shown.messages, shown.expired, shown.died) == (0, 12, 0)
    assert len(replica.rows(limit=1_000)) == 120


# ---- walks


@pytest.fixture
def short_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MAX_WALK", 10)


@pytest.mark.usefixtures("short_walks")
def test_going_back_to_the_origin_passes_others_by_in_small_steps(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="dlq"))
    for at in range(60):
        if at % 20 == 19:
            replica.commit(enqueue(b"dead", queue="q", group="g" if at > 30 else None))
            (held,) = replica.lease(session, queue="q")
            replica.commit(settle(held, REJECT))
        replica.commit(enqueue(b"other", queue="dlq", group="g" if at > 30 else None))
    touched, commands, _ = all_of(replica, requeue("dlq", to_origin=True))
    assert touched == 3 and commands >= 6
    assert [info.payload for info in replica.peek("q")] == [b"dead"] * 3
    assert replica.queue("dlq").messages == 60


@pytest.mark.usefixtures("short_walks")
def test_large_messages_count_for_more(replica: Replica) -> None:
    for _ in range(6):
        replica.commit(enqueue(bytes(20_000), queue="dlq"))
    (output,) = replica.apply(requeue("dlq", to_origin=True)).outputs
    assert isinstance(output, Unfinished) and output.touched == 0
    assert all_of(replica, requeue("dlq", to_origin=True))[:2] == (0, 6)


@pytest.mark.usefixtures("short_walks")
def test_a_purge_passes_heads_in_hands_by(replica: Replica) -> None:
    session = replica.session()
    for at in range(40):
        replica.commit(enqueue(b"held", queue="q", group=f"g{at:02}"))
    held = replica.lease(session, queue="q", count=40)
    assert len(held) == 40
    replica.commit(*[enqueue(b"waits", queue="q", group=f"g{at:02}") for at in (5, 38, 39)])
    touched, commands, ended = all_of(replica, purge("q"))
    assert touched == 3 and commands >= 8 and not ended
    assert replica.queue("q").messages == 40


@pytest.mark.usefixtures("short_walks")
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_removing_a_queue_among_the_leases_of_others(replica: Replica, limit: int) -> None:
    session = replica.session()
    for at in range(50):
        replica.commit(enqueue(b"other", queue="other"))
        if at % 10 == 0:
            replica.commit(enqueue(b"mine", queue="q", group="a"), enqueue(b"mine", queue="q", dedup_id=b"%d" % at))
    replica.lease(session, queue="other", count=50)
    held = replica.lease(session, queue="q", count=4)
    replica.commit(settle(held[0], REJECT))
    before = replica.queue("other")
    for at in range(30):
        replica.commit(enqueue(queue="other", dedup_id=b"%d" % at, window_ms=1))
    replica.now_ms += 10  # timers of others are due
    _, commands, ended = all_of(replica, remove_queue("q", limit=limit))
    assert sorted(ended) == sorted(delivery.lease_id for delivery in held[1:])
    assert commands >= 6
    assert not replica.queue("q").name and replica.peek("q") == []
    assert replica.queue("other").leased == before.leased == 50
    assert names(replica, DEDUP + b"\x00\x01q") == []


@pytest.mark.usefixtures("short_walks")
def test_a_walk_that_was_overtaken_begins_anew(replica: Replica) -> None:
    session = replica.session()
    replica.commit(*[enqueue(b"other", queue="other") for _ in range(30)], enqueue(b"mine", queue="q"))
    replica.lease(session, queue="other", count=30)
    (held,) = replica.lease(session, queue="q")
    (output,) = replica.apply(remove_queue("q")).outputs
    assert isinstance(output, Unfinished)
    replica.commit(settle(held, RETRY, 0))  # it is behind the walk now
    made = remove_queue("q")
    for _ in range(20):
        assert isinstance(output, Unfinished) or output
        made.remove_queue.after = output.after if isinstance(output, Unfinished) else b""
        (output,) = replica.apply(made).outputs
        if output == 0:
            break
    assert not replica.queue("q").name and replica.queue("other").messages == 30
    replica.scrub()


def test_a_place_to_go_on_from_may_be_anything(replica: Replica) -> None:
    replica.commit(*[enqueue(queue="q") for _ in range(3)])
    for after in (b"x", bytes(10), bytes(5_000), ready_prefix(b"q") + bytes(1_000), ready_prefix(b"other")):
        for made in (purge("q"), requeue("q", to_origin=True), remove_queue("q")):
            getattr(made, made.WhichOneof("command") or "").after = after
            replica.apply(made)
        replica.commit(enqueue(queue="q"))
    replica.scrub()
    assert replica.queue("q").messages == 1
