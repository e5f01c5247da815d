"""The log of a run is printed once, though its end is uploaded again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cloud_rig import WORKDIR_PATH, attempt_of, job_of, node_of, running, write_job

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import status as logs
from tpulm.cloud.control import Control
from tpulm.errors import StorageError

LINES = [f"step {number}: loss {1000 / (number + 1):.3f}\n".encode() for number in range(2000)]


def upload(first: int, last: int, *, cut: int = 0) -> bytes:
    return b"".join(LINES[first:last])[cut:]


def test_what_follows():
    for before, now, new in (
        (b"", upload(0, 9), upload(0, 9)),
        (upload(0, 9), upload(0, 9), b""),
        (upload(0, 900), upload(0, 905), upload(900, 905)),
        (upload(0, 900), upload(300, 1200), upload(900, 1200)),
        (upload(0, 900), upload(300, 1200, cut=7), upload(900, 1200)),
        (upload(0, 900)[:-5], upload(300, 1200, cut=7), upload(899, 1200)[-5 - len(upload(900, 1200)) :]),
        (upload(0, 900), b"\xef\xbf\xbd" + upload(300, 1200, cut=3), upload(900, 1200)),
        (upload(0, 900), upload(900, 1500), None),
        (upload(0, 900), upload(1000, 1500), None),
        (b"same\n" * 500, b"same\n" * 300 + b"other\n", b"other\n"),
    ):
        assert logs.following(before, now) == new


def test_half_a_letter_is_printed_when_it_is_whole(gcs: Emulator):
    path = WORKDIR_PATH / "log"
    tail = logs.Tail(path)
    assert tail.more() == (b"", False)
    storage.write_atomic(path, "한".encode()[:2].decode("utf-8", "replace"))
    assert tail.more() == (b"", False)
    storage.write_atomic(path, "한\n")
    assert tail.more() == ("한\n".encode(), False)


def follow(control: Control, *steps: Callable[[], Any], **settings: int) -> tuple[bytes, list[str]]:
    """A log is followed while the steps happen, one at each pause: what was printed, and what was told, each loss as well."""
    waiting, written, told = list(steps), list[bytes](), list[str]()
    gaps = logs.follow(control, 0, write=written.append, log=told.append, wait=lambda _: waiting.pop(0)(), **settings)
    assert gaps == sum("lost" in line for line in told)
    return b"".join(written), told


def test_following_goes_across_attempts_to_the_end(gcs: Emulator):
    control = write_job(job_of(attempt=1, node=node_of(1)))
    first, second = logs.log_path(control, 1, 0), logs.log_path(control, 2, 0)
    storage.write_atomic(first, upload(0, 5))

    def next_attempt() -> None:
        storage.write_atomic(first, upload(2, 12))
        control.change(lambda job: running())
        storage.write_atomic(second, upload(20, 25))

    def done() -> None:
        storage.write_atomic(second, upload(20, 30))
        control.change(lambda job: job.model_copy(update={"node": None, "status": "done"}))

    written, told = follow(control, lambda: storage.write_atomic(first, upload(0, 9)), next_attempt, lambda: None, done)
    assert written == upload(0, 12) + upload(20, 30) and not any("lost" in line for line in told)
    assert told[0] == "attempt 1 in us-central1-a" and "attempt 2 in us-central1-a" in told
    assert sum("tpulm cloud supervise" in line for line in told) == 1
    assert follow(control, attempt=1)[0] == upload(2, 12)


def test_what_is_lost_is_counted(gcs: Emulator):
    control = write_job(job_of(attempt=1, node=node_of(1)))
    path = logs.log_path(control, 1, 0)
    storage.write_atomic(path, upload(0, 5))
    over = job_of(attempt=1, status="failed", attempts=(attempt_of(1),))
    with storage.held(control.folder):
        written, told = follow(
            control, lambda: storage.write_atomic(path, upload(700, 900)), lambda: control.change(lambda job: over)
        )
    assert written == upload(0, 5) + upload(700, 900)
    assert sum("lost" in line for line in told) == 1 and not any("tpulm cloud supervise" in line for line in told)


def test_which_attempt(gcs: Emulator):
    assert logs.attempt_of(running(), None) == 2 and logs.attempt_of(running(), 1) == 1
    with pytest.raises(StorageError, match=r"attempt 3; .*1 to 2"):
        logs.attempt_of(running(), 3)
    with pytest.raises(StorageError, match="no attempt"):
        logs.attempt_of(job_of(), None)
