"""Self-contained HTML pages: no script, no network, light and dark. The jinja2 templates are in tpulm/templates.

Reports extend page.html, which has the style sheet, and take tables and charts from macros.html. All text is escaped, and
invisible characters in it, such as direction controls, are made visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from tpulm.readable import percent, size, visible


class Axis(NamedTuple):
    begin: float  # at the left, or at the top
    end: float
    ticks: Sequence[tuple[float, str]]  # value, label
    log: bool = False

    def place(self, value: float) -> float:
        """The position of `value`, in percent of the way from `begin` to `end`."""
        begin, end, at = (math.log(max(one, 1)) if self.log else one for one in (self.begin, self.end, value))
        return round(100 * abs((at - begin) / (end - begin)), 2)


SHARES = Axis(1, 0, [(quarter / 4, f"{quarter / 4:.0%}") for quarter in range(5)])


def log_axis(end: float) -> Axis:
    """A logarithmic axis from 1 to `end`."""
    ticks = [factor * 10**power for power in range(10) for factor in (1, 2, 5) if factor * 10**power <= end]
    return Axis(1, end, [(tick, f"{tick:,}") for tick in ticks if len(ticks) <= 12 or str(tick)[0] == "1"], log=True)


def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tpulm"),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # the output of a macro is Markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "size": size}
    return made


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(values)
