"""kill -9 in the third epoch: the same command goes on, and scores and weights are equal bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from task_examples import examples_of, write_jsonl

import tpulm

SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16}
EVERY_STEP = {"checkpoint": {"every_steps": 1}}  # so that it goes on in the middle of an epoch
KILLED = """
import json, os, signal, sys
import tpulm
from tpulm.progress import Silent

class KillAt(Silent):
    steps = 0
    def advance(self, amount):
        self.steps += amount == 1
        if self.steps == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

tpulm.finetune(progress=KillAt(), columns=tpulm.Columns(negative=sys.argv[3] or None), **json.loads(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["qa", "retrieve"])  # in windows of texts; with negative texts
def test_a_killed_fine_tuning_ends_as_if_nothing_had_happened(task: str, encoder: Path, tmp_path: Path) -> None:
    for name, count, seed in (("train", 64, 0), ("dev", 32, 1)):
        write_jsonl(tmp_path / f"{name}.jsonl", task, examples_of(task, count, seed=seed))
    negative = "negative" if task == "retrieve" else None
    arguments: dict[str, Any] = {
        "model": str(encoder),
        "train": str(tmp_path / "train.jsonl"),
        "dev": str(tmp_path / "dev.jsonl"),
    }
    arguments |= {"output": str(tmp_path / "killed"), "task": task, **SETTINGS, **EVERY_STEP}
    command = [sys.executable, "-c", KILLED, "11", json.dumps(arguments), negative or ""]
    killed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "finetune.json").exists()
    columns = tpulm.Columns(negative=negative)
    again = tpulm.finetune(**arguments, columns=columns)
    arguments["output"] = str(tmp_path / "whole")
    whole = tpulm.finetune(**arguments, columns=columns)
    assert not again.nothing_to_do and len(whole.seeds[0].history) == 4
    assert (again.seeds[0].dev, again.seeds[0].history) == (whole.seeds[0].dev, whole.seeds[0].history)
    left, right = (Path(one.output, "model.safetensors").read_bytes() for one in (again, whole))
    assert left == right
    assert tpulm.finetune(**arguments, columns=columns).nothing_to_do
