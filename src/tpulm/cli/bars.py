"""Progress as bars on a terminal, or as a line now and then in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from tpulm.progress import PrintedProgress, Progress, format_amount, format_rate


@contextmanager
def drawn(console: Console) -> Iterator[Progress]:
    """Bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield PrintedProgress(lambda line: console.print(line, markup=False, soft_wrap=True))
        return
    with Bars(
        TextColumn("[bold]{task.description}", justify="left"),
        BarColumn(bar_width=24),
        _Amount(),
        _Rate(),
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


class _Rate(ProgressColumn):
    """'12.3 MB/s' where the unit is bytes."""

    def render(self, task: Task) -> Text:
        seconds = task.finished_time if task.finished_time is not None else task.elapsed
        return Text(format_rate(task.completed, task.fields["unit"], seconds or 0.0), style="cyan")


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
