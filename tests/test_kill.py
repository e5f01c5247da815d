"""kill -9 at random moments, Ctrl-C, SIGTERM and SIGHUP: the same command continues and computes the same numbers."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from toy_runs import outcome, write_corpus

# What must exist before each kill, so that every stage is hit; a random delay follows.
STAGES = ["run.json", "corpus", "corpus/manifest.json", "tokenizer/manifest.json"]
STAGES += ["dataset/inputs.json", "dataset/train/part-00001", "dataset/manifest.json"]
STAGES += ["metrics/0001.jsonl", "checkpoints/20", "checkpoints/80", "results/train.json", "results/evaluation.json"]

RUN_FILE = """
corpus = {sources = ["corpus.txt.gz"], holdout_fraction = 0.02}
tokenizer = {vocab_size = 60, lowercase = true}
data = {sequence_length = 64, rows = "packed", part_bytes = 100_000}
model = {num_layers = 1, hidden_size = 64, num_heads = 2, intermediate_size = 128, max_positions = 64}
[train]
steps = 120
batch_size = 16
log_every_steps = 5
evaluate_every_steps = 40
optimizer = {learning_rate = 1e-3, warmup_steps = 20}
checkpoint.every_steps = 20
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kill")
    (root / "run.toml").write_text(RUN_FILE)
    write_corpus(root / "corpus.txt.gz", documents=6_000)
    return root


def start(folder: Path, workdir: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """In a process group of its own, as a shell would. It computes for longer than it compiles, so XLA optimizes."""
    environment = {name: value for name, value in environment.items() if name != "XLA_FLAGS"}
    log = (folder / f"{workdir}.log").open("ab")
    command = [sys.executable, "-m", "tpulm", "run", "run.toml", "--workdir", workdir]
    with log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.fixture
def whole(folder: Path, user_environment: dict[str, str]) -> Any:
    """An uninterrupted run, made once."""
    if not (folder / "whole" / "export" / "model.safetensors").exists():
        assert start(folder, "whole", user_environment).wait(600) == 0, (folder / "whole.log").read_text()
    return outcome(folder / "whole")


@pytest.mark.slow
def test_killed_in_every_stage_equals_uninterrupted(folder: Path, whole: Any, user_environment: dict[str, str]) -> None:
    rng = random.Random(1)
    killed = 0
    for stage in STAGES:
        process = start(folder, "killed", user_environment)
        while not (folder / "killed" / stage).exists() and process.poll() is None:
            time.sleep(0.005)
        try:
            process.wait(rng.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)  # the process alone: its workers must notice by themselves
            process.wait()
            killed += 1
    assert start(folder, "killed", user_environment).wait(600) == 0, (folder / "killed.log").read_text()
    assert killed >= len(STAGES) - 2
    assert outcome(folder / "killed") == whole


@pytest.mark.slow
def test_a_stop_saves_and_exits_75(folder: Path, whole: Any, user_environment: dict[str, str]) -> None:
    """While data is prepared, with its workers, as a closed terminal does it; and twice in training."""
    workdir, log = folder / "stopped", folder / "stopped.log"
    for attempt, (number, there) in enumerate(
        [(signal.SIGHUP, "corpus"), (signal.SIGINT, "metrics/0001.jsonl"), (signal.SIGTERM, "metrics/0002.jsonl")]
    ):
        process = start(folder, "stopped", user_environment)
        while not ((workdir / there).exists() and (workdir / there).stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, number) if attempt == 0 else process.send_signal(number)
        assert process.wait(120) == 75, log.read_text()
    assert len(re.findall("stopped: by .* after saving step", log.read_text())) == 2
    assert start(folder, "stopped", user_environment).wait(600) == 0
    assert outcome(workdir) == whole
