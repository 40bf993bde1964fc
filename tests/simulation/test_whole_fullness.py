"""The judge of a queue that may hold few messages: what it finds, and what it must not find."""

from chaos.queues.history import Delivery, Record, Send
from tests.simulation.whole.queues.fullness import Refusal, violations
from tests.simulation.whole.queues.plan import BACKLOG, TIGHT


def _sent(place: int, number: int = 0) -> Send:
    """One message of a commit of its own."""
    return Send(f"m{place}.{number}", TIGHT, 0, 1, "ok", stamp=f"{place:016x}{number:04x}")


def _taken(send: Send, place: int) -> Delivery:
    return Delivery(f"id of {send.name}", send.name, TIGHT, f"{place:016x}{0:08x}", 1, "c", 0, taken=True)


def _found(records: list[Record], *refusals: Refusal, unseen: frozenset[str] = frozenset()) -> list[str]:
    """Entry N is applied at N nanoseconds."""
    places = list(range(1, 100))
    return violations(records, unseen, refusals, places, places)


def test_one_more_than_is_allowed_is_found() -> None:
    sends = [_sent(place) for place in range(10, 10 + BACKLOG + 1)]
    late: list[Record] = [_taken(send, 50) for send in sends]
    assert "messages at" in _found([*sends, *late])[0]
    assert _found([*sends[:-1], *late]) == []
    assert _found([*sends, _taken(sends[0], 11), *late[1:]]) == [], "one was gone before"


def test_what_nobody_knows_is_no_finding() -> None:
    sends = [_sent(10, number) for number in range(BACKLOG + 1)]
    late: list[Record] = [_taken(send, 50) for send in sends[1:]]
    assert _found([*sends, _taken(sends[0], 10), *late]) == [], "it may have gone before the last one came"
    first = _taken(sends[0], 50)
    assert _found([*sends, first, *late])
    assert _found([*sends, first, *late], unseen=frozenset({first.message})) == [], "it may have gone long before"


def test_a_refusal_without_a_reason_is_found() -> None:
    sends = [_sent(10 + place) for place in range(BACKLOG)]
    gone: list[Record] = [_taken(send, 30) for send in sends]
    records: list[Record] = [*sends, *gone]
    assert _found(records, Refusal(20, 25, 1)) == []
    assert _found(records, Refusal(5, 11, 1)) == [], "it may have been the last thing that happened in this time"
    assert "too full for 1" in _found(records, Refusal(35, 40, 1))[0]
    assert "too full for 1" in _found(records, Refusal(2, 6, 1))[0]
    assert _found(records, Refusal(2, 6, BACKLOG + 1)) == [], "it has never room for so many"
