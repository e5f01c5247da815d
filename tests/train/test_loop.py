from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from toy_runs import Notes, logged
from tpulm import storage
from tpulm.errors import ConfigError, Stopped, TrainingDiverged
from tpulm.runtime import interrupt, watchdog
from tpulm.runtime.hosts import Hosts
from tpulm.train import distributed
from tpulm.train.checkpoint import checksums, newest_weights
from tpulm.train.evaluate import Evaluation
from tpulm.train.loop import TrainResult
from tpulm.train.metrics import read_metrics

SETTINGS = toy.config()
Outcome = tuple[TrainResult, Path]


@pytest.fixture(scope="module")
def program() -> Any:
    return toy.program(SETTINGS)


@pytest.fixture(scope="module")
def whole(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return toy.run(program, SETTINGS, folder), folder


class Stopping(toy.Rows):
    """Asks for a stop, as Ctrl-C would, when the batch at this cursor is read; keeps which rows it gave."""

    def __init__(self, cursor: int | None, batch_size: int = toy.BATCH):
        super().__init__(batch_size)
        self.rows: list[int] = []
        self._cursor = cursor

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        self.rows += self.row_indices(cursor).tolist()
        if cursor == self._cursor:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(cursor)


def same_outcome(result: TrainResult, workdir: Path, whole: Outcome) -> bool:
    return checksums(result.state) == checksums(whole[0].state) and logged(workdir) == logged(whole[1])


def test_logs_evaluates_and_saves_when_due(whole: Outcome) -> None:
    result, folder = whole
    logged_at = [(record.kind, record.step) for record in read_metrics(folder)]
    assert logged_at == [("evaluation", 6), ("train", 4), ("train", 8), ("train", 12)]
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [5, 10, 12]
    assert result.steps == 12
    assert math.isclose(result.train_loss, read_metrics(folder)[-1].values["loss"])


def test_a_watchdog_is_told_of_every_step(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of going back, which may take longer than a step."""
    told: list[tuple[str, int | None]] = []
    monkeypatch.setattr(watchdog, "report", lambda stage="", step=None: told.append((stage, step)))
    settings = toy.config(train={"on_nan": "skip"})
    toy.run(Poisoned(program, 6), settings, tmp_path)  # pyright: ignore[reportArgumentType]
    steps = [("train", step) for step in range(12)]
    first = [*steps[:5], ("save", 5), steps[5], ("evaluate", None), *steps[6:8]]
    again = [*steps[5:6], ("evaluate", None), *steps[6:10], ("save", 10), *steps[10:], ("save", 12)]
    assert told == [*first, ("restore", None), *again]
    (start,) = (tmp_path / "metrics").glob("*.start.json")
    said = {"time", "first_step", "compile_seconds", "compiled", "found", "device", "versions", "per_step"}
    assert said == set(storage.read_json(start))


@pytest.mark.parametrize("make", [lambda: jnp.zeros(1 << 47, np.uint8), lambda: np.zeros(1 << 60, np.uint8)])
def test_memory_that_does_not_suffice(program: Any, tmp_path: Path, make: Any) -> None:
    settings = toy.config(train={"evaluate_every_steps": 1})
    with pytest.raises(ConfigError, match="microbatch_size"):
        toy.run(program, settings, tmp_path, evaluate=lambda params, advance: make().sum())


@pytest.mark.parametrize("at", [0, 4, 6])
def test_stopped_and_resumed_equals_uninterrupted(program: Any, whole: Outcome, tmp_path: Path, at: int) -> None:
    with interrupt.handled(), pytest.raises(Stopped, match=f"SIGTERM .* {at + 1} of 12"):
        toy.run(program, SETTINGS, tmp_path, stream=Stopping(at * toy.BATCH))
    result = toy.run(program, SETTINGS, tmp_path)
    assert result.resumed_at == at + 1
    assert same_outcome(result, tmp_path, whole)


@pytest.mark.slow
def test_two_losses_resume_in_the_middle_of_a_window(tmp_path: Path) -> None:
    settings = toy.config("replaced")
    program = toy.program(settings)
    whole = toy.run(program, settings, tmp_path / "whole"), tmp_path / "whole"
    with interrupt.handled(), pytest.raises(Stopped):
        toy.run(program, settings, tmp_path / "w", stream=Stopping(6 * toy.BATCH))
    assert same_outcome(toy.run(program, settings, tmp_path / "w"), tmp_path / "w", whole)


def test_ctrl_c_is_passed_on_to_the_other_hosts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append(number))
    monkeypatch.setattr("jax.experimental.multihost_utils.reached_preemption_sync_point", lambda step: False)
    with interrupt.handled():
        interrupt.request("Ctrl-C")
        assert not any(distributed.stop_requested(Hosts(0, 2)) for _ in range(3)) and sent == [signal.SIGTERM]


def test_a_host_may_be_silent_for_as_long_as_jax_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it compiles with all cores, for instance: ml-auto-solutions issue 1166, jax issue 23599."""
    default = inspect.signature(jax.distributed.initialize).parameters["heartbeat_timeout_seconds"].default
    given = dict[str, Any]()
    monkeypatch.setattr(distributed, "_jax_handler", None)
    monkeypatch.setattr(distributed, "_explain_abort", lambda hosts: None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *place, **named: given.update(named))
    distributed.initialize(Hosts(1, 2, "127.0.0.1:8476"))
    assert given and given.get("heartbeat_timeout_seconds", default) >= default > 60


def test_a_stop_during_an_evaluation_does_not_wait_for_its_end(program: Any, whole: Outcome, tmp_path: Path) -> None:
    """Twice. The step is saved, and the evaluation is made when training goes on."""
    batches: list[int] = []

    def endless(params: Any, advance: Any) -> Any:
        for number in range(1_000_000):
            batches.append(number)
            if number == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            advance(1)

    for _ in range(2):
        with interrupt.handled(), pytest.raises(Stopped, match="6 of 12"):
            toy.run(program, SETTINGS, tmp_path, evaluate=endless)
    assert batches == [0, 1, 2, 3] * 2
    result = toy.run(program, SETTINGS, tmp_path)
    assert result.resumed_at == 6
    assert same_outcome(result, tmp_path, whole)


def test_a_phase_with_another_batch_size_goes_on_with_the_next_row(program: Any, tmp_path: Path) -> None:
    """Six steps of 8 rows and six of 32: each row once, and the same numbers when stopped within both phases."""
    wide = toy.config(train={"batch_size": 32})
    phases = [(program, SETTINGS, (0, 6)), (toy.program(wide), wide, (6, 12))]

    def run(folder: Path, stops: list[int]) -> tuple[TrainResult, list[int]]:
        result, rows = None, list[int]()
        for made, settings, steps in phases:
            while result is None or result.steps < steps[1]:
                stream = Stopping(stops[0] if stops else None, settings.train.batch_size)
                with interrupt.handled(), contextlib.suppress(Stopped):
                    result = toy.run(made, settings, folder, stream=stream, steps=steps)
                stops = stops[1:]
                rows += stream.rows
        assert result is not None
        return result, rows

    whole, rows = run(tmp_path / "whole", [])
    assert rows == list(range(6 * 8 + 6 * 32))
    stopped, rows_of_three = run(tmp_path / "stopped", [24, 6 * 8 + 64])
    assert rows_of_three == rows
    assert same_outcome(stopped, tmp_path / "stopped", (whole, tmp_path / "whole"))


class Noise(toy.Rows):
    """Rows of which nothing can be learned."""

    def batch(self, cursor: int) -> dict[str, np.ndarray]:
        rows = super().batch(cursor)["tokens"]
        rows[:, 1:-1] = np.random.default_rng(cursor).integers(5, toy.VOCAB_SIZE, rows[:, 1:-1].shape)
        return {"tokens": rows}


def test_each_phase_is_logged_judged_and_evaluated_by_itself(tmp_path: Path) -> None:
    """They part at step 6, in the middle of a window, and the second one's text is harder."""

    def run(name: str, **train: Any) -> Path:
        settings = toy.config(train={"optimizer": {"learning_rate": 1e-2, "warmup_steps": 1}, "spike_factor": 1.02, **train})
        made = toy.program(settings)
        for stream, steps in ((toy.Rows(), (0, 6)), (Noise(), (6, 12))):
            toy.run(made, settings, tmp_path / name, stream=stream, steps=steps)
        return tmp_path / name

    each = {r.step: r.values["loss"] for r in read_metrics(run("each", log_every_steps=1)) if r.kind == "train"}
    assert min(each[step] for step in range(7, 13)) > 1.02 * each[6]
    records = read_metrics(run("w"))
    losses = {r.step: r.values["loss"] for r in records if r.kind == "train"}
    spans_logged = {4: (1, 4), 6: (5, 6), 8: (7, 8), 12: (9, 12)}
    means = {step: np.mean([each[one] for one in range(first, last + 1)]) for step, (first, last) in spans_logged.items()}
    assert losses == pytest.approx(means, rel=1e-5)
    assert [r.step for r in records if r.kind == "evaluation"] == [6]


def test_averaged_weights_are_scored_saved_and_go_on_after_a_stop(tmp_path: Path, whole: Outcome) -> None:
    decay = 0.3  # so that (1 + step) / (10 + step) is passed on the way
    settings = toy.config(train={"optimizer": {"learning_rate": 3e-3, "warmup_steps": 3, "average_decay": decay}})
    made = toy.program(settings)
    state, mean = made.initial_state(), None
    expected: dict[int, Any] = {}
    for step in range(1, 13):
        mean = jax.device_get(state.params) if mean is None else mean
        cursor = (step - 1) * toy.BATCH
        state, _ = made.step(state, made.to_devices(toy.Rows().batch(cursor)), made.cursor(cursor))
        share = 1 - min(decay, (1 + step) / (10 + step))
        mean = jax.tree.map(lambda old, new, share=share: old + share * (new - old), mean, jax.device_get(state.params))
        expected[step] = mean

    scored: list[Any] = []

    def score(params: Any, advance: Any) -> Evaluation:
        scored.append(jax.device_get(params))
        return toy.scorer(made)(params, advance)

    with interrupt.handled(), pytest.raises(Stopped):
        toy.run(made, settings, tmp_path, stream=Stopping(7 * toy.BATCH), evaluate=score)
    result = toy.run(made, settings, tmp_path)
    assert checksums(result.state.params) == checksums(whole[0].state.params), "training itself is the same"
    assert checksums(result.state) == checksums(state)
    newest = newest_weights(tmp_path / "checkpoints", made.abstract_state)
    assert newest is not None and checksums(newest.weights) == checksums(result.state.weights)
    for found, right in ((scored[0], expected[6]), (newest.weights, expected[12])):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found, right)


class Poisoned:
    """A program whose step multiplies the weights at one batch: with NaN, as overflowing numbers do."""

    def __init__(self, program: Any, at: int, factor: float = math.nan):
        self._program, self._at, self._factor = program, at, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def step_at(self, length: int) -> Any:
        def step(state: Any, batch: Any, cursor: Any) -> Any:
            if cursor.tolist() == [0, self._at * toy.BATCH]:
                state = dataclasses.replace(state, params=jax.tree.map(lambda x: x * self._factor, state.params))
            return self._program.step_at(length)(state, batch, cursor)

        return step


@pytest.mark.parametrize(
    ("factor", "message"), [(math.nan, "(?s)step 7 .*step 8.*rows 48, 49.*checkpoint 5.*on_nan"), (30.0, "jumped")]
)
def test_nan_and_jumps_of_the_loss_stop_a_run(program: Any, tmp_path: Path, factor: float, message: str) -> None:
    with pytest.raises(TrainingDiverged, match=message):
        toy.run(Poisoned(program, 6, factor), SETTINGS, tmp_path)  # pyright: ignore[reportArgumentType]
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [5]


def test_weights_that_are_not_numbers_are_neither_scored_nor_saved(program: Any, tmp_path: Path) -> None:
    """Also where an evaluation is due before they would be logged."""

    def score(params: Any, advance: Any) -> Any:
        raise AssertionError("NaN is no model")

    with pytest.raises(TrainingDiverged, match=r"step 6 \(seen at step 6\)"):
        toy.run(Poisoned(program, 5), SETTINGS, tmp_path, evaluate=score)  # pyright: ignore[reportArgumentType]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["5"]


@pytest.mark.parametrize("at", [2, 6])
def test_nan_can_be_skipped_and_counted(program: Any, tmp_path: Path, at: int) -> None:
    settings, notes = toy.config(train={"on_nan": "skip"}), Notes()
    result = toy.run(Poisoned(program, at), settings, tmp_path, progress=notes)  # pyright: ignore[reportArgumentType]
    left_out = at * toy.BATCH, (at + 1) * toy.BATCH
    assert result.skipped == (left_out,)
    assert any(f"rows {left_out[0]} to {left_out[1] - 1}" in note for note in notes.notes)
    assert math.isfinite(result.train_loss)

    class Without(toy.Rows):
        def iterate(self, start_cursor: int, *, skipped: Any = ()) -> Iterator[Any]:
            return super().iterate(start_cursor, skipped=(left_out,))

    clean = toy.run(program, settings, tmp_path / "clean", stream=Without())
    assert checksums(clean.state) == checksums(result.state)


def test_a_run_on_the_plateau_says_so_once_after_its_warm_up(program: Any, tmp_path: Path) -> None:
    """Whatever the steps between evaluations, one falls on that step; the loss is a stub's."""
    train = {"steps": 212, "evaluate_every_steps": 150, "optimizer": {"warmup_steps": 105}}
    settings = toy.config(train=train | {"checkpoint": {"every_minutes": None}})
    for loss, at_unigrams in ((4.45, True), (4.2, False)):
        scores = Evaluation(64, loss, 0.1, 0.1, unigram_entropy=4.5, bits_per_character=1.0, metrics={"loss": loss})
        notes, folder = Notes(), tmp_path / str(loss)
        toy.run(program, settings, folder, evaluate=lambda params, advance, scores=scores: scores, progress=notes)
        records = [record for record in read_metrics(folder) if record.kind == "evaluation"]
        found = [(record.step, record.values["at_unigrams"]) for record in records]
        assert found == [(step, at_unigrams) for step in (150, 210)]
        assert len(notes.notes) == at_unigrams
        assert all("after 210 of 212 steps" in note and "4.45" in note and "Try that" in note for note in notes.notes)
