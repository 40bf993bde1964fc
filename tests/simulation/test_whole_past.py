"""The judge of a topic with a retained past: what it finds, and what it must not find."""

from tests.simulation.whole.queues.past import Copy, Period, Told, violations
from tests.simulation.whole.queues.plan import RETENTION

TOPIC = "0" * 20


def _place(index: int, number: int = 0) -> str:
    return f"{index:016x}{number:04x}"


def _told(index: int, at_ms: int, *, delay: int = 0, retained: bool = True) -> Told:
    return Told(f"c0.{index}", _place(index), at_ms, delay, retained)


def _period(begin: int, begin_ms: int, since: int | None = None, end: int = 0) -> Period:
    return Period("q", TOPIC, _place(begin), begin_ms, since, _place(end) if end else "")


def _copy(told: Told, index: int, number: int = 0, *, at_ms: int = 100_000) -> Copy:
    return Copy("q", f"{_place(index)}{number:04x}", told.name, at_ms)


def _found(period: Period, told: list[Told], copies: list[Copy]) -> list[str]:
    return list(violations([period], told, copies))


EARLY, BEFORE, AFTER, LATER = (_told(at, at * 1_000) for at in (1, 10, 12, 14))
ALL = [EARLY, BEFORE, AFTER, LATER]
LIVE = [_copy(AFTER, 12), _copy(LATER, 14)]
WHOLE = [_copy(BEFORE, 11, 1), *LIVE]


def test_a_subscription_from_now_on() -> None:
    period = _period(11, 11_000)
    assert _found(period, ALL, LIVE) == []
    assert "did not come" in _found(period, ALL, LIVE[:1])[0]
    assert "which it is not for" in _found(period, ALL, WHOLE)[0], "it did not ask for a past"
    assert "twice" in _found(period, ALL, [*LIVE, _copy(AFTER, 13)])[0]
    assert "behind what was sent later" in _found(period, ALL, [_copy(LATER, 14), _copy(AFTER, 15)])[0]


def test_a_subscription_from_a_past_on() -> None:
    period = _period(11, 11_000, since=2_000)
    assert _found(period, ALL, WHOLE) == []
    assert "did not come" in _found(period, ALL, LIVE)[0]
    assert "twice" in _found(period, ALL, [*WHOLE, _copy(BEFORE, 15)])[0]
    assert "which it is not for" in _found(_period(11, 11_000, since=500), ALL, WHOLE)[0], "it lies before its begin"
    assert "which it is not for" in _found(period, ALL, [_copy(EARLY, 11), *WHOLE])[0]


def test_what_need_not_be_retained_any_more_may_come_or_not() -> None:
    period = _period(11, 10_000 + RETENTION, since=60_000)
    assert _found(period, ALL, LIVE) == []
    assert _found(period, ALL, WHOLE) == []
    told = [_told(10, 10_000, retained=False), AFTER, LATER]
    assert _found(_period(11, 11_000, since=60_000), told, LIVE) == []
    assert _found(_period(11, 11_000, since=60_000), told, WHOLE) == []
    other = Period("q", _place(10, 1), _place(11), 11_000, 60_000)
    assert "which it is not for" in _found(other, ALL, WHOLE)[0], "it was sent to the topic that was removed"


def test_an_end_is_an_end() -> None:
    assert _found(_period(11, 11_000, end=13), ALL, LIVE[:1]) == []
    assert "not subscribed then" in _found(_period(11, 11_000, end=13), ALL, LIVE)[0]
    assert "did not come" in _found(_period(11, 11_000, end=15), ALL, LIVE[:1])[0]
    assert "not subscribed then" in _found(_period(13, 13_000), ALL, LIVE)[0]


def test_an_end_while_the_past_is_copied() -> None:
    period = _period(11, 11_000, since=2_000, end=15)
    assert _found(period, ALL, []) == []
    assert _found(period, ALL, WHOLE[:1]) == []
    assert "did not come" in _found(period, ALL, LIVE)[0], "what comes later has come"


def test_too_early() -> None:
    slow = _told(12, 12_000, delay=150)
    period = _period(11, 11_000)
    assert _found(period, [slow], [_copy(slow, 12, at_ms=12_150)]) == []
    assert "after 149 ms, not 150" in _found(period, [slow], [_copy(slow, 12, at_ms=12_149)])[0]
