"""A model with another vocabulary: which rows each of its tokens begins with, by hand, and a run that goes on with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toy_runs import Notes, toy_config, write_corpus
from tpulm import config, pipeline, tokenization
from tpulm.convert.continuing import starting_point
from tpulm.convert.huggingface import load_model
from tpulm.convert.new_vocabulary import new_vocabulary
from tpulm.errors import ConfigError
from tpulm.tokenization import Tokenization

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(folder: Path, name: str, *tokens: str, special: list[str] = SPECIAL) -> Tokenization:
    path = folder / name
    path.write_text("\n".join([*special, *tokens]) + "\n", encoding="utf-8")
    return tokenization.load(path)


def test_tokens_begin_with_what_they_are_in_the_old_vocabulary(tmp_path: Path) -> None:
    old = vocabulary(tmp_path, "old.txt", "film", "##s", "a", "##b", "b", "##film")  # 5 to 10
    roles = ["[UNK]", "[PAD]", "[SEP]", "[CLS]", "[MASK]"]  # in other places than there
    new = vocabulary(tmp_path, "new.txt", "##s", "films", "##filmb", "漢", "film", special=roles)
    found = new_vocabulary(old, new)
    assert found.sources == [(1,), (0,), (3,), (2,), (4,), (6,), (5, 6), (10, 8), (), (5,)]
    assert (found.kept, found.composed) == (7, 2)
    assert (
        "7 of 10 tokens keep their weights, 2 begin as the mean of their pieces in the old one, and 1 as the mean of all"
        in str(found)
    )
    weights = np.arange(32, dtype=np.float32).reshape(16, 2)  # its rows 11 to 15 stand for no token
    rows = found.rows(weights, 12)
    np.testing.assert_array_equal(rows[5], weights[6])
    np.testing.assert_array_equal(rows[6], (weights[5] + weights[6]) / 2)
    np.testing.assert_array_equal(rows[8], weights[5:11].mean(axis=0))
    assert not rows[10:].any() and rows.shape == (12, 2)
    biases = found.rows(weights[:, 0], 12)
    assert biases.shape == (12,) and biases[0] == weights[1, 0]


def test_the_same_vocabulary_moves_nothing(tmp_path: Path) -> None:
    old = vocabulary(tmp_path, "old.txt", "film", "##s", "a")
    weights = np.random.default_rng(0).normal(size=(8, 3))
    np.testing.assert_array_equal(new_vocabulary(old, old).rows(weights, 8), weights)


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no token in common"):
        new_vocabulary(vocabulary(tmp_path, "old.txt", "a"), vocabulary(tmp_path, "new.txt", "b"))


@pytest.mark.slow
def test_a_run_goes_on_with_another_vocabulary(tmp_path: Path) -> None:
    """Its embeddings begin with those of the model, so the first loss is far below that of a model with random ones."""
    corpus = write_corpus(tmp_path / "corpus.txt.gz")
    train = {"steps": 60, "batch_size": 16, "optimizer": {"learning_rate": 1e-2, "warmup_steps": 5}}
    first = toy_config(corpus, train=train)
    pipeline.run(first, tmp_path / "first")
    old = load_model(tmp_path / "first").tokenization
    words = [token for token in old.vocabulary() if token not in SPECIAL]
    vocabulary(tmp_path, "new.txt", *reversed(words), "catdog", special=SPECIAL)
    (tmp_path / "run.toml").write_text(
        f'[corpus]\nsources = ["{corpus}"]\nholdout_fraction = 0.1\n[data]\nsequence_length = 32\nrows = "packed"\n'
    )
    settings = [f"tokenizer.path={tmp_path / 'new.txt'}", "train.steps=2", "train.batch_size=8", "train.log_every_steps=1"]
    progress, losses = Notes(), {}
    for name, init in (("on", starting_point(tmp_path / "first")), ("anew", None)):
        model = (
            [f"model.{key}={value}" for key, value in first.model.model_dump(exclude_defaults=True).items()]
            if init is None
            else []
        )
        run = config.load(tmp_path / "run.toml", [*settings, *model], start=init)
        losses[name] = pipeline.run(run, tmp_path / name, progress=progress).train_loss
    assert losses["on"] < losses["anew"] - 0.5
    assert any("another vocabulary: " in note for note in progress.notes)
