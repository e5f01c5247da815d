"""Outputs of a classifier against what is true, and in words what is wrong with it or with its texts."""

from __future__ import annotations

import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.labelled import class_scores, regression_scores
from tpulm.labelled.rows import Rows
from tpulm.predict.classify import log_probabilities
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import UNKNOWN_WARNING

_NEARLY_ALL = 0.99  # of the answers, when they count as one
_HARDLY_ANY = 0.05  # of the labels' deviation, when a regression's answers count as one
_MANY_CUT = 0.1  # of the texts


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


def doubts_about_model(
    outputs: np.ndarray,
    labels: np.ndarray,
    *,
    training_labels: np.ndarray,
    before: float,
    config: FinetuneConfig,
    names: tuple[str, ...],
) -> list[str]:
    """What its outputs on dev say against a model; `before` is the score that it was chosen by, before the first step."""
    scores, found = scores_of(outputs, labels, config), list[str]()
    name, value = config.chosen_by, scores[config.chosen_by]
    shown = f"{name.replace('_', ' ')} on dev, {value:.4f},"
    if config.task == "regression":
        spread, constant = float(labels.std()), float(training_labels.mean())
        if outputs.std() <= _HARDLY_ANY * spread:
            found.append(
                f"it answers {outputs.mean():.3g} to everything: its answers deviate by {outputs.std():.2g}, the labels by "
                f"{spread:.2g}"
            )
        error, of_constant = scores["mean_squared_error"], float(np.mean((labels - constant) ** 2))
        if error >= of_constant:
            found.append(
                f"its mean squared error on dev, {error:.4f}, is no better than that of always answering {constant:.3g}, the "
                f"mean of the training labels ({of_constant:.4f})"
            )
    elif len(np.unique(labels)) > 1:
        predicted = outputs.argmax(axis=1)
        counts = np.bincount(predicted)
        only, commonest = int(counts.argmax()), int(np.bincount(training_labels).argmax())
        if counts[only] >= _NEARLY_ALL * len(labels):
            found.append(
                f"it answers {names[only]} to {counts[only] / len(labels):.0%} of dev, where {np.mean(labels == only):.0%} are "
                f"labelled so (macro F1 {scores['macro_f1']:.3f})"
            )
        of_constant = getattr(class_scores(labels, np.full_like(labels, commonest), outputs.shape[1]), name)
        if not config.is_better(value, of_constant):
            found.append(f"its {shown} is no better than that of always answering {names[commonest]} ({of_constant:.4f})")
    if not config.is_better(value, before):
        found.append(f"training did not help: its {shown} is no better than before the first step ({before:.4f})")
    return found


def doubts_about_texts(rows: Rows, *, max_length: int, max_positions: int, special: SpecialTokens) -> list[str]:
    """Where many texts were cut, or many of their tokens are unknown."""
    found, share = list[str](), rows.cut / max(1, len(rows))
    if share >= _MANY_CUT:
        holds = int(np.quantile(rows.whole_lengths, 0.95, method="higher"))
        most = f", and the model reads at most {max_positions}" if holds > max_positions else ""
        found.append(
            f"{share:.0%} of the texts are longer than {max_length} tokens and were cut; max_length = {holds} would hold 95% "
            f"of them{most}"
        )
    unknown = np.count_nonzero(rows.ids == special.unknown)
    unknown_fraction = unknown / max(1, np.count_nonzero((rows.ids != special.cls) & (rows.ids != special.sep)))
    if unknown_fraction >= UNKNOWN_WARNING:
        found.append(f"{unknown_fraction:.0%} of the texts' tokens are unknown: the model's vocabulary does not fit them")
    return found
