"""Progress as bars on a terminal, or as a line now and then in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from tpulm.progress import Progress

_PLAIN_SECONDS = 15.0  # between two lines where there is no terminal to draw a bar on


@contextmanager
def drawn(console: Console) -> Iterator[Progress]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console)
        return
    with Bars(
        TextColumn("[bold]{task.description}", justify="left"),
        BarColumn(bar_width=24),
        _Amount(),
        TextColumn("{task.fields[status]}", style="cyan"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=False,
    ) as bars:
        yield _Bars(bars)


class _Amount(ProgressColumn):
    """'1,200/3,000 steps', or megabytes where the unit is bytes."""

    def render(self, task: Task) -> Text:
        return Text(format_amount(task.completed, task.total, task.fields["unit"]))


def format_amount(completed: float, total: float | None, unit: str) -> str:
    if unit in ("byte", "bytes", "B"):
        done, whole, unit = completed / 1e6, None if total is None else total / 1e6, "MB"
        form = "{:,.1f}"
    else:
        done, whole, form = completed, total, "{:,.0f}"
        unit = unit + "s" if unit and not unit.endswith("s") else unit
    of = "" if whole is None else f"/{form.format(whole)}"
    return f"{form.format(done)}{of} {unit}".strip() if unit or done else ""


class _Bars:
    def __init__(self, bars: Bars):
        self._bars = bars
        self._task: Any = None

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._finish()
        self._task = self._bars.add_task(escape(description), total=total, unit=unit, status="")

    def advance(self, amount: float) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def status(self, text: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, status=escape(text))

    def note(self, message: str) -> None:
        self._bars.console.print(f"[yellow]note:[/] {escape(message)}", soft_wrap=True)

    def _finish(self) -> None:
        """The bar of work that is over stays full."""
        if self._task is not None:
            task = self._bars.tasks[self._task]
            done = task.completed if task.total is None else task.total
            self._bars.update(self._task, total=max(done, 1.0), completed=max(done, 1.0))
            self._bars.stop_task(self._task)


class _Lines:
    """For logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._description, self._unit, self._status = "", "", ""
        self._total: float | None = None
        self._completed, self._said_at = 0.0, time.monotonic()

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._description, self._total, self._unit, self._status = description, total, unit, ""
        self._completed = 0.0
        self._say()

    def advance(self, amount: float) -> None:
        self._completed += amount
        if time.monotonic() - self._said_at >= _PLAIN_SECONDS:
            self._say()

    def status(self, text: str) -> None:
        self._status = text
        if time.monotonic() - self._said_at >= _PLAIN_SECONDS:
            self._say()

    def note(self, message: str) -> None:
        self._console.print(f"note: {message}", soft_wrap=True, markup=False)

    def _say(self) -> None:
        self._said_at = time.monotonic()
        amount = format_amount(self._completed, self._total, self._unit)
        line = "  ".join(part for part in (self._description, amount, self._status) if part)
        self._console.print(line, markup=False, soft_wrap=True)
