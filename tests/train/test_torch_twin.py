"""Whole trainings, step by step, against transformers' models under torch (benchmarks/learning.py, arms E and F)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import tpulm
from toy_runs import write_corpus


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("recipe", "optimizer"), [("laptop-modern", "adamw"), ("laptop-modern", "muon"), ("laptop-bert", "adamw")]
)
def test_transformers_has_the_same_losses(recipe: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """laptop-modern has two phases: next tokens, then masked ones."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    learning: Any = importlib.import_module("learning")
    learning_torch: Any = importlib.import_module("learning_torch")

    changes = {
        "corpus.sources": [str(write_corpus(tmp_path / "corpus.txt.gz"))],
        "corpus.holdout_fraction": 0.1,
        "tokenizer.vocab_size": 60,
        "model.num_layers": 2,
        "model.hidden_size": 32,
        "model.num_heads": 2,
        "model.intermediate_size": 48,
        "train.steps": 12,
        "train.batch_size": 4,
        "train.log_every_steps": 1,
        "train.compute_dtype": "float32",
        "train.optimizer.name": optimizer,
        "train.optimizer.learning_rate": 1.5e-3,
        "train.optimizer.warmup_steps": 2,
    }
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
