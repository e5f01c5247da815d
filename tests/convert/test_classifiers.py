"""Classifiers in Hugging Face's folders: what their outputs mean, and imports of them."""

from __future__ import annotations

from typing import Any

import pytest

from tpulm.convert.config_json import HeadConfig, head_from_json, head_to_json
from tpulm.errors import DataError


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
