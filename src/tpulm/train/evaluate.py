"""Scores on held-out text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm.train.program import Program


class Evaluation(NamedTuple):
    """Scores of one pass over held-out rows.

    `accuracy` and `loss` (nats) are of the predicted tokens; `baseline_accuracy` is what always guessing the commonest of
    those tokens would reach, and `unigram_entropy` (nats) the loss of knowing their frequencies and nothing else.
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
        }


def evaluate(
    program: Program,
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    rows: int,
    batch_size: int,
    tokens_per_character: float,
) -> Evaluation:
    """Score `params` on all `batches` (of `batch_size` rows over all hosts, `rows` of them real).

    `tokens_per_character` is of the text: `SplitManifest.predicted_per_character`.
    """
    so_far = program.evaluation_sums()
    for number, batch in enumerate(batches):
        so_far = program.evaluation_step(params, so_far, program.to_devices(batch), program.scalar(number * batch_size))
    sums, labels = jax.device_get(so_far)
    metrics = {name: float(value) for name, value in program.objective.metrics(sums).items()}
    total = float(labels.sum())
    shares = labels[labels > 0].astype(np.float64) / max(total, 1.0)
    of_tokens = "mlm_" if "mlm_loss" in metrics else ""  # where the loss is a sum of tasks, the tokens' own has its own name
    return Evaluation(
        rows=rows,
        loss=metrics["loss"],
        accuracy=metrics[f"{of_tokens}accuracy"],
        baseline_accuracy=float(labels.max()) / total if total else 0.0,
        unigram_entropy=float(-np.sum(shares * np.log(shares))),
        bits_per_character=metrics[f"{of_tokens}loss"] / math.log(2) * tokens_per_character,
        metrics=metrics,
    )
