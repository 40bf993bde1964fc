"""Messages that are to be written to their keys later, because the entry that ended them has written much already."""

import random

import pytest

from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store.queues import deaths
from tests.unit.store.harness import (
    Replica,
    define,
    each,
    enqueue,
    group,
    lease,
    purge,
    release,
    remove_queue,
    settle,
    sweep,
)

ACK, RETRY, REJECT = pb.SETTLE_KIND_ACK, pb.SETTLE_KIND_RETRY, pb.SETTLE_KIND_REJECT


@pytest.fixture
def replica(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Replica:
    replica.data_version = 3
    monkeypatch.setattr(deaths, "WRITTEN_AT_ONCE", 1_000)
    return replica


def finish(replica: Replica) -> None:
    while (at_ms := replica.store.next_expiry_ms()) is not None and at_ms <= replica.now_ms:
        assert replica.apply(sweep()).outputs[0] > 0
        replica.scrub()


@pytest.mark.parametrize("head", ["leased", "scheduled", "acknowledged"])
def test_those_behind_the_head_of_agroup(replica: Replica, head: str) -> None:
    session = replica.session()
    replica.commit(enqueue(b"head", queue="q", group="g", delay_ms=1_000_000 if head == "scheduled" else 0))
    for at in range(12):
        replica.commit(enqueue(bytes(300), queue="q", group="g", ttl_ms=1_000, keys=[b"%d" % at]))
    replica.commit(enqueue(b"last", queue="q", group="g"))
    held = replica.lease(session, queue="q", count=1)
    replica.now_ms += 2_000
    replica.apply(sweep())
    replica.scrub()
    if head == "acknowledged":
        replica.commit(settle(held[0]))
        replica.scrub()
        assert [delivery.payload for delivery in replica.lease(session, queue="q", count=9)] == [b"last"]
    finish(replica)
    assert sorted(row.key for row in replica.rows()) == sorted(b"%d" % at for at in range(12))
    shown = replica.queue("q")
    assert (shown.messages, shown.expired) == (1 if head == "acknowledged" else 2, 12)
    replica.check_hash()


def test_a_group_goes_on_while_its_head_is_dying(replica: Replica) -> None:
    session = replica.session()
    replica.apply(define("q", max_attempts=1))
    for at in range(3):
        replica.commit(enqueue(bytes(2_000), queue="q", group="g", dedup_id=b"d%d" % at, keys=[b"%d" % at]))
    for at in range(3):
        (held,) = replica.lease(session, queue="q")
        assert replica.commit(settle(held, REJECT)).outcome == pb.OUTCOME_DONE
        replica.scrub()
        assert not replica.commit(enqueue(b"again", queue="r", dedup_id=b"d%d" % at)).duplicates
        assert len(replica.rows()) == 0, "it is left to the sweep"
    assert not replica.commit(enqueue(b"again", queue="q", dedup_id=b"d0")).duplicates, "its id is free"
    finish(replica)
    assert len(replica.rows()) == 3
    assert (replica.queue("q").messages, replica.queue("q").died) == (1, 3)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_each_is_written_once(replica: Replica, seed: int) -> None:
    rng = random.Random(seed)
    session = replica.session()
    replica.apply(define("q", max_attempts=2, ordered=rng.random() < 0.5))
    held: list[pb.Delivery] = []
    ended: set[bytes] = set()
    sent = 0
    for _ in range(150):
        match rng.randrange(7):
            case 0 | 1:
                made = []
                for _ in range(rng.randrange(1, 4)):
                    ttl_ms = rng.choice([0, 50, 500])
                    keys = [b"%d" % sent]
                    chosen_group = rng.choice([None, "a", "b"])
                    made.append(enqueue(bytes(400), queue="q", group=chosen_group, ttl_ms=ttl_ms, keys=keys))
                    sent += 1
                replica.commit(*made)
            case 2:
                held += replica.lease(session, queue="q", count=3)
            case 3 if held:
                chosen = [held.pop(rng.randrange(len(held))) for _ in range(rng.randrange(1, len(held) + 1))]
                verdicts = [settle(delivery, rng.choice([RETRY, REJECT]), None) for delivery in chosen]
                replica.apply(group(each(*verdicts)))
            case 4 if held:
                replica.apply(release(held.pop(), counts=rng.random() < 0.5))
            case 5:
                replica.now_ms += rng.choice([1, 60, 600])
            case _:
                replica.apply(sweep(limit=rng.choice([1, 5, 1_000])))
        replica.scrub()
        keys_now = {row.key for row in replica.rows()}
        assert ended <= keys_now
        ended = keys_now
    replica.now_ms += 10_000_000
    replica.apply(release(*held, counts=True))
    for _ in range(200):
        finish(replica)
        rest = replica.apply(lease(session, queue="q", count=50)).granted
        if not rest:
            break
        replica.apply(group(each(*[settle(grant.delivery, REJECT) for grant in rest])))
        replica.scrub()
    assert replica.queue("q").messages == 0
    assert {row.key for row in replica.rows()} == {b"%d" % number for number in range(sent)}
    assert replica.queue("q").died + replica.queue("q").expired == sent


def test_a_queue_whose_groups_have_dying_messages_is_removed(replica: Replica) -> None:
    for at in range(12):
        replica.commit(enqueue(bytes(300), queue="q", group="g", ttl_ms=1_000, keys=[b"%d" % at]))
    replica.now_ms += 2_000
    replica.apply(sweep())
    replica.apply(purge("q"))
    replica.scrub()
    while replica.apply(remove_queue("q")).outputs[0]:
        replica.scrub()
    replica.scrub()
    assert not replica.queue("q").name
    assert 0 < len(replica.rows()) < 12
