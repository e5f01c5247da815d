"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(fits: Callable[[], object], why: Callable[[], object] = str, seconds: float = 60, *, pause: float = 0.02) -> None:
    """Looks again and again; what `why` gives is shown when the time is up."""
    give_up_at = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < give_up_at, why()
        time.sleep(pause)


def is_alive(process: int) -> bool:
    """Whether it runs, and does not merely wait for its parent to take note of its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while it is read
        return False
