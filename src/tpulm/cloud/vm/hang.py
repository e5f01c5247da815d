"""Detects a hung trainer, by the progress file that it writes (tpulm.runtime.watchdog), and collects its threads' stacks.

For Python 3.8 and newer.
"""

import collections
import contextlib
import json
import signal
import time
from pathlib import Path

HANG_SECONDS = 600.0  # without a new step, at least
STEPS = 20  # typical step times that a step may take
SLOW_SECONDS = 3600.0  # without any progress before the first step and in other stages, at least: some report little
SLOWER = 6  # … and this many times what a step may take
STACKS_SECONDS = 10.0  # until a trainer that was asked for its stacks counts as frozen
TASKS = 100  # threads whose kernel stacks are read


class HangDetector:
    """Watches the trainer's reports. Silence is measured by this process's clock, not the trainer's."""

    def __init__(self, path, hang_seconds=None, clock=time.monotonic):
        self._path, self._hang_seconds, self._clock = path, hang_seconds, clock
        self._last, self._since = {}, clock()
        self._seconds = collections.deque(maxlen=99)  # per step, as seen between two looks
        self._stepped = False  # whether this trainer has made a step

    @property
    def stage(self):
        return self._last.get("stage", "start")

    @property
    def step(self):
        """The newest step; None before training."""
        return self._last.get("step")

    @property
    def limit(self):
        """Seconds that may pass without a new report."""
        typical = sorted(self._seconds)[len(self._seconds) // 2] if self._seconds else 0.0
        limit = self._hang_seconds or max(HANG_SECONDS, STEPS * typical)
        return limit if self.stage == "train" and self._stepped else max(SLOW_SECONDS, SLOWER * limit)

    def check(self):
        """The seconds without a new report if they exceed the limit, else None."""
        beat, before = self._read(), self._last
        if beat and beat != before:
            training = beat["stage"] == before.get("stage") == "train"
            steps = (beat["step"] or 0) - (before["step"] or 0) if training else 0
            if steps > 0:
                self._seconds.append((beat["time"] - before["time"]) / steps)
                self._stepped = True
            self._last = beat
            if steps or not training:  # while it trains, steps alone count
                self._since = self._clock()
        silent = self._clock() - self._since
        return silent if silent > self.limit else None

    def _read(self):
        """None if the file is missing or half-written."""
        try:
            content = self._path.read_bytes()
            if content == self._path.read_bytes():  # else it was being written
                beat = json.loads(content)
                return beat if {"stage", "step", "time"} <= set(beat) else None
        except (OSError, ValueError, TypeError):
            pass
        return None

    def why(self, seconds):
        what = f"no step after {self.step}" if self.stage == "train" else f"nothing new in the stage '{self.stage}'"
        return f"{what} for {seconds:.0f} s"


def stacks(process, path):
    """The stacks of a process's threads, as text: as the kernel sees them, and Python's, which a frozen process cannot report.

    The process opens `path` when it starts to handle the signal, which would end it before.
    """
    stack = kernel_view(process.pid)
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        process.send_signal(signal.SIGUSR1)
        until, before = time.monotonic() + STACKS_SECONDS, size
        while time.monotonic() < until and (size == before or size != path.stat().st_size):
            size = path.stat().st_size
            time.sleep(0.3)
        stack += "\n" + (
            path.read_text(errors="replace")[before:] or "The process did not answer: it is frozen, or starting.\n"
        )
    return stack


def kernel_view(pid):
    """A line for each thread, with its kernel stack if this user may see it."""
    lines = [f"Process {pid}, as the kernel sees its threads:"]
    with contextlib.suppress(OSError):
        for folder in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))[:TASKS]:
            parts = []
            for name in ("comm", "stat", "wchan", "stack"):
                with contextlib.suppress(OSError):
                    text = (folder / name).read_text(errors="replace").strip()
                    parts.append("state " + text.rpartition(") ")[2][:1] if name == "stat" else f"{name} {text}")
            lines.append(f"  {folder.name}: " + ", ".join(parts))
    return "\n".join(lines) + "\n"
