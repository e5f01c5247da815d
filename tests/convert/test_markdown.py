"""Markdown that survives what people write."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import pytest
from markdown_it import MarkdownIt

from tpulm.convert.markdown import code, plain, quote, table


def test_tables_align_and_escape():
    assert table(("A", "B"), [("x|y", "1\n2")], right=(1,)) == "| A | B |\n| - | -: |\n| x\\|y | 1 2 |"


def test_quotes_are_read_back():
    text = '"온 가족이"\n\\ [MASK]'
    assert json.loads(quote(text)) == text


@pytest.mark.parametrize(
    "text", ["a_b <b>x</b> *y* [z](u) ![i](j) `k` &amp; | \\", "a``b`", "_x_\n# y", "- z\n---", "\x1b[2J", "bert-ko_small"]
)
@pytest.mark.parametrize("shape", [plain, code])
def test_text_shows_as_it_is(text: str, shape: Callable[[str], str]):
    """CommonMark, by markdown-it, is the judge: one paragraph, nothing in it but the text."""
    shown = MarkdownIt().render(shape(text)).strip()
    inner = re.fullmatch(r"<p>(?:<code>)?(.*?)(?:</code>)?</p>", shown)
    assert inner is not None and "<" not in inner[1]
    assert html.unescape(inner[1]) == " ".join(text.split()).replace("\x1b", "\\u001b")
