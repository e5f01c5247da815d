"""The fine-tuning loop: restore, step, log, score each epoch, keep the best, save, and again until done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tpulm import interrupt
from tpulm.config import FinetuneConfig
from tpulm.errors import Stopped, TrainingDiverged
from tpulm.progress import SILENT, Progress
from tpulm.train.checkpoint import Checkpoints
from tpulm.train.metrics import MetricsLog, NoMetrics
from tpulm.train.step import TrainState
from tpulm.train.tuning import Labelled, Tuning, Update

History = tuple[dict[str, float], ...]  # an epoch each: "epoch", "train_loss", and the scores on dev


class Fitted(NamedTuple):
    params: Any  # of the best epoch, on the devices
    history: History
    best_epoch: int  # from 1
    steps: int
    ended_early: bool
    rows_per_second: float | None  # of the steps alone, compiling left out; None where all had been done before


def fit(
    tuning: Tuning,
    params: Any,
    data: Labelled,
    score: Callable[[Any], dict[str, float]],
    *,
    seed: int,
    folder: PurePath | None = None,
    identity: dict[str, Any] | None = None,
    progress: Progress = SILENT,
    title: str = "Fine-tuning",
) -> Fitted:
    """Train `params` and give back those of the epoch that `score` (of parameters, on dev) says is best.

    With a `folder` each epoch is saved there, and every ten minutes (`config.checkpoint`); from such a checkpoint training goes
    on as if it had never stopped. `identity` goes into each and must match. Raises `Stopped` after saving (or without, where
    there is no folder), TrainingDiverged when the loss or its gradient is not finite, CheckpointError and StorageError.
    """
    config = tuning.config
    with contextlib.ExitStack() as closing:
        checkpoints = None
        if folder is not None:
            checkpoints = closing.enter_context(Checkpoints(folder / "checkpoints", config.checkpoint, progress=progress))
        state, best, step, history = _begin(tuning, checkpoints, params, identity or {}, seed)
        log = NoMetrics() if folder is None else closing.enter_context(MetricsLog(folder, first_step=step))
        if step:
            progress.note(f"continuing from checkpoint {step} of {tuning.steps} steps")
        progress.start(title, tuning.steps, "step")
        progress.advance(step)
        clock, values = _Clock(), dict[str, float]()
        if not _ended_early(config, history):
            for update in tuning.updates(state, data, seed=seed, first_step=step):
                state, step = update.state, update.step
                clock.count(update.rows)
                progress.advance(1)
                stopping = interrupt.requested()
                if step % config.log_every_steps == 0 or update.ends_epoch or stopping:
                    _check_finite(state, step)
                    values = tuning.window_metrics(state)
                    clock.pause()
                    clock.resume()
                    log.write("train", step, {**values, "learning_rate": tuning.learning_rate(step - 1)})
                    progress.status(_status(values["loss"], clock.rate(), update, config, history))
                if update.ends_epoch:
                    clock.pause()
                    scores = score(state.params)
                    log.write("dev", step, scores)
                    history = (*history, {"epoch": update.epoch, "train_loss": values["loss"], **scores})
                    best = _copied(state.params) if _best_epoch(config, history) == update.epoch else best
                    progress.status(_status(values["loss"], clock.rate(), update, config, history))
                    clock.resume()
                if checkpoints is not None and (update.ends_epoch or stopping or checkpoints.is_due(step, ask_the_clock=True)):
                    clock.pause()
                    log.sync()
                    metadata = {"step": step, "history": history, **(identity or {})}
                    checkpoints.save(step, {"train": state, "best": best}, metadata)
                    clock.resume()
                if stopping and step < tuning.steps:
                    raise _stopped(checkpoints, step, tuning.steps)
                if update.ends_epoch and _ended_early(config, history):
                    break
        if checkpoints is not None:
            checkpoints.wait()
    return Fitted(best, history, _best_epoch(config, history), step, step < tuning.steps, clock.rate())


def _begin(
    tuning: Tuning, checkpoints: Checkpoints | None, params: Any, identity: dict[str, Any], seed: int
) -> tuple[TrainState, Any, int, History]:
    if checkpoints is not None:
        abstract = {"train": tuning.abstract_state, "best": tuning.abstract_state.params}
        restored = checkpoints.restore_latest(abstract, identity)
        if restored is not None:
            found = restored.metadata
            return restored.state["train"], restored.state["best"], found["step"], tuple(found["history"])
    state = tuning.state_at_zero(seed, params)
    return state, _copied(state.params), 0, ()


@jax.jit
def _copied(params: Any) -> Any:
    """Parameters that the next step does not take for its own."""
    return jax.tree.map(jnp.copy, params)


def _best_epoch(config: FinetuneConfig, history: History) -> int:
    """From 1; of equal ones the first."""
    best = 0
    for number, scores in enumerate(history):
        if config.is_better(scores[config.chosen_by], history[best][config.chosen_by]):
            best = number
    return best + 1


def _ended_early(config: FinetuneConfig, history: History) -> bool:
    return config.patience is not None and len(history) - _best_epoch(config, history) >= config.patience


def _check_finite(state: TrainState, step: int) -> None:
    bad = int(jax.device_get(state.bad_step))
    if bad >= 0:
        raise TrainingDiverged(
            f"the loss or its gradient is not finite at step {bad + 1} (seen at step {step}). Lower the learning rate, or "
            "lengthen its warm-up (warmup_fraction)"
        )


def _stopped(checkpoints: Checkpoints | None, step: int, steps: int) -> Stopped:
    by = interrupt.reason()
    if checkpoints is None:
        return Stopped(f"stopped by {by} at step {step} of {steps}; nothing is saved where no folder is given")
    checkpoints.wait()
    return Stopped(f"stopped by {by} after saving step {step} of {steps}. Run the same command again to continue.")


def _status(loss: float, rate: float | None, update: Update, config: FinetuneConfig, history: History) -> str:
    parts = [f"loss {loss:.3f}"]
    if rate is not None:
        parts.append(f"{rate:,.0f} texts/s")
    if history:
        parts.append(f"dev {config.chosen_by.replace('_', ' ')} {history[-1][config.chosen_by]:.4f}")
    return "  ".join([*parts, f"epoch {update.epoch}/{config.epochs}"])


class _Clock:
    """Counts rows against time, from the second step on: the first waits for the compiler."""

    def __init__(self) -> None:
        self._rows, self._seconds, self._since = 0, 0.0, None

    def count(self, rows: int) -> None:
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._rows += rows

    def pause(self) -> None:
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since

    def resume(self) -> None:
        self._since = time.perf_counter()

    def rate(self) -> float | None:
        """Up to the last pause."""
        return self._rows / self._seconds if self._seconds else None
