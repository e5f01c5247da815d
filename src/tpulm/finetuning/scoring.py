"""Outputs of a classifier against what is true."""

from __future__ import annotations

import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.labelled import class_scores, regression_scores
from tpulm.predict.outputs import log_probabilities


def scores_of(outputs: np.ndarray, labels: np.ndarray, config: FinetuneConfig) -> dict[str, float]:
    """Of outputs float32 [N, C] and class numbers [N]: accuracy, macro_f1, matthews, loss (nats); of a regression, with
    numbers: pearson, spearman, mean_squared_error."""
    if config.task == "regression":
        found = regression_scores(labels, outputs[:, 0])
        return {
            "pearson": found.pearson,
            "spearman": found.spearman,
            "mean_squared_error": found.mean_squared_error,
        }
    scores = class_scores(labels, outputs.argmax(axis=1), outputs.shape[1])
    chosen = log_probabilities(outputs)[np.arange(len(labels)), labels]
    return {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "matthews": scores.matthews,
        "loss": float(-chosen.mean()),
    }
