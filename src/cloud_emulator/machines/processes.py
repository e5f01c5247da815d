"""The processes of a machine, wherever they hid: below its guardian, or with its mark in their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from cloud_emulator.machines.guardian import descendants

MARK = "TPULM_EMULATED_MACHINE"
END_SECONDS = 20.0


def members(guardian: int | None, mark: str) -> set[int]:
    """All but the guardian; None where it is gone, so that only the mark tells."""
    return set(_marked(mark)) if guardian is None else set(descendants(guardian))


def _marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}\0".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                if wanted in (entry / "environ").read_bytes() and _lives(entry):
                    found.append(int(entry.name))
    return found


def _lives(entry: Path) -> bool:
    return _state(entry) != b"Z"


def _state(entry: Path) -> bytes:
    """One letter, as ps shows it."""
    return (entry / "stat").read_bytes().rpartition(b") ")[2][:1]


def send(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def stop(guardian: int, mark: str) -> None:
    """Stop all without ending them, also those that were begun meanwhile."""
    give_up_at = time.monotonic() + END_SECONDS
    while left := {process for process in members(guardian, mark) if _runs(process)}:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"processes {sorted(left)} of an emulated machine cannot be stopped")
        send(left, signal.SIGSTOP)
        time.sleep(0.002)


def _runs(process: int) -> bool:
    try:
        return _state(Path("/proc") / str(process)) not in (b"T", b"t", b"Z")
    except OSError:
        return False


def end(guardian: int, mark: str) -> None:
    """Kill all but the guardian, which goes on adopting orphans meanwhile. Raises RuntimeError where some do not die."""
    give_up_at = time.monotonic() + END_SECONDS
    while left := {*members(guardian, mark)} or {*members(None, mark)} - {guardian}:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"processes {sorted(left)} of an emulated machine cannot be killed")
        send(left, signal.SIGKILL)
        time.sleep(0.002)
