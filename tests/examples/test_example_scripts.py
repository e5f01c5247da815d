"""Each example does what its head comment says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import tpulm
from toy_runs import SMALL, write_corpus

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_fit_and_a_loop_of_ones_own_end_with_the_same_parameters(script, toy_run, labelled: Path, tmp_path: Path):
    arguments = [toy_run[1], "--train", labelled / "train.tsv", "--dev", labelled / "dev.tsv"]
    arguments += ["--text-column", "document", "--label-column", "animal", "--labels", "none", "cat"]
    arguments += ["--epochs", 6, "--batch-size", 16, "--learning-rate", 5e-3]
    fitted = script("finetune_fit.py", *arguments, "--output", tmp_path / "fitted", devices=2)
    looped = script("finetune_custom_loop.py", *arguments, "--output", tmp_path / "looped", devices=2)
    assert (tmp_path / "fitted" / "model.safetensors").read_bytes() == (tmp_path / "looped" / "model.safetensors").read_bytes()
    assert (tmp_path / "fitted" / "config.json").read_text() == (tmp_path / "looped" / "config.json").read_text()

    epochs = re.findall(r"^epoch \d+: .*dev accuracy.*$", fitted, re.MULTILINE)
    assert epochs == re.findall(r"^epoch \d+: .*dev accuracy.*$", looped, re.MULTILINE)
    kept = re.search(r"^kept: epoch (\d+), .*", fitted, re.MULTILINE)
    assert kept is not None and kept.group() in looped
    assert int(kept.group(1)) < len(epochs), "the best epoch is to be another than the last one, else this proves little"
    assert len(re.findall(r"^(none|cat)\t", fitted, re.MULTILINE)) == 5
    (answer,) = tpulm.classify(tpulm.load_model(tmp_path / "looped"), "the cat sat on a mat")
    assert answer.label == "cat"


@pytest.mark.slow
def test_pretraining_by_a_loop_of_ones_own_stops_where_it_is_told(script, tmp_path: Path):
    corpus = write_corpus(tmp_path / "corpus.txt.gz")
    toy = (f"{name}={value}" for name, value in {**SMALL, "train.steps": 6}.items())
    settings = [f'corpus.sources=["{corpus}"]', *toy]
    arguments = ["quickstart", tmp_path / "w", *(part for setting in settings for part in ("--set", setting))]
    printed = script("pretrain_custom_loop.py", *arguments, "--stop-after", 5)
    assert re.findall(r"^step (\d+): loss \d+\.\d+, ", printed, re.MULTILINE) == ["2", "4", "5"]
    again = script("pretrain_custom_loop.py", *arguments)  # the data is there; all steps of the run
    losses = re.findall(r"^step (\d+): (.*)$", again, re.MULTILINE)
    assert [step for step, _ in losses] == ["2", "4", "6"]
    assert losses[:2] == re.findall(r"^step (\d+): (.*)$", printed, re.MULTILINE)[:2]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_a_script_says_how_to_run_it(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert file.read_text(encoding="utf-8").count("\n") < 75
    monkeypatch.setattr("sys.argv", [str(file), "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(file), run_name="__main__")
    said = capsys.readouterr().out
    assert "usage:" in said and f"python examples/{file.name} " in said
