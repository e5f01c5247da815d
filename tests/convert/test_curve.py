"""The drawn curve: valid SVG, points where they belong, round marks."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulm.convert.curve import BOTTOM, HEIGHT, LEFT, MOST_POINTS, RIGHT, TOP, WIDTH, PlotLine, Point, draw, thin, ticks

LABELS = {"title": "Loss of <x & y>", "x_label": "step", "y_label": "loss (nats)"}
SVG = "{http://www.w3.org/2000/svg}"


def paths(svg: str) -> list[list[tuple[float, float]]]:
    """The coordinates of each drawn line, axes aside."""
    found = [path.get("d", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path")][1:]
    return [[(float(a), float(b)) for a, b in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)] for path in found]


def test_lines_fall_with_the_loss_and_stay_inside():
    training = tuple(Point(step, 9.0 - step / 200) for step in range(100, 1001, 100))
    held_out = (Point(500, 7.0), Point(1000, 4.5))
    svg = draw([PlotLine("training", training), PlotLine("held-out", held_out, dots=True)], **LABELS)
    first, second = paths(svg)
    assert len(first) == 10
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(first))  # y grows downwards
    assert first[-1][0] == second[-1][0] == WIDTH - RIGHT
    assert all(LEFT <= x <= WIDTH - RIGHT and TOP <= y <= HEIGHT - BOTTOM for x, y in first + second)
    assert svg.count("<circle") == 2
    text = "".join(ElementTree.fromstring(svg).itertext())
    assert "Loss of <x & y>" in text
    assert "training 4.000" in text
    assert "held-out 4.500" in text


@pytest.mark.parametrize(
    "points", [(Point(0, 1.0),), (Point(1, 0.0), Point(2, 0.0)), (Point(10**6, 1e-9), Point(2 * 10**6, 1e9))]
)
def test_odd_curves_can_be_drawn(points):
    ElementTree.fromstring(draw([PlotLine("training", points), PlotLine("held-out", ())], **LABELS))


def test_no_point_no_curve():
    with pytest.raises(ValueError, match="at least one point"):
        draw([PlotLine("training", ())], **LABELS)


@given(
    st.floats(-1e6, 1e6, allow_nan=False), st.floats(0, 1e6, allow_nan=False).filter(lambda width: width == 0 or width > 1e-3)
)
def test_ticks_are_round_and_cover(low, width):
    found = ticks(low, low + width, 5)
    step = found[1] - found[0]
    leading = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(leading - digit) for digit in (1, 2, 5, 10)) < 1e-6
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= low + width - 1e-6 * step
    assert 2 <= len(found) <= 8


def test_long_lines_are_thinned_to_their_means():
    points = tuple(Point(step, float(step % 2)) for step in range(10_001))
    found = thin(points)
    assert len(found) == MOST_POINTS
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert all(abs(point.value - 0.5) < 0.05 for point in found[1:-1])
    assert [point.step for point in found] == sorted({point.step for point in found})
    assert thin(points[:5]) == points[:5]
