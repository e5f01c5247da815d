"""Markdown that survives what people write."""

from __future__ import annotations

import json

from tpulm.convert.markdown import code, quote, table


def test_tables_align_and_escape():
    assert table(("A", "B"), [("x|y", "1\n2")], right=(1,)) == "| A | B |\n| - | -: |\n| x\\|y | 1 2 |"


def test_code_is_fenced_by_more_backticks_than_it_holds():
    assert code("[MASK]") == "`[MASK]`"
    assert code("a``b`") == "``` a``b` ```"


def test_quotes_are_read_back():
    text = '"온 가족이"\n\\ [MASK]'
    assert json.loads(quote(text)) == text
