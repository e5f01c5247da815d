"""A model that answers one thing, or nothing better than a constant, and texts that were cut, are said to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpulm.config import FinetuneConfig
from tpulm.finetuning import FinetuneSummary, SeedResult
from tpulm.finetuning.summary import card_text
from tpulm.finetuning.tasks import doubts_about_model, doubts_about_texts, doubts_about_vocabulary, find_task
from tpulm.labelled import Examples
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.tokenization import load
from tpulm.train.tuning import Labelled

LABELS = np.array([0] * 4 + [1] * 6)
NAMES = ("neg", "pos")


def logits(answers: list[int]) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[answers]


def labelled(labels: np.ndarray) -> Labelled:
    return Labelled(Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64)), labels)


def doubts(answers: list[int], *, metric: str | None = None, before: float = -1.0) -> list[str]:
    config = FinetuneConfig.model_validate({"metric": metric})
    return doubts_about_model(
        logits(answers), labelled(LABELS), training=labelled(LABELS), before=before, task=find_task(config), names=NAMES
    )  # fmt: skip


def test_a_good_model_raises_none():
    assert doubts([0] * 3 + [1] * 7) == []


def test_one_answer_to_everything():
    one_class, constant = doubts([1] * 10)
    # F1 of "pos" is 2 * 6 / (10 + 6) = 0.75, of "neg" 0
    assert one_class == "it answers pos to 100% of dev, where 60% are labelled so (macro F1 0.375)"
    assert constant == "its accuracy on dev, 0.6000, is no better than that of always answering pos (0.6000)"


def test_no_better_than_a_constant_or_than_before():
    (constant,) = doubts([1, 1, 0, 0, 0, 0, 1, 1, 1, 1])  # 6 of 10 right, by both answers
    assert constant.startswith("its accuracy on dev, 0.6000, is no better than that of always")
    assert doubts([1, 1, 0, 0, 0, 0, 1, 1, 1, 1], metric="macro_f1") == []
    (before,) = doubts([0] * 3 + [1] * 7, before=0.9)
    assert before == "training did not help: its accuracy on dev, 0.9000, is no better than before the first step (0.9000)"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([2.0, 2.001, 2.0, 2.001], ["it answers 2 to everything", "is no better than that of always answering 2.5"]),
        ([4.0, 3.0, 2.0, 1.0], ["its mean squared error on dev, 5.0000, is no better than that of always answering 2.5"]),
        ([1.2, 2.1, 2.9, 3.6], []),
    ],
)
def test_regression(said: list[float], expected: list[str]):
    labels, config = np.array([1.0, 2.0, 3.0, 4.0], np.float32), FinetuneConfig(task="regression", metric="mean_squared_error")
    outputs = np.array(said, np.float32)[:, None]
    found = doubts_about_model(
        outputs, labelled(labels), training=labelled(labels), before=9.0, task=find_task(config), names=()
    )
    assert len(found) == len(expected)
    assert all(part in doubt for part, doubt in zip(expected, found, strict=True))


@pytest.mark.needs_peer
def test_f1_of_numbers_from_a_threshold_on_is_klues():
    """klue_sts_f1: scikit-learn's f1_score of labels and predictions of 3 and more."""
    metrics = pytest.importorskip("sklearn.metrics")
    task = find_task(FinetuneConfig(task="regression", f1_threshold=3.0))
    for high in (5.0, 3.2, 2.0):
        labels, outputs = np.random.default_rng(0).uniform(0, high, (2, 50)).round(1).astype(np.float32)
        expected = metrics.f1_score(labels >= 3, outputs >= 3, zero_division=0)
        assert task.scores(outputs[:, None], labelled(labels), ())["f1"] == pytest.approx(expected)


def test_texts_that_were_cut_or_are_unknown(tmp_path: Path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    tokenizer = load(tmp_path / "vocab.txt")
    texts = ["a " * words for words in range(1, 101)]  # rows of 3 to 102 tokens

    def found(texts: list[str], max_length: int) -> list[str]:
        rows = encode_rows(tokenizer, texts, None, max_length=max_length)
        return doubts_about_texts(rows, max_length=max_length, max_positions=64, special=tokenizer.special)

    assert found(texts, 50) == [
        "52% of the texts are longer than 50 tokens and were cut; max_length = 98 would hold 95% of them, and the model reads "
        "at most 64"
    ]
    assert found(texts, 98) == []

    def unknown(texts: list[str], pairs: list[Any] | None = None) -> list[str]:
        places = ["somewhere"] * len(texts)
        return doubts_about_vocabulary(tokenizer, "test", Examples(texts, pairs, None, places))

    assert unknown(texts) == unknown(texts, [["a", "a a"]] * 100) == []
    assert unknown(["a a a b"]) == [
        "test: 25.0% of the text's characters are unknown (characters b; words b): the model's vocabulary does not fit it"
    ]
    assert unknown(["a", "a"], [["a", "bb"], ["a", "a"]]) == [
        "test: 28.6% of the text's characters are unknown (characters b; words bb): the model's vocabulary does not fit it"
    ]


def test_doubts_are_in_the_result_and_on_the_card():
    scores = {"accuracy": 0.6, "macro_f1": 0.375, "matthews": 0.0, "loss": 0.7}
    seeds = tuple(
        SeedResult(seed, 1, 1, scores, None, None, [], None, doubts=["it answers pos to everything"] if seed else [])
        for seed in (0, 1)
    )
    settings = FinetuneConfig(learning_rate=5e-5, max_length=16, layer_decay=1.0)
    summary = FinetuneSummary(
        "m", "o", "classification", NAMES, {"train": 1, "dev": 1}, {}, 0, settings, seeds, best=0, doubts=("38% were cut",)
    )
    said = "38% were cut; seed 1: it answers pos to everything; a higher learning_rate (now 5e-05), more epochs or more "
    assert summary.health.startswith(said) and summary.values()["health"] == summary.health
    assert f"**Not all right**: {said}" in card_text(summary)
    fine = replace(summary, seeds=seeds[:1], doubts=())
    assert fine.health == "all right" and "Not all right" not in card_text(fine)
