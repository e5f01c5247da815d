"""`tpulm bench` as a user runs it: the table, and what is typed wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import invoke
from encoders import build_encoder, write_ynat

SETTINGS = ["--seeds", "2", "--learning-rates", "5e-3", "--set", "epochs=2", "--set", "max_length=16", "--set", "batch_size=16"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an encoder and KLUE's YNAT."""
    build_encoder("bert", tmp_path)
    write_ynat(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_benchmark_is_shown_as_a_table_and_as_json(place: Path) -> None:
    command = ["bench", "klue", ".", "--model", "bert", *SETTINGS, "--workdir", "w"]
    table, again = invoke(*command), invoke(*command, "--json")
    assert table.returncode == again.returncode == 0, table.stderr + again.stderr
    assert "YNAT" in table.stdout and not table.stdout.startswith("{")
    for said in ("YNAT, macro F1", "85.73", "not supported", "missing", "Epochs and learning rates are chosen on a part"):
        assert said in again.stderr
    assert "ynat" in json.loads(again.stdout)["tasks"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["klue", ".", "--tasks", "nil"], "'nli'"),
        (["klue", ".", "--learning-rates", "5e5"], "--learning-rates 5e5"),
        (["klue", ".", "--set", "epoch=1"], "'epoch'"),
        (["klue", ".", "--set", "learning_rate=1e-4"], "--learning-rates"),
        (["klue", ".", "--set", "seeds=1"], "--seeds"),
        (["klue", ".", "--set", "task=regression"], "--tasks"),
        (["klue", ".", "--set", "dev_fraction=0.2", "--select", "dev"], "leave it out"),
        (["klue", ".", "--encoding", "cp94"], "'cp949'"),
        (["pairs", ".", "--seeds", "1", "--set", "epochs=1"], "--seeds"),
        (["klue", "nowhere"], "nowhere"),
    ],
)
def test_what_is_typed_wrongly_is_said(place: Path, options: list[str], message: str) -> None:
    done = invoke("bench", *options, "--model", "bert", "--workdir", "w")
    assert done.returncode == 2 and message in done.stderr
    assert not (place / "w").exists()
