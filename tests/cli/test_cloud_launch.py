"""`tpulm cloud launch`, `attach`, `stop` and `rehearse` as a user types them, against the emulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from test_pipeline import write_corpus
from tpulm.emulator import Emulator

RUN = """
name = "toy"
[corpus]
sources = ["corpus.txt.gz"]
holdout_fraction = 0.1
[tokenizer]
vocab_size = 60
[data]
sequence_length = 32
rows = "packed"
part_bytes = 10_000
[model]
num_layers = 1
hidden_size = 32
num_heads = 2
intermediate_size = 64
max_positions = 32
[train]
steps = 2000
batch_size = 8
log_every_steps = 10
[train.optimizer]
warmup_steps = 20
"""
WHERE = ("--accelerator", "v3-8", "--bucket", "runs", "--zone", "us-central1-a")
Tpulm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "toy.toml").write_text(RUN)
    write_corpus(tmp_path / "corpus.txt.gz")
    return tmp_path


@pytest.fixture
def tpulm(gcs: Emulator, place: Path, user_environment: dict[str, str]) -> Tpulm:
    environment = {**os.environ, **user_environment, **gcs.environment}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tpulm", *arguments]
        return subprocess.run(command, cwd=place, env={**environment, **more}, capture_output=True, text=True, check=False)

    return run


def test_nothing_is_launched_without_a_yes(tpulm: Tpulm, gcs: Emulator) -> None:
    done = tpulm("cloud", "launch", "toy.toml", *WHERE, "--no-plan")
    assert (done.returncode, gcs.tpu.nodes()) == (2, {})
    assert "--yes launches without asking" in done.stderr and "no budget" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--accelerator", "v3-8"), 2, "--bucket"),
        (("--bucket", "runs"), 2, "--accelerator"),
        ((*WHERE[:4], "--zone", "us-east1-d"), 4, "v3-8 is not offered to tpulm-emulator in us-east1-d"),
        ((*WHERE, "--workdir", "here"), 2, "is on this machine"),
        ((*WHERE, "--project", "somebody-elses"), 4, "somebody-elses"),
        ((*WHERE, "--prepare-on-tpu"), 2, "corpus.txt.gz is on this machine"),
        ((*WHERE, "--bucket", "nowhere-to-be-found"), 2, "--bucket is given 2 times"),
    ],
)
def test_what_cannot_be_launched(tpulm: Tpulm, gcs: Emulator, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = tpulm("cloud", "launch", "toy.toml", *arguments, "--no-plan", "--yes")
    assert done.returncode == code, done.stderr
    assert message in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert gcs.tpu.nodes() == {}


@pytest.mark.parametrize("command", ["attach", "stop"])
def test_there_must_be_a_run(tpulm: Tpulm, command: str) -> None:
    done = tpulm("cloud", command, "--workdir", "gs://runs/nothing")
    assert done.returncode == 2 and "'tpulm cloud launch' begins one" in done.stderr


@pytest.mark.slow
def test_launched_and_launched_again(tpulm: Tpulm, gcs: Emulator) -> None:
    gcs.tpu.set(create_seconds=0.1, delete_seconds=0.05)
    assert tpulm("cloud", "setup", *WHERE, "--yes").returncode == 0
    done = tpulm("cloud", "launch", "toy.toml", *WHERE, "--no-plan", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    assert (job["status"], job["attempt"], job["node"]) == ("done", 1, None)
    assert (gcs.tpu.nodes(), gcs.tpu.queued_resources()) == ({}, {})
    again = tpulm("cloud", "launch", "toy.toml", *WHERE, "--no-plan", "--yes")
    assert again.returncode == 0 and "gs://runs/toy/export" in again.stderr
    assert tpulm("cloud", "attach", "--workdir", "gs://runs/toy").returncode == 0


@pytest.mark.slow
def test_a_rehearsal_exports_what_a_local_run_does(tpulm: Tpulm, place: Path) -> None:
    done = tpulm("cloud", "rehearse", "toy.toml", "--preempt", "3", "--to", "rehearsed", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["interruptions"], told["left"]) == ("done", 3, {"nodes": 0, "queued_resources": 0})
    assert told["endings"][-1] == "done" and told["attempts"] == 4
    assert tpulm("run", "toy.toml", "--workdir", "w").returncode == 0
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (place / "rehearsed" / name).read_bytes() == (place / "w" / "export" / name).read_bytes(), name
