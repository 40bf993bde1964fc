"""Which of many key ranges hold a key, found without asking each of them.

The ranges stand in the order of their starts, and a tree of maxima over that order knows the highest end below each of
its nodes: the search goes only where an end lies behind the key, so it takes a few steps for each range that it finds,
and a logarithm for the rest. The tree is built anew when enough has come or gone; until then what came is asked one by
one.

Rejected: asking every range (10,000 watchers would cost each key a millisecond); a tree of prefixes (ranges need not be
prefixes); a list of keys for each range boundary (nested ranges make it quadratic).
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Range = tuple[bytes, bytes]
"""Start, inclusive, and end, exclusive."""

_FRESH: Final = 64
"""Ranges beside the tree that are always allowed; more by a 64th of those in it. With 10,000 ranges a key costs about
5 µs, building the tree about 4 ms, and it is built for every 220 ranges that come."""


class Ranges(Generic[T]):
    """Owners by range. Each owner is there once for its range."""

    def __init__(self) -> None:
        self._owners: dict[Range, dict[T, None]] = {}
        self._fresh: dict[Range, None] = {}
        """Ranges that are not in the tree."""
        self._placed: dict[Range, None] = {}
        """Those in it; some may have no owner any more."""
        self._starts: list[bytes] = []
        self._order: list[Range] = []
        self._leaves = 0
        self._tops: list[bytes] = []
        """The tree: the highest end below node n, whose children are 2n and 2n + 1; the root is 1."""
        self._gone = 0

    def __len__(self) -> int:
        """Ranges that have owners."""
        return len(self._owners)

    def add(self, bounds: Range, owner: T) -> None:
        owners = self._owners.get(bounds)
        if owners is not None:
            owners[owner] = None
            return
        self._owners[bounds] = {owner: None}
        if bounds in self._placed:
            self._gone -= 1
            return
        self._fresh[bounds] = None
        if len(self._fresh) > _FRESH + len(self._order) // 64:
            self._build()

    def remove(self, bounds: Range, owner: T) -> None:
        """Idempotent."""
        owners = self._owners.get(bounds)
        if owners is None or owner not in owners:
            return
        del owners[owner]
        if owners:
            return
        del self._owners[bounds]
        if bounds in self._fresh:
            del self._fresh[bounds]
            return
        self._gone += 1
        if self._gone > _FRESH + len(self._order) // 2:
            self._build()

    def holding(self, key: bytes) -> Iterator[dict[T, None]]:
        """The owners of each range that holds the key. Nothing may be added or removed meanwhile."""
        owners = self._owners
        for bounds in self._fresh:
            if bounds[0] <= key < bounds[1]:
                yield owners[bounds]
        reach = bisect_right(self._starts, key)
        if not reach:
            return
        tops, leaves = self._tops, self._leaves
        nodes = [(1, 0, leaves)]
        while nodes:
            node, first, size = nodes.pop()
            if first >= reach or tops[node] <= key:
                continue
            if size == 1:
                found = owners.get(self._order[first])
                if found is not None:
                    yield found
                continue
            half = size // 2
            nodes.append((2 * node + 1, first + half, half))
            nodes.append((2 * node, first, half))

    def _build(self) -> None:
        owners = self._owners
        order = self._order = [bounds for bounds in self._order if bounds in owners]
        order += self._fresh
        order.sort()  # which costs little where most of it is in order
        self._starts = [start for start, _ in order]
        self._placed = dict.fromkeys(order)
        self._fresh = {}
        self._gone = 0
        leaves = self._leaves = 1 << max(0, len(order) - 1).bit_length()
        level = [end for _, end in order] + [b""] * (leaves - len(order))
        levels = [level]
        while len(level) > 1:
            level = [*map(max, level[::2], level[1::2])]
            levels.append(level)
        self._tops = [b""]
        for level in reversed(levels):
            self._tops += level
