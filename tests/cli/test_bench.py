"""`tpulm bench` as a user runs it: the table, killed and continued, and what is typed wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import invoke
from encoders import build_encoder, write_ynat
from waiting import until

SETTINGS = ["--seeds", "2", "--learning-rates", "5e-3", "--set", "epochs=2", "--set", "max_length=16", "--set", "batch_size=16"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an encoder and KLUE's YNAT."""
    build_encoder("bert", tmp_path)
    write_ynat(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_killed_and_run_again_the_table_is_the_same(place: Path, user_environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tpulm", "bench", "klue", ".", "--model", "bert", *SETTINGS, "--json"]

    def run(workdir: str) -> dict[str, object]:
        done = subprocess.run([*command, "-w", workdir], env=user_environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for said in ("YNAT, macro F1", "85.73", "not supported", "missing", "Epochs and learning rates are chosen on a part"):
            assert said in done.stderr
        return json.loads(done.stdout)["tasks"]["ynat"]

    whole = run("whole")
    shown = invoke(*command[3:-1], "--workdir", "whole")
    assert shown.returncode == 0 and "YNAT" in shown.stdout and not shown.stdout.startswith("{")
    with subprocess.Popen(
        [*command, "-w", "killed"], env=user_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as other:
        until((place / "killed" / "ynat" / "lr-0.005" / "finetuning" / "seed-1").exists, other.poll, seconds=120)
        other.kill()
    assert run("killed") == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["klue", ".", "--tasks", "nil"], "'nli'"),
        (["klue", ".", "--learning-rates", "5e5"], "--learning-rates 5e5"),
        (["klue", ".", "--set", "epoch=1"], "'epoch'"),
        (["klue", ".", "--encoding", "cp94"], "'cp949'"),
        (["pairs", ".", "--seeds", "1", "--set", "epochs=1"], "--seeds"),
        (["klue", "nowhere"], "nowhere"),
    ],
)
def test_what_is_typed_wrongly_is_said(place: Path, options: list[str], message: str) -> None:
    done = invoke("bench", *options, "--model", "bert", "--workdir", "w")
    assert done.returncode == 2 and message in done.stderr
    assert not (place / "w").exists()
