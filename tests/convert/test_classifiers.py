"""Classifiers in Hugging Face's folders: what their outputs mean, and imports of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpulm
from tpulm.convert.config_json import HeadConfig, head_from_json, head_to_json
from tpulm.convert.heads import spec_of
from tpulm.convert.huggingface import save_model
from tpulm.errors import DataError
from tpulm.nn.params import map_specs


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
        ({"problem_type": "ranking"}, "ranking"),
        ({"id2label": {"0": "a", "2": "b"}}, r"\[0, 2\]"),
        ({"id2label": ["a", "b"]}, "id2label"),
        ({"model_type": "eurobert", "id2label": {"0": "a", "1": "b"}}, "classifier_pooling is 'late'"),
        ({"model_type": "modernbert", "classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        ({"problem_type": "regression", "id2label": {"0": "a", "1": "b"}}, "one output, not 2"),
    ],
)
def test_what_is_not_supported_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        head_from_json(values, origin="config.json")


def test_labels_of_another_number_than_the_weights(tmp_path: Path, make_small: Any) -> None:
    small = make_small()
    spec = spec_of(small.config, "classification", vocab_size=small.tokenizer.vocab_size, num_outputs=2)
    params = map_specs(lambda leaf: np.ones(leaf.shape, np.float32), spec)
    folder = save_model(tmp_path / "clf", params, small.config, **small.arguments, head_config=HeadConfig(("a", "b")))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"id2label": {"0": "a", "1": "b", "2": "c"}}))
    with pytest.raises(DataError, match=r"classifier\.weight is \[2, 24\], config\.json says \[3, 24\]"):
        tpulm.load_model(folder)
