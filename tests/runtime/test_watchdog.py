"""What a process tells a watchdog outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpulm.runtime import watchdog


@pytest.fixture
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this process reports into."""
    path = tmp_path / "progress"
    monkeypatch.setenv("TPULM_PROGRESS_FILE", str(path))
    for name in ("_file", "_stage", "_step"):
        monkeypatch.setattr(watchdog, name, getattr(watchdog, name))
    watchdog.begin()
    return path


def test_what_is_reported(progress_file: Path):
    assert json.loads(progress_file.read_text())["stage"] == "start"
    watchdog.report("train", 1_000_000)
    long = json.loads(progress_file.read_text())
    assert (long["stage"], long["step"]) == ("train", 1_000_000) and abs(long["time"] - time.time()) < 60
    watchdog.report("evaluate")
    watchdog.report()
    found = json.loads(progress_file.read_text())
    assert (found["stage"], found["step"]) == ("evaluate", 1_000_000) and found["time"] >= long["time"]
    assert progress_file.stat().st_size == watchdog.FILE_BYTES


def test_nobody_watches(user_environment: dict[str, str], tmp_path: Path):
    """Then nothing is written, and a signal has the effect that it always had."""
    code = "import os, signal\nfrom tpulm.runtime import watchdog\nwatchdog.begin()\nwatchdog.report('train', 1)\n"
    code += "os.kill(os.getpid(), signal.SIGUSR1)"
    done = subprocess.run([sys.executable, "-c", code], env=user_environment, cwd=tmp_path, check=False)
    assert done.returncode == -10 and not list(tmp_path.iterdir())
