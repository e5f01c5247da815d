"""Answers in texts and choices among answers: training, resuming, answers, verdicts, and transformers' own outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tpulm
from encoders import reviews
from tpulm.config import FinetuneConfig
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning.tasks import find_task
from tpulm.labelled import Examples
from tpulm.labelled.rows import Rows
from tpulm.train.tuning import Labelled

MakeEncoder = Callable[[str], Path]
SETTINGS: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 1e-2, "max_length": 16, "dropout": 0.0}


def questions(count: int, seed: int = 0) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """The answer is "good" or "bad"; the text of every fifth has none."""
    found = []
    for number, (text, label) in enumerate(reviews(count, seed=seed)):
        word = "good" if label == "pos" else "bad"
        answers = [{"text": word, "answer_start": text.index(word)}]
        text, answers = (text.replace(word, "and"), []) if number % 5 == 0 else (text, answers)
        found.append(("was the film", f"{text} and the plot and the cast", answers))
    return found


def choices(count: int, seed: int = 0) -> list[tuple[str, list[str], int]]:
    """Two to four choices, of which one has the word "good"."""
    random, found = np.random.default_rng(seed), list[tuple[str, list[str], int]]()
    for _ in range(count):
        some = [" ".join(random.choice(["the", "film", "plot", "cast"], 3)) for _ in range(int(random.integers(2, 5)))]
        right = int(random.integers(len(some)))
        some[right] += " good"
        found.append(("was the film", some, right))
    return found


def write_squad(path: Path, examples: list[tuple[str, str, list[dict[str, Any]]]]) -> Path:
    asked = [
        {"context": text, "qas": [{"id": f"q{number}", "question": question, "answers": answers, "is_impossible": not answers}]}
        for number, (question, text, answers) in enumerate(examples)
    ]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "films", "paragraphs": asked}]}))
    return path


@pytest.mark.parametrize("kind", ["bert", "electra", "modernbert", "megatron"])
def test_transformers_agrees(kind: str, make_encoder: MakeEncoder, tmp_path: Path, torch: ModuleType) -> None:
    transformers: Any = pytest.importorskip("transformers")
    classifier = tpulm.Classifier(make_encoder(kind), task="qa", **SETTINGS)
    classifier.params = classifier.first_params(0)
    data = classifier.encode(questions(4))
    classifier.save_pretrained(tmp_path / "qa")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "qa").eval()
    ours = classifier.outputs(data)
    for row, (begin, end) in enumerate(zip(data.rows.starts[:-1], data.rows.starts[1:], strict=True)):
        with torch.no_grad():
            found = theirs(**_inputs(torch, data.rows.ids[None, begin:end], types=kind != "modernbert"))
        expected = np.stack([found.start_logits[0].numpy(), found.end_logits[0].numpy()], axis=-1)
        np.testing.assert_allclose(ours[row, : end - begin], expected, atol=1e-4)

    classifier = tpulm.Classifier(make_encoder(kind), task="choice", **SETTINGS)
    classifier.params = classifier.first_params(0)
    data = classifier.encode([("was the film", ["the film good", "the cast bad", "and the plot"], 1)])
    classifier.save_pretrained(tmp_path / "choice")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "choice").eval()
    with torch.no_grad():
        found = theirs(**_inputs(torch, data.rows.ids.reshape(1, 3, -1), types=kind != "modernbert"))
    np.testing.assert_allclose(classifier.outputs(data)[:, 0], found.logits[0].numpy(), atol=1e-4)
    for name in ("qa", "choice"):
        again = tpulm.Classifier(tmp_path / name)
        assert again.config.task == name


def _inputs(torch: Any, ids: np.ndarray, *, types: bool) -> dict[str, Any]:
    second = (np.cumsum(ids == 3, axis=-1) - (ids == 3) == 1).astype(np.int64)
    given = {"input_ids": torch.tensor(ids.astype(np.int64)), "attention_mask": torch.ones(ids.shape, dtype=torch.int64)}
    return given | ({"token_type_ids": torch.tensor(second)} if types else {})


@pytest.mark.slow
def test_questions_from_files_and_again(encoder: Path, tmp_path: Path) -> None:
    files: dict[str, Any] = {"train": write_squad(tmp_path / "train.json", questions(200)), "output": tmp_path / "out"}
    files["dev"] = write_squad(tmp_path / "dev.json", questions(40, 1))
    summary = tpulm.finetune(encoder, **files, task="qa", doc_stride=4, **SETTINGS)
    values = summary.values()
    assert values["dev_f1"] > 0.9 and values["dev_no_answer_f1"] > 0.9 and values["health"] == "all right"
    assert "answers questions by a part of a text" in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "report" / "index.html").exists()
    assert tpulm.finetune(encoder, **files, task="qa", doc_stride=4, **SETTINGS).nothing_to_do
    model = tpulm.Classifier(tmp_path / "out", doc_stride=4)
    found = model.predict([("was the film", "the film was very good and the plot"), ("was the film", "the film and the cast")])
    assert (found[0]["answer"], found[0]["start"], found[0]["end"]) == ("good", 18, 22) and found[1]["answer"] == ""
    assert model.evaluate(questions(40, 1))["f1"] == values["dev_f1"]
    with pytest.raises(DataError, match="a question comes with the text that has its answer"):
        model.predict(["was the film"])
    with pytest.raises(ConfigError, match="this model answers questions"):
        tpulm.classify(tmp_path / "out", "good")


@pytest.mark.slow
def test_choices_from_files(encoder: Path, tmp_path: Path) -> None:
    def write(name: str, examples: list[tuple[str, list[str], int]]) -> Path:
        rows = [
            {"question": a, **{f"choice{i}": one for i, one in enumerate(some)}, "label": right} for a, some, right in examples
        ]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    files: dict[str, Any] = {"train": write("train.jsonl", choices(160)), "dev": write("dev.jsonl", choices(32, 1))}
    summary = tpulm.finetune(encoder, output=tmp_path / "out", **files, task="choice", **SETTINGS)
    assert summary.values()["dev_accuracy"] > 0.9 and summary.health == "all right"
    (found,) = tpulm.Classifier(tmp_path / "out").predict([("was the film", ["the plot", "the film good", "the cast"])])
    assert (found["label"], found["choice"], len(found["scores"])) == (1, "the film good", 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a", "choices": ["b"], "label": 0}, "line 1: the choices are .* two or more"),
        ({"question": "a", "choices": ["b", " "], "label": 0}, "line 1: the choice 1 is empty"),
        ({"question": "a", "choices": ["b", "c"], "label": 2}, "line 1: the label is 2; expected is .* 0 to 1"),
        ({"question": "a", "choices": ["b", "c"], "label": "b"}, 'line 1: the label is "b"'),
    ],
)
def test_choices_that_are_none(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    task = find_task(FinetuneConfig(task="choice"))
    with pytest.raises(DataError, match=message):
        task.read(tmp_path / "a.jsonl", tpulm.Columns())


def test_files_of_swag(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sent1,sent2,ending0,ending1,ending2,label\nIt rains.,She,runs.,sings.,,1\n")
    found = find_task(FinetuneConfig(task="choice")).read(tmp_path / "a.csv", tpulm.Columns())
    assert found.texts == ["It rains."] and found.pairs == [["She runs.", "She sings."]] and found.labels == ["1"]


def test_one_answer_to_everything_is_said() -> None:
    task = find_task(FinetuneConfig(task="choice"))
    rows = Rows(np.zeros(0, np.int32), np.zeros(41, np.int64), np.zeros(40, np.int64), of=np.repeat(np.arange(20), 2))
    data = Labelled(rows, np.arange(20) % 2, Examples(["a"] * 20, [["b", "c"]] * 20, [0, 1] * 10, [""] * 20))
    always = np.tile(np.array([1.0, 0.0], np.float32), 20)[:, None]
    one, chance = task.doubts(always, data, training=data, names=())
    assert one == "it takes choice 0 for 100% of dev, where it is right for 50%"
    # the standard error of a share of 1/2 in 20 is sqrt(1/4 / 20) = 0.1118
    assert chance == "its accuracy on dev, 0.5000, is within two standard errors of chance (0.5000 ± 0.1118)"
    answering = find_task(FinetuneConfig(task="qa"))
    answering.null = True
    rows = Rows(np.zeros(8, np.int32), np.arange(0, 9, 2), np.full(4, 2), np.array([[0, 0], [0, 4]] * 4), np.arange(4))
    label = [{"text": "rain", "answer_start": 0}]
    examples = Examples(["a"] * 4, ["rain"] * 4, [label, [], [], label], [""] * 4)
    data = Labelled(rows, np.zeros((4, 3), np.int32), examples)
    outputs = np.tile(np.array([[[2.0, 2.0], [0.0, 0.0]]], np.float32), (4, 1, 1))
    assert answering.doubts(outputs, data, training=data, names=()) == [
        "it says that there is no answer to 100% of dev, where 50% have that answer",
        "its f1 on dev, 0.5000, is no better than that of never finding an answer (0.5000)",
    ]


def test_eurobert_is_refused(make_encoder: MakeEncoder) -> None:
    with pytest.raises(ConfigError, match="transformers has no EuroBertForQuestionAnswering; begin with a BERT"):
        tpulm.Classifier(make_encoder("eurobert"), task="qa")
