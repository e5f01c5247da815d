"""A loss curve as an SVG that is readable in a README on light and dark pages, without a plotting library."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 66, 24, 54, 56
MOST_POINTS = 300  # per line; more are averaged
INK, SOFT, GRID, PAPER = "#24292f", "#57606a", "#e4e8ec", "#ffffff"
COLOURS = ("#1f6feb", "#d1570c", "#1a7f37", "#8250df")
FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


class Point(NamedTuple):
    step: int
    value: float


class PlotLine(NamedTuple):
    """One line of the plot; `dots` marks each point, for lines with few."""

    label: str
    points: tuple[Point, ...]
    dots: bool = False


class Axis(NamedTuple):
    """Maps values from `low` to `high` to pixels from `start` to `end`, with marks at `ticks`."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    end: float

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def draw(lines: Sequence[PlotLine], *, title: str, x_label: str, y_label: str) -> str:
    """The SVG source. Lines without points are left out; at least one point is needed."""
    lines = [line for line in lines if line.points]
    if not lines:
        raise ValueError("a curve needs at least one point")
    steps = [point.step for line in lines for point in line.points]
    lines = [line._replace(points=thin(line.points)) for line in lines]
    values = [point.value for line in lines for point in line.points]
    x = _axis(0.0, float(max(steps)), start=LEFT, end=WIDTH - RIGHT, marks=6, whole=True, tight=True)
    y = _axis(min(values), max(values), start=HEIGHT - BOTTOM, end=TOP, marks=5)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}" font-family="{FONT}" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{PAPER}"/>',
        f'<text x="{LEFT}" y="28" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>',
        *_grid(x, y),
        _text(x_label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, anchor="middle"),
        f'<g transform="translate(18 {_n(middle)}) rotate(-90)">{_text(y_label, 0, 0, anchor="middle")}</g>',
    ]
    for line, colour in zip(lines, COLOURS, strict=False):
        parts += _curve(line, colour, x, y)
    parts.append(_legend(lines))
    return "\n".join([*parts, "</svg>"]) + "\n"


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most `most` points: the first and last unchanged, those between averaged in equal groups."""
    if len(points) <= most:
        return tuple(points)
    inner, shares = points[1:-1], most - 2
    bounds = [round(i * len(inner) / shares) for i in range(shares + 1)]
    groups = [inner[a:b] for a, b in itertools.pairwise(bounds)]
    means = [Point(group[len(group) // 2].step, sum(p.value for p in group) / len(group)) for group in groups]
    return (points[0], *means, points[-1])


def ticks(low: float, high: float, marks: int, *, whole: bool = False) -> tuple[float, ...]:
    """About `marks` round values that cover `low` to `high`, spaced 1, 2 or 5 times a power of ten."""
    rough = (high - low) / marks or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(i * step for i in range(first, max(last, first + 1) + 1))


def _axis(low: float, high: float, *, start: float, end: float, marks: int, whole: bool = False, tight: bool = False) -> Axis:
    """A tight axis ends at the highest value, any other at a tick."""
    found = ticks(low, high, marks, whole=whole)
    top = max(high, low + 1.0) if tight else found[-1]
    return Axis(found[0], top, tuple(value for value in found if value <= top * (1 + 1e-9)), start, end)


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for value in y.ticks:
        height = _n(y.place(value))
        parts.append(f'<line x1="{LEFT}" y1="{height}" x2="{WIDTH - RIGHT}" y2="{height}" stroke="{GRID}"/>')
        parts.append(_text(short(value), LEFT - 10, y.place(value) + 4, anchor="end"))
    base = HEIGHT - BOTTOM
    for value in x.ticks:
        place = _n(x.place(value))
        parts.append(f'<line x1="{place}" y1="{base}" x2="{place}" y2="{base + 5}" stroke="{SOFT}"/>')
        parts.append(_text(short(value), x.place(value), base + 20, anchor="middle"))
    parts.append(f'<path d="M{LEFT} {TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="{SOFT}"/>')
    return parts


def _curve(line: PlotLine, colour: str, x: Axis, y: Axis) -> list[str]:
    places = [(_n(x.place(point.step)), _n(y.place(point.value))) for point in line.points]
    path = "M" + "L".join(f"{a} {b}" for a, b in places)
    parts = [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"/>'
    ]
    if line.dots or len(places) == 1:
        parts += [f'<circle cx="{a}" cy="{b}" r="3.5" fill="{colour}" stroke="{PAPER}"/>' for a, b in places]
    return parts


def _legend(lines: Sequence[PlotLine]) -> str:
    """Top right: for each line a dot of its colour, its label and its last value."""
    gap = "\u2003"  # an em space
    entries = [
        f'<tspan fill="{colour}" font-size="14">●</tspan> {escape(line.label)} {line.points[-1].value:.3f}'
        for line, colour in zip(lines, COLOURS, strict=False)
    ]
    return f'<text x="{WIDTH - RIGHT}" y="28" text-anchor="end" fill="{SOFT}">{gap.join(entries)}</text>'


def _text(text: str, x: float, y: float, *, anchor: str) -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" fill="{SOFT}">{escape(text)}</text>'


def short(value: float) -> str:
    """1200000 -> "1.2M", 2500 -> "2,500", 0.30000000000000004 -> "0.3"."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:,.6g}" if abs(value) < 1e3 else f"{value:,.0f}"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
