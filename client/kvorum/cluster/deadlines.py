"""Deadlines of very many calls that nearly all end long before.

A timer for each call (`wait_for`, `call_later`) costs several microseconds and leaves a cancelled entry in the loop's
heap until it would have fired; one heap of our own has the second fault too. So calls are gathered in buckets of 10
ms, each a dict without values: putting in and taking out is one operation, what has ended is really gone, and those of
one bucket expire in the order in which they came. A heap holds only
the buckets' numbers, and one timer waits for the first bucket that is not empty, so that a busy client with timeouts
of 10 s wakes up for nothing only a few times a second. Buckets that were emptied long before their time, as those of
calls that may take days, are thrown away when there are many.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

WIDTH: Final = 0.01
"""Seconds that one bucket spans: a call ends at most this late, and never early."""
MANY: Final = 4_096
"""Buckets, when it is looked for the first time whether there are empty ones."""

T = TypeVar("T", bound=Hashable)


class Deadlines(Generic[T]):
    """Calls `expire(item)` for each item that was not taken out of its bucket by its deadline (in the loop's time)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._buckets: dict[int, dict[T, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = 0
        self._look_at = MANY

    def add(self, deadline: float, item: T) -> dict[T, None]:
        """Put an item in; the returned bucket's `pop(item, None)` takes it out again."""
        number = int(deadline / WIDTH) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            if len(self._order) >= self._look_at:
                self._forget_empty()
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
            if self._timer is None or number < self._timer_for:
                self._set_timer(number)
        bucket[item] = None
        return bucket

    def close(self) -> None:
        """Forget everything; nothing expires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()

    def _forget_empty(self) -> None:
        """In place, since `_ring` may be at work."""
        self._order[:] = sorted(number for number in self._order if self._buckets[number])
        for number in [number for number, bucket in self._buckets.items() if not bucket]:
            del self._buckets[number]
        self._look_at = max(MANY, 2 * len(self._order))

    def _set_timer(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_for = number
        self._timer = self._loop.call_at(number * WIDTH, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # The loop may run a timer early by its clock's resolution; the bucket that it was set for is due all the same.
        now = max(int(self._loop.time() / WIDTH), self._timer_for)
        order, buckets = self._order, self._buckets
        while order and (order[0] <= now or not buckets[order[0]]):
            for item in list(buckets.pop(heapq.heappop(order))):
                self._expire(item)
        if order:  # expiring may have added new items, and with them a timer
            self._set_timer(order[0])
