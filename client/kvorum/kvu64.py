"""The 64-bit counter type."""

import operator
from typing import Final, Self, SupportsIndex

from kvorum.errors import InvalidValue, shown

MAX_U64: Final = (1 << 64) - 1


class KvU64(int):
    """An unsigned 64-bit counter as Deno stores it, which `sum`, `min` and `max` work on.

    It is an `int`: it compares, hashes and computes like one, and the result of arithmetic is a plain `int`. Stored as
    a value of its own only; within a list or dict it would come back as something else, so it is refused there.

    Errors: InvalidValue outside 0 … 2⁶⁴−1, or for what is not an integer.
    """

    __slots__ = ()

    def __new__(cls, value: SupportsIndex = 0, /) -> Self:
        try:
            number = operator.index(value)
        except TypeError:
            raise InvalidValue(f"a KvU64 is an integer, got {type(value).__name__}") from None
        if not 0 <= number <= MAX_U64:
            raise InvalidValue(f"a KvU64 is from 0 to 2^64-1, got {shown(number)}")
        return super().__new__(cls, number)

    def __repr__(self) -> str:
        return f"KvU64({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)


def pack_u64(value: int) -> bytes:
    """The 8 stored bytes, little-endian; `value` must be in range."""
    return value.to_bytes(8, "little")


def unpack_u64(data: bytes) -> KvU64:
    """The counter in 8 stored bytes; ValueError if there are not 8."""
    if len(data) != 8:
        raise ValueError(f"a 64-bit value has 8 bytes, got {len(data)}")
    return int.__new__(KvU64, int.from_bytes(data, "little"))
