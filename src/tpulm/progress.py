"""How long work reports on itself: what a stage says, not how it is drawn.

A stage takes a `Progress`; the command line passes one that draws bars, a library caller may pass its own or none.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        """A new piece of work begins; the one before is over. `total` is in `unit`s, None when unknown."""
        ...

    def advance(self, amount: float) -> None:
        """`amount` more units are done."""
        ...

    def status(self, text: str) -> None:
        """What stands beside the bar until the next call: the loss, the rate."""
        ...

    def note(self, message: str) -> None:
        """A sentence that stays on the screen: something skipped, a fallback taken, a count worth knowing."""
        ...


class Silent:
    """Says nothing."""

    def start(self, description: str, total: float | None = None, unit: str = "") -> None:
        pass

    def advance(self, amount: float) -> None:
        pass

    def status(self, text: str) -> None:
        pass

    def note(self, message: str) -> None:
        pass


SILENT: Progress = Silent()
