"""Progress in a Jupyter notebook: bars in the output of a cell, redrawn in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tpulm.progress import SILENT, PrintedProgress, Progress

_SECONDS: Final = 0.25  # between redraws


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """`progress` if given; else bars if this process is a notebook's kernel, and silence elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if progress is not None or getattr(shell, "kernel", None) is None:
        yield SILENT if progress is None else progress
        return
    bars = NotebookProgress()
    try:
        yield bars
    finally:
        bars.finish()


class _Line(NamedTuple):
    description: str  # "" for a note
    share: float | None  # fraction done, if known
    text: str


class NotebookProgress(PrintedProgress):
    """One output: a line for each task and each note, the newest last."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._over: list[_Line] = []
        self._output = DisplayHandle()
        super().__init__(lambda line: self._output.update(self), every_seconds=_SECONDS)
        self._output.display(self)

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._over += self._under_way(over=True)
        super().start(description, total, unit)

    def note(self, message: str) -> None:
        if self._total and self._completed >= self._total:  # a note on what comes next
            self.finish()
        self._over.append(_Line("", None, f"note: {message}"))
        self._print_task()

    def finish(self) -> None:
        self.start("")

    def _under_way(self, *, over: bool = False) -> list[_Line]:
        share = self._completed / self._total if self._total else 1.0 if over else None
        return [_Line(self._description, share, self._standing(over=over))] if self._description else []

    def _repr_html_(self) -> str:
        from tpulm.pages import render

        return render("progress.html", lines=[*self._over, *self._under_way()])
