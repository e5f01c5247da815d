"""The emulator's clock, which can skip time, and the actions scheduled on it."""

from __future__ import annotations

import heapq
import sys
import threading
import time
import traceback
from collections.abc import Callable


class Clock:
    """Seconds since 1970: this machine's, and what was skipped. All actions run under `lock`, one after another."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._skipped_seconds = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def now(self) -> float:
        return time.time() + self._skipped_seconds

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run `action` in `seconds`, or at once if these are 0."""
        self.at(self.now() + seconds, action) if seconds > 0 else action()

    def at(self, when: float, action: Callable[[], object]) -> None:
        with self.lock:
            self._count += 1
            heapq.heappush(self._due, (when, self._count, action))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="emulator-clock", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def advance(self, seconds: float) -> None:
        """Skip time. Actions due in it run before this returns, each at its scheduled time."""
        with self.lock:
            until = self.now() + seconds
            while self._due and self._due[0][0] <= until:
                self._skipped_seconds += max(0.0, self._due[0][0] - self.now())
                self._do_next()
            self._skipped_seconds += max(0.0, until - self.now())
            self._changed.notify_all()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        with self.lock:
            while not self._closed:
                wait_seconds = self._due[0][0] - self.now() if self._due else threading.TIMEOUT_MAX
                if wait_seconds <= 0:
                    self._do_next()
                else:
                    self._changed.wait(min(wait_seconds, threading.TIMEOUT_MAX))

    def _do_next(self) -> None:
        _, _, action = heapq.heappop(self._due)
        try:
            action()
        except Exception:  # a bug in the emulator must not stop its clock
            traceback.print_exc(file=sys.stderr)
