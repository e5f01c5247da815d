"""Scores are those of scikit-learn; a model that answers one thing, or nothing better than a constant, is said to."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_examples import NO_EXAMPLES, NO_ROWS

from tpulm.config import FinetuneConfig
from tpulm.finetuning import FinetuneSummary, SeedResult
from tpulm.finetuning.summary import card_text
from tpulm.finetuning.tasks import find_task, label_warnings, model_warnings, part_vocabulary_warnings, text_warnings
from tpulm.labelled import Examples, LabelSet, label_set_scores
from tpulm.labelled.entities import shown_label
from tpulm.labelled.labels import NO_CLASSES
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.tokenization import load
from tpulm.train.finetuning_program import Epochs, Labelled

ONE_OF_TWO, FIVE_STEPS = [0] * 4 + [1] * 6, [1.0, 2.0, 3.0, 4.0]
SETS = [[1, 0], [0, 1], [1, 1], [1, 0]]
ALIKE = np.full((8, 2, 4), 0.5) + np.arange(64).reshape(8, 2, 4) * 1e-5


def doubts(task: str, outputs: Any, labels: Any, *, before: float, **settings: Any) -> list[str]:
    found = find_task(FinetuneConfig.model_validate({"task": task, **settings}))
    data = Labelled(NO_ROWS, np.array(labels, np.int64 if task == "classification" else np.float32), NO_EXAMPLES)
    said = np.array(outputs, np.float32)
    return model_warnings(said, data, training=data, before=before, task=found, names=("neg", "pos"))


def logits(answers: list[int]) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[answers]


SIX_RIGHT = logits([1, 1, 0, 0, 0, 0, 1, 1, 1, 1])  # of ten, by both answers


@pytest.mark.parametrize(
    ("task", "outputs", "labels", "settings", "expected"),
    [
        ("classification", logits([0] * 3 + [1] * 7), ONE_OF_TWO, {}, []),
        # F1 of "pos" is 2 * 6 / (10 + 6) = 0.75, of "neg" 0
        ("classification", logits([1] * 10), ONE_OF_TWO, {}, ["answers pos to 100%.* 60%.*0.375", "0.6000.*0.6000"]),
        ("classification", SIX_RIGHT, ONE_OF_TWO, {}, ["0.6000.*always answering pos"]),
        ("classification", SIX_RIGHT, ONE_OF_TWO, {"metric": "macro_f1"}, []),
        ("classification", logits([0] * 3 + [1] * 7), ONE_OF_TWO, {"before": 0.9}, ["did not help.*0.9000.*0.9000"]),
        ("classification", logits(ONE_OF_TWO), ONE_OF_TWO, {"before": 1.0}, []),
        ("regression", [[2.0], [2.001], [2.0], [2.001]], FIVE_STEPS, {}, ["answers 2 to everything", "always answering 2.5"]),
        ("regression", [[4.0], [3.0], [2.0], [1.0]], FIVE_STEPS, {}, ["5.0000.*always answering 2.5"]),
        ("regression", [[1.2], [2.1], [2.9], [3.6]], FIVE_STEPS, {}, []),
        ("multilabel", [[2, -1]] * 4, SETS, {}, ["answers neg to 100%.* 50%", "0.6667.*always answering neg.*0.6667"]),
        ("multilabel", [[-1, -1]] * 4, SETS, {}, ["no label to 100%", "always answering neg"]),
        ("multilabel", [[2, -1], [-1, 2], [2, 2], [2, -1]], SETS, {}, []),
        ("embed", ALIKE, range(8), {"before": 1.0}, ["is 1.00", "help"]),
        ("embed", np.eye(16)[:, None].repeat(2, axis=1), range(16), {"before": -2.0}, []),
    ],
)
def test_what_the_outputs_say_against_a_model(task: str, outputs: Any, labels: Any, settings: Any, expected: list[str]) -> None:
    defaults: dict[str, Any] = {"before": 9.0, "metric": "mean_squared_error"} if task == "regression" else {"before": -1.0}
    found = doubts(task, outputs, labels, **defaults | settings)
    assert len(found) == len(expected)
    for doubt, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, doubt), doubt


def test_one_choice_and_one_answer_to_everything() -> None:
    task = find_task(FinetuneConfig(task="choice"))
    rows = Rows(np.zeros(0, np.int32), np.zeros(41, np.int64), np.zeros(40, np.int64), of=np.repeat(np.arange(20), 2))
    data = Labelled(rows, np.arange(20) % 2, Examples(["a"] * 20, [["b", "c"]] * 20, [0, 1] * 10, [""] * 20))
    always = np.tile(np.array([1.0, 0.0], np.float32), 20)[:, None]
    one, chance = task.warnings(always, data, training=data, names=())
    assert "choice 0 for 100% of dev, where it is right for 50%" in one
    assert "0.5000 ± 0.1118" in chance  # the standard error of a share of 1/2 in 20 is sqrt(1/4 / 20)
    answering = find_task(FinetuneConfig(task="qa"))
    answering.null = True
    rows = Rows(np.zeros(8, np.int32), np.arange(0, 9, 2), np.full(4, 2), np.array([[0, 0], [0, 4]] * 4), np.arange(4))
    label = [{"text": "rain", "answer_start": 0}]
    examples = Examples(["a"] * 4, ["rain"] * 4, [label, [], [], label], [""] * 4)
    data = Labelled(rows, np.zeros((4, 3), np.int32), examples)
    outputs = np.tile(np.array([[[2.0, 2.0], [0.0, 0.0]]], np.float32), (4, 1, 1))
    one, never = answering.warnings(outputs, data, training=data, names=())
    assert "no answer to 100% of dev, where 50%" in one and "0.5000, is no better than" in never


@pytest.mark.needs_peer
def test_f1_of_numbers_from_a_threshold_on_is_klues() -> None:
    """klue_sts_f1: scikit-learn's f1_score of labels and predictions of 3 and more."""
    metrics = pytest.importorskip("sklearn.metrics")
    task = find_task(FinetuneConfig(task="regression", f1_threshold=3.0))
    for high in (5.0, 3.2, 2.0):
        labels, outputs = np.random.default_rng(0).uniform(0, high, (2, 50)).round(1).astype(np.float32)
        expected = metrics.f1_score(labels >= 3, outputs >= 3, zero_division=0)
        assert task.scores(outputs[:, None], Labelled(NO_ROWS, labels, NO_EXAMPLES), ())["f1"] == pytest.approx(expected)


def test_ids_in_place_of_names_are_noted() -> None:
    task, classes = find_task(FinetuneConfig()), LabelSet.from_names(("neg", "pos"))
    for labels, notes in (([1, 1], ["labels are ids of the classes: 0 neg, 1 pos"]), (["pos", "pos"], [])):
        examples = task.take([("text", label) for label in labels])
        assert task.notes(Labelled(NO_ROWS, classes.encode(examples), examples), classes) == notes


@pytest.mark.needs_peer
def test_scores_of_several_labels_are_those_of_scikit_learn() -> None:
    """For all labels together, and for each."""
    metrics, task = pytest.importorskip("sklearn.metrics"), find_task(FinetuneConfig(task="multilabel"))
    rng = np.random.default_rng(0)
    for _ in range(100):
        shape = int(rng.integers(1, 12)), int(rng.integers(2, 6))
        true, said = rng.random(shape) < rng.random(), rng.random(shape) < rng.random()
        expected = [metrics.f1_score(true, said, average=kind, zero_division=0) for kind in ("micro", "macro")]
        expected.append(metrics.accuracy_score(true, said))
        np.testing.assert_allclose(label_set_scores(true, said), expected, rtol=0, atol=1e-12)
        counts = task.by_class(np.where(said, 1.0, -1.0), Labelled(NO_ROWS, true, NO_EXAMPLES), tuple("abcdef"[: shape[1]]))
        result = SeedResult(0, 1, 1, {}, None, None, [], None, by_class=counts)
        found = [[of[one] for of in result.scores_by_class().values()] for one in ("precision", "recall", "f1", "count")]
        np.testing.assert_allclose(found, metrics.precision_recall_fscore_support(true, said, zero_division=0))


def test_texts_that_were_cut_or_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    tokenizer = load(tmp_path / "vocab.txt")
    texts = ["a " * words for words in range(1, 101)]  # rows of 3 to 102 tokens

    def found(texts: list[str], max_length: int) -> list[str]:
        rows = encode_rows(tokenizer, texts, None, max_length=max_length)
        return text_warnings(
            find_task(FinetuneConfig(max_length=max_length)), rows, max_positions=64, special=tokenizer.special
        )

    (cut,) = found(texts, 50)
    assert "52% of the texts are longer than 50" in cut and "max_length = 98" in cut and "at most 64" in cut
    assert found(texts, 98) == []

    def asked(questions: list[str], max_length: int) -> tuple[int, list[str]]:
        task = find_task(FinetuneConfig(task="qa", max_length=max_length, doc_stride=4))
        rows = task.rows(tokenizer, Examples(questions, ["a " * 100] * len(questions), None, []), max_length=max_length)
        return rows.cut, text_warnings(task, rows, max_positions=64, special=tokenizer.special)

    count, (cut,) = asked(["a", "a " * 13, "a " * 20], 19)  # each in many windows, with 8 tokens of the question
    assert count == 2 and "67% of the questions are longer than 8 tokens" in cut and "max_length = 43" in cut
    assert asked(["a", "a " * 13, "a " * 20], 43) == (0, [])

    def unknown(texts: list[str], pairs: list[Any] | None = None) -> list[str]:
        return part_vocabulary_warnings(tokenizer, "test", Examples(texts, pairs, None, ["somewhere"] * len(texts)))

    assert unknown(texts) == unknown(texts, [["a", "a a"]] * 100) == []
    for (doubt,), share in ((unknown(["a a a b"]), "25.0%"), (unknown(["a", "a"], [["a", "bb"], ["a", "a"]]), "28.6%")):
        assert doubt.startswith(f"test: {share}") and "characters b)" in doubt  # a model's card says so: no text
    (doubt,) = unknown(["b" * 101])
    assert "bb" not in doubt and "more than 100 characters" in doubt


def test_no_answer_is_one_where_some_questions_have_none() -> None:
    """Of a SQuAD 2.0 model of others, too, which does not say that it learnt it; the scores are those of evaluate-v2.0.py."""
    spans = np.array([[0, 0], [0, 4], [5, 9]] * 2)
    rows = Rows(np.zeros(6, np.int32), np.array([0, 3, 6]), np.array([3, 3]), spans, np.arange(2))
    outputs = np.array([[[3, 3], [1, 1], [0, 0]], [[0, 0], [1, 1], [0, 0]]], np.float32)
    labels = [[], [{"text": "rain", "answer_start": 0}]]
    examples = Examples(["when", "what"], ["rain snow"] * 2, labels, [""] * 2)
    data = Labelled(rows, np.array([[0, 0, 0], [1, 1, 0]], np.int32), examples)
    task = find_task(FinetuneConfig(task="qa"))
    found = task.scores(outputs, data, ())
    assert {found[name] for name in ("f1", "exact_match", "has_answer_f1", "no_answer_f1")} == {1.0}
    assert "SQuAD 2.0" in task.notes(data, NO_CLASSES)[1]
    answerable = Labelled(rows, data.labels, Examples(examples.texts, examples.pairs, labels[1:] * 2, [""] * 2))
    assert task.scores(outputs, answerable, ())["f1"] == 1.0 and task.mistakes(examples, data, outputs, ()) == []
    unlabelled = Examples(examples.texts, examples.pairs, None, [""] * 2)
    for threshold, answers in ((None, ["rain", "rain"]), (0.0, ["", "rain"]), (4.5, ["rain", "rain"])):
        task = find_task(FinetuneConfig(task="qa", null_score_diff_threshold=threshold))
        assert [one["answer"] for one in task.predictions(outputs, rows, unlabelled, NO_CLASSES)] == answers


@pytest.mark.needs_peer
def test_balanced_class_weights_are_those_of_scikit_learn() -> None:
    compute = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    labels = np.array([0] * 97 + [2] * 2 + [3], np.int32)
    rows = Rows(np.arange(100, dtype=np.int32), np.arange(101), np.ones(100, np.int64))
    config = FinetuneConfig(max_length=8, batch_size=32, class_weights="balanced")
    batches = Epochs(Labelled(rows, labels, NO_EXAMPLES), config, 0, batch_size=32, pad=0).iterate(0)
    expected, found = dict(zip([0, 2, 3], compute("balanced", classes=np.array([0, 2, 3]), y=labels), strict=True)), []
    for _, batch in islice(batches, 4):
        found += [both for both in zip(batch["labels"], batch["weights"], strict=True) if both[1]]  # without padding
    np.testing.assert_allclose([weight for _, weight in found], [expected[label] for label, _ in found], rtol=1e-6)
    assert len(found) == 100


def test_a_doubtful_class_imbalance_and_amounts_as_classes_are_told() -> None:
    labels = ["pos"] * 97 + ["neg"] * 2 + ["pso"]
    examples = Examples(["a"] * 100, None, labels, [f"train.csv, line {number}" for number in range(100)])
    task = find_task(FinetuneConfig())
    (doubt,) = label_warnings(task, examples)
    assert doubt.startswith("1 of 3 classes") and "'pso' (line 99) Did you mean 'pos'?" in doubt
    data, outputs = Labelled(NO_ROWS, np.array([0] * 97 + [1] * 3), NO_EXAMPLES), np.tile([1.0, 0.0], (100, 1))
    said = task.warnings(outputs, data, training=data, names=("pos", "neg"))
    assert '97% of the training labels are pos: class_weights = "balanced" and metric = "macro_f1" may help' in said
    labels = ["0.0"] * 60 + ["5.0"] * 39 + ["2.4"]
    (doubt,) = label_warnings(task, replace(examples, labels=labels))
    assert doubt.startswith("the 3 different labels are numbers") and doubt.endswith("need --regression")


def test_small_distances_are_no_zeros() -> None:
    data = Labelled(
        Rows(np.zeros(0, np.int32), np.zeros(3, np.int64), np.zeros(2, np.int64)), np.array([0, 1e-7], np.float32), NO_EXAMPLES
    )
    outputs = np.array([[2.5e-7], [0.0]], np.float32)
    found = find_task(FinetuneConfig(task="regression")).mistakes(Examples(["a", "b"], None, None, ["", ""]), data, outputs, ())
    assert [(one.text, one.confidence) for one in found] == [("a", 2.5e-7), ("b", 1e-7)]


def test_mistakes_are_shown_by_their_words() -> None:
    text = "Kim lives in Seoul"
    assert shown_label([[0, 3, "PS"], [13, 18, "LC"]], text) == "PS 'Kim', LC 'Seoul'"
    shown = [shown_label(one, text) for one in ([], 0.5, 3e-5, "a")]
    assert shown == ["(none)", "0.500", "3e-05", "a"]


def test_doubts_are_in_the_result_and_on_the_card() -> None:
    scores = {"accuracy": 0.6, "macro_f1": 0.375, "matthews": 0.0, "loss": 0.7}
    first = SeedResult(0, 1, 1, scores, None, None, [], None)
    seeds = first, replace(first, seed=1, doubts=["it answers pos to everything"])
    settings = FinetuneConfig(learning_rate=5e-5, max_length=16, layer_decay=1.0)
    examples, names = {"train": 1, "dev": 1}, ("neg", "pos")
    summary = FinetuneSummary("m", "o", "classification", names, examples, {}, 0, settings, seeds, 0, doubts=("38% were cut",))
    said = "seed 1: it answers pos to everything; a higher learning_rate (now 5e-05)"
    assert summary.health.startswith(said) and summary.health.endswith("; 38% were cut")
    assert summary.values()["health"] == summary.health and summary.health in card_text(summary)
    fine = replace(summary, seeds=seeds[:1], doubts=())
    assert fine.health == "all right" and "Not all right" not in card_text(fine)
