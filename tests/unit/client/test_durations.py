"""Durations are timedeltas or milliseconds, everywhere."""

import math
from datetime import timedelta

import pytest

from kvorum.durations import milliseconds, seconds, shown_seconds
from kvorum.errors import InvalidArgument, LimitExceeded


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (0, 0),
        (1, 1),
        (0.2, 1),
        (1.0, 1),
        (1.001, 2),
        (timedelta(seconds=2), 2_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=366), 366 * 86_400_000),
    ],
)
def test_milliseconds_are_whole_and_never_too_few(duration: timedelta | int | float, expected: int) -> None:
    assert milliseconds(duration, "delay") == expected


@pytest.mark.parametrize("duration", [-1, -0.5, timedelta(microseconds=-1)])
def test_negative_durations_are_refused_by_name(duration: timedelta | int | float) -> None:
    with pytest.raises(InvalidArgument, match=r"^delay must not be negative: received -"):
        milliseconds(duration, "delay")


@pytest.mark.parametrize("duration", [math.nan, math.inf, -math.inf, True, "5", None])
def test_what_is_no_duration_is_refused_by_name(duration: timedelta | int | float) -> None:
    for convert in (milliseconds, seconds):
        with pytest.raises(InvalidArgument, match=r"^delay must be (finite|a timedelta or a number of milliseconds)"):
            convert(duration, "delay")


def test_a_number_beyond_floats_is_no_timeout() -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout must be finite"):
        seconds(10**400, "timeout")


def test_a_limit_is_named() -> None:
    assert milliseconds(10, "delay", "MAX_DELAY", 10) == 10
    with pytest.raises(LimitExceeded) as error:
        milliseconds(timedelta(milliseconds=10, microseconds=1), "delay", "MAX_DELAY", 10)
    assert (error.value.limit, error.value.allowed, error.value.got) == ("MAX_DELAY", 10, 11)
    assert str(error.value) == "delay: 11 is above the limit of 10 (MAX_DELAY)"


def test_seconds_of_a_timeout() -> None:
    assert seconds(1_500, "timeout") == 1.5
    assert seconds(timedelta(minutes=1), "timeout") == 60
    for duration in (0, -1, timedelta(0)):
        with pytest.raises(InvalidArgument, match="timeout must be above zero"):
            seconds(duration, "timeout")


def test_seconds_in_a_message_are_never_zero() -> None:
    assert [shown_seconds(exact) for exact in (10.0, 1.4512, 3600.0, 0.5, 0.001, 0.00001)] == [
        "10 s",
        "1.45 s",
        "3600 s",
        "500 ms",
        "1 ms",
        "0.01 ms",
    ]
