"""Many moments, one alarm: what is due by which time.

A hundred thousand leases may each have a deadline of its own that is moved every few seconds, so a deadline is an entry
of a heap and no timer of the loop. To move it to a later time costs nothing but a look into a dictionary: its entry
is looked at when it comes up, and put back. What is due is told in slices, so that a burst of them holds up nobody.
"""

import heapq
import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..timers import Alarm, Timers

Key = TypeVar("Key", bound=Hashable)

SLICE = 256
"""Keys told of at a time."""
_SLACK = 64


class Deadlines(Generic[Key]):
    """`ring` gets keys whose time has come, at most `SLICE` at a time; they are forgotten before it is called."""

    def __init__(self, timers: Timers, ring: Callable[[list[Key]], None]) -> None:
        self._timers = timers
        self._tell = ring
        self._alarm = Alarm(timers, self._ring)
        self._at: dict[Key, float] = {}
        self._listed: dict[Key, float] = {}
        """Time of the one entry of the heap that counts, for each key."""
        self._heap: list[tuple[float, int, Key]] = []
        self._tie = itertools.count()

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: Key, at: float) -> None:
        """Tell of `key` at this time of the timers' clock, instead of any set before."""
        self._at[key] = at
        listed = self._listed.get(key)
        if listed is None or at < listed:
            self._list(key, at)
            self._alarm.set_no_later(at - self._timers.time())

    def cancel(self, key: Key) -> None:
        if self._at.pop(key, None) is not None:
            del self._listed[key]
            if len(self._heap) > 2 * len(self._at) + _SLACK:
                self._rebuild()

    def clear(self) -> None:
        self._at.clear()
        self._listed.clear()
        self._heap.clear()
        self._alarm.cancel()

    def _list(self, key: Key, at: float) -> None:
        self._listed[key] = at
        heapq.heappush(self._heap, (at, next(self._tie), key))

    def _rebuild(self) -> None:
        """Most entries are of keys that are gone."""
        self._listed = dict(self._at)
        self._heap = [(at, next(self._tie), key) for key, at in self._at.items()]
        heapq.heapify(self._heap)

    def _ring(self) -> None:
        now = self._timers.time()
        due: list[Key] = []
        looks = 4 * SLICE
        while self._heap and self._heap[0][0] <= now and len(due) < SLICE and looks:
            looks -= 1
            listed, _, key = heapq.heappop(self._heap)
            if self._listed.get(key) != listed:
                continue
            at = self._at[key]
            if at > now:
                self._list(key, at)
                continue
            del self._at[key], self._listed[key]
            due.append(key)
        if self._heap:
            self._alarm.set(self._heap[0][0] - now)
        if due:
            self._tell(due)
