"""Ctrl-C, SIGTERM and SIGHUP become a flag, a second Ctrl-C stops at once, and everything is put back afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tpulm.errors import Stopped
from tpulm.runtime import interrupt


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C"), (signal.SIGHUP, "SIGHUP")]
)
def test_a_signal_sets_the_flag(number: signal.Signals, name: str):
    before = [signal.getsignal(number) for number in interrupt.SIGNALS]
    with pytest.raises(Stopped, match=f"{name}; parts are kept") as raised, interrupt.handled():
        interrupt.check()
        for _ in range(1 if number == signal.SIGINT else 2):  # a second one changes nothing, but Ctrl-C
            signal.raise_signal(number)
        assert interrupt.requested() and interrupt.reason() == name
        interrupt.check("parts are kept")
    assert raised.value.exit_code == 75
    assert not interrupt.requested() and interrupt.reason() == ""
    assert [signal.getsignal(number) for number in interrupt.SIGNALS] == before


def test_a_second_ctrl_c_does_what_the_first_would_have_done():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interrupt.handled():
            with interrupt.handled():
                signal.raise_signal(signal.SIGINT)
            assert interrupt.requested() and not seen, "the end of an inner block keeps the request"
            with pytest.raises(KeyboardInterrupt):  # at once, also where the handler of before has not ended the process
                signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_nothing_is_installed():
    def handler() -> Any:
        with interrupt.handled():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handler).result() == signal.getsignal(signal.SIGTERM)


def test_under_nohup_a_closed_terminal_changes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt.handled():
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


IN_TERMINAL = """
import os, sys, time
from tpulm.runtime import interrupt

with interrupt.handled():
    print("ready", flush=True)
    while not interrupt.requested():
        time.sleep(0.01)
    for stream in (sys.stdout, sys.stderr):
        print("saving", file=stream, flush=True)
    open(sys.argv[1], "w").write(interrupt.reason())
"""

TERMINAL = """
import os, pty, sys

process, terminal = pty.fork()
if process == 0:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
os.read(terminal, 100)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_what_is_said_after_the_terminal_was_closed_does_no_harm(tmp_path: Path, user_environment: dict[str, str]):
    script, saved = tmp_path / "script.py", tmp_path / "saved"
    script.write_text(IN_TERMINAL)
    command = [sys.executable, "-c", TERMINAL, str(script), str(saved)]
    assert subprocess.run(command, env=user_environment, check=False, timeout=60).returncode == 0
    assert saved.read_text() == "SIGHUP"
