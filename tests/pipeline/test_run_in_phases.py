"""A run in phases: next tokens and masked ones, batches and rows of two sizes, and the same numbers however it is stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from toy_runs import DATA, SIZES, Notes, outcome, toy_config, write_corpus
from tpulm import dataset, pipeline
from tpulm.config import RunConfig
from tpulm.errors import ConfigError, Stopped
from tpulm.train.metrics import read_metrics

Run = tuple[RunConfig, Path, pipeline.Summary]
PHASES = [{"share": 0.25, "objective": "clm"}, {"share": 0.25, "batch_size": 32, "mask_fraction": 0.3}]
PHASES += [{"share": 0.5, "sequence_length": 64, "batch_size": 4}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("phases")
    config = toy_config(
        write_corpus(folder / "corpus.txt.gz"),
        phases=PHASES,
        hardware={"fsdp": 2},
        model=SIZES | {"max_positions": 64},
        train={"steps": 8, "batch_size": 8, "log_every_steps": 1, "checkpoint": {"every_steps": 3}},
    )
    return config, folder / "w", pipeline.run(config, folder / "w")


@pytest.mark.slow
def test_each_phase_has_an_objective_and_rows_of_its_own(whole: Run) -> None:
    _, workdir, summary = whole
    assert summary.steps == 8
    made = [dataset.load_manifest(folder) for folder in (workdir, workdir / "phase-3")]
    assert [one and one.train.rows.sequence_length for one in made] == [32, 64]
    assert made[0] and made[1] and made[0].train.counts.tokens == made[1].train.counts.tokens  # the same text in both
    masked = {r.step: "mlm_loss" in r.values for r in read_metrics(workdir) if r.kind == "train"}
    assert masked == {step: step > 2 for step in range(1, 9)}


@pytest.mark.slow
def test_stopped_in_any_phase_it_ends_the_same(whole: Run, tmp_path: Path) -> None:
    """In the first, at the end of the second and in the third, of which a damaged checkpoint leads back into the second."""
    config, workdir, _ = whole
    for stop in (1, 4, 6):
        with pytest.raises(Stopped, match=f"step {stop} of 8"):
            pipeline.run(config, tmp_path / "w", progress=Notes(stop))
    for step in (4, 6):
        shutil.rmtree(tmp_path / "w" / "checkpoints" / str(step) / "state")
    pipeline.run(config, tmp_path / "w")
    assert outcome(tmp_path / "w") == outcome(workdir)


@pytest.mark.slow
def test_the_end_of_a_phase_is_scored_by_what_it_was_trained_for(whole: Run, tmp_path: Path) -> None:
    """Not by what the next phase will train it for."""
    config, workdir, _ = whole
    with pytest.raises(Stopped, match="step 2 of 8"):
        pipeline.run(config, tmp_path / "w", progress=Notes(2))
    found = pipeline.evaluate(config, tmp_path / "w")
    [trained] = [one.values for one in read_metrics(workdir) if (one.kind, one.step) == ("evaluation", 2)]
    assert "mlm_loss" not in found and found["loss"] == pytest.approx(trained["loss"], abs=1e-5)


@pytest.mark.slow
def test_a_run_can_start_from_the_weights_of_another(whole: Run, tmp_path: Path) -> None:
    config, workdir, summary = whole
    tokenizer = config.tokenizer.model_copy(update={"path": str(workdir / "tokenizer" / "tokenizer.json")})
    train = config.train.model_copy(update={"start_from": str(workdir), "steps": 2})
    again = config.model_copy(update={"tokenizer": tokenizer, "train": train, "phases": ()})
    for _ in range(2):  # in an empty folder, and in that of a finished run
        _, state, metrics = next(pipeline.training_steps(again, tmp_path / "w"))
        assert metrics["loss"] == pytest.approx(summary.train_loss, abs=0.3)
        assert int(state.step) == 1
        pipeline.run(again, tmp_path / "w")
    other = again.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"vocab_size": 61})})
    with pytest.raises(ConfigError, match=r"tokenizer\.path = '.*export/tokenizer\.json'"):
        next(pipeline.training_steps(other, tmp_path / "other"))
    model = config.model.model_copy(update={"num_layers": 2})
    with pytest.raises(ConfigError, match=r"\[1, 32, 2, 16\].*\[2, 32, 2, 16\]"):
        next(pipeline.training_steps(again.model_copy(update={"model": model}), tmp_path / "larger"))


def test_a_phase_does_not_read_where_words_begin_if_it_masks_none(tmp_path: Path) -> None:
    """Its loss is that of rows that lack the column."""
    pytest.importorskip("fugashi")
    corpus, losses = write_corpus(tmp_path / "corpus.txt.gz", documents=60), list[float]()
    for words, phases in (("mecab", [{"share": 0.5, "objective": "clm"}, {"share": 0.5}]), ("none", [{"objective": "clm"}])):
        config = toy_config(
            corpus,
            data=DATA | {"word_boundaries": words},
            phases=phases,
            train={"steps": 2, "batch_size": 8, "objective": {"whole_words": True}},
        )
        losses.append(next(pipeline.training_steps(config, tmp_path / words)).metrics["loss"])
    assert losses[0] == losses[1]
