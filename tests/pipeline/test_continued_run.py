"""A run that goes on from a model and its optimizer's moments: the same numbers however often it is stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from toy_runs import Notes, outcome, write_corpus
from tpulm import config, pipeline, workfolder
from tpulm.cli.app import app
from tpulm.config import RunConfig
from tpulm.convert.continuing import starting_point
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError, Stopped
from tpulm.nn.params import named_leaves
from tpulm.train.metrics import read_metrics

RUN = """
[corpus]
sources = ["corpus.txt.gz"]
holdout_fraction = 0.1
[data]
sequence_length = 32
rows = "packed"
part_bytes = 10_000
[train]
steps = 6
batch_size = 8
log_every_steps = 1
checkpoint = {every_steps = 3}
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
def test_stopped_and_resumed_equals_uninterrupted(model: Path, tmp_path: Path):
    watcher, run = Notes(), settings(model)
    pipeline.run(run, tmp_path / "whole", progress=watcher)
    said = f"starting from {model / 'model'}: weights of step 100 and the optimizer's moments"
    assert watcher.notes.count(said) == 1
    with pytest.raises(Stopped, match="step 4 of 6"):
        pipeline.run(run, tmp_path / "stopped", progress=Notes(4))
    last = Notes()
    pipeline.run(run, tmp_path / "stopped", progress=last)
    assert said not in last.notes, "it goes on from its own checkpoint"
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")

    fresh = settings(model, "train.start_optimizer=false")
    notes = Notes()
    pipeline.run(fresh, tmp_path / "fresh", progress=notes)
    assert f"starting from {model / 'model'}: weights of step 100 and a fresh optimizer" in notes.notes
    losses = [[r.values["loss"] for r in read_metrics(tmp_path / name) if r.kind == "train"] for name in ("whole", "fresh")]
    assert losses[0][0] == losses[1][0] and losses[0][1:] != losses[1][1:], "the same weights, other updates"


@pytest.mark.slow
def test_every_stage_takes_the_same_model(model: Path, tmp_path: Path):
    def tpulm(*command: object) -> Any:
        given = ["--workdir", tmp_path / "w", "--init", model / "model"]
        result = CliRunner().invoke(app, [str(word) for word in (*command, model / "run.toml", *given)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    tpulm("tokenizer", "train")
    tpulm("dataset", "prepare")
    tpulm("train")
    assert workfolder.open_run(tmp_path / "w") == settings(model)
    tpulm("run")
    with pytest.raises(ConfigError, match=r"train\.start_from"):
        pipeline.run(config.load(model / "run.toml"), tmp_path / "w")


def test_moments_that_are_gone_are_missed_before_the_corpus_is_read(model: Path, tmp_path: Path):
    shutil.copytree(model / "model", tmp_path / "model")
    run = config.load(model / "run.toml", start=starting_point(tmp_path / "model"))
    (tmp_path / "model" / "optimizer.safetensors").unlink()
    with pytest.raises(ConfigError, match="start_optimizer"):
        pipeline.run(run, tmp_path / "w")
