"""What the trainers of a run print, as their agents upload it: each time the last few megabytes anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePath

from tpulm import storage
from tpulm.cloud.control import Control
from tpulm.cloud.job import Job
from tpulm.errors import StorageError

_ANCHOR_BYTES = 64
_TRIES = 1000
_SILENT_SECONDS = 60.0  # without a line, before that is told
_UNREADABLE = b"\xef\xbf\xbd"  # half a letter, at the end of an upload; the next one has it whole


def log_path(control: Control, attempt: int, worker: int) -> PurePath:
    return control.attempt(attempt) / f"log-{worker}.txt"


def following(before: bytes, now: bytes) -> bytes | None:
    """What of `now` comes after `before`, of the same log later; None where the two do not overlap."""
    if now.startswith(before):
        return now[len(before) :]
    begin = now.find(b"\n") + 1  # the first line may be cut
    anchor = now[begin : begin + _ANCHOR_BYTES]
    at = before.find(anchor)
    for _ in range(_TRIES):
        if at < 0:
            return None
        rest = before[at:]
        if now.startswith(rest, begin):
            return now[begin + len(rest) :]
        at = before.find(anchor, at + 1)
    return None


@dataclass
class Tail:
    """One log, as it grows. `gaps` counts where something was lost between two readings."""

    path: PurePath
    gaps: int = 0
    _seen: bytes = b""
    _version: tuple[int, int] | None = field(default=None)

    def more(self) -> tuple[bytes, bool]:
        """What is new, and whether something before it is missing."""
        found = storage.info(self.path)
        if found is None or (found.size, found.modified_ns) == self._version:
            return b"", False
        content = storage.read_bytes(self.path).removesuffix(_UNREADABLE)
        new = following(self._seen, content)
        self._version, self._seen = (found.size, found.modified_ns), content
        if new is None:
            self.gaps += 1
            return content, True
        return new, False


def attempt_of(job: Job, number: int | None) -> int:
    """The attempt that is meant, by default the newest. Raises StorageError for one that there is not."""
    if job.attempt == 0:
        raise StorageError("no attempt has begun yet: there is no log" + (f" ({job.message})" if job.message else ""))
    if number is not None and not 1 <= number <= job.attempt:
        raise StorageError(f"there is no attempt {number}; there are 1 to {job.attempt}")
    return job.current if number is None else number


def follow(
    control: Control,
    worker: int,
    *,
    attempt: int | None = None,
    write: Callable[[bytes], None],
    tell: Callable[[str], None],
    pause_seconds: float = 5.0,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Print what is new until the run, or the one attempt that is named, is over; how often something was lost."""
    job = control.job()
    number, gaps = max(job.current, 1) if attempt is None else attempt_of(job, attempt), 0
    tail: Tail | None = None
    silent_since: float | None = time.monotonic()
    alone: bool | None = None
    while True:
        job = control.job()
        if job.attempt >= number and tail is None:
            tail = Tail(log_path(control, number, worker))
            where = _where(job, number)
            tell(f"attempt {number}{where}")
        if tail is not None:
            if silent_since is not None and time.monotonic() - silent_since > _SILENT_SECONDS:
                tell(f"nothing was heard of worker {worker} yet; workers count from 0")
                silent_since = None
            new, lost = tail.more()
            silent_since = None if new else silent_since
            if lost:
                gaps += 1
                tell("some of the log is lost here: it grew by more than is kept between two readings")
            write(new)
        ended = any(item.number == number for item in job.attempts)
        if ended and attempt is None and job.attempt > number:
            number, tail = number + 1, None
            continue
        if job.is_over or (ended and attempt is not None):
            return gaps
        if alone is not (alone := storage.holder(control.folder) is None) and alone:
            tell("nobody supervises this run; 'tpulm cloud attach' does")
        wait(pause_seconds)


def _where(job: Job, number: int) -> str:
    zones = {item.number: item.zone for item in job.attempts}
    if job.node is not None:
        zones[job.node.attempt] = job.node.zone
    return f" in {zones[number]}" if number in zones else ""
