"""The experiment on learning: nothing that is scored is pretrained on, and its figures are what they are called."""

from __future__ import annotations

import gzip
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def learning_data(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("learning_data")


@pytest.fixture
def learning_report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("learning_report")


def test_no_text_of_dev_test_or_the_holdout_is_in_the_corpus(learning_data, tmp_path):
    labelled = [f"영화 {number} 번은 좋다" for number in range(7_000)]
    reviews = [*labelled, *(text.replace(" ", "  ") + "!!" for text in labelled)]  # each twice, with other marks
    reviews += [f"다른 글 {n}, 아주 긴 글이다" for n in range(3_000)]
    (tmp_path / "ko").mkdir()
    rows = ["id\tdocument\tlabel", *(f"{number}\t{text}\t{number % 2}" for number, text in enumerate(labelled))]
    for name, lines in (("nsmc_train_50k.tsv.gz", rows), ("nsmc_reviews.txt.gz", reviews)):
        (tmp_path / "ko" / name).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    texts = tmp_path / "texts"
    counts = learning_data.write(texts, "ko", tmp_path)
    secret = [one.text for name in ("dev", "test") for one in learning_data.read(texts / f"{name}.jsonl")]
    secret += (texts / "heldout.txt").read_text(encoding="utf-8").splitlines()
    corpus = (texts / "corpus.txt").read_text(encoding="utf-8").splitlines()
    secret, corpus = ({learning_data.normalized(text) for text in some} for some in (secret, corpus))
    assert len(secret) > 6_000 and not secret & corpus
    assert counts["train"] == 1_000
    assert counts["corpus"] + counts["left out"] + counts["held out"] == len(reviews)


def test_texts_that_differ_in_marks_alone_are_one(learning_data):
    assert learning_data.normalized("Ｇood, 영화!!") == learning_data.normalized("good 영화 …")


def test_dev_pairs_share_no_caption_with_those_that_are_trained_on(learning_data, tmp_path):
    (tmp_path / "ja").mkdir()
    numbers = [(first, first + other) for first in range(0, 600, 3) for other in (1, 2)]
    pairs = [{"sentence1": f"写真{first}", "sentence2": f"写真{second}", "label": 2} for first, second in numbers]
    for name in ("jsts_train", "jsts_valid"):
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / "ja" / f"{name}.json.gz").write_bytes(gzip.compress(text.encode()))
    labelled = learning_data.japanese(tmp_path)
    texts = [{text for one in part for text in (one.text, one.pair)} for part in (labelled.train, labelled.dev)]
    assert len(labelled.dev) > 30 and not texts[0] & texts[1]
    assert learning_data.labels_of(labelled.test).dtype == np.float64


def test_an_interval_is_that_of_scipys_paired_bootstrap(learning_report, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learning_report, "RESAMPLES", 2_000)
    chance = np.random.default_rng(3)
    truth = chance.integers(0, 2, 1_000)
    ours, theirs = (np.where(chance.random(1_000) < right, truth, 1 - truth) for right in (0.8, 0.7))
    mean, low, high = learning_report.bootstrap(ours[None], theirs[None], truth)
    gained = (ours == truth).astype(float) - (theirs == truth)
    expected = scipy.stats.bootstrap((gained,), np.mean, method="percentile", rng=0).confidence_interval
    assert mean == pytest.approx(gained.mean())
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.003)
    _, *wider = learning_report.bootstrap(np.stack([ours, truth]), theirs[None], truth)
    assert wider[1] - wider[0] > 1.5 * (high - low), "runs that differ make it wider"


def test_tokens_to_match_are_read_off_the_worse_seeds_curve(learning_report):
    def curve(*losses: float, tokens: float) -> list[dict[str, float]]:
        return [{"loss": loss, "tokens": n * tokens, "minutes": 2.0 * n} for n, loss in enumerate(losses, start=1)]

    curves = {"B-0": curve(7.0, 6.5, tokens=4e6), "B-1": curve(7.0, 6.0, tokens=4e6)}
    curves |= {"D-0": curve(7.0, 5.0, tokens=1e6), "D-1": curve(6.4, 5.6, tokens=1e6)}
    found = learning_report.tokens_to_match(curves)  # 6.0 lies half way between D-1's stops, at 1.5M tokens and 3 minutes
    assert found.startswith("D-1 has the last loss of the best B, 6.000, after 1.5M tokens and 3.0 minutes; B took 5.3 times")
    curves["D-1"][-1]["loss"] = 6.1
    assert "does not reach" in learning_report.tokens_to_match(curves)
