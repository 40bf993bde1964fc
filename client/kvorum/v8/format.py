"""What writing and reading share: the header, and how numbers and dates map."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Final

from kvorum.errors import InvalidValue

HEADER: Final = b"\xff\x0f"
"""What is written; Node up to 26 and Deno before 2.8 read nothing newer."""
READABLE: Final = (15, 16)
"""Version 16 differs in nothing that a value under 4 GiB could show."""
MAX_EXACT: Final = 1 << 53
DOUBLE: Final = struct.Struct("<d")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Rest(Exception):
    """Not for this codec: the whole value has to be done by `kvorum.v8.rest`."""


class Refused(Exception):
    """A part that cannot be represented; its path is put together from the inside out."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def as_error(self, name: str) -> InvalidValue:
        return InvalidValue(self.problem, name + "".join(reversed(self.path)))


def number_of(number: float) -> int | float:
    """A JS Number: large integers are stored as doubles."""
    if (0x8000_0000 <= number <= MAX_EXACT or -MAX_EXACT <= number <= -0x8000_0000) and number.is_integer():
        return int(number)
    return number


def date_of(moment: datetime) -> float:
    """Milliseconds since 1970. Microseconds are kept as a fraction, which JavaScript cuts off."""
    if moment.utcoffset() is None:
        raise Refused("a datetime needs a time zone")
    number = (moment - _EPOCH) / _MICROSECOND / 1000
    if moment_of(number) != moment:
        raise Refused("a datetime this far from 1970 cannot have microseconds")
    return number


def moment_of(number: float) -> datetime:
    """The moment of a Date. Errors: ValueError or OverflowError outside the years 1 … 9999, and for an invalid Date."""
    whole, fraction = divmod(number, 1.0)
    return _EPOCH + timedelta(milliseconds=whole, microseconds=round(fraction * 1000))
