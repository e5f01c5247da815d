"""The memory of a process and all that descend from it."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class PeakMemory:
    """The largest sum of proportional set sizes over a process and its descendants, sampled from /proc ten times a second."""

    def __init__(self, pid: int):
        self._pid = pid
        self._peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._stopped.wait(0.1):
            self._peak = max(self._peak, sum(map(_pss, _tree(self._pid))))


def _tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _tree(int(child))
    return found


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
