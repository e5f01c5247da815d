"""Graceful stops: Ctrl-C, SIGTERM and a closed terminal set one flag, which long work polls between units of work.

A second Ctrl-C stops immediately. Work polls with `requested()`, or with `check()`, which raises `Stopped`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tpulm.errors import ConfigError, Stopped

SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}

_requested = threading.Event()
passed_on = threading.Event()  # set once the other hosts have been told of the request
_name = ""
_before: Any = signal.default_int_handler  # what Ctrl-C did outside of `handled`


def requested() -> bool:
    return _requested.is_set()


def check(what_is_safe: str = "finished work is kept") -> None:
    """Raise `Stopped` if a stop was requested; `what_is_safe` completes the message."""
    if _requested.is_set():
        raise Stopped(f"stopped by {_name}; {what_is_safe}. Run the same command again to continue.")


def sleep(seconds: float) -> None:
    """Like `time.sleep`, but no longer than until a stop is requested."""
    until = time.monotonic() + seconds  # no wait() on the event: the signal's handler, which sets it, would need its lock
    while not requested() and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, 0.2))


def request(name: str) -> None:
    """Request a stop from inside, as if by a signal of that name."""
    global _name
    _name = _name or name
    _requested.set()


def reason() -> str:
    """The name of the signal that requested the stop, or ""."""
    return _name


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Raise ConfigError with this message if the block uses more CPU time. Python's `re` checks for signals while it matches.
    Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise ConfigError(message)

    previous = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Inside the block SIGTERM, SIGHUP and Ctrl-C only set the flag, which the outermost such block clears at its end.

    An ignored SIGHUP stays ignored, as nohup needs. Does nothing outside the main thread.
    """
    global _name, _before
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    previous = {number: signal.signal(number, _on_signal) for number in SIGNALS.keys() - ignored}
    if previous[signal.SIGINT] is not _on_signal:
        _before = previous[signal.SIGINT]
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if _on_signal not in previous.values():
            _requested.clear()
            passed_on.clear()
            _name = ""


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _name
    if _requested.is_set() and number == signal.SIGINT:
        if callable(_before):
            _before(number, frame)
        raise KeyboardInterrupt
    if number == signal.SIGHUP:
        _detach_from_terminal()
    _name = SIGNALS[signal.Signals(number)]
    _requested.set()


def _detach_from_terminal() -> None:
    """Redirect output to a closed terminal to /dev/null: every write would fail, before anything is saved."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                os.dup2(nowhere, stream)
    os.close(nowhere)
