"""Several labels a text: files, scikit-learn's scores, training, answers, and transformers' own probabilities."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tpulm
from command_line import invoke
from encoders import build_encoder, reviews
from tpulm.config import FinetuneConfig
from tpulm.errors import ConfigError, DataError
from tpulm.finetuning.multilabel import LabelSets
from tpulm.finetuning.summary import SeedResult
from tpulm.finetuning.tasks import doubts_about_model, find_task
from tpulm.labelled import Columns, examples_of, label_set_scores
from tpulm.labelled.rows import Rows
from tpulm.train.tuning import Labelled

SETTINGS: dict[str, Any] = {"epochs": 6, "batch_size": 16, "learning_rate": 5e-3, "max_length": 16, "dropout": 0.0}
NO_ROWS: Any = None
LABELS = ("blame", "emphatic", "praise")


def labelled(count: int, seed: int = 0) -> list[tuple[str, list[str]]]:
    """The words "good", "bad" and "very" each make a label; a few texts have none of them."""
    words = {"good": "praise", "bad": "blame", "very": "emphatic"}
    texts = [
        text.replace("good", "film") if number % 16 == 1 else text for number, (text, _) in enumerate(reviews(count, seed=seed))
    ]
    return [(text, sorted(label for word, label in words.items() if word in text.split())) for text in texts]


def write(path: Path, examples: list[tuple[str, list[str]]]) -> Path:
    path.write_text("".join(["text\tlabel\n", *(f"{text}\t{'; '.join(labels)}\n" for text, labels in examples)]))
    return path


@pytest.fixture(scope="module")
def trained(encoder: Path) -> tpulm.Classifier:
    return tpulm.Classifier(encoder, task="multilabel", **SETTINGS).fit(labelled(320), labelled(64, 1))


@pytest.mark.needs_peer
def test_scores_are_those_of_scikit_learn_on_random_labels() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        shape = int(rng.integers(1, 12)), int(rng.integers(2, 6))
        true, said = rng.random(shape) < rng.random(), rng.random(shape) < rng.random()
        expected = [metrics.f1_score(true, said, average=kind, zero_division=0) for kind in ("micro", "macro")]
        np.testing.assert_allclose(
            label_set_scores(true, said), [*expected, metrics.accuracy_score(true, said)], rtol=0, atol=1e-12
        )


@pytest.mark.needs_peer
def test_scores_of_each_label_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng, names = np.random.default_rng(0), ("a", "b", "c")
    for _ in range(100):
        true, said = rng.random((9, 3)) < 0.4, rng.random((9, 3)) < 0.5
        counts = LabelSets().by_class(np.where(said, 1.0, -1.0), Labelled(NO_ROWS, true), names)
        result = SeedResult(0, 1, 1, {}, None, None, [], None, by_class=counts)
        found = [[of[one] for of in result.scores_by_class().values()] for one in ("precision", "recall", "f1", "count")]
        np.testing.assert_allclose(found, metrics.precision_recall_fscore_support(true, said, zero_division=0))


def test_known_scores() -> None:
    """By hand: of label 0 one is right of two said and one there, of label 1 none of one there; one set of two is right."""
    found = label_set_scores(np.array([[1, 0], [0, 1]], bool), np.array([[1, 0], [1, 0]], bool))
    assert found == (0.5, pytest.approx(1 / 3), 0.5)


@pytest.mark.slow
def test_it_learns_and_comes_back(trained: tpulm.Classifier, tmp_path: Path) -> None:
    assert trained.labels is not None and trained.labels.names == LABELS
    assert trained.evaluate(labelled(64, 1))["micro_f1"] > 0.95
    texts = ["the film was very good", "the bad plot", "the cast and the plot"]
    assert trained.predict(texts) == [["emphatic", "praise"], ["blame"], []]
    trained.save_pretrained(tmp_path / "out")
    again = tpulm.Classifier(tmp_path / "out")
    assert again.config.task == "multilabel" and again.predict(texts) == trained.predict(texts)
    answers = tpulm.classify(tmp_path / "out", texts)
    assert [list(one.labels or ()) for one in answers] == trained.predict(texts)
    np.testing.assert_allclose([list((one.probabilities or {}).values()) for one in answers], trained.predict_proba(texts))


@pytest.mark.parametrize("kind", ["bert", "electra", "eurobert", "modernbert"])
def test_transformers_applies_the_same_sigmoid(kind: str, tmp_path: Path, torch: ModuleType) -> None:
    transformers: Any = pytest.importorskip("transformers")
    settings = {**SETTINGS, "epochs": 1}
    ours = tpulm.Classifier(build_encoder(kind, tmp_path), task="multilabel", **settings).fit(labelled(64), labelled(16, 1))
    ours.save_pretrained(tmp_path / "out")
    theirs = transformers.pipeline("text-classification", str(tmp_path / "out"), top_k=None)
    assert theirs.model.config.problem_type == "multi_label_classification"
    texts = [text for text, _ in labelled(8, 2)]
    found = [{one["label"]: one["score"] for one in scores} for scores in theirs(texts)]
    np.testing.assert_allclose([[one[name] for name in LABELS] for one in found], ours.predict_proba(texts), atol=1e-4)


@pytest.mark.slow
def test_from_files_and_from_the_command_line(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.tsv", labelled(320))
    dev = [{"text": text, "label": labels} for text, labels in labelled(64, 1)]
    (tmp_path / "dev.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in dev))
    given = ["--task", "multilabel", "--train", "train.tsv", "--label-separator", ";", "--dev", "dev.jsonl", "-o", "out"]
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    done = invoke("finetune", str(encoder), *given, *settings, "--json")
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)
    assert values["dev_micro_f1"] > 0.95 and values["health"] == "all right" and values["chosen_by"] == "dev_micro_f1"
    assert "train: labels: " in done.stderr and "texts have none" in done.stderr
    assert 'pipeline("text-classification"' in (tmp_path / "out" / "README.md").read_text()
    done = invoke("classify", "out", "--input", "dev.jsonl")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(one["predicted"] == one["label"] for one in found) > 55 and len(found[0]["score"]) == len(found[0]["predicted"])
    assert "emphatic, praise" in invoke("classify", "out", "the film was very good").stdout


def test_what_is_wrong_is_said(encoder: Path, tmp_path: Path) -> None:
    train = write(tmp_path / "train.tsv", labelled(40))
    arguments: Any = {"task": "multilabel", "output": tmp_path / "out"}
    with pytest.raises(DataError, match=r"train.tsv, line 2: the label is \"blame.*--label-separator ';'"):
        tpulm.finetune(encoder, train, **arguments)
    (tmp_path / "blank.tsv").write_text("text\tlabel\nfilm\ta;b\nplot\ta;;b\n")
    with pytest.raises(DataError, match=r"blank.tsv, line 3: of its labels .*the label is missing"):
        tpulm.finetune(encoder, tmp_path / "blank.tsv", columns=Columns(label_separator=";"), **arguments)
    with pytest.raises(DataError, match="the 2 examples"):
        tpulm.Classifier(encoder, task="multilabel").fit([("a film", []), ("a plot", [])])
    with pytest.raises(DataError, match="all 2 examples"):
        tpulm.Classifier(encoder, labels=("a", "b"), task="multilabel").encode([("film", ["a", "b"])] * 2, learn=True)
    with pytest.raises(DataError, match=r"example 0: its label 'blam' is none of the classes.*Did you mean 'blame'"):
        tpulm.Classifier(encoder, labels=LABELS, task="multilabel").encode([("film", ["blam"])])
    with pytest.raises(ConfigError, match="separator is empty"):
        tpulm.finetune(encoder, train, columns=Columns(label_separator=""), **arguments)


def test_a_label_is_one_in_both_forms_of_unicode() -> None:
    task, (composed, apart) = LabelSets(), [unicodedata.normalize(form, "칭찬") for form in ("NFC", "NFD")]
    examples = examples_of([("a", [composed, "b"]), ("c", [f"{apart}\u200b"]), ("d", [])], fault=task.fault)
    assert task.learn(examples).names == ("b", composed)


def test_one_answer_to_everything_is_said() -> None:
    labels = np.array([[1, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    config = FinetuneConfig(task="multilabel")
    data = Labelled(Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64)), labels)

    def doubts(outputs: list[list[float]]) -> list[str]:
        return doubts_about_model(
            np.array(outputs, np.float32), data, training=data, before=-1.0, task=find_task(config), names=("a", "b")
        )

    one, constant = doubts([[2, -1]] * 4)
    assert one == "it answers a to 100% of dev, where 50% are labelled so"
    assert constant == "its micro f1 on dev, 0.6667, is no better than that of always answering a (0.6667)"
    assert doubts([[-1, -1]] * 4)[0].startswith("it answers no label to 100% of dev")
    assert doubts([[2, -1], [-1, 2], [2, 2], [2, -1]]) == []
