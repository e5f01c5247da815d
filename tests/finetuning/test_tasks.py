"""A fine-tuning task from outside of the package: each word of a text has a label, of classes; and what tasks read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import tpulm
from encoders import reviews
from tpulm.config import FinetuneConfig
from tpulm.config.finetune import METRIC_NAMES, METRICS, TASKS
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning import Task, register_task
from tpulm.finetuning.tasks import find_task
from tpulm.labelled import Columns, Examples, LabelSet
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.models import bert
from tpulm.nn.layers import dense
from tpulm.nn.transformer import Randomness
from tpulm.objectives.classification import Classification, LabelledInputs
from tpulm.objectives.losses import cross_entropy
from tpulm.tokenization import Tokenization
from tpulm.train.tuning import Labelled

NONE = -1  # the label of [CLS], [SEP] and padding
TAGS = {"good": "praise", "bad": "blame"}
SETTINGS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 1e-2, "max_length": 16, "dropout": 0.0}


class TokenClassification(Classification):
    """A class for each token, by the last linear map of the head."""

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.sequence_length,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.sequence_length, self.num_classes or 1)

    def apply(self, params: Any, tokens: bert.Tokens, randomness: Randomness | None) -> Array:
        hidden = bert.encode(params, tokens, config=self.model, execution=self.execution, randomness=randomness)
        tokens_first = hidden.reshape(-1, hidden.shape[-1])
        logits = dense(params.classification_head.output, tokens_first, dtype=self.execution.dtype)
        return logits.astype(jnp.float32).reshape(*hidden.shape[:2], -1)

    def totals(self, inputs: LabelledInputs) -> dict[str, Array]:
        return {"rows": jnp.sum((inputs.labels != NONE).astype(jnp.float32) * inputs.weights[:, None])}

    def sums(self, outputs: Array, inputs: LabelledInputs) -> dict[str, Array]:
        labels = inputs.labels[:, : outputs.shape[1]]
        weights = (labels != NONE).astype(jnp.float32) * inputs.weights[:, None]
        found = cross_entropy(outputs, jnp.maximum(labels, 0), weights)
        return {"loss": found.loss, "correct": found.correct, "rows": found.weight}


class WordTagging(Task):
    kind = "A tagger"
    objective = TokenClassification

    def label_fault(self, label: Any) -> Any:
        return None if isinstance(label, list) and label else ("no_label", f"the label is {label!r}, not a list of tags.")

    def learn(self, examples: Examples) -> LabelSet:
        return LabelSet.given(sorted({tag for tags in examples.labels or [] for tag in tags}))

    def encode(
        self, examples: Examples, classes: LabelSet | None, tokenization: Tokenization, *, max_length: int, learn: bool
    ) -> Labelled:
        assert classes is not None
        labels = np.full((len(examples), max_length), NONE, np.int32)
        for row, tags in zip(labels, examples.labels or [], strict=True):
            row[1 : 1 + len(tags)] = [classes.names.index(tag) for tag in tags]  # a word is a token in this vocabulary
        return Labelled(encode_rows(tokenization, examples.texts, None, max_length=max_length), labels)

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        labels = data.labels
        right = outputs.argmax(axis=-1) == labels
        return {"token_accuracy": float(right[labels != NONE].mean()), "exact": float((right | (labels == NONE)).all(1).mean())}

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet | None) -> list[list[str]]:
        assert classes is not None
        found = outputs.argmax(axis=-1)
        return [[classes.names[one] for one in row[1 : length - 1]] for row, length in zip(found, rows.lengths, strict=True)]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    metrics: Mapping[str, Any] = {"token_accuracy": "highest", "exact": "highest"}
    register_task("word_tagging", WordTagging(), metrics=metrics)
    yield
    TASKS.discard("word_tagging")
    del METRICS["word_tagging"]
    for name in metrics:
        METRIC_NAMES.discard(name)


def tagged(count: int, seed: int = 0) -> list[tuple[str, list[str]]]:
    return [(text, [TAGS.get(word, "other") for word in text.split()]) for text, _ in reviews(count, seed=seed)]


def write(path: Path, examples: list[tuple[str, list[str]]]) -> Path:
    path.write_text("".join(f"{json.dumps({'text': text, 'label': tags})}\n" for text, tags in examples))
    return path


@pytest.mark.slow
def test_a_task_of_ones_own_learns_from_files(encoder: Path, tmp_path: Path) -> None:
    files = {"train": write(tmp_path / "train.jsonl", tagged(160)), "test": write(tmp_path / "test.jsonl", tagged(32, 1))}
    summary = tpulm.finetune(encoder, output=tmp_path / "out", **files, task="word_tagging", metric="exact", **SETTINGS)
    assert summary.labels == ("blame", "other", "praise") and summary.settings.chosen_by == "exact"
    values = summary.values()
    assert values["test_token_accuracy"] > 0.95 and values["health"] == "all right" and values["confusion"] is None
    assert "A tagger of 3 classes" in (tmp_path / "out" / "README.md").read_text()


def test_its_answers_are_what_it_says(encoder: Path) -> None:
    classifier = tpulm.Classifier(encoder, task="word_tagging", **SETTINGS).fit(tagged(160))
    assert classifier.evaluate(tagged(32, 1))["token_accuracy"] > 0.95
    assert classifier.predict(["the film was very good", "bad plot"]) == [
        ["other", "other", "other", "other", "praise"],
        ["blame", "other"],
    ]
    with pytest.raises(DataError, match="'pos'"):
        classifier.evaluate([("good", "pos")])


def test_an_unknown_task_or_metric_suggests_the_nearest(encoder: Path) -> None:
    with pytest.raises(ConfigError, match=r"task.*'word_taging' is not one of .*Did you mean 'word_tagging'\?"):
        tpulm.Classifier(encoder, task="word_taging")
    with pytest.raises(ConfigError, match="word_tagging"):
        tpulm.Classifier(encoder, task="word_tagging", metric="accuracy")


UNUSABLE: dict[str, tuple[dict[str, object], dict[str, object]]] = {  # of a task: a row, and what makes it unusable
    "regression": ({"text": "a film", "label": 1}, {"label": "high"}),
    "embed": ({"text": "a film", "pair": "a plot", "label": 1}, {"label": "high"}),
    "tag": ({"text": "a film", "label": [[2, 6, "WORK"]]}, {"label": [[2, 7, "WORK"]]}),
    "multilabel": ({"text": "a film", "label": ["good"]}, {"label": "good"}),
    "choice": ({"question": "a film", "choices": ["a", "b"], "label": 1}, {"label": 2}),
    "retrieve": ({"text": "a film", "pair": "a plot"}, {"pair": " "}),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_rows_that_a_task_cannot_use_are_refused_or_counted(name: str, tmp_path: Path) -> None:
    task, (row, changed) = find_task(FinetuneConfig(task=name)), UNUSABLE[name]
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row | changed)}\n")
    columns = Columns(pair="pair" if "pair" in row else None)
    with pytest.raises(DataError, match=r"train\.jsonl, line 2"):
        task.read(path, columns)
    found = task.read(path, columns, on_error="skip")
    assert len(found) == 1 and found.skipped.total() == 1
