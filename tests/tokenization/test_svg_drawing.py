"""Plots are well-formed, to scale, and hold nothing unescaped."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from tpulm.tokenization.drawing import Bar, Curve, bars, colour, curves, fitted, share_map

EVIL = '<b a="x">&\'日本語の長い名前'


def parts(svg: str, tag: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f".//{tag}")


def test_bars_are_to_scale_and_stacked():
    items = [Bar("a", 0, (1.0,), "1"), Bar(EVIL, 1, (2.0, 1.0, 1.0), "4", heading=EVIL), Bar("none", 2, (0.0,), "0")]
    drawn = parts(bars(items, EVIL), "rect")
    widths = [float(one.attrib["width"]) for one in drawn]
    assert widths == pytest.approx([widths[0], 2 * widths[0], widths[0], widths[0]], abs=0.1)
    ends = [float(one.attrib["x"]) + float(one.attrib["width"]) for one in drawn]
    assert float(drawn[2].attrib["x"]) == pytest.approx(ends[1], abs=0.1)
    assert [one.attrib["class"] for one in drawn] == [
        f"{colour(0)} part0",
        *(f"{colour(1)} part{number}" for number in range(3)),
    ]
    assert [one.text for one in parts(bars(items, ""), "text") if one.attrib["class"] == "heading"] == [EVIL]


def test_all_bars_may_be_empty():
    assert parts(bars([Bar("a", 0, (0.0,), "0%")], ""), "rect") == []


def test_curves_are_steps_over_a_logarithmic_axis():
    svg = curves([Curve(EVIL, 0, [(1.0, 0.25), (10.0, 0.5), (100.0, 1.0)])], [50], "d", x_title="tokens")
    [path] = parts(svg, "path")
    points: list[tuple[float, float]] = [
        (float(point.split()[0]), float(point.split()[1])) for point in path.attrib["d"][1:].split("L")
    ]
    grid = [one for one in parts(svg, "line") if one.attrib["class"] == "grid"]
    left, right = float(grid[0].attrib["x1"]), float(grid[0].attrib["x2"])
    bottom, top = float(grid[0].attrib["y1"]), float(grid[-1].attrib["y1"])
    assert points[0] == (left, bottom) and points[-1] == (right, top)
    ups = dict(points)  # the last point at each place is where the step ends
    middle = min(ups, key=lambda x: abs(x - (left + right) / 2))  # of 1 and 100: 10
    assert middle == pytest.approx((left + right) / 2, abs=0.06) and ups[middle] == pytest.approx((bottom + top) / 2, abs=0.06)
    [mark] = [one for one in parts(svg, "line") if one.attrib["class"] == "mark"]
    assert float(mark.attrib["x1"]) == pytest.approx(left + (right - left) * math.log(50) / math.log(100), abs=0.06)


def test_a_share_is_a_shade():
    svg = share_map(["a", EVIL], ["a", EVIL], [[1.0, 0.1], [0.5, 1.0]], "d")
    opacity = [float(one.attrib["style"].split(":")[1]) for one in parts(svg, "rect")]
    assert opacity[0] == opacity[3] > opacity[2] > opacity[1]
    assert {"100%", "10.0%", "50.0%"} <= {one.text for one in parts(svg, "text")}


@pytest.mark.parametrize(
    ("label", "most", "expected"),
    [("short", 5, "short"), ("abcdefghij", 5, "ab…ij"), ("日本語日本語", 12, "日本語日本語"), ("日本語日本語", 7, "日本…語")],
)
def test_labels_fit(label: str, most: int, expected: str):
    assert fitted(label, most) == expected


def test_more_tokenizers_than_colours_have_another_dash():
    assert len({colour(number) for number in range(24)}) == 24
