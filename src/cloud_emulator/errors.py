"""What is wrong with an order to the emulator, as opposed to a request that the emulated service refuses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EmulatorError(ValueError):
    """A setting, an order or a name makes no sense, or a package is missing; the message says which and what to do."""


def suggest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" (with the leading space) when a known name is near, else ""."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
