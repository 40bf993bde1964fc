"""The judge of a queue that is removed: what it finds, and what it must not find."""

from dataclasses import replace

from chaos.queues.history import Delivery, Effect, Left, Letter, Record, Send, Settle
from kvorum._proto import kvorum_pb2 as pb
from kvorum_node.store import Unfinished
from tests.simulation.whole.queues.commands import Calls, removing
from tests.simulation.whole.queues.plan import BRIEF, LEASE, WINDOW
from tests.simulation.whole.queues.removal import Log, violations

TIMES = {place: place * 100 for place in range(100)}


def _place(index: int) -> str:
    return f"{index:016x}0000"


def _lease(index: int) -> str:
    return f"{index:016x}{0:08x}"


def _sent(index: int) -> Send:
    """Message and commit have one place."""
    return Send(f"m{index}", BRIEF, 0, 1, "ok", stamp=_place(index), message=_place(index) + "0000")


def _leased(send: Send, index: int) -> Delivery:
    return Delivery(send.message, send.name, BRIEF, _lease(index), 1, "c", 0)


def _done(send: Send, lease: int, index: int) -> list[Record]:
    settle = Settle(_lease(lease), "ack", 0, 1, "ok", _place(index))
    return [_leased(send, lease), settle, Effect(send.message, 1, _place(index))]


def _removed(*indices: int) -> Log:
    places = [_place(index) for index in indices]
    return Log(list(places), list(places))


def _found(log: Log, records: list[Record], sent: int | None = None) -> list[str]:
    """`sent`: None = as it should be."""
    last = log.gone[-1] if log.gone else ""
    known = sum(isinstance(one, Send) and one.stamp > last and not one.duplicate for one in records)
    return list(violations(log, records, TIMES, known if sent is None else sent))


def test_nothing_comes_back() -> None:
    old, new = _sent(10), _sent(30)
    assert _found(_removed(20), [old, _leased(old, 15), new, *_done(new, 31, 32)]) == []
    assert "was leased with" in _found(_removed(20), [old, _leased(old, 21)])[0]
    assert _found(_removed(20), [old, _leased(old, 20)]) == [], "it may have been leased before it was removed"
    assert "was obeyed at" in _found(_removed(20), [old, *_done(old, 15, 21)])[0]
    assert _found(_removed(20), [old, *_done(old, 15, 16)]) == []
    letter = Letter(old.message, old.name, BRIEF, 3)
    assert "dead letter" in _found(_removed(20), [old, letter])[0]
    assert _found(_removed(5), [old, letter]) == []


def test_no_id_is_remembered() -> None:
    old = replace(_sent(10), dedup="d")
    again = replace(_sent(30), dedup="d", duplicate=True, message=old.message)
    done = _done(old, 11, 12)
    assert "is a duplicate of" in _found(_removed(20), [old, *done, again])[0]
    assert _found(_removed(5), [old, *done, again]) == []


def test_no_timer_goes_off() -> None:
    one, two = (replace(_sent(at), dedup="d", window=WINDOW) for at in (30, 38))
    records: list[Record] = [one, two, *_done(one, 31, 32), *_done(two, 41, 42)]
    assert "is remembered for" in _found(_removed(20), records)[0]
    assert _found(_removed(35), records) == [], "it was forgotten with its queue"
    late = replace(_sent(39), dedup="d", window=WINDOW)
    assert _found(_removed(20), [one, late, *_done(one, 31, 32), *_done(late, 41, 42)]) == []


def test_nothing_that_comes_later_is_lost() -> None:
    new = _sent(30)
    assert "nothing is left of it" in _found(_removed(20), [new])[0]
    assert _found(_removed(40), [new]) == []
    assert _found(Log([_place(40)]), [new]) == [], "some of the removal was done"
    assert _found(_removed(20), [new, Left(new.name, BRIEF)]) == []
    assert _found(_removed(20), [new, Letter(new.message, new.name, BRIEF, 3)]) == []
    assert _found(_removed(20), [replace(new, ttl=500)]) == []
    assert _found(_removed(20), [replace(new, message=""), *_done(new, 31, 32)]) == [], "its outcome was looked up"
    assert "nothing is left of it" in _found(_removed(20), [replace(new, message=""), _leased(new, 31)])[0]


def test_policy_and_counters_are_new() -> None:
    log = Log([_place(20)], [_place(20)], [(_place(5), True), (_place(20), False)])
    log.periods = [(_lease(4), 0), (_lease(6), LEASE), (_lease(20), LEASE), (_lease(21), 0)]
    assert _found(log, []) == []
    log.periods = [(_lease(21), LEASE)]
    assert "policy says 0" in _found(log, [])[0]
    new = _sent(30)
    assert "has counted 2 messages" in _found(_removed(20), [new, *_done(new, 31, 32)], sent=2)[0]
    unknown = Send("m", BRIEF, 0, None, "unknown", dedup="d")
    assert _found(_removed(20), [unknown], sent=1) == []
    assert _found(_removed(20), [unknown], sent=0) == []


def test_what_is_told_is_done() -> None:
    call = pb.RemoveQueue(name=BRIEF)
    calls = Calls()
    for output, now in ((2, 10), (Unfinished(0, b""), 20), (0, 30)):
        calls.applied(pb.Command(remove_queue=call), output, now)
    calls.told(removing(call), 5, 35)
    calls.told(removing(call), 15, 30)
    assert list(calls.violations()) == []
    calls.told(removing(call), 5, 25)
    calls.told(removing(call), 31, 35)
    assert len(list(calls.violations())) == 2
