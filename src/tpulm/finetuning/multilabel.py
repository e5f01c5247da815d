"""Multi-label classification: any number of labels for a text, such as topics, tags, emotions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tpulm.convert.config_json import HeadConfig
from tpulm.corpus.documents import Fault
from tpulm.errors import DataError
from tpulm.finetuning.tasks import NEARLY_ALL, Mistake, Task, no_better, ordered_mistakes
from tpulm.labelled import Examples, LabelSet, label_set_fault, label_set_scores
from tpulm.labelled.labels import label_name, labels_of
from tpulm.labelled.rows import Rows
from tpulm.objectives.classification import MultiLabelClassification
from tpulm.predict.classify import logistic
from tpulm.train.finetuning_program import Labelled

_MOST_SHOWN = 20  # labels in a note


class LabelSets(Task):
    """Labels are lists, perhaps empty; predictions, too: the labels with a probability above one half."""

    kind = "A classifier with any number of labels a text"
    objective = MultiLabelClassification

    def label_fault(self, label: Any) -> Fault:
        return label_set_fault(label)

    def learn(self, examples: Examples) -> LabelSet:
        flat = _flat(examples)
        if not len(flat):
            raise DataError(f"none of the {len(examples):,} examples has a label; to learn labels takes some of at least two")
        return LabelSet.of(flat, several=True)

    def strata(self, examples: Examples, classes: LabelSet) -> np.ndarray:
        """The rarest label of each example; -1 if it has none."""
        sets = self.labels(examples, classes, learn=False) > 0
        counts = np.where(sets, sets.sum(axis=0), len(sets) + 1)
        return np.where(sets.any(axis=1), counts.argmin(axis=1), -1)

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        """float32 [N, C] of 0 and 1."""
        result = np.zeros((len(examples), len(classes)), np.float32)
        rows = np.repeat(np.arange(len(examples)), [len(labels) for labels in labels_of(examples)])
        result[rows, classes.encode(_flat(examples))] = 1.0
        if learn and (result == result[0]).all():
            only = _listed(result[0] > 0, classes.names) or "no label"
            raise DataError(f"all {len(examples):,} examples have the same labels, {only}; there is nothing to tell apart")
        return result

    def classes_of(self, examples: Examples) -> Iterable[Iterable[str]]:
        return ({label_name(label) for label in labels} for labels in labels_of(examples))

    def head_config(self, classes: LabelSet) -> HeadConfig:
        return super().head_config(classes)._replace(several=True)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        return logistic(outputs)

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        counts, empty = data.labels.sum(axis=0).astype(int), int((~data.labels.any(axis=1)).sum())
        order = np.argsort(-counts, kind="stable")
        listed = ", ".join(f"{classes.names[index]} {counts[index]:,}" for index in order[:_MOST_SHOWN])
        more = f" and {len(order) - _MOST_SHOWN} rarer ones" if len(order) > _MOST_SHOWN else ""
        return [f"labels: {listed}{more}" + (f"; {empty:,} texts have none" if empty else "")]

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """The loss is in nats per label."""
        wide = outputs.astype(np.float64)
        entropy = np.logaddexp(0.0, wide) - wide * data.labels
        return {**label_set_scores(data.labels > 0, outputs > 0)._asdict(), "loss": float(entropy.mean())}

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[list[Any]]:
        return [[classes.values[index] for index in np.flatnonzero(row > 0)] for row in outputs]

    def by_class(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, list[int]]:
        true, predicted = data.labels > 0, outputs > 0
        counts = np.stack([(true & predicted).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0)], axis=1)
        return dict(zip(names, counts.tolist(), strict=True))

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """Texts with any wrong label; the confidence is the probability of the most confident wrong decision."""
        true, predicted = data.labels > 0, outputs > 0
        sure = np.where(true != predicted, np.maximum(logistic(outputs), logistic(-outputs)), 0.0).max(axis=1)
        wrong = np.flatnonzero((true != predicted).any(axis=1))
        labels, answers = ([_listed(row, names) for row in part] for part in (true, predicted))
        return ordered_mistakes(examples, wrong, labels, answers, sure)

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        true, predicted, name = data.labels > 0, outputs > 0, self.config.chosen_by
        warnings, (sets, counts) = list[str](), np.unique(predicted, axis=0, return_counts=True)
        only = sets[counts.argmax()]
        if counts.max() >= NEARLY_ALL * len(predicted) and len(np.unique(true, axis=0)) > 1:
            share = np.mean((true == only).all(axis=1))
            warnings.append(
                f"it answers {_listed(only, names) or 'no label'} to {counts.max() / len(predicted):.0%} of dev, where "
                f"{share:.0%} are labelled so"
            )
        kinds, counts = np.unique(training.labels > 0, axis=0, return_counts=True)
        commonest = kinds[counts.argmax()]
        value = self.scores(outputs, data, names)[name]
        of_constant = self.scores(np.broadcast_to(np.where(commonest, 1.0, -1.0), outputs.shape), data, names)[name]
        if not self.config.is_better(value, of_constant):
            answer = _listed(commonest, names) or "no label"
            warnings.append(no_better(name, value, f"always answering {answer}", of_constant))
        return warnings


def _flat(examples: Examples) -> Examples:
    """Each label of each text as a separate example."""
    labels = labels_of(examples)
    where = [number for number, some in enumerate(labels) for _ in some]
    return replace(examples.take(where), labels=[one for some in labels for one in some])


def _listed(labels: np.ndarray, names: tuple[str, ...]) -> str:
    return ", ".join(names[index] for index in np.flatnonzero(labels))
