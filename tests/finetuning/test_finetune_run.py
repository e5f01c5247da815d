"""`tpulm.finetune`: from files to a folder, stopped and continued, with several seeds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import HTMLFormatter
from task_examples import examples_of, same, write_jsonl

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
TEST = reviews(64, seed=2)
CONFIG = FinetuneConfig(epochs=2, batch_size=16, learning_rate=3e-3, max_length=16, log_every_steps=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    noisy = [(text, "pos" if number % 10 == 0 else label) for number, (text, label) in enumerate(reviews(160))]
    write_tsv(folder / "train.tsv", noisy)
    write_tsv(folder / "test.tsv", TEST)
    return folder


@pytest.fixture(scope="module")
def finished(encoder: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneSummary:
    return run(encoder, files, tmp_path_factory.mktemp("out") / "clf", seeds=2)


def run(encoder: Path, files: Path, output: Path, *, overwrite: bool = False, **changes: Any) -> FinetuneSummary:
    given: dict[str, Any] = {"test": files / "test.tsv", "columns": COLUMNS, "config": CONFIG.model_copy(update=changes)}
    return tpulm.finetune(encoder, files / "train.tsv", output, **given, overwrite=overwrite, progress=Silent())


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


def test_the_model_is_that_of_the_best_epoch_on_dev(finished: FinetuneSummary) -> None:
    for seed in finished.seeds:
        accuracies = [epoch["accuracy"] for epoch in seed.history]
        assert seed.best_epoch == 1 + accuracies.index(max(accuracies)) and seed.dev["accuracy"] == max(accuracies)
    best = finished.seeds[finished.best]
    assert best.test is not None
    assert tpulm.Classifier(finished.output).evaluate(TEST)["accuracy"] == pytest.approx(best.test["accuracy"])
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
    for part in ("Confusion", "Mistakes on dev", "Training loss", "Accuracy on dev", "seed 1", f"{accuracy} ± "):
        assert part in page
    assert "<iframe" in (HTMLFormatter()(finished) or "")  # as a notebook shows it


def test_again_there_is_nothing_to_do(encoder: Path, files: Path, finished: FinetuneSummary) -> None:
    again = run(encoder, files, Path(finished.output), seeds=2)
    assert again.nothing_to_do and again.values() == finished.values()
    fewer = run(encoder, files, Path(finished.output), seeds=1)
    assert fewer.nothing_to_do and len(fewer.seeds) == 2  # what was trained before counts


@pytest.mark.slow
def test_more_seeds_later_keep_the_first(encoder: Path, files: Path, tmp_path: Path) -> None:
    """Here of a model that learns nothing, from texts that are cut, which says so."""
    settings: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-12, "max_length": 8}
    one, two = (run(encoder, files, tmp_path / "clf", **settings, seeds=seeds) for seeds in (1, 2))
    assert two.seeds[0] == one.seeds[0] and len(two.seeds) == 2 and not two.nothing_to_do
    assert any(doubt.startswith("training did not help") for doubt in one.seeds[0].doubts)
    assert "longer than 8 tokens" in two.health and two.health in (tmp_path / "clf" / "README.md").read_text()


@pytest.mark.slow
def test_the_best_of_several_learning_rates_is_kept(encoder: Path, tmp_path: Path) -> None:
    """With the model that a fine-tuning at this rate alone makes, bit for bit; stopped in the second one, in the middle of an
    epoch, it goes on there. Here it is a regression on small numbers, whose unit has to be that of the first attempt."""
    rates, paths = [1e-12, 1e-2], {"train": tmp_path / "train.tsv", "dev": tmp_path / "dev.tsv"}
    for path, examples in zip(paths.values(), (reviews(160), TEST), strict=True):
        write_tsv(path, [(text, str(1e-5 * (label == "pos"))) for text, label in examples])
    config = CONFIG.model_copy(update={"learning_rate": None, "task": "regression"})

    def tuned(output: Path, **more: Any) -> FinetuneSummary:
        return tpulm.finetune(encoder, **paths, output=output, columns=COLUMNS, **{"config": config, **more})

    with pytest.raises(Stopped):
        tuned(tmp_path / "best", learning_rates=rates, progress=StopAt(33))
    assert not (tmp_path / "best" / "config.json").exists()
    summary = tuned(tmp_path / "best", learning_rates=rates)
    assert summary.settings.learning_rate == 1e-2 and not summary.nothing_to_do
    values = json.loads((tmp_path / "best" / "finetune.json").read_text())
    best = values[f"dev_{summary.settings.chosen_by}"]
    found = values["learning_rates"]
    assert found["0.01"] == best and summary.settings.is_better(best, found["1e-12"])
    alone = tuned(tmp_path / "one", config=None, **summary.settings.model_dump())
    assert same_model(summary.output, alone.output) and summary.seeds[0].history == alone.seeds[0].history
    assert (tmp_path / "best" / "report" / "index.html").exists()
    assert tuned(tmp_path / "best", learning_rates=rates).nothing_to_do
    with pytest.raises(ConfigError, match="learning_rate"):
        tuned(tmp_path / "best", learning_rates=rates, learning_rate=1e-4)
    with pytest.raises(WorkFolderMismatch, match="one learning rate"):
        tuned(tmp_path / "one", learning_rates=rates)
    again = tuned(tmp_path / "best", config=None, **summary.settings.model_dump() | {"seeds": 2})  # a seed more at that rate
    assert [one.seed for one in again.seeds] == [0, 1] and again.seeds[0].history == alone.seeds[0].history
    assert json.loads((tmp_path / "best" / "finetune.json").read_text())["seeds"] == [0, 1]


def test_files_of_the_users_own_are_not_overwritten(encoder: Path, files: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("{}")
    with pytest.raises(ConfigError, match=r"README\.md"):
        run(encoder, files, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_killed_while_it_publishes_it_goes_on(encoder: Path, files: Path, finished: FinetuneSummary, tmp_path: Path) -> None:
    """After config.json, before the summary."""
    shutil.copytree(finished.output, tmp_path / "clf")
    (tmp_path / "clf" / "finetune.json").unlink()
    summary = run(encoder, files, tmp_path / "clf", seeds=2)
    assert summary.values() | {"output": ""} == finished.values() | {"output": ""}
    assert (tmp_path / "clf" / "finetune.json").exists()


@pytest.mark.slow
def test_a_killed_seed_that_counts_no_longer_leaves_no_model(encoder: Path, files: Path, tmp_path: Path) -> None:
    """Killed between its model, the best so far, and its result; then fewer seeds were asked for."""
    write_json = storage.write_json

    def killed(path: Path, values: Any, **options: Any) -> None:
        if path.parts[-2:] == ("seed-1", "result.json"):
            raise KeyboardInterrupt
        write_json(path, values, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "write_json", killed)
        patched.setattr(FinetuneConfig, "best_of", lambda _, scores: max(scores))  # whatever the scores are, the last seed
        with pytest.raises(KeyboardInterrupt):
            run(encoder, files, tmp_path / "clf", epochs=1, seeds=2)
    summary = run(encoder, files, tmp_path / "clf", epochs=1)
    [result] = summary.seeds
    assert result.test is not None and not summary.nothing_to_do
    assert tpulm.Classifier(summary.output).evaluate(TEST)["loss"] == pytest.approx(result.test["loss"], rel=1e-5)
    assert len(read_mistakes(summary.output)) == round((1 - result.dev["accuracy"]) * summary.examples["dev"])
    assert run(encoder, files, tmp_path / "clf", epochs=1).nothing_to_do


@pytest.mark.slow
def test_in_cloud_storage(encoder: Path, files: Path, finished: FinetuneSummary, gcs: Any) -> None:
    for name in ("train.tsv", "test.tsv"):
        storage.write_atomic(f"gs://runs/{name}", (files / name).read_bytes())
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
    write_tsv(tmp_path / "test.tsv", TEST)
    with pytest.raises(WorkFolderMismatch, match=r"train examples: \w+… -> \w+…"):
        run(encoder, tmp_path, tmp_path / "clf", epochs=1)
    assert run(encoder, files, tmp_path / "clf", epochs=2, overwrite=True).seeds[0].epochs == 2
    assert run(encoder, files, tmp_path / "clf", epochs=2, overwrite=True).nothing_to_do
    (work / "seed-0" / "result.json").unlink()  # as if it had been killed before its first checkpoint
    assert run(encoder, files, tmp_path / "clf", epochs=1).seeds[0].epochs == 1
    metrics = list((work / "seed-0" / "metrics").iterdir())
    assert {path.name for path in metrics} == {"0001.jsonl", "0001.start.json"}  # none of the attempt with other settings


def test_each_file_has_columns_of_its_own_and_what_is_odd_is_counted(encoder: Path, files: Path, tmp_path: Path) -> None:
    """Rows without a text or a label, and texts of test that are in train, too."""
    notes = Notes()
    train = write_tsv(tmp_path / "train.tsv", [*reviews(100), ("", "pos"), ("a film", "")])
    (tmp_path / "dev.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in TEST))
    rows = [("review", "stars"), *TEST, *reviews(160)[:3]]
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


# -- kill -9 in the third epoch: the same command goes on, and scores and weights are equal bit for bit ------------------------

OF_KILLED: dict[str, Any] = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-3, "max_length": 16}
OF_KILLED |= {"checkpoint": {"every_steps": 1}}  # so that it goes on in the middle of an epoch
KILLED = """
import json, os, signal, sys
import tpulm
from tpulm.progress import Silent

class KillAt(Silent):
    steps = 0
    def advance(self, amount):
        self.steps += amount == 1
        if self.steps == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

tpulm.finetune(progress=KillAt(), columns=tpulm.Columns(negative=sys.argv[3] or None), **json.loads(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["qa", "retrieve"])  # in windows of texts; with negative texts
def test_a_killed_fine_tuning_ends_as_if_nothing_had_happened(task: str, encoder: Path, tmp_path: Path) -> None:
    for name, count, seed in (("train", 64, 0), ("dev", 32, 1)):
        write_jsonl(tmp_path / f"{name}.jsonl", task, examples_of(task, count, seed=seed))
    negative = "negative" if task == "retrieve" else None
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "dev")}
    arguments: dict[str, Any] = {"model": str(encoder), **paths, "output": str(tmp_path / "killed"), "task": task, **OF_KILLED}
    command = [sys.executable, "-c", KILLED, "11", json.dumps(arguments), negative or ""]
    killed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "finetune.json").exists()
    columns = tpulm.Columns(negative=negative)
    again = tpulm.finetune(**arguments, columns=columns)
    arguments["output"] = str(tmp_path / "whole")
    whole = tpulm.finetune(**arguments, columns=columns)
    assert not again.nothing_to_do and len(whole.seeds[0].history) == 4
    assert (again.seeds[0].dev, again.seeds[0].history) == (whole.seeds[0].dev, whole.seeds[0].history)
    left, right = (Path(one.output, "model.safetensors").read_bytes() for one in (again, whole))
    assert left == right
    assert tpulm.finetune(**arguments, columns=columns).nothing_to_do
