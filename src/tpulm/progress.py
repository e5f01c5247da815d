"""Progress reports of long work: what a stage reports, not how it is drawn.

A stage takes a `Progress`: the command line passes one that draws bars; a library caller may pass its own, a `PrintedProgress`,
or none.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, Protocol

from tpulm.runtime import watchdog

_BYTES: Final = ("byte", "bytes", "B")
_stderr_lock: Final = threading.RLock()  # there is one stderr


class Progress(Protocol):
    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        """Begin a task, which ends the previous one. `total` is in `unit`s, None if unknown."""

    def advance(self, amount: float) -> None:
        """Report `amount` more units done."""

    def status(self, text: str) -> None:
        """Set the text next to the bar, such as loss and rate, until the next call; two spaces separate its parts.

        The first part is always shown; the last ones are dropped where space is short.
        """

    def note(self, message: str) -> None:
        """Show a sentence that stays on the screen: something skipped, a fallback taken, a count worth knowing."""


class Silent(Progress):
    """Reports nothing."""


SILENT: Progress = Silent()


class DocumentRate:
    """Shows documents per second next to a bar that counts bytes."""

    def __init__(self, progress: Progress):
        self._progress, self._begun_at, self._documents = progress, time.monotonic(), 0

    def add(self, documents: int) -> None:
        self._documents += documents
        seconds = time.monotonic() - self._begun_at
        if self._documents and seconds > 0:
            self._progress.status(f"{self._documents / seconds:,.0f} documents/s")


class PrintedProgress:
    """Prints a line when a task begins, and regularly from then on: for logs and scripts."""

    def __init__(self, say: Callable[[str], Any] = print, *, every_seconds: float = 15.0):
        self._print, self._every_seconds = say, every_seconds
        self._description, self._unit, self._status = "", "", ""
        self._total: float | None = None
        self._completed, self._printed_at = 0.0, time.monotonic()
        self._begun_at = self._paced_at = self._printed_at
        self._before = 0.0  # at `_paced_at`

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        self._description, self._total, self._unit, self._status = description, total, unit, ""
        self._completed, self._before, self._begun_at = 0.0, 0.0, time.monotonic()
        watchdog.report()
        self._print_task()

    def advance(self, amount: float) -> None:
        self._completed += amount
        if not self._before:  # what was done earlier, or began with compiling, says nothing of the pace
            self._before, self._paced_at = self._completed, time.monotonic()
        watchdog.report()
        self._print_if_due()

    def status(self, text: str) -> None:
        self._status = text
        self._print_if_due()

    def note(self, message: str) -> None:
        self._print(f"note: {message}")

    def _print_if_due(self) -> None:
        if time.monotonic() - self._printed_at >= self._every_seconds:
            self._print_task()

    def _print_task(self) -> None:
        self._printed_at = time.monotonic()
        self._print("  ".join(filter(None, [self._description, self._standing()])))

    def _standing(self, *, over: bool = False) -> str:
        """The amount; the pace or, when it is `over`, the time taken; and the status."""
        seconds, paced = (time.monotonic() - since for since in (self._begun_at, self._paced_at))
        amount = format_amount(self._completed, self._total, self._unit)
        pace = format_pace(self._completed, self._total, self._unit, paced, before=self._before)
        return "  ".join(filter(None, [amount, f"{format_clock(seconds)} elapsed" if over else pace, self._status]))


def format_amount(completed: float, total: float | None, unit: str) -> str:
    """ "1,200/3,000 steps", or megabytes where the unit is bytes."""
    if unit in _BYTES:
        done, whole, unit = completed / 1e6, None if total is None else total / 1e6, "MB"
        form = "{:,.1f}"
    else:
        done, whole, form = completed, total, "{:,.0f}"
        unit = unit + "s" if unit and not unit.endswith("s") else unit
    of = "" if whole is None else f"/{form.format(whole)}"
    return f"{form.format(done)}{of} {unit}".strip() if unit or done else ""


def format_rate(completed: float, unit: str, seconds: float) -> str:
    """ "12.3 MB/s" for bytes; "" for any other unit, whose rate the task itself reports."""
    if unit not in _BYTES or not completed or seconds <= 0:
        return ""
    rate = completed / seconds
    return f"{rate / 1e6:,.1f} MB/s" if rate >= 1e5 else f"{rate / 1e3:,.1f} kB/s"


def format_pace(completed: float, total: float | None, unit: str, seconds: float, *, before: float = 0.0) -> str:
    """The rate since `before` were done, `seconds` ago, and the remaining time at this rate: "12.3 MB/s, 0:01:20 left"."""
    done = completed - before
    if done <= 0 or not total or completed >= total or seconds <= 0:
        return ""
    remaining = f"{format_clock((total - completed) * seconds / done)} left"
    return ", ".join(part for part in (format_rate(done, unit, seconds), remaining) if part)


def format_clock(seconds: float | None) -> str:
    """ "0:01:20"; None is a time not yet known."""
    if seconds is None:
        return "-:--:--"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}" if minutes < 6000 else f"{minutes / 1440:,.1f} days"


def shown_speed(per_second: float, text_fraction: float, unit: str = "tokens") -> str:
    """ "12,345 tokens/s (88% of slots)": tokens of text, and the fraction of the rows that they fill."""
    return f"{per_second:,.0f} {unit}/s" + (f" ({text_fraction:.0%} of slots)" if text_fraction < 0.995 else "")


@contextlib.contextmanager
def held_stderr(without: re.Pattern[bytes] | None = None) -> Iterator[BinaryIO]:
    """Hold back everything that is written to stderr, by C++ libraries too, in a file until the block ends, then show it.

    Matches of `without`, and what the block removes from the file, are not shown.
    """
    with _stderr_lock, tempfile.TemporaryFile() as held:
        stderr = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield held
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            if shown := without.sub(b"", held.read()) if without else held.read():
                os.write(2, shown)
