"""The jinja2 templates in tpulm/templates: self-contained HTML pages, and files that are not HTML (`text_environment`).

Pages have no script, need no network, and are light and dark. Reports extend page.html, which has the style sheet, and take
tables and charts from macros.html. All text is escaped, and invisible characters in it, such as direction controls, are made
visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from tpulm.readable import percent, size, visible


class Axis(NamedTuple):
    begin: float  # at the left, or at the top
    end: float
    ticks: Sequence[tuple[float, str]]  # value, label

    def place(self, value: float) -> float:
        """The position of `value`, in percent of the way from `begin` to `end`."""
        return round(100 * abs((value - self.begin) / (self.end - self.begin)), 2)


def text_environment(**filters: Any) -> Environment:
    """For files that are not HTML, such as Markdown and YAML: nothing is escaped."""
    return _environment(filters, keep_trailing_newline=True)


def environment() -> Environment:
    """For HTML."""
    # The output of a macro is Markup.
    shown = {"autoescape": True, "finalize": lambda value: visible(value) if type(value) is str else value}
    return _environment({"percent": percent, "size": size}, **shown)


def _environment(filters: dict[str, Any], **options: Any) -> Environment:
    loader = PackageLoader("tpulm")
    templates = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options)
    templates.filters |= filters
    return templates


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(values)
