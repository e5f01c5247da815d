"""Classifiers in Hugging Face's folders: what their outputs mean, and imports of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpulm
from encoders import build_encoder, reviews
from tpulm.convert.config_json import HeadConfig, head_from_json, head_to_json
from tpulm.convert.importing import import_model
from tpulm.errors import DataError
from tpulm.nn.params import named_leaves


@pytest.mark.parametrize("model_type", ["bert", "electra", "eurobert", "modernbert"])
@pytest.mark.parametrize("answers", [HeadConfig(("neg", "pos")), HeadConfig(("a", "b", "c"), several=True), HeadConfig(())])
def test_answers_come_back(model_type: str, answers: HeadConfig) -> None:
    assert head_from_json({"model_type": model_type, **head_to_json(answers, model_type)}, origin="config.json") == answers


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ("LABEL_0", "LABEL_1")),  # as transformers leaves it out
        ({"problem_type": "regression"}, ()),
        ({"id2label": {0: "no", 1: "yes"}}, ("no", "yes")),
        ({"id2label": {"0": "LABEL_0"}}, ()),
    ],
)
def test_configurations_of_others(values: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert head_from_json(values, origin="config.json").names == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"problem_type": "ranking"}, "one label, several labels or one number"),
        ({"id2label": {"0": "a", "2": "b"}}, r"number its labels 0, 1, 2, …, not \[0, 2\]"),
        ({"id2label": ["a", "b"]}, "must map numbers to names"),
        (
            {"model_type": "eurobert", "id2label": {"0": "a", "1": "b"}},
            "classifier_pooling is 'late'; only 'bos' and 'mean' are",
        ),
        ({"model_type": "modernbert", "classifier_pooling": "max"}, "classifier_pooling is 'max'; only 'cls' and 'mean' are"),
        ({"problem_type": "regression", "id2label": {"0": "a", "1": "b"}}, "one output, not 2"),
    ],
)
def test_what_is_not_supported_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        head_from_json(values, origin="config.json")


@pytest.mark.slow
def test_an_imported_classifier_is_the_same(tmp_path: Path) -> None:
    encoder = build_encoder("electra", tmp_path)
    tpulm.Classifier(encoder, epochs=1, batch_size=16, max_length=16).fit(reviews(64), reviews(16, seed=1)).save_pretrained(
        tmp_path / "clf"
    )
    import_model(tmp_path / "clf", tmp_path / "imported")
    one, other = tpulm.load_model(tmp_path / "clf"), tpulm.load_model(tmp_path / "imported")
    assert other.head_config == one.head_config == HeadConfig(("neg", "pos"))
    for name, leaf in named_leaves(one.params).items():
        np.testing.assert_array_equal(leaf, named_leaves(other.params)[name])
    assert (tmp_path / "clf" / "model.safetensors").read_bytes() == (tmp_path / "imported" / "model.safetensors").read_bytes()


def test_labels_of_another_number_than_the_weights(tmp_path: Path) -> None:
    import json

    encoder = build_encoder("bert", tmp_path)
    tpulm.Classifier(encoder, epochs=1, batch_size=16, max_length=16).fit(reviews(64), reviews(16, seed=1)).save_pretrained(
        tmp_path / "clf"
    )
    values = json.loads((tmp_path / "clf" / "config.json").read_text())
    values["id2label"] = {"0": "a", "1": "b", "2": "c"}
    (tmp_path / "clf" / "config.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"classifier\.weight is \[2, 32\], config\.json says \[3, 32\]"):
        tpulm.load_model(tmp_path / "clf")
