"""`tpulm.finetune`: from files to a folder, stopped and continued, with several seeds."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import HTMLFormatter
from task_examples import same

import tpulm
from encoders import StopAt, reviews, write_tsv
from toy_runs import Notes
from tpulm import storage
from tpulm.config import FinetuneConfig
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError, DataError, Stopped, WorkFolderMismatch
from tpulm.finetuning import FinetuneSummary, read_mistakes
from tpulm.finetuning.tasks import Mistake
from tpulm.labelled import Columns
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


def run(
    encoder: Path, files: Path, output: Path, *, progress: Any = None, overwrite: bool = False, **changes: Any
) -> FinetuneSummary:
    return tpulm.finetune(
        encoder,
        files / "train.tsv",
        output,
        test=files / "test.tsv",
        columns=COLUMNS,
        config=CONFIG.model_copy(update=changes),
        overwrite=overwrite,
        progress=progress or Silent(),
    )


def same_model(first: Path | str, second: Path | str) -> bool:
    return same(load_model(first).params, load_model(second).params)


def test_mistakes_hold_any_line_separator(tmp_path: Path) -> None:
    mistakes = [Mistake(f"one\u2028two{end}\x85three", None, "x", "y", 0.5, "line 1") for end in ("\u2029", "\r\n")]
    lines = (json.dumps(mistake._asdict(), ensure_ascii=False) + "\n" for mistake in mistakes)
    (tmp_path / "mistakes.jsonl").write_text("".join(lines), encoding="utf-8")
    assert read_mistakes(tmp_path) == mistakes


def test_scores_are_means_over_the_seeds(finished: FinetuneSummary) -> None:
    values, each = finished.values(), [seed.dev["accuracy"] for seed in finished.seeds]
    assert finished.seeds[0].history != finished.seeds[1].history
    assert values["dev_accuracy"] == pytest.approx(np.mean(each))
    assert values["dev_accuracy_deviation"] == pytest.approx(np.std(each, ddof=1))
    assert values["macro_f1"] == pytest.approx(values["test_macro_f1"])
    assert values["seeds"] == [0, 1] and values["best_seed"] == [0, 1][int(np.argmax(each))]
    assert np.sum(values["confusion"]) == values["examples"]["test"] == 64
    assert values["examples"]["train"] + values["examples"]["dev"] == 160
    assert json.loads((Path(finished.output) / "finetune.json").read_text()) == values


def test_the_model_is_that_of_the_best_epoch_on_dev(finished: FinetuneSummary, files: Path) -> None:
    for seed in finished.seeds:
        accuracies = [epoch["accuracy"] for epoch in seed.history]
        assert seed.best_epoch == 1 + accuracies.index(max(accuracies)) and seed.dev["accuracy"] == max(accuracies)
    test = [tuple(line.split("\t")[1:]) for line in (files / "test.tsv").read_text().splitlines()[1:]]
    best = finished.seeds[finished.best]
    assert best.test is not None
    assert tpulm.Classifier(finished.output).evaluate(test)["accuracy"] == pytest.approx(best.test["accuracy"])
    wrong = read_mistakes(finished.output)
    assert len(wrong) == round((1 - best.dev["accuracy"]) * finished.examples["dev"])
    assert [one.confidence for one in wrong] == sorted((one.confidence for one in wrong), reverse=True)
    assert all(one.label != one.predicted and "train.tsv, line " in one.place for one in wrong)


def test_the_folder_is_tidy(finished: FinetuneSummary) -> None:
    output, accuracy = Path(finished.output), f"{finished.values()['test_accuracy']:.4f}"
    left = {path.name for path in output.iterdir()}
    assert left >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "finetune.json", "mistakes.jsonl"}
    assert not list(output.glob("finetuning/seed-*/checkpoints"))
    card, page = (output / "README.md").read_text(), (output / "report" / "index.html").read_text()
    assert "never on test" in card and accuracy in card
    assert all(
        part in page
        for part in ("Confusion", "Mistakes on dev", "Training loss", "Accuracy on dev", "seed 1", f"{accuracy} ± ")
    )
    assert "<iframe" in (HTMLFormatter()(finished) or "")  # as a notebook shows it


def test_again_there_is_nothing_to_do(encoder: Path, files: Path, finished: FinetuneSummary) -> None:
    again = run(encoder, files, Path(finished.output), seeds=2)
    assert again.nothing_to_do
    assert again.values() == finished.values()
    fewer = run(encoder, files, Path(finished.output), seeds=1)
    assert fewer.nothing_to_do and len(fewer.seeds) == 2  # what was trained before counts


@pytest.mark.slow
def test_more_seeds_later_keep_the_first(encoder: Path, files: Path, tmp_path: Path) -> None:
    one = run(encoder, files, tmp_path / "clf", epochs=1)
    two = run(encoder, files, tmp_path / "clf", epochs=1, seeds=2)
    assert two.seeds[0] == one.seeds[0] and len(two.seeds) == 2 and not two.nothing_to_do


def test_the_best_of_several_learning_rates_is_kept(encoder: Path, files: Path, tmp_path: Path) -> None:
    """With the model that a fine-tuning at this rate alone makes; stopped in the second one, it goes on there."""
    out, rates = tmp_path / "clf", [1e-12, 1e-2]
    given: Any = {"dev": files / "test.tsv", "columns": COLUMNS}
    given["config"] = CONFIG.model_copy(update={"learning_rate": None})

    def try_rates(rates: list[float], **more: Any) -> FinetuneSummary:
        return tpulm.finetune(encoder, files / "train.tsv", out, learning_rates=rates, **given, **more)

    with pytest.raises(Stopped):
        try_rates(rates, progress=StopAt(36))
    assert not (out / "config.json").exists()
    summary = try_rates(rates)
    assert summary.settings.learning_rate == 1e-2 and not summary.nothing_to_do
    values = json.loads((out / "finetune.json").read_text())
    assert values["learning_rates"]["0.01"] == values["dev_accuracy"] > values["learning_rates"]["1e-12"]
    alone = tpulm.finetune(
        encoder, files / "train.tsv", tmp_path / "one", **given | {"config": None}, **summary.settings.model_dump()
    )
    assert same_model(out, alone.output) and (out / "report" / "index.html").exists()
    assert try_rates(rates).nothing_to_do
    with pytest.raises(ConfigError, match="learning_rate"):
        tpulm.finetune(encoder, files / "train.tsv", out, learning_rates=rates, learning_rate=1e-4)
    out = Path(alone.output)
    with pytest.raises(WorkFolderMismatch, match="one learning rate"):
        try_rates(rates)


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_files_of_the_users_own_are_not_overwritten(encoder: Path, files: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=re.escape(name)):
        run(encoder, files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_killed_while_it_publishes_it_goes_on(encoder: Path, files: Path, finished: FinetuneSummary, tmp_path: Path) -> None:
    """After config.json, before the summary."""
    shutil.copytree(finished.output, tmp_path / "clf")
    (tmp_path / "clf" / "finetune.json").unlink()
    summary = run(encoder, files, tmp_path / "clf", seeds=2)
    assert summary.values() | {"output": ""} == finished.values() | {"output": ""}
    assert (tmp_path / "clf" / "finetune.json").exists()


def test_a_regression_on_small_numbers_is_stopped_and_goes_on(encoder: Path, tmp_path: Path) -> None:
    """In the middle of the second epoch of two; the model is the same bit for bit."""
    write_tsv(tmp_path / "train.tsv", [(text, str(1e-5 * (label == "pos"))) for text, label in reviews(64)])
    write_tsv(tmp_path / "test.tsv", [(text, str(1e-5 * (label == "pos"))) for text, label in reviews(16, seed=2)])
    changes: dict[str, Any] = {"task": "regression", "epochs": 2}
    with pytest.raises(Stopped):
        run(encoder, tmp_path, tmp_path / "stopped", progress=StopAt(6), **changes)
    again = run(encoder, tmp_path, tmp_path / "stopped", **changes)
    whole = run(encoder, tmp_path, tmp_path / "whole", **changes)
    assert same_model(again.output, whole.output) and again.seeds[0].history == whole.seeds[0].history


def test_of_a_seed_that_was_killed_and_counts_no_longer_no_model_is_left(
    encoder: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its model, the best so far, and its result; then fewer seeds were asked for."""
    write_json = storage.write_json

    def killed(path: Path, values: Any, **options: Any) -> None:
        if path.parts[-2:] == ("seed-1", "result.json"):
            raise KeyboardInterrupt
        write_json(path, values, **options)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "write_json", killed)
        patched.setattr(FinetuneConfig, "best_of", lambda _, scores: max(scores))  # whatever the scores are, the last seed
        with pytest.raises(KeyboardInterrupt):
            run(encoder, files, tmp_path / "clf", epochs=1, seeds=2)
    summary = run(encoder, files, tmp_path / "clf", epochs=1)
    test = [tuple(line.split("\t")[1:]) for line in (files / "test.tsv").read_text().splitlines()[1:]]
    [result] = summary.seeds
    assert result.test is not None and not summary.nothing_to_do
    assert tpulm.Classifier(summary.output).evaluate(test)["loss"] == pytest.approx(result.test["loss"], rel=1e-5)
    assert len(read_mistakes(summary.output)) == round((1 - result.dev["accuracy"]) * summary.examples["dev"])
    assert run(encoder, files, tmp_path / "clf", epochs=1).nothing_to_do


@pytest.mark.slow
def test_a_model_that_learned_nothing_from_texts_that_were_cut_says_so(encoder: Path, files: Path, tmp_path: Path) -> None:
    summary = run(encoder, files, tmp_path / "clf", epochs=1, learning_rate=1e-12, max_length=8)
    doubts = summary.seeds[0].doubts
    assert any(doubt.startswith("training did not help") for doubt in doubts)
    assert "longer than 8 tokens" in summary.health
    assert summary.health in (tmp_path / "clf" / "README.md").read_text()


@pytest.mark.slow
def test_in_cloud_storage(encoder: Path, files: Path, finished: FinetuneSummary, gcs: Any) -> None:
    from tpulm import storage

    storage.write_atomic("gs://runs/train.tsv", (files / "train.tsv").read_bytes())
    storage.write_atomic("gs://runs/test.tsv", (files / "test.tsv").read_bytes())
    arguments: Any = {"test": "gs://runs/test.tsv", "columns": COLUMNS, "config": CONFIG.model_copy(update={"seeds": 2})}
    with pytest.raises(Stopped):
        tpulm.finetune(encoder, "gs://runs/train.tsv", "gs://runs/clf", progress=StopAt(12), **arguments)
    tpulm.finetune(encoder, "gs://runs/train.tsv", "gs://runs/clf", **arguments)
    assert same_model("gs://runs/clf", finished.output)


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
    assert run(encoder, files, tmp_path / "clf", epochs=2, overwrite=True).seeds[0].epochs == 2
    assert run(encoder, files, tmp_path / "clf", epochs=1, overwrite=True).seeds[0].epochs == 1
    assert run(encoder, files, tmp_path / "clf", epochs=1, overwrite=True).nothing_to_do
    (work / "seed-0" / "result.json").unlink()  # as if it had been killed before its first checkpoint
    assert run(encoder, files, tmp_path / "clf", epochs=2).seeds[0].epochs == 2
    metrics = list((work / "seed-0" / "metrics").iterdir())
    assert {path.name for path in metrics} == {"0001.jsonl", "0001.start.json"}  # none of the attempt with other settings


def test_each_file_has_columns_of_its_own_and_what_is_odd_is_counted(encoder: Path, files: Path, tmp_path: Path) -> None:
    """Rows without a text or a label, and texts of test that are in train, too."""
    notes, other = Notes(), reviews(64, seed=2)
    train = write_tsv(tmp_path / "train.tsv", [*reviews(100), ("", "pos"), ("a film", "")])
    (tmp_path / "dev.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in other))
    rows = [("review", "stars"), *other, *reviews(160)[:3]]
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    columns = {"train": COLUMNS, "dev": Columns("2", "1", header=False), "test": Columns("review", "stars")}
    given: Any = {"dev": tmp_path / "dev.tsv", "test": tmp_path / "test.tsv", "progress": notes}
    given["config"] = CONFIG.model_copy(update={"epochs": 1})
    with pytest.raises(ConfigError, match="'train'"):
        tpulm.finetune(encoder, train, tmp_path / "clf", columns={"valid": COLUMNS}, **given)
    with pytest.raises(DataError, match=r"train\.tsv, line 102"):
        tpulm.finetune(encoder, train, tmp_path / "clf", columns=columns, **given)
    assert (tmp_path / "clf" / "finetuning" / "failures").is_dir()  # and the corrected command goes on
    summary = tpulm.finetune(encoder, train, tmp_path / "clf", columns=columns, on_error="skip", **given)
    assert summary.examples == {"train": 100, "dev": 64, "test": 67} and summary.skipped == {"empty": 1, "no_label": 1}
    told = "3 of the 67 texts of test are in train, too"
    assert [note for note in notes.notes if note.startswith(told)] and told in summary.health
