"""Whole trainings, step by step, against transformers' models under torch (benchmarks/learning.py, arms E and F)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import tpulm
from toy_runs import SMALL, write_corpus


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("recipe", "optimizer"), [("laptop-modern", "muon"), ("laptop-bert", "adamw")])
def test_transformers_has_the_same_losses(recipe: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """laptop-modern has two phases: next tokens, then masked ones."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    learning: Any = importlib.import_module("learning")
    learning_torch: Any = importlib.import_module("learning_torch")

    changes = {**SMALL, "model.num_layers": 2, "corpus.sources": [str(write_corpus(tmp_path / "corpus.txt.gz"))]}
    changes |= {"train.steps": 12, "train.log_every_steps": 1, "train.compute_dtype": "float32"}
    changes |= {"train.optimizer.name": optimizer, "train.optimizer.learning_rate": 1.5e-3}
    config = tpulm.load_config(recipe, changes)
    ours = [step.metrics["loss"] for step in tpulm.training_steps(config, tmp_path / "ours")]
    learning.write_batches(config, tmp_path / "theirs", tmp_path / "batches", steps=12)

    names = ("name", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm")
    same = {name: getattr(config.train.optimizer, name) for name in names}
    tokenizer = tmp_path / "theirs" / "tokenizer"
    twin = learning_torch.Twin(str(tokenizer), str(tmp_path / "batches"), learning_torch.Peer(**same), steps=12, seed=0)
    theirs = [twin.step() for _ in range(12)]
    assert len(ours) == 12
    assert theirs == pytest.approx(ours, abs=1e-5)
