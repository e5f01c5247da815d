"""Progress in a Jupyter notebook: bars in the output of a cell, redrawn in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tpulm.progress import SILENT, PrintedProgress, Progress

_SECONDS: Final = 0.25  # between two drawings


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """The one that is given; else bars in a notebook, and silence elsewhere."""
    if progress is not None or not _is_notebook():
        yield SILENT if progress is None else progress
        return
    bars = NotebookProgress()
    try:
        yield bars
    finally:
        bars.finish()


def _is_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class _Line(NamedTuple):
    description: str  # "": it is a note
    share: float | None  # that is done, where that is known
    text: str


class NotebookProgress(PrintedProgress):
    """One output: a line for each piece of work and for each note, the newest last."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        super().__init__(lambda line: self._handle.update(self), every_seconds=_SECONDS)
        self._over: list[_Line] = []
        self._handle = DisplayHandle()
        self._handle.display(self)

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._end()
        super().start(description, total, unit)

    def note(self, message: str) -> None:
        self._over.append(_Line("", None, f"note: {message}"))
        self._say()

    def finish(self) -> None:
        self._end()
        self._say()

    def _end(self) -> None:
        if self._description:
            share = self._completed / self._total if self._total else 1.0
            self._over.append(_Line(self._description, share, self._standing(over=True)))
            self._description = ""

    def _lines(self) -> list[_Line]:
        share = self._completed / self._total if self._total else None
        return [*self._over, *([_Line(self._description, share, self._standing())] if self._description else [])]

    def __repr__(self) -> str:
        return "\n".join("  ".join(filter(None, [line.description, line.text])) for line in self._lines())

    def _repr_html_(self) -> str:
        from tpulm.pages import render

        return render("progress.html", lines=self._lines())
