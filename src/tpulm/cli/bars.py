"""Progress as bars on a terminal, or as a line now and then in a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress as Bars, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from tpulm.progress import PrintedProgress, Progress, format_amount, format_clock, format_rate
from tpulm.readable import escaped

_LONGEST_BAR: Final = 40  # cells, as all that follows
_SHORTEST_BAR: Final = 8
_DESCRIPTION: Final = 22  # "Training, phase 2 of 3"
_SHORT: Final = 8  # of a description: "Trainin…"
_ENOUGH: Final = 80  # for the speed, whatever becomes of the description
_GAP: Final = "  "


@contextmanager
def drawn(console: Console) -> Iterator[Progress]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield PrintedProgress(lambda line: console.print(line, markup=False, soft_wrap=True))
        return
    # Jupyter sets this for kernels, which start "!tpulm". Their output goes back to the beginning of a line and erases nothing,
    # so that a line takes the place of another where it is as wide: padded, and without codes for colours.
    if in_notebook := "JPY_PARENT_PID" in os.environ:
        console = Console(file=console.file, width=console.width, force_terminal=True, color_system=None, highlight=False)
    every_seconds = 2.0 if in_notebook else 0.1
    redirect = sys.stdout.isatty()  # what goes to a file does not belong above the bars
    line, rate = _Line(console), 1 / every_seconds
    bars = Bars(line, console=console, expand=in_notebook, refresh_per_second=rate, redirect_stdout=redirect)
    with bars:
        drawing = _Bars(bars)
        yield drawing
        drawing.finish()


class _Line(ProgressColumn):
    """A task on one line, whatever the width: what there is no room for is left out."""

    def __init__(self, console: Console):
        super().__init__(Column(no_wrap=True))
        self._console = console

    def render(self, task: Task) -> Text:
        return task_line(task, self._console.width)


def task_line(task: Task, width: int) -> Text:
    """The description, a bar, the amount, the time left, what the work tells of itself, the time gone.

    On a narrow terminal the bar is left out first, then the time gone, what the work tells beyond its first two things, the
    end of the description, the unit and the second thing (the speed). The amount, the time left and the first thing (the
    loss) always stay.
    """
    unit, seconds = task.fields["unit"], task.finished_time if task.finished else task.elapsed
    done = min(task.completed, task.completed if task.total is None else task.total)
    amount, gone = format_amount(done, None if task.finished else task.total, unit), f"{format_clock(seconds)} elapsed"
    time = gone if task.total is None or task.finished else f"{format_clock(task.time_remaining)} left"
    reports = [part for part in (format_rate(task.completed, unit, seconds or 0.0), *task.fields["status"].split(_GAP)) if part]
    whole = cell_len(task.description)
    parts = [amount, time, *reports]

    def room() -> int:
        return width - sum(len(_GAP) + cell_len(part) for part in parts)

    if time != gone and room() >= whole + len(_GAP) + cell_len(gone):
        parts.append(gone)
    while len(parts) > 4 and room() < whole:
        parts.pop()
    if room() < min(_SHORT, whole):
        parts[0] = amount.partition(" ")[0]
    if len(parts) > 3 and room() < (0 if width >= _ENOUGH else min(_SHORT, whole)):
        parts.pop()
    line = Text(task.description if room() > 1 else "", "bold")
    if (bar := room() - max(whole, _DESCRIPTION) - len(_GAP)) >= _SHORTEST_BAR:
        line.append(" " * (_DESCRIPTION - whole) + _GAP).append_text(_bar(task, min(bar, _LONGEST_BAR)))
    elif line:
        line.truncate(room(), overflow="ellipsis")
    for part in parts:
        line.append(_GAP if line else "").append(part, "cyan" if part in reports else "")
    line.truncate(width)
    return line


def _bar(task: Task, width: int) -> Text:
    """Full as far as the work is done; of work of unknown size a piece that moves."""
    if task.total is None and not task.finished:
        begin = int((task.elapsed or 0.0) * 4) % (width - 2)
        return Text.assemble(("─" * begin, "dim"), ("━━━", "cyan"), ("─" * (width - 3 - begin), "dim"))
    done = width if task.finished else int(width * task.percentage / 100)
    return Text.assemble(("━" * done, "green" if task.finished else "cyan"), ("─" * (width - done), "dim"))


class _Bars:
    """One bar at a time: that of work which is over stays above as a line."""

    def __init__(self, bars: Bars):
        self._bars = bars
        self._task: Any = None

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self.finish()
        self._task = self._bars.add_task(escaped(description), total=total, unit=unit, status="")

    def advance(self, amount: float) -> None:
        if self._task is not None:
            self._bars.advance(self._task, amount)

    def status(self, text: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, status=escaped(text))

    def note(self, message: str) -> None:
        if self._bars.finished:  # a note on what comes next
            self.finish()
        self._bars.console.print(f"[yellow]note:[/] {escape(message)}", justify="left")

    def finish(self) -> None:
        if self._task is None:
            return
        task = self._bars.tasks[0]
        task.finished_time = task.elapsed
        self._bars.remove_task(self._task)
        self._task, console = None, self._bars.console
        console.print(task_line(task, console.width), no_wrap=True, justify="left")
