"""The training loop of both pretraining and fine-tuning: restore, then step, log, evaluate and save until done."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import collections
import contextlib
import dataclasses
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.accelerators import processor
from tpulm.config import TrainConfig
from tpulm.errors import Stopped, TrainingDiverged
from tpulm.progress import Progress
from tpulm.readable import decimals
from tpulm.runtime import interrupt, watchdog
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.memory import naming_shortage
from tpulm.train.checkpoint import Checkpoints, NoCheckpoints
from tpulm.train.distributed import stop_requested, stopping_together
from tpulm.train.health import first_verdict, plateau_note
from tpulm.train.metrics import MetricsLog, NoMetrics
from tpulm.train.program import BaseProgram, compile_stats
from tpulm.train.step import TrainState
from tpulm.train.throughput import Meter, Rate
from tpulm.train.trackers import Tracking

_MAX_SKIPS = 20
_IN_FLIGHT = 2  # steps the host may be ahead of the devices


class Stream(Protocol):
    """The data interface of the loop: `tpulm.dataset.Batches` or `finetuning_program.Epochs`. A cursor is the number of rows
    before a batch; rows whose "weights" are 0 are padding."""

    def iterate(
        self, start_cursor: int, *, skipped: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]: ...

    def row_indices(self, cursor: int) -> np.ndarray: ...


History = tuple[dict[str, float], ...]  # with a `Selection`, of each evaluation: "epoch", "train_loss" and its scores


@dataclasses.dataclass(frozen=True)
class Selection:
    """Keep the parameters of the best evaluation, and stop after `patience` evaluations without a better one."""

    metric: str
    is_better: Callable[[float, float], bool]
    patience: int | None
    epochs: int

    def best(self, history: History) -> int:
        """The number of the best evaluation, from 1; the first of equal ones.

        While the metric is 0, such as the F1 of a model that has found no entity yet, a lower loss is better.
        """
        best = 0
        for number, scores in enumerate(history):
            value, highest = scores[self.metric], history[best][self.metric]
            falls = value == highest == 0 and scores.get("loss", 0.0) < history[best].get("loss", 0.0)
            if falls or self.is_better(value, highest):
                best = number
        return best + 1

    def is_over(self, history: History) -> bool:
        return self.patience is not None and len(history) - self.best(history) >= self.patience

    def shown(self, history: History) -> str:
        last = [f"dev {self.metric.replace('_', ' ')} {decimals(history[-1][self.metric])}"] if history else []
        return "  ".join([*last, f"epoch {min(len(history) + 1, self.epochs)}/{self.epochs}"])


class TrainResult(NamedTuple):
    state: TrainState
    steps: int
    resumed_at: int  # 0 for a fresh start
    train_loss: float  # mean over the last logged window
    train_values: dict[str, float]  # all metrics of that window; empty if nothing was trained
    rate: Rate
    skipped: tuple[tuple[int, int], ...]  # cursor ranges [first, last) left out after NaN or a spike
    attempt: int
    history: History = ()
    best: Any = None  # with a `Selection`: the best parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, on what, and where it is saved. With several hosts all have the same.

    `evaluate` gets parameters and a function to call after each batch, on all hosts alike, which raises an exception when a
    stop was requested: the step is saved unscored, and scored first when training continues.
    """

    program: BaseProgram
    config: TrainConfig
    stream: Stream
    evaluate: Callable[[Any, Callable[[float], None]], Mapping[str, float]]
    workdir: PurePath | None  # None: nothing is saved
    meter: Meter
    identity: Mapping[str, Any]  # stored in each checkpoint, and must match on restore
    progress: Progress
    steps: tuple[int, int] | None = None  # the first and last step of a phase, at which training ends and saves; None: all
    title: str = "Training"
    hosts: Hosts = ALONE
    advice: str = ""  # for a model that is still at its unigrams when it is first judged
    kept_steps: frozenset[int] = frozenset()  # whose checkpoints are saved and kept forever
    selection: Selection | None = None  # then every evaluation is followed by a checkpoint
    evaluated: Callable[[], None] = lambda: None  # called on the first host when an evaluation's scores are in the metrics
    tracking: Tracking | None = None  # where the first host also sends logged values


_ADVICE = (
    "Set hardware.microbatch_size to fewer rows than a device has now, which computes the same, or lower batch_size, the rows' "
    "length or the model"
)


@naming_shortage(_ADVICE)
def train(run: Run) -> TrainResult:
    """Train from the newest checkpoint in `run.workdir`, if there is one, to the last step.

    If the newest good checkpoint is before the first step of `run.steps`, its state is returned untrained, for the phase it
    belongs to. With several hosts, all call this, and only the first writes metrics. Saves by time happen at logged steps, by
    the first host's clock.

    Raises `Stopped` after saving when a stop was requested, TrainingDiverged on NaN or a spike (`on_nan = "stop"`),
    CheckpointError and StorageError.
    """
    program, config, stream, meter = run.program, run.config, run.stream, run.meter
    hosts, progress, selection, workdir = run.hosts, run.progress, run.selection, run.workdir
    first_step, last_step = run.steps or (0, config.steps)
    evaluate_every = config.evaluate_every_steps or max(1, config.steps // 10)
    judged = first_verdict(config) if selection is None else 0
    kind = "evaluation" if selection is None else "dev"
    with contextlib.ExitStack() as closing:
        checkpoints = NoCheckpoints()
        if workdir is not None:
            folder = workdir / "checkpoints"
            checkpoints = closing.enter_context(
                Checkpoints(folder, config.checkpoint, kept_steps=run.kept_steps, hosts=hosts, progress=progress)
            )
        if checkpoints.last_step is not None:
            watchdog.report("restore")
            progress.start("Loading the checkpoint")
        start = _restore(run, checkpoints)
        state, step, cursor, skipped, lowest, train_loss, history, best, unscored = start
        if step < first_step or (selection is not None and selection.is_over(history)):
            return _as_restored(start)
        log = NoMetrics()
        if workdir is not None and hosts.is_first:
            log = closing.enter_context(MetricsLog(workdir, first_step=step, tracking=run.tracking))
        in_flight: collections.deque[jax.Array] = collections.deque()
        values, rate = {"loss": train_loss}, Rate(0.0, None)
        if step == last_step and not unscored:  # nothing is left to do but to say what came of it
            values = _window_values(program, state, step)
        batches = stream.iterate(cursor, skipped=skipped)
        cursors: dict[int, int] = {}  # by step, in this log window
        closing.enter_context(stopping_together(hosts))
        if step > first_step:
            progress.note(f"continuing from checkpoint {step} of {config.steps} steps")
        progress.start(run.title, config.steps, "step")
        progress.advance(step)

        while step < last_step or unscored:
            if not unscored:
                watchdog.report("train", step)
                cursor, batch = next(batches)
                rows = len(stream.row_indices(cursor)) if "weights" in batch else config.batch_size  # without padding rows
                if in_flight:
                    meter.pause()
                update = program.step_at(batch["tokens"].shape[-1])  # may compile
                meter.resume()
                state, loss = update(state, program.to_devices(batch), program.cursor(cursor))
                cursors[step] = cursor
                step, cursor = step + 1, cursor + config.batch_size
                in_flight.append(loss)
                if len(in_flight) > _IN_FLIGHT:
                    jax.block_until_ready(in_flight.popleft())
                    log.started(lambda: {**_start_values(), "per_step": meter.per_step(config.batch_size)})
                meter.count(rows)
                progress.advance(1)

            last, stopping, was_unscored = step == last_step, stop_requested(hosts), unscored
            evaluates = (step % evaluate_every == 0 or step == judged) and (selection is not None or step < config.steps)
            scores_due = unscored or evaluates
            log_due = not unscored and (step % config.log_every_steps == 0 or last or (scores_due and selection is not None))
            save_due = not unscored and (
                last or stopping or checkpoints.is_due(step, ask_the_clock=log_due or not hosts.are_several)
            )
            unscored = scores_due

            if not was_unscored and (log_due or save_due or scores_due):
                bad = _bad_rows(run, state, step, lowest, cursors)
                if bad is not None:
                    start = _rolled_back(run, bad, checkpoints, skipped)
                    if start.step < first_step:
                        return _as_restored(start)
                    progress.advance(start.step - step)
                    state, step, cursor, skipped, lowest, _, history, best, unscored = start
                    cursors.clear()
                    in_flight.clear()
                    batches = stream.iterate(cursor, skipped=skipped)
                    continue
                if step % config.log_every_steps == 0:
                    cursors.clear()
            if log_due:
                rate = meter.close_window()
                values = _window_values(program, state, step)
                lowest = min(lowest, values["loss"])
                log.write("train", step, {**values, **_rate_values(rate)})
                progress.status(_status(values["loss"], rate, selection, history))
            scores: Mapping[str, float] = {}
            if scores_due and not stopping:
                jax.block_until_ready(state.bad_step)  # or steps in flight would be timed as evaluation
                meter.pause()
                watchdog.report("evaluate")
                try:
                    scores = run.evaluate(state.weights, partial(_check_stop, hosts))
                except _StopRequested:
                    stopping, save_due = True, not was_unscored
                meter.resume()
            if scores:
                unscored = False
                log.write(kind, step, scores)
                if step == judged and scores["at_unigrams"] and run.advice:
                    progress.note(plateau_note(scores, step, config.steps, run.advice))
                if selection is not None:
                    history = (*history, {"epoch": len(history) + 1, "train_loss": values["loss"], **scores})
                    best = _copied(state.params) if selection.best(history) == len(history) else best
                    progress.status(_status(values["loss"], rate, selection, history))
                    last, save_due = last or selection.is_over(history), not was_unscored
                if hosts.is_first:
                    log.sync()
                    run.evaluated()
            if save_due:
                meter.pause()
                watchdog.report("save", step)
                log.sync()
                metadata = {
                    "step": step,
                    "cursor": cursor,
                    "skipped": skipped,
                    "lowest_loss": _finite(lowest),
                    "train_loss": _finite(values["loss"]),
                    "history": history,
                    "unscored": unscored,
                    **_identity(run),
                }
                checkpoints.save(step, state if selection is None else {"train": state, "best": best}, metadata)
                meter.resume()
            if stopping and (step < config.steps or unscored):
                checkpoints.wait()
                raise _stopped(run, step)
            if last:
                break
        checkpoints.wait()
    overall = meter.overall()
    return TrainResult(state, step, start.step, values["loss"], values, overall, skipped, log.attempt, history, best)


class _Start(NamedTuple):
    state: TrainState
    step: int
    cursor: int
    skipped: tuple[tuple[int, int], ...]
    lowest_loss: float
    train_loss: float
    history: History = ()
    best: Any = None
    unscored: bool = False  # an evaluation was due at this step and is not in the history


class _StopRequested(Exception):
    """Ends an evaluation early."""


def _check_stop(hosts: Hosts, rows: float) -> None:
    if stop_requested(hosts):
        raise _StopRequested


def _stopped(run: Run, step: int) -> Stopped:
    by, of = interrupt.reason() or "a signal to one of the hosts", f"step {step} of {run.config.steps}"
    if run.workdir is None:
        return Stopped(f"stopped by {by} at {of}; nothing is saved where no folder is given")
    return Stopped(f"stopped by {by} after saving {of}. Run the same command again to continue.")


def _identity(run: Run) -> dict[str, Any]:
    return {**run.identity, "compute_dtype": run.program.compute_dtype}


def _as_restored(start: _Start) -> TrainResult:
    speed = Rate(0.0, None)
    return TrainResult(
        start.state, start.step, start.step, start.train_loss, {}, speed, start.skipped, 0, start.history, start.best
    )


def _restore(run: Run, checkpoints: Checkpoints | NoCheckpoints) -> _Start:
    """The newest good checkpoint, or step 0."""
    abstract, selection = run.program.abstract_state, run.selection
    target = abstract if selection is None else {"train": abstract, "best": abstract.params}
    restored = checkpoints.restore_latest(target, _identity(run))
    if restored is None:
        state = run.program.initial_state()
        return _Start(state, 0, 0, (), math.inf, math.nan, (), None if selection is None else _copied(state.params))
    recorded = restored.metadata
    skipped = tuple((int(first), int(last)) for first, last in recorded["skipped"])
    lowest, loss = recorded["lowest_loss"], recorded["train_loss"]
    state: TrainState = restored.state if selection is None else restored.state["train"]
    unscored = bool(recorded.get("unscored"))  # absent from older checkpoints
    if run.steps is not None and recorded["step"] == run.steps[0]:  # a phase begins: its losses are not those of the one before
        window = {name: jnp.zeros_like(sums, device=sums.sharding) for name, sums in state.window.items()}
        state, lowest, unscored = dataclasses.replace(state, window=window), None, False
    return _Start(
        state,
        recorded["step"],
        recorded["cursor"],
        skipped,
        math.inf if lowest is None else lowest,
        math.nan if loss is None else loss,
        tuple(recorded.get("history", ())),  # absent from older checkpoints
        None if selection is None else restored.state["best"],
        unscored,
    )


@jax.jit
def _copied(params: Any) -> Any:
    """A copy of the parameters, which the next step cannot donate."""
    return jax.tree.map(jnp.copy, params)


def _finite(value: float) -> float | None:
    """The value for JSON: None if it is not finite."""
    return value if math.isfinite(value) else None


def _start_values() -> dict[str, Any]:
    compiled, device = compile_stats(), jax.devices()[0]
    kind = processor() if device.platform == "cpu" else device.device_kind
    return {
        "compile_seconds": round(compiled.seconds, 2),
        "compiled": compiled.programs,
        "found": compiled.cache_hits,
        "device": f"{jax.device_count()} x {kind}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("tpulm", "jax", "jaxlib")}},
    }


class _Bad(NamedTuple):
    what: str
    first: int  # the rows concerned: [first, last) of the cursor
    last: int


def _bad_rows(run: Run, state: TrainState, step: int, lowest: float, cursors: dict[int, int]) -> _Bad | None:
    """This log window's rows with a NaN, or all if their mean loss is far above the lowest so far; `cursors` are by step."""
    bad_step = int(jax.device_get(state.bad_step))
    if bad_step >= 0:
        first = cursors[bad_step]
        what = f"the loss or its gradient is not finite at step {bad_step + 1} (seen at step {step})"
        return _Bad(what, first, first + run.config.batch_size)
    loss, spike = float(run.program.objective.metrics(jax.device_get(state.window))["loss"]), run.config.spike_factor
    if spike is not None and loss > spike * max(lowest, 0.1):
        what = f"the loss jumped to {loss:.3f} at step {step} (lowest so far {lowest:.3f})"
        return _Bad(what, min(cursors.values()), cursors[step - 1] + run.config.batch_size)
    return None


def _rolled_back(run: Run, bad: _Bad, checkpoints: Checkpoints | NoCheckpoints, skipped: tuple[tuple[int, int], ...]) -> _Start:
    """The newest good checkpoint, to go on from without the bad rows.

    Raises TrainingDiverged unless `on_nan` allows skipping them and the skip limit is not reached.
    """
    if run.config.on_nan != "skip" or len(skipped) >= _MAX_SKIPS:
        rows = run.stream.row_indices(bad.first)
        shown = ", ".join(str(row) for row in rows[:8]) + (", …" if len(rows) > 8 else "")
        if run.selection is not None:
            advice = "Lower learning_rate, or lengthen its warm-up (warmup_fraction)"
        elif run.config.on_nan == "skip":
            advice = f"{len(skipped)} windows were already left out; lower train.optimizer.learning_rate"
        else:
            advice = (
                "lower train.optimizer.learning_rate or lengthen its warmup_steps in a new work folder, or set train.on_nan = "
                '"skip" to continue without these rows'
            )
        raise TrainingDiverged(f"{bad.what}, dataset rows {shown}. The last good state is {_name(checkpoints)}. {advice}")
    watchdog.report("restore")
    checkpoints.wait()
    start = _restore(run, checkpoints)
    if start.step < (run.steps or (0, 0))[0]:
        return start
    window = (max(bad.first, start.cursor), bad.last)
    run.progress.note(
        f"{bad.what}: going back to {_name(checkpoints)}, leaving out rows {window[0]:,} to {window[1] - 1:,} of the run"
    )
    return start._replace(skipped=(*skipped, window))


def _name(checkpoints: Checkpoints | NoCheckpoints) -> str:
    return "the beginning" if checkpoints.last_step is None else f"checkpoint {checkpoints.last_step}"


def _window_values(program: BaseProgram, state: TrainState, step: int) -> dict[str, float]:
    return {**program.window_metrics(state), "learning_rate": program.learning_rate(step - 1)}


def _rate_values(rate: Rate) -> dict[str, float]:
    values = {f"{rate.unit}_per_second": round(rate.per_second, 1), "text_fraction": round(rate.text_fraction, 4)}
    return values if rate.mfu is None else {**values, "mfu": round(rate.mfu, 4)}


def _status(loss: float, rate: Rate, selection: Selection | None, history: History) -> str:
    parts = [f"loss {decimals(loss, places=3)}", str(rate)]
    if rate.mfu is not None:
        parts.append(f"MFU {rate.mfu:.0%}")
    if selection is not None:
        parts.append(selection.shown(history))
    return "  ".join(parts)


class WindowMetrics(Mapping[str, float]):
    """Means over all devices and the steps since the last multiple of `log_every_steps`, such as "loss" and "grad_norm".

    Computed on first access, so that steps whose metrics are not read do not wait; read them before the next step.
    """

    def __init__(self, read: Callable[[], dict[str, float]]):
        self._read = cache(read)

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


class TrainStep(NamedTuple):
    """The result of an update: `step` updates are done; the state is valid until the next."""

    step: int
    state: TrainState
    metrics: WindowMetrics


def steps_of(
    program: BaseProgram, stream: Stream, state: TrainState, first: int, last: int, *, cursor: int = 0
) -> Iterator[TrainStep]:
    """Run updates `first` to `last` (exclusive) from this state; `cursor` is the number of rows before them."""
    for step, (place, batch) in zip(range(first, last), stream.iterate(cursor), strict=False):
        update = program.step_at(batch["tokens"].shape[-1])
        state, _ = update(state, program.to_devices(batch), program.cursor(place))
        yield TrainStep(step + 1, state, WindowMetrics(partial(program.window_metrics, state)))
