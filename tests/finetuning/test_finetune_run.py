"""`tpulm.finetune`: from files to a folder, stopped and continued, with several seeds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpulm
from encoders import StopAt, reviews, write_tsv
from tpulm.config import FinetuneConfig
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError, DataError, Stopped, WorkFolderMismatch
from tpulm.finetuning import FinetuneSummary, read_mistakes
from tpulm.labelled import Columns
from tpulm.nn.params import named_leaves
from tpulm.progress import Silent

COLUMNS = Columns("document", "label")
CONFIG = FinetuneConfig(epochs=3, batch_size=16, learning_rate=3e-3, max_length=16, log_every_steps=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    noisy = [(text, "pos" if number % 10 == 0 else label) for number, (text, label) in enumerate(reviews(160))]
    write_tsv(folder / "train.tsv", noisy)
    write_tsv(folder / "test.tsv", reviews(64, seed=2))
    return folder


@pytest.fixture(scope="module")
def finished(encoder: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneSummary:
    return run(encoder, files, tmp_path_factory.mktemp("out") / "clf", seeds=2)


def run(encoder: Path, files: Path, output: Path, *, progress: Any = None, **changes: Any) -> FinetuneSummary:
    return tpulm.finetune(
        encoder,
        files / "train.tsv",
        output,
        test=files / "test.tsv",
        columns=COLUMNS,
        config=CONFIG.model_copy(update=changes),
        progress=progress or Silent(),
    )


def weights(output: Path | str) -> dict[str, np.ndarray]:
    return named_leaves(load_model(output).params)


def same(first: Path | str, second: Path | str) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_scores_are_means_over_the_seeds(finished: FinetuneSummary) -> None:
    values = finished.values()
    each = [seed.dev["accuracy"] for seed in finished.seeds]
    assert values["dev_accuracy"] == pytest.approx(np.mean(each))
    assert values["dev_accuracy_deviation"] == pytest.approx(np.std(each, ddof=1))
    assert values["macro_f1"] == pytest.approx(values["test_macro_f1"])
    assert values["seeds"] == [0, 1] and values["best_seed"] == [0, 1][int(np.argmax(each))]
    assert np.sum(values["confusion"]) == values["examples"]["test"] == 64
    assert values["examples"]["train"] + values["examples"]["dev"] == 160
    assert values["health"] == finished.health
    assert json.loads((Path(finished.output) / "finetune.json").read_text()) == values


def test_the_model_is_the_one_that_was_scored(finished: FinetuneSummary, files: Path) -> None:
    classifier = tpulm.Classifier(finished.output)
    test = [tuple(line.split("\t")[1:]) for line in (files / "test.tsv").read_text().splitlines()[1:]]
    best = finished.seeds[finished.best]
    assert best.test is not None
    assert classifier.evaluate(test)["accuracy"] == pytest.approx(best.test["accuracy"])


def test_the_best_epoch_is_chosen_on_dev(finished: FinetuneSummary) -> None:
    for seed in finished.seeds:
        accuracies = [epoch["accuracy"] for epoch in seed.history]
        assert seed.best_epoch == 1 + accuracies.index(max(accuracies))
        assert seed.dev["accuracy"] == max(accuracies)


def test_mistakes_come_with_their_place(finished: FinetuneSummary) -> None:
    wrong = read_mistakes(finished.output)
    assert len(wrong) == round((1 - finished.seeds[finished.best].dev["accuracy"]) * finished.examples["dev"])
    assert [one.confidence for one in wrong] == sorted((one.confidence for one in wrong), reverse=True)
    assert all(one.label != one.predicted and "train.tsv, line " in one.place for one in wrong)


def test_again_there_is_nothing_to_do(encoder: Path, files: Path, finished: FinetuneSummary) -> None:
    again = run(encoder, files, Path(finished.output), seeds=2)
    assert again.nothing_to_do
    assert again.values() == finished.values()


def test_the_folder_is_tidy(finished: FinetuneSummary) -> None:
    output = Path(finished.output)
    left = {path.name for path in output.iterdir()}
    assert left >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "finetune.json", "mistakes.jsonl"}
    assert not list(output.glob("finetuning/seed-*/checkpoints"))
    card = (output / "README.md").read_text()
    assert "never on test" in card and f"{finished.values()['test_accuracy']:.4f}" in card
    page = (output / "report" / "index.html").read_text()
    assert all(part in page for part in ("Confusion", "Mistakes on dev", "Accuracy on dev", "seed 1"))
    assert f"{finished.values()['test_accuracy']:.4f} ± " in page


def test_stopped_and_continued_it_is_the_same(encoder: Path, files: Path, finished: FinetuneSummary, tmp_path: Path) -> None:
    """With the second seed; the parameters are equal bit for bit."""
    with pytest.raises(Stopped, match=r"after saving step \d+ of 27"):
        run(encoder, files, tmp_path / "clf", seeds=2, progress=StopAt(30))
    summary = run(encoder, files, tmp_path / "clf", seeds=2)
    assert not summary.nothing_to_do
    assert [(seed.dev, seed.test, seed.history) for seed in summary.seeds] == [
        (seed.dev, seed.test, seed.history) for seed in finished.seeds
    ]
    assert same(summary.output, finished.output)


@pytest.mark.slow
def test_more_seeds_later_keep_the_first(encoder: Path, files: Path, tmp_path: Path) -> None:
    one = run(encoder, files, tmp_path / "clf", epochs=1)
    two = run(encoder, files, tmp_path / "clf", epochs=1, seeds=2)
    assert two.seeds[0] == one.seeds[0] and len(two.seeds) == 2 and not two.nothing_to_do
    fewer = run(encoder, files, tmp_path / "clf", epochs=1)
    assert fewer.nothing_to_do and len(fewer.seeds) == 2


def test_another_model_is_not_overwritten(encoder: Path, files: Path) -> None:
    before = {path.name: path.read_bytes() for path in encoder.iterdir()}
    with pytest.raises(ConfigError, match=r"config\.json"):
        run(encoder, files, encoder)
    assert before == {path.name: path.read_bytes() for path in encoder.iterdir()}


@pytest.mark.slow
def test_after_a_first_run_that_failed_the_corrected_command_goes_on(encoder: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        tpulm.finetune(tmp_path / "gone", files / "train.tsv", tmp_path / "clf", columns=COLUMNS, config=CONFIG)
    with pytest.raises(DataError, match="no column"):
        tpulm.finetune(encoder, files / "train.tsv", tmp_path / "clf", config=CONFIG)
    assert (tmp_path / "clf" / "finetuning" / "failures").is_dir()
    assert not run(encoder, files, tmp_path / "clf", epochs=1).nothing_to_do


def test_killed_while_it_publishes_it_goes_on(encoder: Path, files: Path, finished: FinetuneSummary, tmp_path: Path) -> None:
    """After config.json, before the summary."""
    shutil.copytree(finished.output, tmp_path / "clf")
    (tmp_path / "clf" / "finetune.json").unlink()
    summary = run(encoder, files, tmp_path / "clf", seeds=2)
    assert summary.values() | {"output": ""} == finished.values() | {"output": ""}
    assert (tmp_path / "clf" / "finetune.json").exists()


@pytest.mark.slow
def test_a_dev_file(encoder: Path, files: Path, tmp_path: Path) -> None:
    write_tsv(tmp_path / "dev.tsv", reviews(32, seed=9))
    summary = tpulm.finetune(
        encoder, files / "train.tsv", tmp_path / "clf", dev=tmp_path / "dev.tsv", columns=COLUMNS, config=CONFIG
    )
    assert summary.examples == {"train": 160, "dev": 32}
    assert "test_accuracy" not in summary.values() and "macro_f1" in summary.values()


def test_texts_of_test_that_are_in_train_are_counted(encoder: Path, files: Path, tmp_path: Path) -> None:
    class Notes(Silent):
        def note(self, message: str) -> None:
            heard.append(message)

    heard = list[str]()
    write_tsv(tmp_path / "test.tsv", [*reviews(160)[:3], ("a text of its own", "pos"), ("another one", "neg")])
    config = CONFIG.model_copy(update={"epochs": 1})
    paths: dict[str, Any] = {"dev": files / "test.tsv", "test": tmp_path / "test.tsv"}
    tpulm.finetune(encoder, files / "train.tsv", tmp_path / "clf", **paths, columns=COLUMNS, config=config, progress=Notes())
    assert [note for note in heard if note.startswith("3 of the 5 texts of test are in train, too")]


@pytest.mark.slow
def test_regression(encoder: Path, tmp_path: Path) -> None:
    scored = [(text, str(text.split().count("very"))) for text, _ in reviews(200)]
    train = write_tsv(tmp_path / "train.tsv", scored)
    config = CONFIG.model_copy(update={"task": "regression"})
    summary = tpulm.finetune(encoder, train, tmp_path / "clf", columns=COLUMNS, config=config)
    values = summary.values()
    assert values["confusion"] is None and values["labels"] == [] and values["chosen_by"] == "dev_pearson"
    assert "regression" in (tmp_path / "clf" / "README.md").read_text()


@pytest.mark.slow
def test_a_model_that_learned_nothing_from_texts_that_were_cut_says_so(encoder: Path, files: Path, tmp_path: Path) -> None:
    summary = run(encoder, files, tmp_path / "clf", epochs=1, learning_rate=1e-12, max_length=8)
    doubts = summary.seeds[0].doubts
    assert any(doubt.startswith("training did not help") for doubt in doubts)
    assert "of the texts are longer than 8 tokens and were cut; max_length = " in summary.health
    assert summary.health in (tmp_path / "clf" / "README.md").read_text()


def test_rows_left_out_are_counted(encoder: Path, tmp_path: Path) -> None:
    train = write_tsv(tmp_path / "train.tsv", [*reviews(100), ("", "pos"), ("a film", "")])
    with pytest.raises(DataError, match=r"train\.tsv, line 102"):
        tpulm.finetune(encoder, train, tmp_path / "clf", columns=COLUMNS, config=CONFIG)
    config = CONFIG.model_copy(update={"epochs": 1})
    summary = tpulm.finetune(encoder, train, tmp_path / "clf", columns=COLUMNS, config=config, on_error="skip")
    assert summary.skipped == {"empty": 1, "no_label": 1}


@pytest.mark.slow
def test_in_cloud_storage(encoder: Path, files: Path, finished: FinetuneSummary, gcs: Any) -> None:
    from tpulm import storage

    storage.write_atomic("gs://runs/train.tsv", (files / "train.tsv").read_bytes())
    storage.write_atomic("gs://runs/test.tsv", (files / "test.tsv").read_bytes())
    arguments: Any = {"test": "gs://runs/test.tsv", "columns": COLUMNS, "config": CONFIG.model_copy(update={"seeds": 2})}
    with pytest.raises(Stopped):
        tpulm.finetune(encoder, "gs://runs/train.tsv", "gs://runs/clf", progress=StopAt(12), **arguments)
    tpulm.finetune(encoder, "gs://runs/train.tsv", "gs://runs/clf", **arguments)
    assert same("gs://runs/clf", finished.output)


@pytest.mark.slow
def test_settings_by_name(encoder: Path, files: Path, tmp_path: Path) -> None:
    arguments: Any = {"columns": COLUMNS, "epochs": 1, "max_length": 16, "hardware.data": 2}
    summary = tpulm.finetune(encoder, files / "train.tsv", tmp_path / "clf", **arguments)
    assert summary.settings.epochs == 1 and summary.settings.max_length == 16
    with pytest.raises(ConfigError, match="max_length"):
        tpulm.finetune(encoder, files / "train.tsv", tmp_path / "clf", config=CONFIG, **arguments)
    with pytest.raises(ConfigError, match=r"unknown setting 'epoch'\. Did you mean 'epochs'\?"):
        tpulm.finetune(encoder, files / "train.tsv", tmp_path / "other", epoch=1)


def test_each_file_may_have_columns_of_its_own(encoder: Path, files: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in (files / "test.tsv").read_text().splitlines()]
    (tmp_path / "dev.tsv").write_text("".join(f"{label}\t{text}\n" for _, text, label in rows[1:]))
    (tmp_path / "test.tsv").write_text(
        "".join(f"{text}\t{label}\n" for text, label in [("review", "stars"), *(r[1:] for r in rows[1:])])
    )
    columns = {"train": COLUMNS, "dev": Columns("2", "1", header=False), "test": Columns("review", "stars")}
    given = {"dev": tmp_path / "dev.tsv", "test": tmp_path / "test.tsv", "config": CONFIG.model_copy(update={"epochs": 1})}
    summary = tpulm.finetune(encoder, files / "train.tsv", tmp_path / "clf", columns=columns, **given)
    assert summary.examples == {"train": 160, "dev": 64, "test": 64}
    assert summary.seeds[0].dev == summary.seeds[0].test  # the same examples
    with pytest.raises(ConfigError, match="'train'"):
        tpulm.finetune(encoder, files / "train.tsv", tmp_path / "other", columns={"valid": COLUMNS}, **given)


@pytest.mark.slow
def test_settings_bind_a_folder_when_something_was_made_with_them(encoder: Path, files: Path, tmp_path: Path) -> None:
    run(encoder, files, tmp_path / "clf", epochs=1)
    work = tmp_path / "clf" / "finetuning"
    with pytest.raises(WorkFolderMismatch, match=r"settings\.epochs"):
        run(encoder, files, tmp_path / "clf", epochs=2)
    write_tsv(tmp_path / "train.tsv", reviews(100, seed=7))
    write_tsv(tmp_path / "test.tsv", reviews(64, seed=2))
    with pytest.raises(WorkFolderMismatch, match=r"train examples: \w+… -> \w+…"):
        run(encoder, tmp_path, tmp_path / "clf", epochs=1)
    (work / "seed-0" / "result.json").unlink()  # as if it had been killed before its first checkpoint
    assert run(encoder, files, tmp_path / "clf", epochs=2).seeds[0].epochs == 2
    metrics = list((work / "seed-0" / "metrics").iterdir())
    assert {path.name for path in metrics} == {"0001.jsonl", "0001.start.json"}  # none of the attempt with other settings


def test_files_of_the_users_own_are_not_overwritten(encoder: Path, files: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"README\.md"):
        run(encoder, files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


@pytest.mark.slow
def test_before_the_first_step_settings_can_be_corrected(encoder: Path, files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size 13 does not divide"):
        run(encoder, files, tmp_path / "clf", batch_size=13)
    assert run(encoder, files, tmp_path / "clf", epochs=1).examples["train"] == 144
