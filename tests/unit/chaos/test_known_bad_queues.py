"""Histories that no sound queue can have given: each is refused for what is wrong with it, its sibling accepted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.queues.case import Terms
from chaos.queues.checker import check, count
from chaos.queues.history import (
    Change,
    Delivery,
    Effect,
    History,
    Left,
    Letter,
    Loss,
    Office,
    Queue,
    Record,
    Send,
    Settle,
    Ticks,
    Topic,
    load,
    save,
    to_json,
)

MS = 1_000_000
Records = list[Record]
EXACT = Terms(complete=True, time_of=lambda index: index)
"""Entries are a millisecond apart."""


def stamp(at: int) -> str:
    return f"{at:016x}0000"


def message(at: int, number: int = 0) -> str:
    return f"{stamp(at)}{number:04x}"


def lease(at: int, position: int = 0) -> str:
    return f"{at:016x}{position:08x}"


def send(name: str, at: int, **more: Any) -> Send:
    """At that entry and millisecond."""
    given: dict[str, Any] = {"queue": "q", "outcome": "ok", "stamp": stamp(at), "message": message(at)} | more
    return Send(name, invoked=at * MS, returned=at * MS, **given)


def given(name: str, sent: int, at: int, attempt: int = 1, **more: Any) -> Delivery:
    fields: dict[str, Any] = {"message": message(sent), "queue": "q", "consumer": "c", "lease": lease(at)} | more
    return Delivery(name=name, attempt=attempt, at=at * MS, **fields)


def settle(verdict: Any, leased: int, at: int, outcome: Any = "ok", **more: Any) -> Settle:
    done = stamp(at) if outcome == "ok" else ""
    fields: dict[str, Any] = {"lease": lease(leased), "stamp": done} | more
    return Settle(verdict=verdict, invoked=at * MS, returned=at * MS, outcome=outcome, **fields)


def done(sent: int, at: int, count: int = 1) -> Effect:
    return Effect(message(sent), count, stamp(at))


def handled(name: str, sent: int, leased: int, at: int, **more: Any) -> Records:
    """Sent, delivered once and done."""
    group = {"group": more["group"]} if "group" in more else {}
    return [send(name, sent, **more), given(name, sent, leased, **group), settle("ack", leased, at), done(sent, at)]


def letter(name: str, sent: int, attempts: int, **more: Any) -> Letter:
    fields: dict[str, Any] = {"message": message(sent), "queue": "q"} | more
    return Letter(name=name, attempts=attempts, **fields)


def lost(name: str, again: int, *more: Record) -> Records:
    """Delivered at 2 to one who is lost at 10, and again to another."""
    records: Records = [
        Queue("q", lease=1_000),
        send(name, 1),
        given(name, 1, 2, consumer="c1"),
        Loss("c1", 10 * MS),
        *more,
        given(name, 1, again, 2, consumer="c2"),
        settle("ack", again, again + 1),
        done(1, again + 1),
    ]
    return records


RETRIED: Records = [send("m", 1), given("m", 1, 2), settle("retry", 2, 3, delay=10)]
REJECTED: Records = [send("m", 1), given("m", 1, 2), settle("reject", 2, 3)]
BACK: Records = [given("m", 5, 6)]
"""The message of this name comes as another one, as dead letters do that go back."""
REJECTED_AND_DEAD: Records = [*REJECTED, letter("m", 1, 1)]
SOME: Records = [Queue("q", 1_000, max_attempts=2), *RETRIED, given("m", 1, 20, 2)]

CASES: dict[str, tuple[str, Records, Records]] = {
    # what is wrong: (kind, bad, good)
    "an acknowledged send is gone": ("lost", [send("m", 1)], [send("m", 1), Left("m", "q")]),
    "an acknowledged send is gone although it was delivered": (
        "lost",
        [send("m", 1), given("m", 1, 2)],
        REJECTED_AND_DEAD,
    ),
    "a denied send is delivered": (
        "delivered, never sent",
        [send("m", 1, outcome="not applied", stamp="", message=""), *handled("m", 1, 2, 3)[1:]],
        [send("m", 1, outcome="unknown", stamp="", message=""), *handled("m", 1, 2, 3)[1:]],
    ),
    "a message is two": (
        "message doubled",
        [*handled("m", 1, 2, 3), given("m", 5, 6)],
        [*handled("m", 1, 2, 3), *handled("n", 5, 6, 7)],
    ),
    "an effect happens twice": (
        "effect doubled",
        [*handled("m", 1, 2, 3)[:3], done(1, 3, count=2)],
        handled("m", 1, 2, 3),
    ),
    "a message is done twice, as two": (
        "effect doubled",
        [*handled("m", 1, 2, 3), given("m", 5, 6), settle("ack", 6, 7), done(5, 7)],
        handled("m", 1, 2, 3),
    ),
    "an acknowledgement has no effect": ("effect missing", handled("m", 1, 2, 3)[:3], handled("m", 1, 2, 3)),
    "an effect without an acknowledgement": (
        "effect of nothing",
        [send("m", 1), given("m", 1, 2), done(1, 3)],
        [send("m", 1), given("m", 1, 2), settle("ack", 2, 3, "unknown"), done(1, 3)],
    ),
    "a lease is obeyed although there is a newer one": (
        "two hands",
        [send("m", 1), given("m", 1, 2), given("m", 1, 4, 2, consumer="d"), settle("ack", 2, 5), done(1, 5)],
        [
            send("m", 1),
            given("m", 1, 2),
            given("m", 1, 4, 2, consumer="d"),
            settle("ack", 2, 5, "stale"),
            settle("ack", 4, 6),
            done(1, 6),
        ],
    ),
    "a lease is extended although there is a newer one": (
        "two hands",
        [*handled("m", 1, 8, 9), given("m", 1, 2), settle("extend", 2, 8 + 1)],
        [*handled("m", 1, 8, 9), given("m", 1, 2), settle("extend", 2, 7)],
    ),
    "two consumers have one lease": (
        "two hands",
        [*handled("m", 1, 2, 3), given("m", 1, 2, consumer="d")],
        [*handled("m", 1, 2, 3), given("m", 1, 2)],
    ),
    "two of a group are in hands at once": (
        "two hands",
        [
            *handled("m", 1, 2, 9, group="g"),
            send("n", 3, group="g"),
            given("n", 3, 4, group="g", consumer="d"),
            settle("ack", 4, 10),
            done(3, 10),
        ],
        [*handled("m", 1, 2, 4, group="g"), *handled("n", 3, 4, 10, group="g")],
    ),
    "a group is delivered out of order": (
        "order",
        [*handled("n", 3, 4, 5, group="g"), *handled("m", 1, 6, 7, group="g")],
        [*handled("m", 1, 4, 5, group="g"), *handled("n", 3, 6, 7, group="g")],
    ),
    "a group is done out of order": (
        "order",
        [
            *(send(name, at, group="g") for name, at in (("m", 1), ("n", 3))),
            *(given(name, sent, at, group="g") for name, sent, at in (("m", 1, 4), ("n", 3, 6))),
            *(settle("ack", at, 9, "unknown") for at in (4, 6)),
            *(done(1, 9), done(3, 8)),
        ],
        [*handled("m", 1, 4, 8, group="g"), *handled("n", 3, 8, 9, group="g")],
    ),
    "an ordered queue is no group": (
        "order",
        [Queue("q", 1_000, ordered=True), *handled("n", 3, 4, 5), *handled("m", 1, 6, 7)],
        [Queue("q", 1_000), *handled("n", 3, 4, 5), *handled("m", 1, 6, 7)],
    ),
    "a lease ends twice": (
        "two ends",
        [*RETRIED, settle("ack", 2, 3), done(1, 3)],
        [*RETRIED, given("m", 1, 20, 2), settle("ack", 20, 21), done(1, 21)],
    ),
    "what is done comes again": (
        "delivered after its end",
        [*handled("m", 1, 2, 3), given("m", 1, 4, 2)],
        handled("m", 1, 2, 3),
    ),
    "what is rejected comes again": (
        "delivered after its end",
        [*REJECTED, given("m", 1, 4, 2), letter("m", 1, 2)],
        [*REJECTED, letter("m", 1, 1)],
    ),
    "before its delay": (
        "early",
        handled("m", 1, 50, 51, delay=50),
        handled("m", 1, 51, 52, delay=50),
    ),
    "a retry before its delay": (
        "early",
        [*RETRIED, given("m", 1, 12, 2), settle("ack", 12, 20), done(1, 20)],
        [*RETRIED, given("m", 1, 13, 2), settle("ack", 13, 20), done(1, 20)],
    ),
    "before the time to which it was put off": (
        "early",
        [*handled("m", 1, 60, 70, delay=5), Change(message(1), "reschedule", 2, 3, "ok", stamp(2), delay=100)],
        [*handled("m", 1, 102, 110, delay=5), Change(message(1), "reschedule", 2, 3, "ok", stamp(2), delay=100)],
    ),
    "a lost consumer's message comes late": ("late", lost("m", 3_011), lost("m", 2_900)),
    "a lost consumer's message comes late after a new leader": (
        "late",
        lost("m", 4_000, Office(900 * MS)),
        lost("m", 3_800, Office(900 * MS)),
    ),
    "the first attempt is the second": (
        "attempts",
        [send("m", 1), given("m", 1, 2, 2), settle("ack", 2, 3), done(1, 3)],
        handled("m", 1, 2, 3),
    ),
    "a failure does not count": (
        "attempts",
        [*RETRIED, given("m", 1, 20, 1), settle("ack", 20, 21), done(1, 21)],
        [*RETRIED, given("m", 1, 20, 2), settle("ack", 20, 21), done(1, 21)],
    ),
    "what was not started counts": (
        "attempts",
        [send("m", 1), given("m", 1, 2), settle("return", 2, 3), given("m", 1, 4, 2), settle("ack", 4, 5), done(1, 5)],
        [send("m", 1), given("m", 1, 2), settle("return", 2, 3), given("m", 1, 4), settle("ack", 4, 5), done(1, 5)],
    ),
    "more attempts than allowed": (
        "attempts",
        [*SOME, settle("retry", 20, 21), given("m", 1, 30, 3), letter("m", 1, 3)],
        [*SOME, settle("retry", 20, 21), letter("m", 1, 2)],
    ),
    "dead too soon": (
        "dead letter",
        [*RETRIED, letter("m", 1, 1)],
        [*SOME, settle("retry", 20, 21), letter("m", 1, 2)],
    ),
    "dead and acknowledged": (
        "dead letter",
        [*SOME, settle("ack", 20, 21), letter("m", 1, 2)],
        [*SOME, settle("ack", 20, 21, "unknown"), letter("m", 1, 2)],
    ),
    "dead in another queue": (
        "dead letter",
        [
            Queue("q", 1_000, dead="d"),
            *REJECTED,
            letter("m", 9, 1, queue="e", origin=message(1), origin_queue="q"),
            Left("m", "q"),
        ],
        [Queue("q", 1_000, dead="d"), *REJECTED, letter("m", 9, 1, queue="d", origin=message(1), origin_queue="q")],
    ),
    "dead under another name": (
        "dead letter",
        [*REJECTED, letter("n", 1, 1), Left("m", "q")],
        [*REJECTED, letter("m", 1, 1)],
    ),
    "done and dead": (
        "done and dead",
        [*handled("m", 1, 2, 3), letter("m", 1, 6)],
        [*handled("m", 1, 2, 3)],
    ),
    "a duplicate within its window": (
        "duplicate taken",
        [*handled("m", 1, 2, 3, dedup="x", window=50), *handled("n", 40, 41, 42, dedup="x", window=50)],
        [*handled("m", 1, 2, 3, dedup="x", window=50), *handled("n", 52, 53, 54, dedup="x", window=50)],
    ),
    "a duplicate of what is not done": (
        "duplicate taken",
        [*handled("m", 1, 2, 9, dedup="x"), *handled("n", 5, 6, 7, dedup="x")],
        [*handled("m", 1, 2, 4, dedup="x"), *handled("n", 5, 6, 7, dedup="x")],
    ),
    "left out for an id that is free": (
        "left out",
        [*handled("m", 1, 2, 4, dedup="x"), send("n", 5, dedup="x", duplicate=True, message=message(1))],
        [*handled("m", 1, 2, 9, dedup="x"), send("n", 5, dedup="x", duplicate=True, message=message(1))],
    ),
    "left out for the id of another message": (
        "left out",
        [*handled("m", 1, 2, 4, dedup="x"), *BACK, send("n", 7, dedup="x", duplicate=True, message=message(5))],
        [
            Queue("q", 1_000, requeued=True),
            *(*handled("m", 1, 2, 4, dedup="x"), *BACK),
            send("n", 7, dedup="x", duplicate=True, message=message(5)),
        ],
    ),
    "left out for the id of a dead letter that came back and was done": (
        "left out",
        [
            Queue("q", 1_000, requeued=True),
            *(send("m", 1, dedup="x"), *BACK, settle("ack", 6, 8), done(5, 8)),
            send("n", 9, dedup="x", duplicate=True, message=message(5)),
        ],
        [
            Queue("q", 1_000, requeued=True),
            *(send("m", 1, dedup="x"), *BACK, settle("ack", 6, 8), done(5, 8)),
            send("n", 7, dedup="x", duplicate=True, message=message(5)),
        ],
    ),
    "at most once is twice": (
        "taken twice",
        [Queue("q", 1_000, taken=True), send("m", 1), *(given("m", 1, at, taken=True) for at in (2, 3))],
        [Queue("q", 1_000, taken=True), send("m", 1), given("m", 1, 2, taken=True)],
    ),
    "a subscription gets no copy": (
        "topic copy missing",
        [Topic("t", ("q", "r")), send("m", 1, queue="t", topic=True, message=""), Left("m", "q")],
        [Topic("t", ("q", "r")), send("m", 1, queue="t", topic=True, message=""), Left("m", "q"), Left("m", "r")],
    ),
    "a subscription gets two copies": (
        "topic copy doubled",
        [
            Topic("t", ("q",)),
            send("m", 1, queue="t", topic=True, message=""),
            *handled("m", 1, 2, 3)[1:],
            given("m", 1, 4, message=message(1, 1)),
        ],
        [Topic("t", ("q",)), send("m", 1, queue="t", topic=True, message=""), *handled("m", 1, 2, 3)[1:]],
    ),
    "what was cancelled comes": (
        "cancelled",
        [*handled("m", 1, 5, 6), Change(message(1), "cancel", 2, 3, "ok", stamp(2))],
        [send("m", 1), Change(message(1), "cancel", 2, 3, "ok", stamp(2))],
    ),
    "a tick has no message": (
        "tick missing",
        [Ticks("daily", "q", 100, 300, 100), *(given(f"daily@{at}", at, at) for at in (100, 300))],
        [Ticks("daily", "q", 100, 300, 100), *(given(f"daily@{at}", at, at) for at in (100, 200, 300))],
    ),
    "a tick has two messages": (
        "message doubled",
        [Ticks("daily", "q", 100, 100, 100), *(given("daily@100", at, at) for at in (100, 101))],
        [Ticks("daily", "q", 100, 100, 100), given("daily@100", 100, 100)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_refused(name: str) -> None:
    kind, bad, good = CASES[name]
    found = check(History.of(bad), EXACT)
    assert kind in {violation.kind for violation in found}, found
    assert check(History.of(good), EXACT) == []


@pytest.mark.parametrize("name", CASES)
def test_what_is_good_is_good_to_those_who_know_less(name: str) -> None:
    assert check(History.of(CASES[name][2])) == []


def test_clients_do_not_see_all_leases() -> None:
    """One that went down with its consumer took an attempt along; without a loss none can."""
    records: Records = [send("m", 1), given("m", 1, 900, 2), settle("ack", 900, 901), done(1, 901)]
    assert [one.kind for one in check(History.of(records))] == ["attempts"]
    assert check(History.of([*records, Loss("another", 500 * MS)])) == []
    assert [one.kind for one in check(History.of([*records, Loss("another", 500 * MS)]), EXACT)] == ["attempts"]
    assert check(History.of(records), replace(EXACT, unseen=frozenset([message(1)]))) == []


def test_a_lost_consumer_is_noticed_soon() -> None:
    """Until then it is given messages, of which nobody hears."""
    records: Records = [send("m", 5_000), given("m", 5_000, 7_100, 2), settle("ack", 7_100, 7_101), done(5_000, 7_101)]
    assert check(History.of([*records, Loss("another", 4_900 * MS)])) == []
    assert [one.kind for one in check(History.of([*records, Loss("another", 3_900 * MS)]))] == ["attempts"]


def test_who_is_lost_may_have_done_anything() -> None:
    """A verdict may have been carried out, and nobody was left to write it down."""
    for records in ([send("m", 1), given("m", 1, 2), done(1, 3)], [send("m", 1), given("m", 1, 2), letter("m", 1, 1)]):
        assert len(check(History.of(records))) == 1
        assert check(History.of([*records, Loss("c", 10 * MS)])) == []


def test_clients_know_no_moments_of_the_log() -> None:
    """To them a message is early only if it is so however far the cluster's clock may have been ahead."""
    assert check(History.of(handled("m", 1, 950, 951, delay=1_000))) == []
    assert [one.kind for one in check(History.of(handled("m", 1, 700, 701, delay=1_000)))] == ["early"]


def test_what_may_be_gone_is_not_missed() -> None:
    assert check(History.of([send("m", 1, ttl=10)])) == []
    assert check(History.of([Queue("q", 1_000, purged=True), send("m", 1)])) == []
    assert check(History.of([Queue("q", 1_000, letters="drop"), *REJECTED])) == []
    assert [one.kind for one in check(History.of([Queue("q", 1_000, letters="drop"), *RETRIED]))] == ["lost"]


def test_records_come_back_from_a_file(tmp_path: Path) -> None:
    records: Records = [record for _, bad, good in CASES.values() for record in (*bad, *good)]
    records.append(Left("m", "q"))
    file = tmp_path / "history.jsonl"
    save(records, file)
    assert list(load(file)) == records
    with file.open("a") as out:
        out.write(to_json(records[0])[:-5])
    assert list(load(file)) == records, "a process that is killed leaves half a line"


def test_what_was_judged_is_counted() -> None:
    counts = count(History.of([*lost("m", 2_900), *handled("n", 3_000, 3_001, 3_002, group="g")]))
    wanted = {"sends": 2, "messages": 2, "deliveries": 3, "redeliveries": 1, "effects": 2, "groups": 1, "losses": 1}
    assert {name: counts[name] for name in wanted} == wanted
