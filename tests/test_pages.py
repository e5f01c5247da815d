"""The parts of a page are well-formed, to scale, and hold nothing unescaped."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest
from jinja2 import UndefinedError

from tpulm import pages
from tpulm.pages import SHARES, Axis, log_axis

EVIL = '</svg><script a="x">&\'\u202e\x1b日本語'
SHOWN = '</svg><script a="x">&\'⟨U+202E⟩␛日本語'


def macro(name: str, *arguments: object, **settings: object) -> ElementTree.Element:
    module = pages.environment().get_template("macros.html").module
    return ElementTree.fromstring(f"<div>{getattr(module, name)(*arguments, **settings)}</div>")


def test_bars_are_to_scale_and_stacked():
    drawn = macro("bar", EVIL, 9, [2.0, 0.0, 1.0], 6.0, EVIL)
    parts = [(one.attrib["class"], one.attrib["style"]) for one in drawn.iter("i")]
    assert parts == [("part0", "width: 33.33%"), ("part1", "width: 0.0%"), ("part2", "width: 16.67%")]
    assert "".join(drawn.itertext()).strip() == SHOWN + SHOWN
    assert [one.attrib["style"] for one in macro("bar", "a", 0, [0.0], 0.0, "0%").iter("i")] == ["width: 0.0%"]


def test_steps_over_a_logarithmic_axis():
    lines = {EVIL: [(1, 0.25), (10, 0.5), (100, 1.0)]}
    drawn = macro("line_chart", lines, log_axis(100), SHARES, marks=[(50, "half")], steps=True, x_title="tokens")
    [path] = drawn.iter("path")
    assert path.attrib["d"].strip() == "M0.0 75.0H50.0V50.0H100.0V0.0"
    [mark] = (one for one in drawn.iter("line") if one.attrib.get("class") == "mark")
    assert mark.attrib["x1"] == mark.attrib["x2"] == f"{100 * math.log(50) / math.log(100):.2f}%"
    texts = [one.text for one in drawn.iter("text")]
    assert texts == ["0%", "25%", "50%", "75%", "100%", "1", "2", "5", "10", "20", "50", "100", "half"]
    assert SHOWN in drawn.itertext()


def test_lines_over_a_linear_axis_have_a_colour_or_a_dash_each():
    x, y = Axis(0, 200, [(0, "0"), (200, "200")]), Axis(10, 2, [(2, "2"), (10, "10")])
    drawn = macro("line_chart", {number: [(0, 10), (100, 4), (200, 2)] for number in range(24)}, x, y)
    assert {path.attrib["d"].strip() for path in drawn.iter("path")} == {"M0.0 0.0L50.0 75.0L100.0 100.0"}
    assert len({path.attrib["class"] for path in drawn.iter("path")}) == 24


@pytest.mark.parametrize("end", [3, 1_000, 1_000_000_000])
def test_ticks_are_few(end: int):
    ticks = log_axis(end).ticks
    assert 2 <= len(ticks) <= 12 and ticks[0] == (1, "1") and ticks[-1][0] <= end


def test_a_template_that_names_what_is_not_there_is_refused():
    with pytest.raises(UndefinedError, match="comparison"):
        pages.render("tokenizer_comparison.html")
