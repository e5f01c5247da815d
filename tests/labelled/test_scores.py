"""Constants are of scikit-learn 1.9.1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import pearsonr, spearmanr

from tpulm.errors import DataError, TrainingDiverged
from tpulm.labelled import average_auprc, class_scores, regression_scores, summarize
from tpulm.labelled.scores import retrieval_scores

CLASSES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)
NUMBERS = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=1, max_size=40)
CORRELATIONS: tuple[Any, ...] = pearsonr, spearmanr


@pytest.mark.parametrize(
    ("gold", "predicted", "accuracy_macro_f1_and_matthews"),
    [
        ([0, 0, 0, 1, 1, 2, 2, 2, 2, 4], [0, 1, 0, 1, 1, 2, 2, 0, 4, 4], (0.7, 0.7, 0.6252412661738195)),
        ([0, 0, 1, 1], [1, 1, 1, 1], (0.5, 1 / 3, 0.0)),
        ([1, 1, 1, 0, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1, 0, 1], (0.75, 0.7333333333333334, 0.4666666666666667)),
    ],
)
def test_scikit_learn_agrees(gold: list[int], predicted: list[int], accuracy_macro_f1_and_matthews: tuple[float, ...]):
    found = class_scores(np.array(gold, np.int32), np.array(predicted, np.int64), max(gold) + 1)
    assert found.counts.dtype == np.int64 and found.counts.sum(axis=0)[1:].tolist() == [len(gold)] * 2
    assert (found.accuracy, found.macro_f1, found.matthews) == pytest.approx(accuracy_macro_f1_and_matthews, abs=1e-15)


@given(CLASSES, st.permutations(range(5)))
def test_laws_of_class_scores(pairs: list[tuple[int, int]], renamed: list[int]):
    gold, predicted = np.array(pairs, np.int64).T
    found = class_scores(gold, predicted, 5)
    assert found.accuracy == np.mean(gold == predicted)
    assert found.counts.sum(axis=0).tolist() == [np.sum(gold == predicted), len(gold), len(gold)]
    assert (found.counts[:, 2] == np.bincount(gold, minlength=5)).all()
    assert 0.0 <= found.macro_f1 <= 1.0 and -1.0 <= found.matthews <= 1.0
    for other in (class_scores(np.array(renamed)[gold], np.array(renamed)[predicted], 5), class_scores(predicted, gold, 5)):
        assert other.macro_f1 == pytest.approx(found.macro_f1) and other.matthews == pytest.approx(found.matthews)
    right = class_scores(gold, gold, 5)
    assert (right.accuracy, right.macro_f1, right.matthews) == (1.0, 1.0, float(len(set(gold.tolist())) > 1))


def test_a_million_examples_do_not_overflow():
    gold = np.arange(1_000_000) % 2
    assert class_scores(gold, gold, 2).matthews == 1.0
    assert class_scores(gold, 1 - gold, 2).matthews == -1.0


@given(NUMBERS)
def test_regression_scores_are_those_of_scipy(pairs: list[tuple[int, int]]):
    gold, predicted = np.array(pairs, np.float64).T
    found = regression_scores(gold.astype(np.float32), predicted.astype(np.float32))
    varies = np.ptp(gold) > 0 and np.ptp(predicted) > 0
    with np.errstate(invalid="ignore"):  # of the p-values of two pairs
        expected = [correlation(gold, predicted).statistic if varies else 0.0 for correlation in CORRELATIONS]
    assert found == pytest.approx((*expected, np.mean((gold - predicted) ** 2)), abs=1e-12)


def test_what_does_not_vary_has_no_correlation():
    for constant in (0.0, 0.1, -1e6):
        found = regression_scores(np.array([1.0, 2.0, 3.0]), np.full(3, constant))
        assert (found.pearson, found.spearman) == (0.0, 0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_predictions_that_are_no_numbers(value: float):
    with pytest.raises(TrainingDiverged, match="1 of 2 predictions"):
        regression_scores(np.array([1.0, 2.0]), np.array([1.0, value]))


def test_no_examples_have_no_scores():
    nothing = np.zeros(0, np.int32)
    for use in (lambda: class_scores(nothing, nothing, 2), lambda: regression_scores(nothing, nothing), lambda: summarize([])):
        with pytest.raises(DataError, match=r"no (examples|scores)"):
            use()
    with pytest.raises(ValueError, match=r"\(2,\) .*\(1,\)"):
        class_scores(np.array([0, 1]), np.array([1]), 2)


def test_the_first_and_the_tenth_rank_count():
    found = retrieval_scores(np.array([7, 7, 8, 9]), np.array([1, 10, 10, 11]))
    assert found == pytest.approx(((1 + 1 / 10) / 3, (1 / 2) / 3, (1 + 1) / 3))


@pytest.mark.needs_peer
@pytest.mark.parametrize("digits", [1, 9])
def test_areas_under_precision_recall_curves_are_those_of_scikit_learn(digits: int):
    """KLUE-RE's: the mean of auc(recall, precision) of each class's precision_recall_curve; rounded scores are often equal."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(digits)
    for classes in (2, 30):
        gold = np.concatenate([np.arange(classes), rng.integers(classes, size=50)])
        scores = rng.dirichlet(np.ones(classes), len(gold)).round(digits)
        curves = [metrics.precision_recall_curve(gold == index, scores[:, index]) for index in range(classes)]
        expected = np.mean([metrics.auc(recall, precision) for precision, recall, _ in curves])
        assert average_auprc(gold, scores) == pytest.approx(expected)
