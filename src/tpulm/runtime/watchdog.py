"""What an external watchdog monitors: a process's stage and step in a file, and its threads' stacks on request.

$TPULM_PROGRESS_FILE names the file. It always holds one JSON object, {"stage", "step", "time"} (seconds since 1970), padded
with spaces to `FILE_BYTES`; every report overwrites it in place, with one call that takes 3 microseconds. $TPULM_STACKS_FILE
names where Python writes the stacks of all threads on SIGUSR1, even while the main thread is stuck in C. Without these
variables nothing happens.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from typing import IO

FILE_BYTES = 160

_file = -1  # its descriptor; -1: no watchdog
_stacks: IO[str] | None = None  # kept open for the signal
_stage, _step = "start", "null"


def begin() -> None:
    """Call this once, before anything that may hang."""
    global _file, _stacks
    if path := os.environ.get("TPULM_STACKS_FILE"):
        _stacks = open(path, "w", encoding="utf-8")  # noqa: SIM115, PTH123 (open to the end)
        faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)
    if path := os.environ.get("TPULM_PROGRESS_FILE"):
        _file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        report()


def report(stage: str = "", step: int | None = None) -> None:
    """Send a heartbeat; stage and step stay as they are if not given."""
    global _stage, _step
    if _file < 0:
        return
    _stage, _step = stage or _stage, _step if step is None else str(step)
    record = f'{{"stage": "{_stage}", "step": {_step}, "time": {time.time():.3f}}}'
    with contextlib.suppress(OSError):
        os.pwrite(_file, record.encode().ljust(FILE_BYTES), 0)
