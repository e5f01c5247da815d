"""`tpulm.bench` on toy files in the benchmarks' own forms: the table, what is chosen on what, stopping and going on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpulm
from encoders import StopAt, reviews
from tpulm import storage
from tpulm.convert.huggingface import PRETRAINED
from tpulm.errors import DataError, Stopped, WorkFolderMismatch
from tpulm.finetuning import BenchReport, bench
from tpulm.finetuning.benchmark import micro_f1
from tpulm.finetuning.run import read_results
from tpulm.progress import Silent

SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 16, "max_length": 16, "log_every_steps": 1}
RATES = [1e-6, 5e-3]


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA without a header, MRPC with odd names, MNLI with two dev files; of others nothing, or a part."""
    folder = tmp_path_factory.mktemp("glue")

    def write(name: str, lines: list[str]) -> None:
        storage.write_atomic(folder / name, "\n".join(lines) + "\n")

    for part, count, seed in (("train", 80, 0), ("dev", 24, 1)):
        texts = [(text, int(label == "pos")) for text, label in reviews(count, seed=seed)]
        write(f"CoLA/{part}.tsv", [f"gj04\t{label}\t{'' if label else '*'}\t{text}" for text, label in texts])
        pairs = [f'{label}\t{number}\t{number}\t{text}\tthe "film' for number, (text, label) in enumerate(texts)]
        write(f"MRPC/{part}.tsv", ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *pairs])
    write("RTE/train.tsv", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"])
    names = ("contradiction", "entailment", "neutral")
    for part, count in (("train", 96), ("dev_matched", 24), ("dev_mismatched", 24)):
        rows = [f"{text}\tthe plot\t{names[number % 3]}" for number, (text, _) in enumerate(reviews(count, seed=count))]
        write(f"MNLI/{part}.tsv", ["sentence1\tsentence2\tgold_label", *rows])
    return folder


def run(encoder: Path, glue: Path, workdir: Path, *, progress: Any = None, **changes: Any) -> BenchReport:
    given: dict[str, Any] = {"tasks": ["cola", "rte"], "seeds": 2, "learning_rates": RATES, "settings": SETTINGS} | changes
    return bench("glue", glue, encoder, workdir, progress=progress or Silent(), **given)


@pytest.fixture(scope="module")
def finished(encoder: Path, glue: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BenchReport]:
    workdir = tmp_path_factory.mktemp("bench") / "w"
    return workdir, run(encoder, glue, workdir)


@pytest.mark.slow
def test_the_rate_is_chosen_on_a_part_of_train_and_dev_is_reported(finished: tuple[Path, BenchReport]) -> None:
    """In a table beside the published scores, with what is missing."""
    workdir, report = finished
    cola = report.results[0]
    assert cola.state == "done" and set(cola.tried) == {"1e-06", "0.005"}
    for rate, tried in cola.tried.items():
        each = [one.dev["matthews"] for one in read_results(workdir / "cola" / f"lr-{rate}")]
        assert tried == pytest.approx(np.mean(each)) and len(each) == 2
    assert cola.learning_rate == max(RATES, key=lambda rate: cola.tried[f"{rate:g}"])
    results = read_results(workdir / "cola" / f"lr-{cola.learning_rate:g}")
    assert cola.scores == {"matthews": [one.test["matthews"] for one in results if one.test]}
    assert cola.examples == {"train": 72, "held out of train": 8, "dev": 24}
    assert cola.chosen_on == "10% of train" and cola.chosen_by == "matthews"
    scores = 100 * np.array(cola.scores["matthews"])
    assert report.rows() == [
        ["CoLA, Matthews", f"{scores.mean():.2f} ± {scores.std(ddof=1):.2f}", "57.00", "67.70", "65.10"],
        ["RTE, accuracy", "missing", "66.70", "82.70", "87.40"],
    ]
    remarks = "\n".join(report.remarks())
    assert "RTE: missing, no RTE/dev.tsv (.gz may follow) below" in remarks
    assert "not as published: epochs = 1, batch_size = 16, max_length = 16" in remarks
    table = (workdir / "bench.md").read_text()
    assert "| CoLA, Matthews |" in table and all(one.source in table for one in report.described.baselines)
    assert json.loads((workdir / "bench.json").read_text()) == json.loads(json.dumps(report.values()))


@pytest.mark.slow
def test_again_nothing_is_trained(encoder: Path, glue: Path, finished: tuple[Path, BenchReport]) -> None:
    """And another start is refused."""
    workdir, report = finished
    before = {path: path.stat().st_mtime_ns for path in workdir.glob("cola/*/*")}
    assert run(encoder, glue, workdir).values() == report.values()
    with pytest.raises(WorkFolderMismatch, match=r"settings\.epochs: 1 -> 3"):
        run(encoder, glue, workdir, settings=SETTINGS | {"epochs": 3})
    assert {path: path.stat().st_mtime_ns for path in workdir.glob("cola/*/*")} == before


@pytest.mark.slow
def test_a_stop_changes_nothing(encoder: Path, glue: Path, finished: tuple[Path, BenchReport], tmp_path: Path) -> None:
    """In the second seed of the second learning rate, after the first."""
    shutil.copytree(finished[0], tmp_path / "w")
    shutil.rmtree(tmp_path / "w" / "cola" / "lr-0.005")
    with pytest.raises(Stopped):
        run(encoder, glue, tmp_path / "w", progress=StopAt(8))
    assert not (tmp_path / "w" / "cola" / "lr-0.005" / "finetune.json").exists()
    continued = run(encoder, glue, tmp_path / "w")
    assert continued.rows() == finished[1].rows()
    assert continued.results[0].scores == finished[1].results[0].scores


def test_chosen_on_dev_where_that_is_asked_for(encoder: Path, glue: Path, tmp_path: Path) -> None:
    """By a narrow model that was pretrained here, which has a rate of its own."""
    model = tmp_path / "model"
    shutil.copytree(encoder, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, PRETRAINED: True}))
    report = run(model, glue, tmp_path / "w", tasks=["mrpc"], seeds=1, learning_rates=(), select="dev")
    mrpc = report.results[0]
    assert mrpc.learning_rate == 1e-3 and any("learning_rate = 0.001" in note for note in mrpc.notes)
    [result] = read_results(tmp_path / "w" / "mrpc" / "lr-0.001")
    assert result.test is None and mrpc.scores["accuracy"] == [result.dev["accuracy"]]
    assert mrpc.examples == {"train": 80, "dev": 24} and mrpc.chosen_on == "dev"
    assert "optimistic" in "\n".join(report.remarks())
    (published, *_), table = report.rows(), (tmp_path / "w" / "bench.md").read_text()
    assert published[2:4] == ["88.00", "89.50"] and f"| {published[0]} |" in table
    [[_, said_neg], [_, right]] = np.array(result.confusion)
    assert mrpc.scores["f1"] == [pytest.approx(2 * right / (12 + said_neg + right))]


@pytest.mark.slow
def test_more_parts_are_scored_by_the_best_model(encoder: Path, glue: Path, tmp_path: Path) -> None:
    report = run(encoder, glue, tmp_path / "w", tasks=["mnli"], seeds=1, learning_rates=[5e-3])
    mnli, classifier = report.results[0], tpulm.Classifier(tmp_path / "w" / "mnli" / "lr-0.005")
    lines = (glue / "MNLI" / "dev_mismatched.tsv").read_text().splitlines()[1:]
    texts, pairs, labels = zip(*(line.split("\t") for line in lines), strict=True)
    right = np.array(classifier.predict(texts, pairs)) == labels
    assert mnli.also == {"mismatched": {"accuracy": pytest.approx(right.mean())}}
    assert [row[0] for row in report.rows()] == ["MNLI, accuracy", "MNLI mismatched, accuracy"]


def test_until_something_is_trained_inputs_may_change(encoder: Path, glue: Path, tmp_path: Path) -> None:
    """The error advises an encoding; with it, and with one file mended, the next fault is said."""
    cola = tmp_path / "glue" / "CoLA"
    shutil.copytree(glue / "CoLA", cola)
    train, dev = cola / "train.tsv", cola / "dev.tsv"
    text = train.read_text().replace("film", "영화")

    def refused(message: str, **more: str) -> None:
        with pytest.raises(DataError, match=message):
            run(encoder, tmp_path / "glue", tmp_path / "w", tasks=["cola"], **more)

    train.write_bytes(text.encode("cp949"))
    refused(r"train\.tsv.*--encoding")
    dev.write_bytes(b"\xff\n")
    refused(r"dev\.tsv", encoding="cp949")
    train.write_text(text)
    refused(r"dev\.tsv")


def test_what_cannot_be_done_is_listed(encoder: Path, glue: Path, tmp_path: Path) -> None:
    """All of KLUE where none of its files is."""
    report = bench("klue", glue, encoder, tmp_path / "w")
    states = {one.name: one.state for one in report.results}
    assert states["dp"] == states["wos"] == "not supported"
    assert {states[name] for name in ("ynat", "sts", "nli", "ner", "re")} == {"missing"}
    assert [row[1] for row in report.rows() if row[0] == "DP, LAS"] == ["not supported"]
    assert all(any(line.startswith(one.title.partition(",")[0]) for line in report.remarks()) for one in report.results)


@pytest.mark.needs_peer
def test_f1_of_one_class_and_of_all_but_one_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for classes in (2, 30):
        for true, said in rng.integers(classes, size=(20, 2, 40)):
            confusion = metrics.confusion_matrix(true, said, labels=range(classes))
            expected = metrics.f1_score(true, said, average="micro", labels=range(1, classes), zero_division=0)
            assert micro_f1(confusion, range(1, classes)) == pytest.approx(expected)
            expected = metrics.f1_score(true == 1, said == 1, zero_division=0)
            assert micro_f1(confusion, [1]) == pytest.approx(expected)
    assert micro_f1(np.array([[3, 0], [0, 0]]), [1]) == 0.0
