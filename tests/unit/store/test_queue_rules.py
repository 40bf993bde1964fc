"""Queues of data version 3: looking at them, versions, and what is refused before the log."""

from pathlib import Path
from typing import Any

import pytest

from kvorum import limits
from kvorum._proto import kvorum_pb2 as pb
from kvorum.errors import InvalidArgument, LimitExceeded
from kvorum_node.store import Denied, QueueFacts, validate, validate_command
from kvorum_node.store.records import QUEUE_FORMAT
from tests.unit.store.harness import (
    ACK,
    DONE,
    EXTEND,
    REJECT,
    RETRY,
    STALE,
    START_MS,
    Replica,
    cancel,
    define,
    define_schedule,
    define_topic,
    each,
    enqueue,
    group,
    init_cluster,
    pause,
    purge,
    release,
    remove_queue,
    requeue,
    reschedule,
    settle,
    subscribe,
    sweep,
    tick,
    write,
)

REPLICA_VERSION = 3


# ---- looking


def test_counting_and_peeking(replica: Replica) -> None:
    session = replica.session()
    replica.commit(
        *[enqueue(b"%d" % at, queue="q", delay_ms=at % 2 * 50, group="g" if at > 7 else None) for at in range(12)]
    )
    replica.lease(session, queue="q", count=2)
    with replica.store.snapshot() as snapshot:
        slices = list(snapshot.queue_counts("q", replica.now_ms))
        assert [sum(counts) for counts in zip(*slices, strict=True)] == [3, 4, 3]
        page, after = snapshot.peek("q", pb.PEEK_KIND_UNSPECIFIED, b"", 5, replica.now_ms)
        rest, end = snapshot.peek("q", pb.PEEK_KIND_UNSPECIFIED, after, 50, replica.now_ms)
        assert [info.payload for info in page + rest] == [b"%d" % at for at in range(12)]
        assert not end
        leased, _ = snapshot.peek("q", pb.PEEK_KIND_LEASED, b"", 50, replica.now_ms)
        assert [info.session for info in leased] == [session, session]
        ready, after = snapshot.peek("q", pb.PEEK_KIND_READY, b"", 4, replica.now_ms)
        scheduled, _ = snapshot.peek("q", pb.PEEK_KIND_READY, after, 4, replica.now_ms)
        assert [info.payload for info in ready + scheduled] == [b"4", b"6", b"8", b"1", b"3", b"5", b"7"]
        assert snapshot.message_info(bytes(12), 0) is None
        (shown,), _ = snapshot.queue_infos("", b"", 5)
        assert shown.oldest_ms == START_MS


def test_listing_queues_by_pages(replica: Replica) -> None:
    replica.commit(*[enqueue(queue=name) for name in ("a", "ab", "abc", "b", "\x00x", "")])
    with replica.store.snapshot() as snapshot:
        first, after = snapshot.queue_infos("a", b"", 2)
        second, end = snapshot.queue_infos("a", after, 2)
        assert ([info.name for info in first + second], end) == (["a", "ab", "abc"], b"")
        everything, _ = snapshot.queue_infos("", b"", 100)
        one_by_one: list[pb.QueueInfo] = []
        page, after = snapshot.queue_infos("", b"", 1)
        while page:
            one_by_one += page
            page, after = snapshot.queue_infos("", after, 1) if after else ([], b"")
        assert one_by_one == everything
        assert [info.name for info in everything] == ["", "a", "ab", "abc", "b"]


def test_no_name_and_no_cursor_is_too_long(replica: Replica) -> None:
    """LMDB would raise, and that would be taken for damage."""
    long = "x" * 70_000
    replica.commit(enqueue(queue="q"))
    assert replica.store.queue_facts(long) == QueueFacts(0, 0, False, 0)
    assert replica.store.next_due_ms("x" * 300) is None
    with replica.store.snapshot() as snapshot:
        for name, after in ((long, b""), ("q", bytes(600)), ("x" * 500, b"")):
            assert snapshot.queue_infos(name, after, 5) == ([], b"")
            assert snapshot.peek(name, pb.PEEK_KIND_DEAD, after, 5, 0) == ([], b"")
            assert snapshot.peek(name, pb.PEEK_KIND_READY, after, 5, 0) == ([], b"")
        assert snapshot.queue_infos("", b"", 5, long) == ([], b"")
        assert list(snapshot.queue_counts(long, 0)) == []
        assert snapshot.message_info(bytes(600), 0) is None
        assert snapshot.topic_infos(bytes(600), 5) == ([], b"")
        assert snapshot.schedule_infos(bytes(600), 5) == ([], b"")
        assert snapshot.schedule_info(long) is None


# ---- versions


def test_a_state_of_version_2_goes_on(tmp_path: Path) -> None:
    old = Replica(tmp_path / "old", data_version=2)
    session = old.session()
    old.commit(*[enqueue(b"%d" % at, queue="q", delay_ms=at % 2) for at in range(10)], enqueue(queue=""))
    held = old.lease(session, queue="q", count=3)
    before = old.store.state_hash()
    assert old.store.proved_version == 2
    assert not old.queue("q").name, "there are no counters yet"
    old.data_version = 3
    old.apply(define("q", max_attempts=1))
    assert old.store.proved_version == 3
    assert old.store.state_hash() != before
    shown = old.queue("q")
    assert (shown.messages, shown.leased, shown.sent) == (10, 3, 0)
    old.scrub()
    old.data_version = 2
    old.commit(settle(held[0], RETRY))
    assert old.queue("q").dead == 1, "an entry of a member that was not told yet: the state proves that all know it"
    old.reopen()
    old.scrub()
    other = Replica(tmp_path / "other", slice_commits=1)
    other.replay(old.log)
    assert other.store.state_hash() == old.store.state_hash()
    for replica in (old, other):
        replica.store.close()


def test_commands_of_version_3_are_nothing_to_version_2(tmp_path: Path) -> None:
    """As they are to a program that does not know them: those that do must go the same way."""
    replica = Replica(tmp_path / "state", data_version=2)
    before = replica.store.state_hash()
    message = enqueue(b"x", queue="q", group="g" * 500, dedup_id=b"d", ttl_ms=1 << 60, headers=b"", topic="")
    result = replica.apply(
        define("q"), purge("q"), requeue("q"), subscribe("t", "q"), tick("s", 1, 2), remove_queue("q")
    )
    assert result.outputs == [None] * 6
    assert replica.store.state_hash() == before
    plain = Replica(tmp_path / "plain", data_version=2)
    plain.apply()
    for one, made in ((replica, message), (plain, enqueue(b"x", queue="q"))):
        one.apply(group(write(made)))
    assert replica.store.state_hash() == plain.store.state_hash()
    for one in (replica, plain):
        one.store.close()


def test_a_release_skips_what_was_extended_by_an_entry_that_it_does_not_know(replica: Replica) -> None:
    replica.apply(init_cluster(stamp_base=1_000))
    session = replica.session()
    replica.commit(*[enqueue(b"%d" % number, queue="q") for number in range(4)])
    first, second, third, fourth = replica.lease(session, queue="q", count=4)
    replica.commit(settle(first, EXTEND))
    known = replica.store.applied_index
    result = replica.apply(
        group(write(settle(second, EXTEND, 5))),
        release(first, second, third, counts=True, known=known),
    )
    assert result.ended == [first.lease_id, third.lease_id]
    assert [result.outcome for result in result.outputs[0].results] == [DONE]
    assert [info.lease_id for info in replica.store.leases()] == [second.lease_id, fourth.lease_id]
    assert replica.apply(release(second, fourth, counts=False)).ended == [second.lease_id, fourth.lease_id], "all"
    for kind in (ACK, RETRY):
        answer = replica.commit(settle(first, kind))
        assert answer.outcome == STALE and first.message_id.hex() in answer.message


def test_expiring_leases_are_told_apart(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", lease_ms=500))
    replica.commit(*[enqueue(b"%d" % number, queue="q") for number in range(3)])
    usual, *expiring = (
        *replica.lease(session, queue="q"),
        *replica.lease(session, queue="q", count=2, expiring=True),
    )
    replica.commit(settle(expiring[1], EXTEND, 9_000))
    found = replica.store.leases()
    assert [(info.expiring, info.lease_ms) for info in found] == [(False, 500), (True, 500), (True, 9_000)]
    assert [info.consumer for info in found] == [1, 1, 1] and found[1].session == session
    replica.reopen()
    assert replica.store.leases() == found
    replica.scrub()
    assert replica.commit(*[settle(delivery) for delivery in (usual, *expiring)]).outcome == DONE
    replica.scrub()


def test_to_version_2_no_lease_is_expiring(tmp_path: Path) -> None:
    """A program that does not know the field must come to the same state."""
    hashes = set()
    for kind in (False, True):
        replica = Replica(tmp_path / str(kind), data_version=2)
        session = replica.session()
        replica.commit(enqueue(b"x", queue="q"))
        replica.lease(session, queue="q", expiring=kind)
        assert [info.expiring for info in replica.store.leases()] == [False]
        hashes.add(replica.store.state_hash())
        replica.store.close()
    assert len(hashes) == 1


def test_an_older_program_does_not_open_it(replica: Replica) -> None:
    replica.apply(define("q"))
    with replica.store._env.begin() as txn:
        assert txn.get(b"\x80state", b"")[:2] == QUEUE_FORMAT.to_bytes(2, "big")
    replica.reopen()
    assert replica.queue("q").defined


def test_the_hash_of_a_known_log_of_version_3(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "state", data_version=3)
    session = replica.session()
    replica.apply(
        define("q", ordered=True, max_attempts=2), define_topic("t", 500), subscribe("t", "q"),
        define_schedule("s", enqueue(b"tick", queue="q"), START_MS + 5),
    )  # fmt: skip
    replica.commit(
        enqueue(b"plain", queue="p"),
        enqueue(b"x", queue="q", dedup_id=b"d", ttl_ms=90),
        enqueue(b"y", topic="t", group="g"),
    )
    held = replica.lease(session, queue="q", count=5)
    replica.commit(settle(held[0], RETRY, reason="why"), settle(held[1], EXTEND, 7))
    replica.commit(settle(held[1], REJECT))
    replica.now_ms += 100
    replica.apply(tick("s", START_MS + 5, 0), sweep())
    replica.commit(*[enqueue(b"%d" % number, queue="r") for number in range(4)])
    plain, expiring = (replica.lease(session, queue="r", count=2, expiring=kind) for kind in (False, True))
    replica.commit(settle(plain[0], EXTEND), settle(expiring[0], EXTEND, 9))
    assert replica.store.state_hash().hex() == GOLDEN
    replica.store.close()


GOLDEN = "60a5039145dcc68fa1f348043f4d1826"


# ---- what is refused before the log


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (define("\x00q"), "U\\+0000"),
        (define("q" * 257), "MAX_QUEUE_NAME_SIZE"),
        (define("q", lease_ms=10), "lease_ms: 10 is below 500"),
        (define("q", lease_ms=limits.MAX_LEASE + 1), "MAX_LEASE"),
        (define("q", max_attempts=0), "max_attempts: 0 is below 1"),
        (define("q", dead_letters=pb.DEAD_LETTERS_QUEUE), "dead_letter_queue"),
        (define("q", dead_letters=pb.DEAD_LETTERS_QUEUE, dead_letter_queue="q"), "its own"),
        (define("q", dead_letter_queue="d"), "dead_letter_queue"),
        (define("q", exponential=pb.Exponential(base_ms=1, cap_ms=5, factor_percent=50)), "factor"),
        (define("q", exponential=pb.Exponential(base_ms=9, cap_ms=5, factor_percent=200)), "cap"),
        (define("q", exponential=pb.Exponential(), backoff=pb.Backoff()), "not both"),
        (define("q", backoff=pb.Backoff(delays_ms=[limits.MAX_BACKOFF_INTERVAL + 1])), "MAX_BACKOFF_INTERVAL"),
        (pb.Command(define_queue=pb.DefineQueue(name="q", policy=b"\xff")), "cannot be decoded"),
        (pb.Command(define_queue=pb.DefineQueue(name="q", policy=b"\xfa\x01\x00")), "does not know"),
        (purge("q", limit=257), "QUEUE_CHUNK"),
        (requeue("q", b"short"), "12 bytes"),
        (define_topic(""), "empty"),
        (define_topic("t", limits.MAX_RETENTION + 1), "MAX_RETENTION"),
        (define_schedule("s", enqueue(delay_ms=1)), "no delay"),
        (define_schedule("s", enqueue(bytes(65_537))), "MAX_VALUE_SIZE"),
        (pb.Command(define_schedule=pb.DefineSchedule(name="s", definition=b"\x0a\x01*")), "needs a message"),
        (pb.Command(sweep=pb.Sweep()), "no command about queues"),
    ],
)  # fmt: skip
def test_commands_that_can_never_be_right(made: pb.Command, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        validate_command(made)


@pytest.mark.parametrize(
    "made",
    [
        define("", lease_ms=500), define("q", ordered=True, max_in_flight=1), pause("q"), remove_queue("q"), purge("q"),
        requeue("q", bytes(12)), define_topic("t", 5), subscribe("t", "q", 5), define_schedule("s", enqueue(queue="q")),
        define_schedule("s", None), tick("s", 1, 2),
    ],
)  # fmt: skip
def test_commands_that_are_right(made: pb.Command) -> None:
    validate_command(made)


HELD = pb.Delivery(message_id=bytes(12), lease_id=bytes(12))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (write(enqueue(group="g" * 129)), "MAX_GROUP_SIZE"),
        (write(enqueue(dedup_id=bytes(129))), "MAX_DEDUP_ID_SIZE"),
        (write(enqueue(window_ms=5)), "needs an id"),
        (write(enqueue(dedup_id=b"d", window_ms=limits.MAX_DEDUP_WINDOW + 1)), "MAX_DEDUP_WINDOW"),
        (write(enqueue(headers=bytes(4_097))), "MAX_HEADERS_SIZE"),
        (write(enqueue(headers=b"\xff")), "headers cannot be decoded"),
        (write(enqueue(ttl_ms=limits.MAX_RETENTION + 1)), "MAX_RETENTION"),
        (write(enqueue(queue="q", topic="t")), "not to both"),
        (write(settle(HELD, EXTEND, 0)), "above zero"),
        (write(settle(HELD, EXTEND, limits.MAX_LEASE + 1)), "MAX_LEASE"),
        (write(settle(HELD, ACK, reason="why")), "only a retry or a rejection takes a reason"),
        (write(settle(HELD, pb.SETTLE_KIND_CANCEL)), "nobody's hands"),
        (write(pb.Settle(message_id=bytes(12), kind=pb.SETTLE_KIND_RESCHEDULE)), "needs a delay"),
        (write(reschedule(bytes(12), limits.MAX_ENQUEUE_DELAY + 1)), "MAX_ENQUEUE_DELAY"),
        (pb.AtomicWrite(each=True), "independent settles"),
        (pb.AtomicWrite(each=True, enqueues=[enqueue()]), "independent settles"),
        (pb.AtomicWrite(each=True, settles=[settle(HELD)], enqueues=[enqueue()]), "independent settles"),
    ],
)
def test_writes_that_can_never_be_right(made: pb.AtomicWrite, text: str) -> None:
    with pytest.raises((InvalidArgument, LimitExceeded), match=text):
        validate(made)


@pytest.mark.parametrize(
    "made",
    [
        write(enqueue(queue="q", group="", dedup_id=b"d", window_ms=5, ttl_ms=5, delay_ms=5)),
        write(enqueue(topic="t", headers=pb.Headers(reply_to="x").SerializeToString())),
        write(settle(HELD, EXTEND), settle(HELD, EXTEND, 5), cancel(bytes(12)), reschedule(bytes(12), 0)),
        each(settle(HELD), settle(HELD, REJECT, reason="why")),
    ],
)
def test_writes_that_are_right(made: pb.AtomicWrite) -> None:
    validate(made)


@pytest.mark.parametrize(
    "policy",
    [
        {"retention_ms": (1 << 64) - 1},
        {"lease_ms": (1 << 64) - 1},
        {"dead_letters": pb.DEAD_LETTERS_QUEUE, "dead_letter_queue": "x" * 600},
        {"exponential": pb.Exponential(base_ms=1 << 63, factor_percent=100, cap_ms=5)},
        {"exponential": pb.Exponential(base_ms=1, factor_percent=100, cap_ms=(1 << 64) - 1)},
    ],
)
def test_apply_does_not_rely_on_the_validation_of_policies(replica: Replica, policy: dict[str, Any]) -> None:
    session = replica.session()
    (output,) = replica.apply(define("q", max_attempts=2, **policy)).outputs
    assert isinstance(output, Denied) and output.outcome == pb.OUTCOME_INVALID
    replica.commit(enqueue(b"x", queue="q"))
    for _ in range(2):
        (held,) = replica.lease(session, queue="q")
        assert replica.commit(settle(held, RETRY, 0)).outcome == DONE
    (output,) = replica.apply(define_topic("t", (1 << 64) - 1)).outputs
    assert isinstance(output, Denied)
    replica.scrub()


def test_a_tick_happens_once_although_a_later_definition_names_it_again(replica: Replica) -> None:
    at_ms = START_MS + 60_000
    replica.apply(define_schedule("s", enqueue(b"old", queue="q"), at_ms))
    replica.now_ms = at_ms + 5
    assert replica.apply(tick("s", at_ms, at_ms + 60_000)).outputs == [True]
    # whoever defines it anew began when that tick was still to come
    replica.apply(define_schedule("s", enqueue(b"new", queue="q"), at_ms))
    assert replica.apply(tick("s", at_ms, at_ms + 60_000)).outputs == [True], "it is not the next one any more"
    replica.now_ms += 60_000
    assert replica.apply(tick("s", at_ms + 60_000, 0)).outputs == [True]
    assert [info.payload for info in replica.peek("q")] == [b"old", b"new"]


def test_apply_does_not_rely_on_validation(replica: Replica) -> None:
    for made in (
        enqueue(group="g" * 129), enqueue(dedup_id=bytes(129)), enqueue(headers=bytes(5_000)), enqueue(ttl_ms=1 << 60),
        enqueue(topic="t" * 300), enqueue(queue="q" * 300),
    ):  # fmt: skip
        answer = replica.commit(made)
        assert answer.outcome == pb.OUTCOME_INVALID
    broken = pb.Command(define_queue=pb.DefineQueue(name="q", policy=b"\xff"))
    schedule = pb.Command(define_schedule=pb.DefineSchedule(name="s", definition=b"\xff"))
    for output in replica.apply(broken, schedule, define("q" * 300)).outputs:
        assert isinstance(output, Denied)
    assert replica.apply(purge("q" * 300), requeue("q", b"x")).outputs[1] == 0
    replica.scrub()
