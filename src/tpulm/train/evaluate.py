"""Scores on held-out text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm.train.health import is_at_unigrams
from tpulm.train.program import Program


class Evaluation(NamedTuple):
    """Scores of one pass over held-out rows.

    `accuracy` and `loss` (nats) are of the predicted tokens. On the same tokens, `baseline_accuracy` is what always guessing
    the commonest training token would reach, and `unigram_entropy` (nats) the loss of knowing how frequent each token is in
    training and nothing else: the cross-entropy of add-one smoothed unigrams.
    `bits_per_character` = loss / ln 2 * tokens / characters of the held-out text: for a causal model, which predicts every
    token and every end of a text, the exact length of the text in its code; for a masked model a pseudo-likelihood, comparable
    between tokenizers at one mask fraction.
    """

    rows: int
    loss: float
    accuracy: float
    baseline_accuracy: float
    unigram_entropy: float
    bits_per_character: float
    metrics: dict[str, float]  # the objective's own, by name

    def values(self) -> dict[str, float]:
        """Flat, for a line of metrics."""
        return {
            **self.metrics,
            "accuracy": self.accuracy,
            "baseline_accuracy": self.baseline_accuracy,
            "unigram_entropy": self.unigram_entropy,
            "bits_per_character": self.bits_per_character,
            "at_unigrams": float(is_at_unigrams({**self.metrics, "unigram_entropy": self.unigram_entropy})),
        }


def evaluate(
    program: Program,
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    rows: int,
    batch_size: int,
    tokens_per_character: float,
    training_counts: np.ndarray,
) -> Evaluation:
    """Score `params` on all `batches` (of `batch_size` rows over all hosts, `rows` of them real).

    `tokens_per_character` is of the text: `SplitManifest.predicted_per_character`; `training_counts` say how often each token
    occurs in training, [V] (`dataset.token_counts`).
    """
    so_far = program.evaluation_sums()
    for number, batch in enumerate(batches):
        so_far = program.evaluation_step(params, so_far, program.to_devices(batch), program.scalar(number * batch_size))
    sums, labels = jax.device_get(so_far)
    metrics = {name: float(value) for name, value in program.objective.metrics(sums).items()}
    total = float(labels.sum())
    smoothed = (training_counts + 1.0) / (training_counts.sum() + len(training_counts))
    of_tokens = "mlm_" if "mlm_loss" in metrics else ""  # where the loss is a sum of tasks, the tokens' own has its own name
    return Evaluation(
        rows=rows,
        loss=metrics["loss"],
        accuracy=metrics[f"{of_tokens}accuracy"],
        baseline_accuracy=float(labels[training_counts.argmax()]) / max(total, 1.0),
        unigram_entropy=float(-(labels @ np.log(smoothed))) / max(total, 1.0),
        bits_per_character=metrics[f"{of_tokens}loss"] / math.log(2) * tokens_per_character,
        metrics=metrics,
    )
