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
    those tokens would reach. `bits_per_character` = loss / ln 2 * content tokens / characters of the held-out text: for a
    masked model a pseudo-likelihood, comparable between tokenizers at one mask fraction.
    """

    rows: int
    loss: float
    accuracy: float
    baseline_accuracy: float
    bits_per_character: float
    metrics: dict[str, float]  # the objective's own, by name

    def values(self) -> dict[str, float]:
        """Flat, for a line of metrics."""
        return {
            **self.metrics,
            "accuracy": self.accuracy,
            "baseline_accuracy": self.baseline_accuracy,
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
    """Score `params` on all `batches` (of `batch_size` rows over all hosts, `rows` of them real)."""
    so_far = program.evaluation_sums()
    for number, batch in enumerate(batches):
        so_far = program.evaluation_step(params, so_far, program.to_devices(batch), program.scalar(number * batch_size))
    sums, labels = jax.device_get(so_far)
    metrics = {name: float(value) for name, value in program.objective.metrics(sums).items()}
    total = float(labels.sum())
    return Evaluation(
        rows=rows,
        loss=metrics["loss"],
        accuracy=metrics["mlm_accuracy"],
        baseline_accuracy=float(labels.max()) / total if total else 0.0,
        bits_per_character=metrics["mlm_loss"] / math.log(2) * tokens_per_character,
        metrics=metrics,
    )
