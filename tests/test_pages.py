"""The parts of a page are well-formed, to scale, and hold nothing unescaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from jinja2 import UndefinedError

from tpulm import pages
from tpulm.pages import Axis

EVIL = '</svg><script a="x">&\'\u202e\x1b日本語'
SHOWN = '</svg><script a="x">&\'⟨U+202E⟩␛日本語'


def macro(name: str, *arguments: object, **settings: object) -> ElementTree.Element:
    module = pages.environment().get_template("macros.html").module
    return ElementTree.fromstring(f"<div>{getattr(module, name)(*arguments, **settings)}</div>")


def test_lines_over_a_linear_axis_have_a_colour_or_a_dash_each():
    x, y = Axis(0, 200, [(0, "0"), (200, "200")]), Axis(10, 2, [(2, "2"), (10, "10")])
    lines = {name: [(0, 10), (100, 4), (200, 2)] for name in [*range(23), EVIL]}
    drawn = macro("line_chart", lines, x, y, marks=[(50, "half")])
    assert {path.attrib["d"].strip() for path in drawn.iter("path")} == {"M0.0 0.0L50.0 75.0L100.0 100.0"}
    assert len({path.attrib["class"] for path in drawn.iter("path")}) == 24
    [mark] = (one for one in drawn.iter("line") if one.attrib.get("class") == "mark")
    assert mark.attrib["x1"] == mark.attrib["x2"] == "25.0%" and SHOWN in drawn.itertext()


def test_a_template_that_names_what_is_not_there_is_refused():
    with pytest.raises(UndefinedError, match="undefined"):
        pages.render("report.html")
