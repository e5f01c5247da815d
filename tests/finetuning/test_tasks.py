"""What every task does: it learns, is saved and loaded as it was, and refuses rows it cannot use; and a task from outside."""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_examples import NO_EXAMPLES, NO_ROWS, examples_of, same, untrained, write_jsonl

import tpulm
from encoders import built
from tpulm.config import FinetuneConfig
from tpulm.config.finetune import METRIC_NAMES, METRICS, TASKS
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning import Task, register_task
from tpulm.finetuning.multilabel import LabelSets
from tpulm.finetuning.tasks import TextClassification, find_task, label_warnings, read_for
from tpulm.labelled import Columns, Examples, LabelSet
from tpulm.labelled.labels import NO_CLASSES
from tpulm.labelled.rows import Rows
from tpulm.train.finetuning_program import Labelled

FILM, PLOT = "the film was very good and the plot was", "bad plot and cast and the film was very"
TEXTS = ["the film was very good", "the bad plot"]
LEARNT: dict[str, tuple[str, float, list[Any], Any]] = {  # of a task: a score and its least value, what is asked, the answers
    "classification": ("accuracy", 0.95, [FILM, PLOT], ["pos", "neg"]),
    "regression": ("pearson", 0.8, [FILM], [pytest.approx(1050, abs=30)]),
    "multilabel": ("micro_f1", 0.95, [*TEXTS, "the cast and the plot"], [["emphatic", "praise"], ["blame"], []]),
    "tag": ("entity_f1", 0.95, ["the plot was very good"], [[[18, 22, "praise"]]]),
    "qa": ("f1", 0.9, [("was the film", FILM), ("was the film", "the film and the cast")], [("good", 18, 22), ("", 0, 0)]),
    "choice": ("accuracy", 0.9, [("was the film", ["the plot", "the film good", "the cast"])], [(1, "the film good")]),
    "embed": ("spearman", 0.8, [("the film was good", "the plot was very good")], [pytest.approx(1.0, abs=0.2)]),
    "retrieve": ("mrr_at_10", 0.95, [("film good", "the film was good")], [pytest.approx(1.0, abs=0.3)]),
}


# Tasks of which a saved model has the head of another: they are named when it is loaded.
NAMED_TO_LOAD = ("retrieve",)


QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 5e-3, "max_length": 16, "dropout": 0.0}
# Of tasks that 60 steps from random weights do not teach.
OWN: dict[str, dict[str, Any]] = {"multilabel": {"epochs": 6}, "embed": {"epochs": 5}}
OWN |= {task: {"learning_rate": 1e-2} for task in ("qa", "choice")}


@pytest.mark.parametrize(
    ("task", "kind"),
    [*((task, "bert") for task in sorted(TASKS)), ("classification", "llama"), ("multilabel", "decoder")],
)
def test_it_learns_and_is_loaded_as_it_was_saved(task: str, kind: str, tmp_path: Path) -> None:
    metric, least, asked, answers = LEARNT[task]
    classifier, unseen = tpulm.Classifier(built(kind), task=task, **QUICK | OWN.get(task, {})), examples_of(task, 64, seed=2)
    classifier.fit(examples_of(task, 320), examples_of(task, 64, seed=1))
    assert classifier.evaluate(unseen)[metric] > least
    assert [plain(answer) for answer in classifier.predict(asked)] == answers
    classifier.save_pretrained(tmp_path / "out")
    named: dict[str, Any] = {"task": task} if task in NAMED_TO_LOAD else {}
    again = tpulm.Classifier(tmp_path / "out", **named)
    assert again.config.task == task and again.head_config.names == classifier.head_config.names
    assert same(again.params, classifier.params) and again.evaluate(unseen) == classifier.evaluate(unseen)


def plain(answer: Any) -> Any:
    """(answer, start, end) of an answer in a text, (label, choice) of a choice."""
    return tuple(answer.values())[: 3 if "start" in answer else 2] if isinstance(answer, dict) else answer


@pytest.mark.parametrize("task", ["tag", "qa", "embed"])
def test_what_is_no_classifier_is_refused(task: str, tmp_path: Path) -> None:
    untrained(task)[0].save_pretrained(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"tpulm\.(Classifier|embed)"):
        tpulm.classify(tmp_path / "out", "good")


CHOICE = {"question": "a film", "choices": ["a", "b"], "label": 1}
UNUSABLE: dict[str, tuple[dict[str, object], list[dict[str, object]]]] = {  # of a task: a row, and what makes it unusable
    "regression": ({"text": "a film", "label": 1}, [{"label": "high"}]),
    "embed": ({"text": "a film", "pair": "a plot", "label": 1}, [{"label": "high"}]),
    "tag": ({"text": "a film", "label": [[2, 6, "WORK"]]}, [{"label": [[2, 7, "WORK"]]}]),
    "multilabel": ({"text": "a film", "label": ["good"]}, [{"label": "good"}, {"label": ["good", ""]}]),
    "choice": (CHOICE, [{"label": 2}, {"label": "b"}, {"choices": ["a"]}, {"choices": ["a", " "]}]),
    "retrieve": ({"text": "a film", "pair": "a plot"}, [{"pair": " "}]),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_rows_that_a_task_cannot_use_are_refused_or_counted(name: str, tmp_path: Path) -> None:
    task, (row, changes), path = find_task(FinetuneConfig(task=name)), UNUSABLE[name], tmp_path / "train.jsonl"
    columns = Columns(pair="pair" if "pair" in row else None)
    for changed in changes:
        path.write_text(f"{json.dumps(row)}\n{json.dumps(row | changed)}\n")
        with pytest.raises(DataError, match=r"train\.jsonl, line 2"):
            task.read(path, columns)
        found = task.read(path, columns, on_error="skip")
        assert len(found) == 1 and found.skipped.total() == 1


@pytest.mark.parametrize(
    ("task", "examples", "named"),
    [
        ("classification", [("a film", "pos")] * 40, "'pos'"),
        ("regression", [("a film", 3)] * 40, "40"),
        ("multilabel", [("a film", []), ("a plot", [])], "2"),
        ("multilabel", [("a film", ["a", "b"])] * 2, "2"),
        ("embed", [("film", "plot", 1.0)] * 2, "2"),
        ("embed", [("film", 1.0)], "pair"),
        ("retrieve", [("film", "cast"), ("plot", "cast")], "2"),
        ("retrieve", [("film", "plot", " ")], "example 0"),
        ("tag", [("film", [])], "1"),
        ("qa", [("was it", "the film", [])], "1"),
    ],
)
def test_examples_that_teach_nothing_are_refused(task: str, examples: list[Any], named: str, encoder: Path) -> None:
    with pytest.raises(DataError, match=named):
        tpulm.Classifier(encoder, task=task, max_length=16).encode(examples, learn=True)


@pytest.mark.parametrize(
    ("task", "example", "named"),
    [
        ("classification", ("a bad film", "nag"), "'neg'"),
        ("multilabel", ("a bad film", ["blam"]), "'blame'"),
        ("tag", ("good", [[0, 4, "prase"]]), "'praise'"),
        ("tag", ("good", [[0, 9, "praise"]]), "0 to 9"),
        ("embed", ("film", "plot", "much"), "'much'"),
    ],
)
def test_labels_that_were_not_learnt_are_named(task: str, example: Any, named: str) -> None:
    good = examples_of(task, 1)
    with pytest.raises(DataError, match=rf"(?s)example 1: .*{named}"):
        untrained(task)[0].evaluate([*good, example])


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("train.conll", "Ann B-PER\nsings O\n\n", "tag"),
        ("train.tsv", "## a comment\nA\tB-PS\nn\tI-PS\n\n", "tag"),
        ("train.jsonl", '{"tokens": ["Ann", "sings"], "ner_tags": ["B-PER", "O"]}\n', "tag"),
        ("spans.jsonl", '{"text": "Ann sings", "label": [[0, 3, "PER"]]}\n', "tag"),
        ("train.jsonl", '{"question": "Who?", "context": "Ann.", "answers": [{"text": "Ann", "answer_start": 0}]}\n', "qa"),
        ("train.jsonl", '{"question": "Who?", "choice0": "Ann", "choice1": "Bo", "label": 1}\n', "choice"),
        ("train.tsv", "text\tlabel\ngood\tpos\nbad\t\n", None),
        ("train.jsonl", '{"text": "good", "label": ["a", "b"]}\n', None),
        ("train.jsonl", '{"review": "good", "label": "a"}\n', None),
    ],
)
def test_files_of_another_task_are_told(name: str, text: str, task: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises((ConfigError, DataError)) as refused:
        read_for(find_task(FinetuneConfig()), path, Columns())
    assert (re.findall(r"give --task (\w+)", str(refused.value)) or [None]) == [task]


def test_files_of_labels_with_a_separator_and_of_swag(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\nfilm\ta;b\nplot\t\n")
    task = find_task(FinetuneConfig(task="multilabel"))
    assert task.read(tmp_path / "a.tsv", Columns(label_separator=";")).labels == [["a", "b"], []]
    assert task.learn(tpulm.read_examples(tmp_path / "a.tsv", Columns(label_separator=";"))).names == ("a", "b")
    (tmp_path / "b.csv").write_text('text,label\nfilm,"b; a"\nplot,a\ncast, cafe\u0301 \n', encoding="utf-8")
    spaced = task.read(tmp_path / "b.csv", Columns(label_separator=";"))
    for examples in (spaced, task.take([("film", ["b", " a"]), ("plot", ["a"]), ("cast", ["cafe\u0301"])])):
        outputs = np.array([[1, 1, -1], [1, -1, -1], [-1, -1, 1]], np.float32)
        assert task.predictions(outputs, NO_ROWS, examples, task.learn(examples)) == [["a", "b"], ["a"], ["caf\xe9"]]
    assert spaced.labels == [["b", "a"], ["a"], ["caf\xe9"]]
    for separator, error, why in ((None, DataError, r"a\.tsv, line 2: .*--label-separator"), ("", ConfigError, "separator")):
        with pytest.raises(error, match=why):
            task.read(tmp_path / "a.tsv", Columns(label_separator=separator))
    (tmp_path / "a.csv").write_text("sent1,sent2,ending0,ending1,ending2,label\nIt rains.,She,runs.,sings.,,1\n")
    found = find_task(FinetuneConfig(task="choice")).read(tmp_path / "a.csv", Columns())
    assert found.texts == ["It rains."] and found.pairs == [["She runs.", "She sings."]] and found.labels == ["1"]
    for column in ("choice2", "ending_2"):
        (tmp_path / "b.csv").write_text(f"question,ending1,{column},ending2,label\nWho?,Ann,Bo,Cy,0\n")
        with pytest.raises(DataError, match=rf"b\.csv, line 2: .*ending1, {column}, ending2"):
            find_task(FinetuneConfig(task="choice")).read(tmp_path / "b.csv", Columns())
    with pytest.raises(ConfigError, match="EuroBertForQuestionAnswering"):
        tpulm.Classifier(built("eurobert"), task="qa")


def test_columns_may_have_the_names_that_are_usual_elsewhere(tmp_path: Path) -> None:
    answer = {"text": ["sleeps"], "answer_start": [4]}
    for name, row in (
        ("qa", {"text": "Who?", "context": "Ann sleeps", "label": answer}),
        ("choice", {"text": "Who?", "choices": ["Ann", "Bo"], "label": 1}),
        ("retrieve", {"label": "where", "pair": "here"}),
    ):
        (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
        named = Columns(text="label") if name == "retrieve" else Columns(text="text", label="label")
        found = find_task(FinetuneConfig(task=name)).read(tmp_path / "a.jsonl", named)
        assert found.texts == ["where" if name == "retrieve" else "Who?"] and found.pairs


def test_a_question_is_impossible_whatever_its_answers_column_is_called(tmp_path: Path) -> None:
    row = {"question": "q", "context": "Ann is", "gold": [{"text": "Ann", "answer_start": 0}], "is_impossible": True}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert find_task(FinetuneConfig(task="qa")).read(tmp_path / "a.jsonl", Columns(label="gold")).labels == [[]]


def test_cells_of_a_data_frame_may_be_arrays_and_decimals() -> None:
    """As pandas reads lists and decimals from Parquet."""
    spans = np.array([np.array([np.int64(0), np.int64(3), "PER"], object)], object)
    for name, columns, label in (
        ("multilabel", {"text": ["Ann is"], "label": [np.array(["a", "b"])]}, ["a", "b"]),
        ("tag", {"text": ["Ann is"], "label": [spans]}, [[0, 3, "PER"]]),
        ("regression", {"text": ["Ann is"], "label": [Decimal("1.5")]}, 1.5),
        (
            "qa",
            {"text": ["q"], "pair": ["Ann is"], "label": [{"text": np.array(["Ann"]), "answer_start": np.array([0])}]},
            None,
        ),
    ):
        found = find_task(FinetuneConfig(task=name)).take(columns)
        assert label is None or json.dumps(found.labels) == json.dumps([label])


def test_labels_with_a_separator_in_an_inner_column(tmp_path: Path) -> None:
    rows = [{"text": "a", "meta": {"tags": tags}} for tags in ("a;b", None)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(label="meta.tags", label_separator=";")
    assert find_task(FinetuneConfig(task="multilabel")).read(tmp_path / "a.jsonl", columns).labels == [["a", "b"], []]


def test_texts_that_belong_together_are_kept_as_they_are() -> None:
    """In tuples as in columns: in the form of Unicode and with the blanks that they have."""
    task, texts = find_task(FinetuneConfig(task="retrieve")), ["q", unicodedata.normalize("NFD", "강아지"), " 고양이 "]
    for count in (2, 3):
        named = dict(zip(("text", "pair", "negative"), ([text] for text in texts[:count]), strict=False))
        taken, columns = task.take([tuple(texts[:count])]), task.take(named)
        assert (taken.texts, taken.pairs, taken.labels) == (columns.texts, columns.pairs, columns.labels)
        assert taken.pairs == texts[1:2] and taken.labels == ([texts[2]] if count == 3 else None)


def test_many_classes_of_one_example_are_told_in_no_time() -> None:
    examples = Examples(["a"] * 3_000, None, [f"class{min(number, 1_500)}" for number in range(3_000)], ["a, line 1"] * 3_000)
    begun = time.perf_counter()
    (warning,) = label_warnings(find_task(FinetuneConfig()), examples)
    assert "1500 of 1501 classes" in warning and "and 1497 more" in warning and time.perf_counter() - begun < 2.0


def test_examples_that_were_read_without_the_task_are_checked_by_it() -> None:
    examples = Examples(["the film", "the plot"], None, ["1.5", "n/a"], ["a, line 1", "a, line 2"])
    with pytest.raises(DataError, match="a, line 2"):
        find_task(FinetuneConfig(task="regression")).take(examples)


def test_texts_that_belong_together_come_from_columns_and_a_data_frame() -> None:
    columns = {"text": ["where", "who"], "pair": ["here", "she"], "negative": ["there", "he"]}
    task, frame = find_task(FinetuneConfig(task="retrieve")), pytest.importorskip("pandas").DataFrame(columns)
    taken, paired = task.take(frame), task.take({name: columns[name] for name in ("text", "pair")})
    assert (taken.texts, taken.pairs, taken.labels) == tuple(columns.values())
    assert (paired.texts, paired.pairs, paired.labels) == (columns["text"], columns["pair"], None)


def test_unanswerable_questions_of_the_hub_are_counted() -> None:
    task = find_task(FinetuneConfig(task="qa", max_length=32))
    made = tpulm.load_model(built("bert")).tokenization
    answers: list[Any] = [{"text": ["film"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    examples = task.take([("was it", "the film", answer) for answer in answers])
    data = task.encode(examples, NO_CLASSES, made, max_length=32, learn=True)
    assert "1 have no answer" in task.notes(data, NO_CLASSES)[0]


class Feeling(Task):
    """Labels are -1 and 1."""

    kind = "A judge of feelings"

    def label_fault(self, label: Any) -> Any:
        return None if label in (-1, 1) else ("no_label", f"the label is {label!r}, not a feeling.")

    def learn(self, examples: Examples) -> LabelSet:
        return LabelSet.from_names(["-1", "1"])

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        return (np.array(examples.labels) > 0).astype(np.int32)

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        return {"agreement": float(np.mean(outputs.argmax(axis=1) == data.labels)), "distance": 0.0}

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[int]:
        return [2 * int(row.argmax()) - 1 for row in outputs]


class Grades(TextClassification):
    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        return super().scores(outputs, data, names) | {"nearness": -float(np.mean(abs(outputs.argmax(axis=1) - data.labels)))}


class Subsets(LabelSets):
    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        return super().scores(outputs, data, names) | {"nearness": -float(np.mean((outputs > 0) != data.labels))}


REGISTERED: dict[str, tuple[Task, dict[str, Any]]] = {
    "feeling": (Feeling(), {"agreement": "highest", "distance": "lowest"}),
    "grades": (Grades(), {"nearness": "highest"}),
    "subsets": (Subsets(), {"nearness": "highest"}),
}


@pytest.fixture
def registered() -> Iterator[None]:
    for name, (task, metrics) in REGISTERED.items():
        register_task(name, task, metrics=metrics)
    yield
    for name, (_, metrics) in REGISTERED.items():
        TASKS.discard(name)
        del METRICS[name]
        for metric in metrics:
            METRIC_NAMES.discard(metric)


@pytest.mark.parametrize(
    ("task", "labels", "outputs"),
    [
        ("grades", [0, 2, 1, 1], [[0, 1, 0]] * 4),
        ("grades", [0, 1, 1, 1, 1], [[0, 1, 0]] * 5),  # class_weights would be refused, and is not advised
        ("subsets", [[1, 0], [1, 0]], [[1.0, -1.0]] * 2),
    ],
)
def test_a_constant_answer_is_scored_by_the_tasks_own_metric(registered: None, task: str, labels: Any, outputs: Any) -> None:
    data = Labelled(NO_ROWS, np.array(labels), NO_EXAMPLES)
    found = find_task(FinetuneConfig(task=task)).warnings(np.array(outputs), data, training=data, names=("a", "b", "c"))
    assert "nearness" in found[-1] and "no better" in found[-1]


def test_a_task_of_ones_own_learns_from_files(registered: None, encoder: Path, tmp_path: Path) -> None:
    examples = [(text, 1 if label == "pos" else -1) for text, label in examples_of("classification", 240)]
    train = write_jsonl(tmp_path / "train.jsonl", "classification", examples[:200])
    settings: Any = {"task": "feeling", "epochs": 3, "batch_size": 16, "learning_rate": 5e-3, "max_length": 16}
    summary = tpulm.finetune(encoder, train, tmp_path / "out", **settings)
    assert summary.settings.chosen_by == "agreement" and summary.values()["dev_agreement"] > 0.9
    assert "A judge of feelings of 2 classes" in (tmp_path / "out" / "README.md").read_text()
    again = tpulm.Classifier(tmp_path / "out", task="feeling", max_length=16)
    assert again.predict([FILM, PLOT]) == [1, -1] and again.evaluate(examples[200:])["agreement"] > 0.9
    with pytest.raises(DataError, match="'pos'"):
        again.evaluate([("good", "pos")])
    with pytest.raises(ConfigError, match=r"'feling'.*'feeling'"):
        tpulm.Classifier(encoder, task="feling")
    with pytest.raises(ConfigError, match="feeling"):
        tpulm.Classifier(encoder, task="feeling", metric="accuracy")
