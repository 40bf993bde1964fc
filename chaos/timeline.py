"""What clients had of the cluster over time: acknowledged and failed calls, gaps, and a plot of it."""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from .faults import MAJORITY_STAYS, category
from .history import Operation
from .nemesis import Struck

WIDTH: Final = 1_000
LEFT: Final = 60
RIGHT: Final = 20
TOP: Final = 40
HEIGHT: Final = 200
STRIP: Final = 14
BUCKETS: Final = 400
"""At most, over the time of the run."""
COLOURS: Final = {
    "kills": "#d1495b",
    "pauses": "#e09f3e",
    "cuts": "#1b6ca8",
    "links": "#6fa8dc",
    "power-cuts": "#6a4c93",
    "bad-disks": "#8d6e63",
    "syncs": "#b08968",
    "clocks": "#3a7d44",
    "restarts": "#c2185b",
    "changes": "#5c6b73",
}
_FONT: Final = 'font-family="sans-serif" font-size="12" fill="#222"'


@dataclass(slots=True)
class Timeline:
    """`began` and `ended` are moments of the monotonic clock, as those of faults, in seconds."""

    began: float
    ended: float
    writes: list[float] = field(default_factory=list)
    """When writes were acknowledged."""
    reads: list[float] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    """When calls were given up: denied, or of unknown outcome."""
    struck: Sequence[Struck] = ()

    @classmethod
    def of(cls, operations: Iterable[Operation], struck: Sequence[Struck], began: float, ended: float) -> "Timeline":
        """From the history as clients saw it."""
        line = cls(began, ended, struck=struck)
        for operation in operations:
            if operation.returned is None:
                continue
            moments = line.failures
            if operation.outcome == "ok":
                moments = line.reads if operation.reads and not operation.effects else line.writes
            moments.append(operation.returned / 1e9)
        for moments in (line.writes, line.reads, line.failures):
            moments.sort()
        return line

    def gap(self, begin: float, end: float) -> tuple[float, float]:
        """The longest time without an acknowledged write that began between these moments, and when it began."""
        first, last = bisect_right(self.writes, begin), bisect_left(self.writes, end)
        before = self.writes[first - 1] if first else begin
        after = self.writes[last] if last < len(self.writes) else end
        moments = [before, *self.writes[first:last], after]
        return max((later - earlier, earlier) for earlier, later in itertools.pairwise(moments))

    def gaps(self) -> dict[str, float]:
        """The longest one of each kind of fault."""
        longest: dict[str, float] = {}
        for fault in self.struck:
            longest[fault.fault] = max(longest.get(fault.fault, 0.0), self.gap(fault.began, fault.whole)[0])
        return longest

    def worst(self, count: int) -> list[tuple[float, float, str]]:
        """The longest ones of faults that leave a majority: seconds, when they began in the run, the kind of fault."""
        found = (
            (*self.gap(fault.began, fault.whole), fault.fault) for fault in self.struck if fault.fault in MAJORITY_STAYS
        )
        return [(gap, began - self.began, kind) for gap, began, kind in sorted(found, reverse=True)[:count]]

    def longest_gap(self, *, majority: bool) -> float:
        """Of faults that leave a majority, or of the others."""
        return max((gap for kind, gap in self.gaps().items() if (kind in MAJORITY_STAYS) == majority), default=0.0)

    def svg(self, title: str) -> str:
        """Acknowledged calls a second upwards, failed ones downwards, and below when which faults were."""
        seconds = max(self.ended - self.began, 1.0)
        step = max(0.25, seconds / BUCKETS)
        rows = [self._rates(moments, step) for moments in (self.reads, self.writes, self.failures)]
        top = max(1.0, *(read + write for read, write in zip(rows[0], rows[1], strict=True)), *rows[2])
        kinds = [kind for kind in COLOURS if any(category(fault.fault) == kind for fault in self.struck)]
        bottom = TOP + HEIGHT + 30
        height = bottom + STRIP * len(kinds) + 20
        wide = WIDTH - LEFT - RIGHT

        def x(moment: float) -> float:
            return LEFT + wide * min(1.0, max(0.0, (moment - self.began) / seconds))

        parts = [_text(WIDTH / 2, 22, title, "middle"), _text(LEFT - 6, TOP + 10, f"{top:.0f}/s", "end")]
        stacked = [read + write for read, write in zip(rows[0], rows[1], strict=True)]
        for row, colour in ((stacked, "#a9cce3"), (rows[1], "#1b6ca8"), (rows[2], "#d1495b")):
            parts.append(_area(row, top, step / seconds * wide, colour))
        parts += [
            _text(LEFT + at * wide / 4, TOP + HEIGHT + 16, f"{seconds * at / 4:.0f} s", "middle") for at in range(5)
        ]
        for number, kind in enumerate(kinds):
            y = bottom + STRIP * number
            parts.append(_text(LEFT - 6, y + 10, kind, "end", size=9))
            for fault in self.struck:
                if category(fault.fault) == kind:
                    begin, end = x(fault.began), x(fault.ended)
                    parts.append(
                        f'<rect x="{begin:.1f}" y="{y}" width="{max(1.0, end - begin):.1f}" height="{STRIP - 3}"'
                        f' fill="{COLOURS[kind]}"><title>{fault.fault}</title></rect>'
                    )
        legend = "acknowledged writes (dark) and reads (light), failed or unknown calls (red)"
        parts.append(_text(LEFT, height - 6, legend, "start", size=10))
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">'
        return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>", ""])

    def _rates(self, moments: Sequence[float], step: float) -> list[float]:
        """Calls a second, in steps."""
        number = int((self.ended - self.began) / step) + 1
        edges = [bisect_left(moments, self.began + at * step) for at in range(number + 1)]
        return [(later - earlier) / step for earlier, later in itertools.pairwise(edges)]


def _area(row: Sequence[float], top: float, step: float, colour: str) -> str:
    points = [f"{LEFT:.1f},{TOP + HEIGHT}"]
    for at, value in enumerate(row):
        y = TOP + HEIGHT * (1 - value / top)
        points += [f"{LEFT + at * step:.1f},{y:.1f}", f"{LEFT + (at + 1) * step:.1f},{y:.1f}"]
    points.append(f"{LEFT + len(row) * step:.1f},{TOP + HEIGHT}")
    return f'<polygon points="{" ".join(points)}" fill="{colour}" fill-opacity="0.8"/>'


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    font = _FONT.replace('font-size="12"', f'font-size="{size}"')
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {font}>{escape(words)}</text>'


def quantile(values: Iterable[float], part: float) -> float:
    """0 of none."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
