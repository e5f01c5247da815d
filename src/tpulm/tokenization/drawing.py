"""Plots as SVG that stands within a page: bars, curves over a logarithmic axis, a map of shares.

Colours are classes (s0 … s7 for the tokenizers), so that the page's style sheet decides them for light and dark. Every text is
escaped here.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

SERIES_COLOURS = 8
_WIDTH = 560
_LABEL_WIDTH = 168
_VALUE_WIDTH = 118
_ROW = 24
_LETTER = 7.0  # width of a letter at the size of the labels; a Han character takes two


class Bar(NamedTuple):
    """`parts` are stacked; `heading` begins a new group."""

    label: str
    series: int
    parts: tuple[float, ...]
    value: str
    heading: str = ""


class Curve(NamedTuple):
    label: str
    series: int
    points: list[tuple[float, float]]  # x rising; y from 0 to 1


def bars(items: Sequence[Bar], description: str) -> str:
    """Horizontal ones, each as long as the sum of its parts; the longest fills the width."""
    room = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    longest = max((sum(item.parts) for item in items), default=0.0) or 1.0
    drawn, y = [], 4.0
    for item in items:
        if item.heading:
            drawn.append(_text(0, y + 16, item.heading, "heading"))
            y += _ROW
        drawn.append(_label(_LABEL_WIDTH - 8, y + 15, item.label, _LABEL_WIDTH - 8, "end"))
        x = float(_LABEL_WIDTH)
        for number, part in enumerate(item.parts):
            width = room * part / longest
            if width > 0:
                drawn.append(_rectangle(x, y + 3, max(width, 0.5), _ROW - 8, f"{colour(item.series)} part{number}"))
            x += width
        drawn.append(_text(x + 6, y + 15, item.value, "value"))
        y += _ROW
    return _svg(_WIDTH, y + 4, drawn, description)


def curves(series: Sequence[Curve], marks: Sequence[int], description: str, *, x_title: str) -> str:
    """Steps over a logarithmic axis from 1 on; `marks` are upright lines."""
    left, top, width, height = 44, 10, _WIDTH - 60, 230
    largest = max(2.0, *(x for curve in series for x, _ in curve.points), *(float(mark) for mark in marks))

    def across(x: float) -> float:
        return left + width * math.log(max(x, 1.0)) / math.log(largest)

    def up(y: float) -> float:
        return top + height * (1 - y)

    drawn = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawn.append(_line(left, up(share), left + width, up(share), "grid"))
        drawn.append(_text(left - 6, up(share) + 4, f"{share:.0%}", "tick", "end"))
    for tick in _ticks(largest):
        drawn.append(_line(across(tick), top + height, across(tick), top + height + 4, "axis"))
        drawn.append(_text(across(tick), top + height + 17, f"{tick:,}", "tick", "middle"))
    for mark in marks:
        drawn.append(_line(across(mark), top, across(mark), top + height, "mark"))
        drawn.append(_text(across(mark) - 4, top + height - 6, f"{mark:,}", "tick", "end"))
    for curve in series:
        steps = [(across(1.0), up(0.0))]
        for x, y in curve.points:
            steps += [(across(x), steps[-1][1]), (across(x), up(y))]
        steps.append((across(largest), steps[-1][1]))
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in steps)
        drawn.append(f'<path class="curve {colour(curve.series)}" d="{path}"><title>{escape(curve.label)}</title></path>')
    drawn.append(_text(left + width / 2, top + height + 36, x_title, "tick", "middle"))
    return _svg(_WIDTH, top + height + 44, drawn, description)


def share_map(rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]], description: str) -> str:
    """A cell is the stronger coloured the larger its share."""
    side = min(92.0, (_WIDTH - _LABEL_WIDTH) / max(1, len(columns)))
    drawn = []
    for number, column in enumerate(columns):
        drawn.append(_label(_LABEL_WIDTH + side * (number + 0.5), 16, column, side - 6, "middle"))
    for y, (row, cells) in enumerate(zip(rows, shares, strict=True)):
        top = 26.0 + 36 * y
        drawn.append(_label(_LABEL_WIDTH - 8, top + 22, row, _LABEL_WIDTH - 8, "end"))
        for x, share in enumerate(cells):
            at = _LABEL_WIDTH + side * x
            opacity = f'style="fill-opacity:{0.04 + 0.56 * share:.3f}"'
            drawn.append(_rectangle(at + 1, top + 1, side - 2, 34, "cell", opacity))
            drawn.append(_text(at + side / 2, top + 22, f"{share:.1%}" if share < 0.9995 else "100%", "value", "middle"))
    return _svg(_WIDTH, 32 + 36 * len(rows), drawn, description)


def colour(series: int) -> str:
    return f"s{series % SERIES_COLOURS} d{series // SERIES_COLOURS % 3}"


def _ticks(largest: float) -> list[int]:
    found = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    found = [tick for tick in found if tick <= largest]
    return found if len(found) <= 12 else [tick for tick in found if str(tick)[0] == "1"]


def _label(x: float, y: float, label: str, width: float, anchor: str) -> str:
    """Cut in the middle where it is too wide; the whole of it is told to the pointer."""
    return _text(x, y, fitted(label, int(width / _LETTER)), "label", anchor, label)


def fitted(label: str, most: int) -> str:
    """At most as wide as so many letters."""
    if _letters(label) <= most:
        return label
    head, tail = "", ""
    for first, last in zip(label, reversed(label), strict=True):
        if _letters(head + first + "…" + tail) > most:
            break
        head += first
        if _letters(head + "…" + last + tail) > most:
            break
        tail = last + tail
    return f"{head}…{tail}"


def _letters(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start", title: str = "") -> str:
    told = f"<title>{escape(title)}</title>" if title else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{told}{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str, style: str = "") -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" {style}/>'


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _svg(width: float, height: float, drawn: Sequence[str], description: str) -> str:
    inside = "\n".join(drawn)
    return f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(description)}">\n{inside}\n</svg>'
