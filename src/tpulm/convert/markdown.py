"""Model cards: their templates, and text in Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tpulm.pages import text_environment
from tpulm.readable import escaped, plural


def card(template: str, **values: Any) -> str:
    """A README.md, from a file in templates/."""
    environment = text_environment(code=code, plain=plain, quote=quote, plural=plural, number="{:,}".format)
    environment.globals["table"] = table
    return environment.get_template(template).render(values)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """A table; the columns numbered in `right` are right-aligned, the others left-aligned."""
    ruler = ["-:" if column in right else "-" for column in range(len(head))]
    lines = ([" ".join(text.replace("|", "\\|").splitlines()) for text in line] for line in (head, ruler, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def plain(text: str) -> str:
    """Text that shows as it is, in one paragraph: no markup, no HTML."""
    return re.sub(r"([\\`*\[\]<>#|~!&]|^[-+=]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", escaped(" ".join(text.split())))


def code(text: str) -> str:
    """Inline code, fenced by more backticks than any run of them in the text."""
    text = escaped(" ".join(text.splitlines()))
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def quote(text: str) -> str:
    """A quoted string, valid in YAML, JSON and Python."""
    return json.dumps(text, ensure_ascii=False)
