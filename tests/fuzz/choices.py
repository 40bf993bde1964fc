"""Bytes as a source of choices, for targets whose inputs are messages and not bytes: what a fuzzer changes in the bytes
changes the message, and every message of interest can be reached.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SIZES = (
    0,
    1,
    2,
    3,
    8,
    9,
    10,
    11,
    12,
    22,
    495,
    496,
    991,
    2_026,
    2_027,
    2_047,
    2_048,
    2_049,
    2_050,
    65_535,
    65_536,
    65_537,
)
"""Those around limits."""
NUMBERS = (0, 1, 2, 10, 255, 256, 1_000, 1_001, 1 << 31, (1 << 32) - 1, 10**15, 10**15 + 1, 1 << 62, (1 << 63) - 1)


class Choices:
    """Reads `data` from the front; all choices are the first one when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not used yet."""
        return len(self._data) - self._at

    def byte(self) -> int:
        """0 to 255."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def pick(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.byte() % len(options)]

    def chance(self) -> bool:
        """True once in four times."""
        return self.byte() % 4 == 3

    def number(self) -> int:
        """Something that may matter, not negative."""
        kind = self.byte()
        return kind if kind < 128 else NUMBERS[kind % len(NUMBERS)]

    def raw(self, size: int) -> bytes:
        """The next bytes, as many as there are."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def content(self, most: int = 65_537) -> bytes:
        """Bytes of a size that may matter: a few of the input's own, and then the same one over and over."""
        size = min(self.pick(SIZES), most)
        head = self.raw(min(size, 12))
        return head + bytes([self.byte()]) * (size - len(head)) if len(head) < size else head

    def rest(self) -> bytes:
        """All that is left."""
        return self.raw(self.left)
