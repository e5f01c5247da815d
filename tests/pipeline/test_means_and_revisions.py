"""The mean of the last checkpoints, and checkpoints by words, against the states of a loop of one's own."""

from __future__ import annotations

import gzip
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pydantic
import pytest

import tpulm
from toy_runs import Notes, toy_config, write_corpus
from tpulm import dataset, pipeline, storage, workfolder
from tpulm.config import RunConfig, TokenizerConfig
from tpulm.errors import CheckpointError, ConfigError, Stopped
from tpulm.models.bert import padded_vocab_size
from tpulm.predict.minimal_pairs import PairsReport, Tally
from tpulm.report.publishing import publications

STEPS = 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt.gz")


def configured(corpus: Path, **checkpoint: Any) -> RunConfig:
    train = {"steps": STEPS, "batch_size": 8, "log_every_steps": 2, "checkpoint": {"every_steps": 2, **checkpoint}}
    return toy_config(corpus, train=train)


@pytest.fixture(scope="module")
def states(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """By step, the parameters of the same run; nothing is saved."""
    steps = tpulm.training_steps(configured(corpus), tmp_path_factory.mktemp("loop"))
    return {one.step: jax.device_get(one.state.params) for one in steps}


def assert_exported(folder: Path, expected: Any) -> None:
    """The model in a folder has these parameters; rows that pad the vocabulary are not saved."""
    model = tpulm.load_model(folder)
    padded = padded_vocab_size(model.vocab_size)

    def equal(leaf: np.ndarray, whole: np.ndarray) -> None:
        rows = slice(model.vocab_size if leaf.shape[0] == padded else None)
        np.testing.assert_array_equal(leaf[rows], whole[rows].astype(np.float32))

    jax.tree.map(equal, jax.device_get(model.params), expected)


@pytest.mark.slow
def test_the_model_is_the_mean_of_the_last_checkpoints(corpus: Path, states: dict[int, Any], tmp_path: Path) -> None:
    config = configured(corpus, average_last=3, keep=2)
    with pytest.raises(Stopped):  # which saves step 5, too
        tpulm.run(config, tmp_path, progress=Notes(5))
    summary = tpulm.run(config, tmp_path)
    three = [states[step] for step in (4, 6, 8)]
    mean = jax.tree.map(lambda *leaves: np.mean([np.float64(leaf) for leaf in leaves], axis=0), *three)
    assert_exported(tmp_path, mean)

    some = Tally(3, 1, 0)
    pipeline.record_pairs(tmp_path, "pairs of mine", PairsReport({"a": some}, {}, some, "log-likelihood", None))
    alone = tpulm.run(configured(corpus, keep=2), tmp_path)  # without the setting the last one, scored and exported again
    assert_exported(tmp_path, states[8])
    card = tmp_path / "export" / "README.md"
    assert alone.eval_loss != summary.eval_loss and "pairs of mine" not in card.read_text()  # another model's
    assert "train.checkpoint.average_last" not in card.read_text()
    assert tpulm.run(config, tmp_path).eval_loss == summary.eval_loss and "pairs of mine" in card.read_text()
    assert "train.checkpoint.average_last" in card.read_text() and "train.checkpoint.every_steps" in card.read_text()

    shutil.rmtree(tmp_path / "export")
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    with pytest.raises(CheckpointError, match="6 cannot be read"):
        tpulm.run(config, tmp_path)


@pytest.mark.slow
def test_a_mean_of_other_checkpoints_is_another_model(corpus: Path, states: dict[int, Any], tmp_path: Path) -> None:
    for every, steps in ((2, (6, 8)), (4, (4, 8))):
        tpulm.run(configured(corpus, average_last=2, every_steps=every, keep=4), tmp_path)
        mean = jax.tree.map(lambda *leaves: np.mean([np.float64(leaf) for leaf in leaves], 0), *map(states.get, steps))
        assert_exported(tmp_path, mean)


@pytest.mark.slow
def test_a_mean_of_checkpoints_that_are_gone_is_refused_before_training(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):  # with checkpoints 6 and 7
        tpulm.run(configured(corpus, keep=2), tmp_path, progress=Notes(7))
    with pytest.raises(CheckpointError, match="2, 4, 6, 8, and 2 is gone"):
        tpulm.run(configured(corpus, average_last=4), tmp_path)
    assert storage.committed_steps(tmp_path / "checkpoints") == [6, 7]  # training did not go on


@pytest.mark.parametrize("checkpoint", [{"average_last": 5}, {"average_last": 2, "every_steps": None}])
def test_a_mean_of_checkpoints_that_there_will_not_be(corpus: Path, checkpoint: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match="average_last"):
        configured(corpus, **checkpoint)


@pytest.mark.slow
def test_checkpoints_by_words_become_revisions(corpus: Path, states: dict[int, Any], tmp_path: Path) -> None:
    wanted = (150, 160, 700, 1_000_000)  # the first two are read by the same step
    config = configured(corpus, keep_at_words=wanted, keep=2)
    tpulm.run(config, tmp_path)
    manifest = dataset.load_manifest(tmp_path)
    assert manifest is not None
    words = sum(len(line.split()) for line in gzip.decompress(corpus.read_bytes()).decode().splitlines())
    assert manifest.train.counts.words + manifest.holdout.counts.words == words
    per_step = 8 * manifest.train.counts.words / manifest.train.counts.rows
    with pytest.raises(ConfigError, match="--revisions"):
        publications(tmp_path, "user/name", anyway=True, revisions=True)

    folders = pipeline.export_revisions(config, tmp_path)
    assert list(folders) == ["chck_150", "chck_160", "chck_700"]  # the run does not read a million
    for number, folder in zip(wanted, folders.values(), strict=False):
        step = next(step for step in states if step * per_step >= number)
        assert_exported(Path(folder), states[step])
    branches = publications(tmp_path, "user/name", anyway=True, revisions=True)
    assert [one.revision for one in branches] == [None, "chck_150", "chck_160", "chck_700"]
    assert {file.name for file in branches[1].files} >= {"model.safetensors", "config.json", "tokenizer.json"}

    with pytest.raises(ConfigError, match="the run reads fewer than 1,000,000"):
        pipeline.export_revisions(configured(corpus, keep_at_words=(1_000_000,), keep=2), tmp_path)
    notes = Notes()
    other = configured(corpus, keep_at_words=(300, 700), keep=2)  # 300 words were read before they were asked for
    assert list(pipeline.export_revisions(other, tmp_path, progress=notes)) == ["chck_700"]
    assert any("chck_300" in note for note in notes.notes)
    assert [path.name for path in (tmp_path / "revisions").iterdir()] == ["chck_700"]  # no others are left to be sent

    shutil.rmtree(tmp_path / "checkpoints" / str(next(step for step in states if step * per_step >= 700)) / "state")
    with pytest.raises(CheckpointError, match=r"chck_700: .* is damaged"):
        pipeline.export_revisions(other, tmp_path)

    for stage in ("checkpoints", "results", "export"):
        shutil.rmtree(tmp_path / stage)
    workfolder.begin(configured(corpus, every_steps=3), tmp_path)  # another training
    assert not (tmp_path / "revisions").exists()


@pytest.mark.slow
def test_a_revision_at_the_end_of_another_objective_is_noted(corpus: Path, tmp_path: Path) -> None:
    def configured(**checkpoint: Any) -> RunConfig:
        train = {"steps": STEPS, "batch_size": 8, "checkpoint": checkpoint}
        return toy_config(corpus, train=train, phases=[{"share": 0.5, "objective": "clm"}, {"share": 0.5}])

    tpulm.run(configured(), tmp_path / "first")
    manifest, notes = dataset.load_manifest(tmp_path / "first"), Notes()
    assert manifest is not None
    words = math.floor(STEPS / 2 * 8 * manifest.train.counts.words / manifest.train.counts.rows)
    config, workdir = configured(keep_at_words=(words,)), tmp_path / "second"
    tpulm.run(config, workdir)
    (name,) = pipeline.export_revisions(config, workdir, progress=notes)
    assert any(note.startswith(f"{name}: from before") for note in notes.notes)


@pytest.mark.slow
def test_words_of_a_text_without_white_space_are_unknown(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join("猫犬鳥魚" * (1 + number % 5) + str(number) for number in range(400)))
    config = configured(text, keep_at_words=(100,)).model_copy(update={"tokenizer": TokenizerConfig(vocab_size=50)})
    with pytest.raises(ConfigError, match="keep_at_words"):
        tpulm.run(config, tmp_path / "run")
