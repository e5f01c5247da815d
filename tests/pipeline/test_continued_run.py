"""A run that goes on from a model and its optimizer's moments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from command_line import invoke
from toy_runs import Notes, write_corpus
from tpulm import config, pipeline, workfolder
from tpulm.config import RunConfig
from tpulm.convert.continuing import starting_point
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError, Stopped
from tpulm.nn.params import named_leaves
from tpulm.train.metrics import read_metrics

RUN = """
corpus = {sources = ["corpus.txt.gz"], holdout_fraction = 0.1}
data = {sequence_length = 32, rows = "packed", part_bytes = 10_000}
train = {steps = 6, batch_size = 8, log_every_steps = 1, checkpoint.every_steps = 3}
"""


@pytest.fixture(scope="module")
def model(toy_run: tuple[RunConfig, Path, pipeline.Summary], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a toy run with moments beside it, and the run file of another."""
    folder = tmp_path_factory.mktemp("model")
    write_corpus(folder / "corpus.txt.gz")
    shutil.copytree(toy_run[1] / "export", folder / "model")
    random, moments = np.random.default_rng(0), {}
    for name, leaf in named_leaves(load_model(folder / "model").params).items():
        moments[f"adam_m/{name}"] = random.normal(0.0, 1e-3, leaf.shape).astype(np.float32)
        moments[f"adam_v/{name}"] = np.square(random.normal(0.0, 1e-2, leaf.shape)).astype(np.float32)
    safetensors.numpy.save_file(moments, folder / "model" / "optimizer.safetensors")
    (folder / "model" / "import.json").write_text(json.dumps({"step": 100}))
    (folder / "run.toml").write_text(RUN)
    return folder


def settings(model: Path, *overrides: str) -> RunConfig:
    return config.load(model / "run.toml", overrides, start=starting_point(model / "model"))


@pytest.mark.slow
def test_it_goes_on_from_its_own_checkpoint_and_computes_what_a_loop_does(model: Path, tmp_path: Path):
    run, first, last = settings(model), Notes(4), Notes()
    said = f"starting from {model / 'model'}: weights of step 100 and"
    with pytest.raises(Stopped, match="4 of 6"):
        pipeline.run(run, tmp_path / "w", progress=first)
    pipeline.run(run, tmp_path / "w", progress=last)
    assert first.notes.count(f"{said} the optimizer's moments") == 1
    assert not any(said in note for note in last.notes)

    made = shutil.ignore_patterns("checkpoints", "results", "metrics", "export")

    def losses(config: RunConfig, name: str, notes: Notes) -> list[float]:
        """The losses of a loop of one's own on the same rows."""
        shutil.copytree(tmp_path / "w", tmp_path / name, ignore=made)
        return [step.metrics["loss"] for step in pipeline.training_steps(config, tmp_path / name, progress=notes)]

    whole, notes = losses(run, "whole", Notes()), Notes()
    fresh = losses(settings(model, "train.start_optimizer=false"), "fresh", notes)
    assert f"{said} a fresh optimizer" in notes.notes
    assert whole == pytest.approx([r.values["loss"] for r in read_metrics(tmp_path / "w") if r.kind == "train"], abs=1e-6)
    assert whole[0] == fresh[0] and whole[1:] != fresh[1:], "the same weights, other updates"


@pytest.mark.slow
def test_every_stage_takes_the_same_model(model: Path, tmp_path: Path):
    for command in ("tokenizer train", "dataset prepare", "train", "run"):
        invoke(*command.split(), model / "run.toml", "--workdir", tmp_path / "w", "--init", model / "model", code=0)
        assert workfolder.open_run(tmp_path / "w") == settings(model)
    with pytest.raises(ConfigError, match=r"train\.start_from"):
        pipeline.run(config.load(model / "run.toml"), tmp_path / "w")


def test_moments_that_are_gone_are_missed_before_the_corpus_is_read(model: Path, tmp_path: Path):
    shutil.copytree(model / "model", tmp_path / "model")
    run = config.load(model / "run.toml", start=starting_point(tmp_path / "model"))
    (tmp_path / "model" / "optimizer.safetensors").unlink()
    with pytest.raises(ConfigError, match="start_optimizer"):
        pipeline.run(run, tmp_path / "w")
