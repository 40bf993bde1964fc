"""Plots as SVG, by hand: nothing has to be installed for them, and they differ only where the figures do."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 360
LEFT: Final = 74
RIGHT: Final = 150
TOP: Final = 40
BOTTOM: Final = 48
COLOURS: Final = ("#1b6ca8", "#d1495b", "#3a7d44", "#e09f3e", "#6a4c93", "#5c6b73")
FONT: Final = 'font-family="sans-serif" font-size="12" fill="#222"'
Series = tuple[str, Sequence[float | None]]
"""A name, and a value for each place of the other axis."""


def _text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {FONT}{more}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _page(title: str, parts: Sequence[str], height: float = HEIGHT) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}"'
        f' height="{height:.0f}" role="img" aria-label="{escape(title)}">'
    )
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>'
    heading = _text(WIDTH / 2, 22, title, "middle", ' font-weight="bold"')
    return "\n".join([head, ground, heading, *parts, "</svg>", ""])


def amount(value: float) -> str:
    """A number of an axis."""
    return f"{value:,.0f}" if value >= 1 or not value else f"{value:g}"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def curves(title: str, places: Sequence[str], series: Sequence[Series], across: str, up: str) -> str:
    """A line for each series, over places at equal distances; the upward axis is logarithmic."""
    values = [value for _, row in series for value in row if value]
    if not values:
        return _page(title, [_text(WIDTH / 2, HEIGHT / 2, "not measured", "middle")])
    low, high = _decades(values)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: int) -> float:
        return LEFT + wide * (at + 0.5) / len(places)

    def y(value: float) -> float:
        return TOP + tall * (1 - (math.log10(value) - low) / (high - low))

    parts = []
    for power in range(low, high + 1):
        height = y(10.0**power)
        parts += [_line(LEFT, height, LEFT + wide, height), _text(LEFT - 6, height + 4, amount(10.0**power), "end")]
    parts += [_text(x(at), TOP + tall + 18, place, "middle") for at, place in enumerate(places)]
    parts += [_text(LEFT + wide / 2, HEIGHT - 10, across, "middle"), _text(8, TOP - 12, up)]
    for number, (name, row) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x(at), y(value)) for at, value in enumerate(row) if value]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>' for px, py in points]
        parts += _key(number, name, colour)
    return _page(title, parts)


def _key(number: int, name: str, colour: str) -> list[str]:
    height = TOP + 12 + 20 * number
    left = WIDTH - RIGHT + 14
    square = f'<rect x="{left}" y="{height - 9}" width="12" height="10" fill="{colour}"/>'
    return [square, _text(left + 18, height, name)]


def ratios(title: str, rows: Sequence[tuple[str, float]], left: str, right: str) -> str:
    """A bar for each row, to the right of 1 or to the left of it, on a logarithmic axis."""
    step, name_width = 20, 230
    height = TOP + 24 + step * len(rows) + 16
    if not rows:
        return _page(title, [_text(WIDTH / 2, TOP + 20, "not measured", "middle")], height)
    low, high = _decades([*(value for _, value in rows), 1.0])
    wide = WIDTH - name_width - 70

    def x(value: float) -> float:
        return name_width + wide * (math.log10(value) - low) / (high - low)

    floor = TOP + 24 + step * len(rows)
    parts = [_text(x(1.0) - 8, TOP, left, "end"), _text(x(1.0) + 8, TOP, right)]
    for power in range(low, high + 1):
        value = 10.0**power
        parts += [_line(x(value), TOP + 8, x(value), floor), _text(x(value), floor + 13, amount(value), "middle")]
    for number, (name, value) in enumerate(rows):
        top = TOP + 14 + step * number
        begin, end = sorted((x(1.0), x(value)))
        colour = COLOURS[0] if value >= 1 else COLOURS[1]
        parts.append(f'<rect x="{begin:.1f}" y="{top}" width="{max(end - begin, 1):.1f}" height="13" fill="{colour}"/>')
        parts += [_text(name_width - 8 if value >= 1 else begin - 6, top + 11, name, "end")]
        parts += [_text(end + 5, top + 11, f"{value:.2f}")]
    parts.append(_line(x(1.0), TOP + 8, x(1.0), floor, "#222"))
    return _page(title, parts, height)
