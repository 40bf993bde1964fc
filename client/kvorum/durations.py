"""Durations: a `timedelta`, or a number of milliseconds."""

import math
from datetime import timedelta
from typing import Final

from kvorum.errors import InvalidArgument, LimitExceeded, shown

Duration = timedelta | int | float
"""A `timedelta`, or a number of milliseconds."""

_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds(duration: Duration, name: str, limit: str = "", allowed: int = 0) -> int:
    """Whole milliseconds, rounded up: what is promised not to happen early must not.

    `limit` names the constant of `kvorum.limits` whose value is `allowed`.

    Errors: InvalidArgument for negative, infinite and other non-durations; LimitExceeded.
    """
    exact = duration if type(duration) is int else _exact(duration, name)
    if exact < 0:
        raise InvalidArgument(f"{name} must not be negative: received {_shown(duration)}")
    number = math.ceil(exact)
    if limit and number > allowed:
        raise LimitExceeded(limit, allowed, number, name)
    return number


def seconds(duration: Duration, name: str) -> float:
    """Seconds of a timeout. Errors: InvalidArgument unless it is above zero."""
    exact = _exact(duration, name)
    if exact <= 0:
        raise InvalidArgument(f"{name} must be above zero: received {_shown(duration)}")
    return exact / 1000


def shown_seconds(exact: float) -> str:
    """Seconds for a message: `1.5 s`, and milliseconds below one second."""
    return f"{round(exact, 2):.10g} s" if exact >= 1 else f"{exact * 1000:.3g} ms"


def _exact(duration: Duration, name: str) -> float:
    if isinstance(duration, timedelta):
        return duration / _MILLISECOND
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise InvalidArgument(f"{name} must be a timedelta or a number of milliseconds, got {type(duration).__name__}")
    try:
        exact = float(duration)
    except OverflowError:
        exact = math.inf
    if not math.isfinite(exact):
        raise InvalidArgument(f"{name} must be finite: received {shown(duration)}")
    return exact


def _shown(duration: Duration) -> str:
    return str(duration) if isinstance(duration, timedelta) else f"{shown(duration)} ms"
