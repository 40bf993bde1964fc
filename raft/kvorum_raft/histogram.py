"""How often something took how long, counted in plain integers.

An observation costs about 0.2 µs, and nothing is made for it. One thread observes; others may read meanwhile, and see
an observation in part at worst.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Upper ends of buckets, inclusive."""


class Histogram:
    """Of seconds, in buckets that end at `bounds`, and one for whatever is above."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0
        """Seconds, of all."""

    def observe(self, seconds: float, times: int = 1) -> None:
        """Something took so long; `times` things that were done together did."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.sum += seconds * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[float, int]]:
        """Each upper end, and how many took at most that long. The last one is infinity."""
        found, total = [], 0
        for end, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append((end, total))
        return found
