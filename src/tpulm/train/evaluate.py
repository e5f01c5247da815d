"""Scores on held-out text."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm.train.distributed import check_alone
from tpulm.train.health import is_at_unigrams
from tpulm.train.program import PretrainingProgram

_IN_FLIGHT = 4  # batches the host may be ahead of the devices, so that a stop is obeyed soon


class Evaluation(NamedTuple):
    """Scores of one pass over held-out rows.

    `accuracy` and `loss` (nats) are means over the predicted tokens. On the same tokens, `baseline_accuracy` is that of always
    guessing the most frequent training token, and `unigram_entropy` (nats) the loss of knowing only how frequent each token is
    in training: the cross-entropy of add-one smoothed unigrams.
    `bits_per_character` = loss / ln 2 * predictions / characters of the held-out text: for a causal model, which predicts every
    token and every end of a text, the exact code length of the text; for a masked model, whose predictions are a sample of its
    tokens, a pseudo-likelihood, comparable between tokenizers at one mask fraction.
    """

    rows: int
    loss: float
    accuracy: float
    baseline_accuracy: float
    unigram_entropy: float
    bits_per_character: float
    metrics: dict[str, float]  # the objective's own, by name

    def values(self) -> dict[str, float]:
        """All scores by name, flat, for the metrics log."""
        names = ("accuracy", "baseline_accuracy", "unigram_entropy", "bits_per_character")
        scores = {**self.metrics, **{name: getattr(self, name) for name in names}}
        return {**scores, "at_unigrams": float(is_at_unigrams(scores))}


def evaluate(
    program: PretrainingProgram,
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    rows: int,
    batch_size: int,
    tokens_per_character: float,
    training_counts: np.ndarray,
    advance: Callable[[float], None] = lambda rows: None,
) -> Evaluation:
    """Score `params` on all `batches` (of `batch_size` rows over all hosts; `rows` real rows in total).

    `tokens_per_character` is the text's, without ends of texts; `training_counts` is how often each token occurs in training,
    [V] (`dataset.token_counts`). `advance` is called with the rows of each batch. On a single host a requested stop raises
    `Stopped`.
    """
    so_far = program.evaluation_sums()
    for number, batch in enumerate(batches):
        so_far = program.evaluation_step(params, so_far, program.to_devices(batch), program.scalar(number * batch_size))
        if number % _IN_FLIGHT == 0:
            jax.block_until_ready(so_far)
        advance(min(batch_size, rows - number * batch_size))  # the last batch is padded
        check_alone()
    sums, labels = jax.device_get(so_far)
    metrics = {name: float(value) for name, value in program.objective.metrics(sums).items()}
    total, sep = float(labels.sum()), program.special.sep
    ends = float(labels[sep])
    if not ends:  # they are not predicted
        training_counts = training_counts.copy()
        training_counts[sep] = 0
    smoothed = (training_counts + 1.0) / (training_counts.sum() + len(training_counts))
    of_tokens = "mlm_" if "mlm_loss" in metrics else ""  # where the loss sums several tasks, the tokens' loss has its own name
    return Evaluation(
        rows=rows,
        loss=metrics["loss"],
        accuracy=metrics[f"{of_tokens}accuracy"],
        baseline_accuracy=float(labels[training_counts.argmax()]) / max(total, 1.0),
        unigram_entropy=float(-(labels @ np.log(smoothed))) / max(total, 1.0),
        bits_per_character=metrics[f"{of_tokens}loss"] / math.log(2) * tokens_per_character * total / max(total - ends, 1.0),
        metrics=metrics,
    )
