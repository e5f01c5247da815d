"""`tpulm.classify`: of a model or its folder, and of texts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tpulm
from encoders import built
from tpulm.convert.huggingface import LoadedModel
from tpulm.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    """With random weights; what a trained one answers is in finetuning/test_tasks.py."""
    classifier = tpulm.Classifier(built("electra"), labels=("neg", "pos"), max_length=16)
    classifier.params = classifier.first_params(0)
    classifier.save_pretrained(folder / "clf")
    return tpulm.load_model(folder / "clf")


def test_the_folder_of_a_model_will_do(model: LoadedModel, folder: Path) -> None:
    expected = tpulm.classify(model, ["a very good film", "a very bad film"])
    assert tpulm.classify(folder / "clf", ["a very good film", "a very bad film"]) == expected
    assert tpulm.classify(str(folder / "clf"), "a very good film") == expected[:1]
    assert len(tpulm.classify(model, "a film", "a film")) == 1
    (long,) = tpulm.classify(model, "good " * 500)
    assert long.probabilities is not None and sum(long.probabilities.values()) == pytest.approx(1.0)


def test_what_is_no_text_is_refused(model: LoadedModel) -> None:
    cases: tuple[tuple[list[Any], list[str] | None, str], ...] = (
        (["good", None], None, "text 2 of 2"),
        ([("a", "b")], None, r'text 1 of 1: .*\["a", "b"\]'),
        (["good"], [""], "second text"),
        (["good"], ["a", "b"], r"1 .* 2 second texts"),
    )
    for texts, pairs, message in cases:
        with pytest.raises(DataError, match=message):
            tpulm.classify(model, texts, pairs)


def test_a_classifier_fills_no_masks(model: LoadedModel) -> None:
    with pytest.raises(ConfigError, match="tpulm classify"):
        tpulm.fill_mask(model, "a [MASK] film")
