"""A trainer that makes no steps: when that counts, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cloud_rig import WORKDIR_PATH
from vm_rig import Cloud, cloud, machines, until

from tpulm import storage
from tpulm.cloud.control import Control
from tpulm.cloud.vm import hang

__all__ = ["cloud", "machines"]


class Trainer:
    """Says what it does by a clock that begins elsewhere; the watch looks every five seconds."""

    def __init__(self, path: Path, hang_seconds: float | None = None):
        self.path, self.now = path, 0.0
        self.watch = hang.HangDetector(path, hang_seconds, lambda: self.now)

    def waits(self, seconds: float, stage: str, step: int | None = None) -> float | None:
        """So long until it says that; what the watch finds then."""
        self.now += seconds
        self.path.write_text(json.dumps({"stage": stage, "step": step, "time": self.now + 1e9}).ljust(160))
        return self.watch.check()

    def trains(self, steps: int, seconds: float) -> None:
        """After so many steps more, each of which takes so long."""
        for step in range(1 + (self.watch.step or 0), 1 + (self.watch.step or 0) + steps):
            assert self.waits(seconds, "train", step) is None

    def hangs_after(self, seconds: float) -> bool:
        """Nothing more is said: whether it counts as hanging after so long, and not before."""
        begun = self.now
        while self.now < begun + seconds - 5:
            self.now += 5
            if self.watch.check() is not None:
                return False
        self.now = begun + seconds + 1
        return self.watch.check() is not None


@pytest.mark.parametrize(
    ("hang_seconds", "step_seconds", "limit"),
    [(None, 0.5, 600.0), (None, 29.0, 600.0), (None, 60.0, 1200.0), (100.0, 60.0, 100.0), (0.0, 60.0, 1200.0)],
)
def test_how_long_a_step_may_take(tmp_path: Path, hang_seconds: float | None, step_seconds: float, limit: float):
    trainer = Trainer(tmp_path / "progress", hang_seconds)
    trainer.waits(0, "train", 0)
    trainer.trains(5, step_seconds)
    assert trainer.hangs_after(limit)
    assert trainer.watch.why(limit) == f"no step after 5 for {limit:.0f} s"


@pytest.mark.parametrize("stage", ["compile", "evaluate", ""])
def test_what_is_no_step_may_take_longer(tmp_path: Path, stage: str):
    trainer = Trainer(tmp_path / "progress")
    if stage:  # else it never began
        assert trainer.waits(0, stage) is None
    assert trainer.hangs_after(3600.0)
    assert trainer.watch.why(3600.0) == f"nothing new in the stage '{stage or 'start'}' for 3600 s"


def test_the_first_step_may_take_longer(tmp_path: Path):
    trainer = Trainer(tmp_path / "progress", hang_seconds=1000.0)
    assert trainer.waits(0, "train", 400) is None
    assert trainer.hangs_after(6000.0) and trainer.watch.step == 400


def test_signs_of_life_count_while_there_are_no_steps(tmp_path: Path):
    trainer = Trainer(tmp_path / "progress")
    for _ in range(10):
        assert trainer.waits(3000, "dataset") is None
    assert trainer.waits(0, "train", 0) is None
    trainer.trains(3, 1.0)
    trainer.trains(1, 590.0)  # not typical
    assert trainer.waits(0, "save", 4) is None
    trainer.now += 3000
    assert trainer.watch.check() is None and trainer.waits(0, "train", 4) is None, "measured apart"
    rows = [trainer.waits(250, "train", 4) for _ in range(3)]  # that are read, say, without a step
    assert rows == [None, None, 750.0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b'{"stage": "train"}', b"\xff"])
def test_what_cannot_be_read_is_not_there(tmp_path: Path, content: bytes):
    trainer = Trainer(tmp_path / "progress")
    trainer.path.write_bytes(content)
    assert trainer.watch.check() is None and trainer.watch.step is None


# -- stacks -------------------------------------------------------------------------------------------------------------

STUCK = """
import ctypes, threading, time
from tpulm.runtime import watchdog
watchdog.begin()
def waits_elsewhere(): time.sleep(600)
threading.Thread(target=waits_elsewhere, daemon=True).start()
def stuck_in_c():
    while True: ctypes.PyDLL(None).pause()  # with Python's lock
watchdog.report("train", 7)
stuck_in_c()
"""


def test_the_stacks_of_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that is frozen is not waited for."""
    progress, path = tmp_path / "progress", tmp_path / "stacks"
    paths = {"TPULM_PROGRESS_FILE": str(progress), "TPULM_STACKS_FILE": str(path)}
    process = subprocess.Popen([sys.executable, "-c", STUCK], env={**os.environ, **paths})
    try:
        until(lambda: progress.exists() and b"train" in progress.read_bytes())
        found = hang.stacks(process, path)
        assert "in stuck_in_c" in found and "in waits_elsewhere" in found
        assert f"Process {process.pid}, as the kernel sees its threads:" in found and process.poll() is None
        monkeypatch.setattr(hang, "STACKS_SECONDS", 0.2)
        process.send_signal(signal.SIGSTOP)
        until(lambda: "state T" in hang.kernel_view(process.pid))
        found = hang.stacks(process, path)
        assert "did not answer" in found
        assert f"  {process.pid}: comm python, state T" in found and found.count(": comm python, ") == 2, found
    finally:
        process.kill()
        process.wait()


def test_a_process_that_does_not_listen_yet_is_not_ended(tmp_path: Path):
    process = subprocess.Popen(["sleep", "60"])
    try:
        until(lambda: "state S" in hang.stacks(process, tmp_path / "stacks"))
        time.sleep(0.2)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


# -- the whole ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trainer_that_hangs(cloud: Cloud) -> None:
    """Its stacks lie in the bucket, and its end says where."""
    cloud.launch({"hangs_at": 3, "seconds": 0.3}, hang_minutes=2 / 60)
    attempt = Control(WORKDIR_PATH).attempt(1)
    cloud.supervise(lambda: storage.exists(attempt / "end-0.json"))
    Control(WORKDIR_PATH).change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    end = storage.read_json(attempt / "end-0.json")
    assert (end["exit_code"], end["failure"], end["step"]) == (1, "Hung", 3)
    assert end["message"].endswith(" gs://runs/toy/cloud/attempts/1/stacks-0.txt")
    assert "in hang" in storage.read_text(attempt / "stacks-0.txt")
    beat = storage.read_json(attempt / "beat-0.json")
    assert (beat["state"], beat["stage"], beat["step"]) == ("training", "train", 3)
    assert [attempt.ending for attempt in cloud.supervise().attempts] == ["hung"]
