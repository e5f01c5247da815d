"""How well predictions agree with labels: the scores that GLUE reports, as scikit-learn and scipy define them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tpulm.errors import DataError, TrainingDiverged

_ROUNDING: Final = 1e-13  # a spread below this fraction of the values is rounding; scipy's own limit


class ClassScores(NamedTuple):
    """Scores of N examples and C classes."""

    accuracy: float
    macro_f1: float  # mean of f1 over the classes that occur, as label or as prediction
    matthews: float  # in [-1, 1]; also 0 if labels or predictions are all of one class
    counts: np.ndarray  # int64 [C, 3]: how often each class is rightly predicted, is predicted, and is the label


class LabelSetScores(NamedTuple):
    """Scores of N examples, each with any number of C labels."""

    micro_f1: float  # of all decisions together
    macro_f1: float  # mean over the labels
    subset_accuracy: float  # of whole sets of labels


class RegressionScores(NamedTuple):
    """Scores of N examples. A correlation is 0 if labels or predictions do not vary, where it is not defined."""

    pearson: float
    spearman: float
    mean_squared_error: float


class RetrievalScores(NamedTuple):
    """Means over queries, by the ranks of relevant texts, after candidates that are equally near."""

    mrr_at_10: float  # 1 / rank of the first relevant text, 0 beyond the tenth
    recall_at_1: float  # the fraction of relevant texts that rank so high
    recall_at_10: float


class ScoreSummary(NamedTuple):
    """One score over several runs."""

    mean: float
    deviation: float  # of the sample (divided by n - 1); 0 for a single value


def class_scores(gold: np.ndarray, predicted: np.ndarray, num_classes: int) -> ClassScores:
    """Scores of classes int [N] in 0 … C-1. Raises DataError for no examples.

    Macro F1 is scikit-learn's f1_score(average="macro", zero_division=0), which averages over the classes of labels and
    predictions together; Matthews its matthews_corrcoef, the R_K of Gorodkin (2004), 0 where it is not defined.
    """
    _check(gold, predicted)
    each = (gold[gold == predicted], predicted, gold)
    counts = np.stack([np.bincount(some, minlength=num_classes) for some in each], axis=1)
    right, predicted_class, is_class = counts.T.astype(np.float64)
    occurs = is_class + predicted_class > 0
    return ClassScores(
        accuracy=float(right.sum() / len(gold)),
        macro_f1=float((2 * right[occurs] / (is_class + predicted_class)[occurs]).mean()),
        matthews=_matthews(right.sum(), is_class, predicted_class),
        counts=counts,
    )


def average_auprc(gold: np.ndarray, probabilities: np.ndarray) -> float:
    """The area under the precision-recall curve of each class that occurs in `gold` [N], by its probability [N, C], averaged.

    The area is scikit-learn's auc(recall, precision) of precision_recall_curve, by trapezoids. Source: klue_re_auprc of
    KLUE-benchmark/KLUE-baseline, klue_baseline/metrics/functional.py @443c38b.
    """
    return float(np.mean([_auprc(gold == index, probabilities[:, index]) for index in np.unique(gold)]))


def _auprc(true: np.ndarray, score: np.ndarray) -> float:
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.diff(score[order], append=-np.inf))  # of equal scores
    hits = np.cumsum(true[order])[last]
    return float(np.trapezoid(np.append(1.0, hits / (last + 1)), np.append(0.0, hits / hits[-1])))


def label_set_scores(gold: np.ndarray, predicted: np.ndarray) -> LabelSetScores:
    """Scores of bool [N, C]: scikit-learn's f1_score(average="micro" and "macro", zero_division=0) and accuracy_score."""
    if not len(gold):
        raise DataError("there are no examples to score.")
    right, either = (gold & predicted).sum(axis=0), gold.sum(axis=0) + predicted.sum(axis=0)
    return LabelSetScores(
        micro_f1=float(2 * right.sum() / max(either.sum(), 1)),
        macro_f1=float((2 * right / np.maximum(either, 1)).mean()),
        subset_accuracy=float((gold == predicted).all(axis=1).mean()),
    )


def regression_scores(gold: np.ndarray, predicted: np.ndarray) -> RegressionScores:
    """Scores of numbers [N]. Raises DataError for no examples, TrainingDiverged for predictions that are not finite."""
    _check(gold, predicted)
    gold, predicted = gold.astype(np.float64), predicted.astype(np.float64)
    broken = int((~np.isfinite(predicted)).sum())
    if broken:
        raise TrainingDiverged(f"{broken} of {len(predicted)} predictions are no finite numbers; lower the learning rate.")
    from scipy.stats import rankdata  # takes half a second

    return RegressionScores(
        pearson=_correlation(gold, predicted),
        spearman=_correlation(rankdata(gold), rankdata(predicted)),
        mean_squared_error=float(np.mean((gold - predicted) ** 2)),
    )


def retrieval_scores(query: np.ndarray, rank: np.ndarray) -> RetrievalScores:
    """`rank` int [R] is that of each relevant candidate, and `query` [R] the number of its query."""
    _, query = np.unique(query, return_inverse=True)
    if not len(query):
        raise DataError("there are no examples to score.")
    first, count = np.full(query.max() + 1, np.iinfo(np.int64).max), np.bincount(query)
    np.minimum.at(first, query, rank)
    recalls = [float((np.bincount(query, rank <= k) / count).mean()) for k in (1, 10)]
    return RetrievalScores(float(np.where(first <= 10, 1.0 / first, 0.0).mean()), *recalls)


def summarize(values: Sequence[float]) -> ScoreSummary:
    """The mean and the sample deviation. Raises DataError for no values."""
    if not len(values):
        raise DataError("there are no scores to summarize.")
    return ScoreSummary(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


def _check(gold: np.ndarray, predicted: np.ndarray) -> None:
    if gold.shape != predicted.shape or gold.ndim != 1:
        raise ValueError(f"labels {gold.shape} and predictions {predicted.shape} must be [N] both")
    if not len(gold):
        raise DataError("there are no examples to score.")


def _matthews(right: float, is_class: np.ndarray, predicted_class: np.ndarray) -> float:
    total = is_class.sum()
    covariance = right * total - is_class @ predicted_class
    spread = np.sqrt((total**2 - is_class @ is_class) * (total**2 - predicted_class @ predicted_class))
    return float(np.clip(covariance / spread, -1.0, 1.0)) if spread > 0 else 0.0


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    one, other = first - first.mean(), second - second.mean()
    lengths = [float(np.linalg.norm(one)), float(np.linalg.norm(other))]
    sizes = [float(np.linalg.norm(first)), float(np.linalg.norm(second))]
    if any(length <= _ROUNDING * size for length, size in zip(lengths, sizes, strict=True)):
        return 0.0
    return float(np.clip((one / lengths[0]) @ (other / lengths[1]), -1.0, 1.0))
