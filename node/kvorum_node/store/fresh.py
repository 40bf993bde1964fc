"""Messages that the running entry has made ready at once, in memory until a lease takes them or the entry ends. See
`queues.first_leases` for what becomes of them."""

from collections import deque
from typing import Final

MAX_FRESH: Final = 4_096
"""Messages that an entry keeps in memory; others are written at once. Changes no result."""

Line = deque[tuple[bytes, bytes]]
"""Ids and payloads, in order of ids."""


class Fresh:
    """What is kept of the running entry, by queue. All of it has nothing but a payload, and is due at the entry's time.

    Within a commit that may be refused, what it brings is kept apart from the rest.
    """

    __slots__ = ("_outer", "count", "lines")

    def __init__(self) -> None:
        self.lines: dict[bytes, Line] = {}
        self.count = 0
        self._outer: tuple[dict[bytes, Line], int] | None = None

    def add(self, queue: bytes, message_id: bytes, payload: bytes) -> bool:
        """Keep a message whose id is above all others of its queue; False = there are too many."""
        if self.count >= MAX_FRESH:
            return False
        self.count += 1
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = deque()
        line.append((message_id, payload))
        return True

    # ---- commits

    def begin(self) -> None:
        self._outer = self.lines, self.count
        self.lines = {}

    def keep(self) -> None:
        if self._outer is None:
            raise AssertionError("no commit has begun")
        inner, (self.lines, _), self._outer = self.lines, self._outer, None
        for queue, line in inner.items():
            before = self.lines.get(queue)
            if before is None:
                self.lines[queue] = line
            else:
                before += line

    def roll_back(self) -> None:
        if self._outer is None:
            raise AssertionError("no commit has begun")
        (self.lines, self.count), self._outer = self._outer, None
