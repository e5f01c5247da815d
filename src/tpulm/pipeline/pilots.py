"""How good will a run be? Small runs on its own text, in the folder W/pilots, and the law of `plan.scaling` fitted to them.

A pilot is the run in small: the same data, objective, phases and schedule, in fewer steps and, if the time is too short for the
run's own model, with fewer and narrower layers. All are kept; a pilot that was interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.config import Phase, RunConfig, differences, list_recipes, load, phases_of
from tpulm.config.schema import HardwareConfig, TrackConfig
from tpulm.errors import ConfigError
from tpulm.pipeline import PreparedData, Programs, Stages, prepare_data
from tpulm.plan.scaling import ScalingPoint, predict
from tpulm.progress import SILENT, Progress
from tpulm.readable import duration
from tpulm.runtime.hosts import ALONE
from tpulm.train.health import token_loss
from tpulm.workfolder import FORECAST, begin, is_of, open_run, read_results

_FOLDER, _LADDER = FORECAST.parent, "ladder.json"
# Of the widest pilot: how wide a pilot is, and how many of its steps it has. Where the run's own model fits into the time, most
# are of it; else all are narrower, and the narrowest run longest: they show at less cost how the loss falls with more text.
# Shortest first: where too few can learn, that is known soon.
_OWN_MODEL = ((1.0, 1 / 16), (1.0, 0.125), (1.0, 0.25), (0.5, 0.5), (1.0, 0.5), (0.5, 1.0), (1.0, 1.0))
_NARROWER = ((1.0, 0.25), (0.5, 0.5), (1.0, 0.5), (0.25, 1.0), (0.5, 1.0), (1.0, 1.0), (0.25, 2.0), (0.5, 2.0), (0.25, 4.0))
_WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the run's
_LEAST_STEPS = 100
# The longest pilot's part of the run's tokens a parameter, at least: narrower models leave the plateau later.
_FEWER_TOKENS, _FEWER_TOKENS_OF_NARROWER = 40, 20
_TIMED_STEPS = 4
_LEAST_ROWS = 8  # of a pilot's step, unless the run's has fewer
_AT_ONCE = 4_096  # tokens of a step that is timed, and that a pilot computes at once, at most
_LEAST_HELD_OUT, _LEAST_TEXT = 5_000, 100_000  # tokens
_CHECKPOINT = {"keep_at_words": (), "average_last": None, "every_steps": None, "every_minutes": 1.0}
_LEAST_PILOTS = 4  # that have left the plateau, and half of all
_LEAST_GAIN = 0.5  # over the unigrams, of the best pilot's: one that has gained less has not left the plateau
_LARGER = 4  # times the largest pilot's parameters: of recipes that are compared
_WIDEST = 1.5  # of an interval that tells something: its upper end over its lower one


class Rung(NamedTuple):
    """A pilot to be run: its width as a share of the run's, its steps, and its rows a step."""

    width: float
    steps: int
    batch_size: int

    @property
    def name(self) -> str:
        return f"{self.steps}-steps-of-{self.width:g}-by-{self.batch_size}"


class PilotResult(NamedTuple):
    """A pilot's size and held-out scores; `tokens` are of text."""

    name: str
    parameters: int
    tokens: float
    loss: float  # nats
    unigrams: float  # nats
    learned: bool  # more than how frequent each token is; of a forecast, whether it counts
    bits_per_character: float


@dataclass(frozen=True)
class Forecast:
    """What the pilots say of a run: held-out loss in nats a token, with an interval."""

    parameters: int
    tokens: float
    text_tokens: int
    loss: float
    low: float
    high: float
    bits_per_loss: float  # bits a character for each nat a token
    seconds: float  # of its steps on this machine
    pilots: tuple[PilotResult, ...]
    alternatives: tuple[tuple[str, float], ...]  # what else one could do, and the loss to be expected
    law: dict[str, float]
    curve: tuple[tuple[float, float], ...]  # (tokens, loss) of the run's model by the law

    @property
    def epochs(self) -> float:
        return self.tokens / self.text_tokens

    def values(self) -> dict[str, Any]:
        return {**vars(self), "pilots": [one._asdict() for one in self.pilots], "epochs": self.epochs}


def forecast(
    config: RunConfig, workdir: str | PurePath, *, seconds: float, longest: float = 0.25, progress: Progress = SILENT
) -> Forecast:
    """Prepare the run's data, train pilots for about `seconds`, and predict the run; also in W/pilots/forecast.json.

    The widest pilots have at most the share `longest` of the run's steps; the narrowest may go four times as far.

    Raises ConfigError where pilots cannot tell: another objective, too little text or time, nothing learned.
    """
    _check(config)
    folder = storage.check_writable(workdir)
    with storage.held(folder):
        if storage.committed_steps(folder / "checkpoints") and differences(open_run(folder), config):
            raise ConfigError(f"{folder} has a run with other settings: forecast this one in a folder of its own")
        begin(config, folder, progress)
        data = prepare_data(config, folder, progress=progress)
        _check_text(data)
        timing = _Timing.read(config, folder, data, seconds, longest, progress)
        outcomes, learned = list[PilotResult](), list[PilotResult]()
        for rung in timing.rungs:
            outcomes.append(_train(config, folder, data, rung, timing, progress))
            learned = _learned(outcomes, of=len(timing.rungs))
        result = _predicted(config, data, outcomes, learned, timing)
        values = {**result.values(), "settings": config.model_dump(mode="json")}
        storage.write_json(folder / FORECAST, values, sealed=True)
    return result


def _check(config: RunConfig) -> None:
    if config.train.start_from is not None:
        raise ConfigError(
            f"train.start_from is {config.train.start_from}, and pilots predict only runs that start from random weights: "
            "leave it (or --init) out"
        )
    if config.train.steps < 4 * _LEAST_STEPS:
        raise ConfigError(f"the run has {config.train.steps:,} steps, hardly more than a pilot of {_LEAST_STEPS}: just run it")
    if config.model.architecture == "electra":
        raise ConfigError(
            "pilots predict the loss of masked or next tokens; an ELECTRA's loss is of replaced tokens, which its generator "
            "makes harder as it learns. Predict a BERT of the same size instead"
        )


def _check_text(data: PreparedData) -> None:
    held_out, text = data.datasets[-1].holdout.counts.tokens, data.datasets[-1].train.counts.tokens
    if held_out < _LEAST_HELD_OUT or text < _LEAST_TEXT:
        raise ConfigError(
            f"the text has {text:,} tokens for training and {held_out:,} held out: too little to predict from (at least "
            f"{_LEAST_TEXT:,} and {_LEAST_HELD_OUT:,}). corpus.holdout_fraction sets how much is held out"
        )


def in_small(config: RunConfig, rung: Rung) -> RunConfig:
    """The run with `rung.steps` steps, and with layers `rung.width` times as wide and many.

    Warm-up and decay keep their shares, but at least a tenth of a pilot is warm-up if the run's is as long. For narrower layers
    first weights and AdamW's rate grow by 1 / sqrt(width), and for fewer rows a step the rate falls by the square root of their
    share.
    """
    model, train, width = config.model, config.train, rung.width
    share, rate = rung.steps / train.steps, math.sqrt(rung.batch_size / train.batch_size)
    optimizer, warmup = train.optimizer, train.optimizer.warmup(train.steps)
    changes: dict[str, Any] = {}
    if width < 1:
        heads = max(1, round(model.num_heads * width))
        hidden = heads * max(8, round(model.hidden_size * width / heads / 8) * 8)
        width = hidden / model.hidden_size
        changes = {
            "num_layers": max(2, math.ceil(model.num_layers * width)) if model.num_layers > 1 else 1,
            "num_heads": heads,
            "hidden_size": hidden,
            "intermediate_size": max(32, round(model.intermediate_size * width / 8) * 8),
            "initializer_range": model.initializer_range / math.sqrt(width),
        }
        rate /= math.sqrt(width) if optimizer.name == "adamw" else 1.0
    planned: dict[str, Any] = {
        "learning_rate": optimizer.learning_rate * rate,
        "warmup_steps": max(round(warmup * share), min(warmup, rung.steps // 10)),
    }
    if optimizer.decay_steps is not None:
        planned["decay_steps"] = max(1, min(round(optimizer.decay_steps * share), rung.steps - planned["warmup_steps"]))
    small = {
        "steps": rung.steps,
        "batch_size": rung.batch_size,
        "evaluate_every_steps": rung.steps,
        "evaluation_rows": 1,  # all held-out rows are scored afterwards
        "log_every_steps": min(train.log_every_steps, rung.steps),
        "checkpoint": train.checkpoint.model_copy(update=_CHECKPOINT),
        "optimizer": optimizer.model_copy(update=planned),
    }
    phases = tuple(
        phase.model_copy(
            update={"batch_size": phase.batch_size and max(1, phase.batch_size * rung.batch_size // train.batch_size)}
        )
        for phase in config.phases
    )
    made = config.model_copy(
        update={
            "model": type(model).model_validate({**model.model_dump(), **changes}),
            "train": train.model_copy(update=small),
            "phases": phases,
            "track": TrackConfig(),
        }
    )
    hardware = HardwareConfig(platform=config.hardware.platform, microbatch_size=_at_once(made))
    return made.model_copy(update={"hardware": hardware})


def _divisions(config: RunConfig) -> list[int]:
    """By what the rows of a pilot's step may be divided: they divide over the devices in all phases, and are not too few."""
    import jax

    rows = math.gcd(config.train.batch_size, *(phase.config.train.batch_size for phase in phases_of(config)))
    shares = [by for by in range(1, rows + 1) if rows % by == 0 and rows // by % jax.device_count() == 0]
    return [by for by in shares if config.train.batch_size // by >= _LEAST_ROWS] or [1]


def _at_once(config: RunConfig) -> int | None:
    """The most rows of a device that divide all phases' and have at most _AT_ONCE tokens; None if no step has more."""
    import jax

    phases = [phase.config for phase in phases_of(config)]
    length = max(phase.data.sequence_length for phase in phases)
    if max(phase.train.batch_size for phase in phases) * length <= _AT_ONCE:
        return None
    share = max(1, math.gcd(*(phase.train.batch_size for phase in phases)) // jax.device_count())
    return max(rows for rows in range(1, share + 1) if share % rows == 0 and (rows == 1 or rows * length <= _AT_ONCE))


class _Pace(NamedTuple):
    """Seconds of a step, on average over phases, and of compiling all phases and scoring the held-out rows."""

    step: float
    fixed: float


class _Pilot(Stages):
    def report(self, *, last: bool = False) -> None:
        """None: the run's own report shows what its pilots said."""

    def _advice(self, phase: Phase) -> str:
        return ""  # the forecast says once what the pilots have not learned

    def pace(self) -> _Pace:
        """By a few steps of each phase, and by scoring a few held-out rows."""
        import jax

        from tpulm.train.program import nothing_added_to_cache

        total = fixed = 0.0
        for phase in self.phases:
            with nothing_added_to_cache(self.workdir):  # or the next call would time how long reading takes
                begun = time.monotonic()
                steps = self.steps_from(phase)
                state = next(steps).state
                jax.block_until_ready(state.params)
            fixed, begun = fixed + time.monotonic() - begun, time.monotonic()
            for _ in range(_TIMED_STEPS):
                state = next(steps).state
            jax.block_until_ready(state.params)
            total += (time.monotonic() - begun) / _TIMED_STEPS * (phase.last_step - phase.first_step)
            if phase is self.phases[-1]:
                rows = self._program(phase).evaluation_batch_size
                self._score(phase, state.params, rows)
                begun = time.monotonic()
                scored = self._score(phase, state.params, rows).rows
                fixed += (time.monotonic() - begun) * self._dataset(phase).holdout.counts.rows / scored
        return _Pace(total / self.config.train.steps, fixed)


def _train(
    config: RunConfig, workdir: PurePath, data: PreparedData, rung: Rung, timing: _Timing, progress: Progress
) -> PilotResult:
    """The outcome of a pilot, trained unless it is there."""
    folder, saved = workdir / _FOLDER / rung.name, workdir / _FOLDER / f"{rung.name}.json"
    if storage.exists(saved):
        return PilotResult(**storage.read_json(saved))
    width = "of the run's own model" if rung.width == 1 else f"with layers {rung.width:g} times as wide and many"
    progress.note(f"pilot {timing.rungs.index(rung) + 1} of {len(timing.rungs)}: {rung.steps:,} steps, {width}")
    small = in_small(config, rung)
    begin(small, storage.make_folder(folder), SILENT)
    stages = _Pilot(small, folder, ALONE, progress, data, Programs(folder, progress), read_results(folder))
    trained = stages.train()
    scores = stages.evaluate(trained.model).values
    outcome = PilotResult(
        rung.name,
        trained.values["parameters"],
        _tokens(small, data),
        token_loss(scores),  # as the unigrams' is
        scores["unigram_entropy"],
        not scores["at_unigrams"],
        scores["bits_per_character"],
    )
    storage.write_json(saved, outcome._asdict(), sealed=True)
    storage.remove(folder)  # its checkpoints
    return outcome


def _tokens(config: RunConfig, data: PreparedData) -> float:
    """Tokens of text in all steps of a run."""
    return sum(
        (phase.last_step - phase.first_step)
        * phase.config.train.batch_size
        * phase.config.data.sequence_length
        * data.datasets[phase.number - 1].train.text_fraction
        for phase in phases_of(config)
    )


def _ladder(width: float) -> tuple[tuple[float, float], ...]:
    """Widths and lengths of the pilots whose widest has this share of the run's width."""
    return _OWN_MODEL if width == 1 else _NARROWER


def _differ(config: RunConfig, width: float) -> bool:
    """Whether all widths of that ladder differ in this model."""
    widths = {relative for relative, _ in _ladder(width)}
    return len({in_small(config, Rung(width * relative, 1, 8)).model.hidden_size for relative in widths}) == len(widths)


class _Size(NamedTuple):
    """A run's parameters, and its tokens of text and the model's operations in all steps."""

    parameters: int
    tokens: float
    flops: float


def _size(config: RunConfig, data: PreparedData) -> _Size:
    """From programs that are not compiled, on one device, since the run's own may be others."""
    import jax

    from tpulm.train.program import PretrainingProgram

    parameters, flops = 0, 0.0
    words = {"vocab_size": data.tokenizer.vocab_size, "special": data.tokenizer.special}
    alone = config.model_copy(update={"hardware": HardwareConfig(platform=config.hardware.platform)})
    for phase in phases_of(alone):
        program = PretrainingProgram(phase.config, **words, devices=jax.devices()[:1])
        rows = (phase.last_step - phase.first_step) * phase.config.train.batch_size
        parameters, flops = program.num_parameters, flops + rows * program.objective.flops_per_row
    return _Size(parameters, _tokens(config, data), flops)


class _Timing(NamedTuple):
    """The pilots that fit into the time, by the speed of this machine."""

    rungs: tuple[Rung, ...]
    flops_per_second: float

    @classmethod
    def read(
        cls, config: RunConfig, workdir: PurePath, data: PreparedData, seconds: float, longest: float, progress: Progress
    ) -> _Timing:
        """As an earlier call chose them, for as much time and the same share; else by timing a few steps, narrowest
        model first. Pilots of other settings or text are removed."""
        path, begun = workdir / _FOLDER / _LADDER, time.monotonic()
        kept = storage.read_json(path) if storage.exists(path) else None
        text = data.datasets[-1].fingerprint
        if kept is not None and not (is_of(config, kept["settings"]) and kept.get("text") == text):
            progress.note("the run's settings or its text have changed: its pilots begin again")
            storage.remove(path.parent)
        elif kept is not None and (kept["seconds"], kept.get("longest")) == (seconds, longest):
            return cls(tuple(Rung(*rung) for rung in kept["rungs"]), kept["flops_per_second"])
        progress.start("Timing the training step")
        run = _size(config, data)
        divisions, paces = _divisions(config), functools.cache(functools.partial(_pace, config, workdir, data))
        widths = [width for width in _WIDTHS if _differ(config, width)]
        if not widths:
            raise ConfigError(f"a model of model.hidden_size = {config.model.hidden_size} has no pilots of half of it")

        def fixed(width: float) -> float:
            return sum(paces(width * relative).fixed for relative, _ in _ladder(width))

        def step(width: float) -> float:
            return sum(paces(width * relative).step * length for relative, length in _ladder(width))

        def lengths(width: float) -> tuple[int, int]:
            """By what the rows are divided, and steps of the widest pilot, if all take the time that is left."""
            left = (seconds - fixed(width) - (time.monotonic() - begun)) / step(width)
            by = next((by for by in divisions if left * by >= _LEAST_STEPS), divisions[-1])
            return by, min(int(left * by), int(config.train.steps * longest))

        chosen, width, shortest = None, widths[-1], 0.0
        for width in reversed(widths):
            by, steps = lengths(width)
            largest = _size(in_small(config, Rung(width, max(steps, 1), config.train.batch_size // by)), data)
            enough = min(20, run.tokens / run.parameters) / (_FEWER_TOKENS if width == 1 else _FEWER_TOKENS_OF_NARROWER)
            if steps >= _LEAST_STEPS and largest.tokens / largest.parameters >= enough:
                chosen = width
            shortest = step(width) * _LEAST_STEPS / divisions[-1]
            if max(shortest, 2 * (time.monotonic() - begun)) > seconds:  # a wider model takes longer: it is not timed
                break
        if chosen is None:
            least = 60 * math.ceil((time.monotonic() - begun + fixed(width) + shortest) / 50)  # whole minutes, a fifth more
            raise ConfigError(
                f"{duration(seconds)} are too short for pilots: of layers {width:g} times as wide and many a step of all rows "
                f"takes {paces(width).step:.2g} s, compiling and scoring {duration(paces(width).fixed)}. Give --pilot more time"
                + (f": {duration(least)} at least" if least > seconds else "")
            )
        by, steps = lengths(chosen)  # timing a wider one has taken time, too
        steps, batch = max(steps, _LEAST_STEPS), config.train.batch_size // by
        rate = _size(in_small(config, Rung(chosen, 1, batch)), data).flops / (paces(chosen).step / by)
        rungs = tuple(Rung(chosen * relative, max(1, round(steps * length)), batch) for relative, length in _ladder(chosen))
        kept = {"settings": config.model_dump(mode="json"), "seconds": seconds, "longest": longest}
        kept |= {"text": text, "rungs": rungs, "flops_per_second": rate}
        storage.write_json(storage.make_folder(path.parent) / _LADDER, kept, sealed=True)
        return cls(rungs, rate)


def _pace(config: RunConfig, workdir: PurePath, data: PreparedData, width: float) -> _Pace:
    """By as many rows as are computed at once."""
    train, divisions = config.train, _divisions(config)
    made = [in_small(config, Rung(width, train.steps, train.batch_size // by)) for by in divisions]
    small = next((one for one in made if one.hardware.microbatch_size is None), made[-1])
    pilot = _Pilot(small, workdir / _FOLDER / "timing", ALONE, SILENT, data, Programs(workdir, SILENT), {})
    step, fixed = pilot.pace()
    return _Pace(step * train.batch_size / small.train.batch_size, fixed)


def _largest(outcomes: Sequence[PilotResult]) -> PilotResult:
    return max(outcomes, key=lambda one: one.parameters * one.tokens)


def _learned(outcomes: Sequence[PilotResult], *, of: int) -> list[PilotResult]:
    """The pilots that have left the plateau; a ConfigError once too few of all `of` can."""
    best = max(one.unigrams - one.loss for one in outcomes)
    learned = [one for one in outcomes if one.learned and one.unigrams - one.loss >= _LEAST_GAIN * best]
    few, largest = len(outcomes) - len(learned), _largest(outcomes)
    if few > of - max(_LEAST_PILOTS, (of + 1) // 2) or (len(outcomes) == of and not largest.learned):
        raise ConfigError(
            f"{few} of {of} pilots have learned little more than how frequent each token is (the largest trained has a loss "
            f"of {largest.loss:.2f}, and frequencies alone {largest.unigrams:.2f}): from them nothing can be predicted. "
            "Give --pilot more time"
        )
    return learned


def _predicted(
    config: RunConfig, data: PreparedData, outcomes: Sequence[PilotResult], learned: Sequence[PilotResult], timing: _Timing
) -> Forecast:
    largest, run, text = _largest(outcomes), _size(config, data), data.datasets[-1].train.counts.tokens
    pilots = [ScalingPoint(one.parameters, one.tokens, one.loss) for one in learned]
    prediction = predict(pilots, (run.parameters, run.tokens), unigrams=largest.unigrams, text=text)
    if prediction.high > _WIDEST * prediction.low:
        raise ConfigError(
            f"the pilots' loss still falls so steeply that the run may end anywhere between {prediction.low:.2f} and "
            f"{prediction.high:.2f} nats. Give --pilot more time"
        )
    law, size, tokens = prediction.law, run.parameters, run.tokens
    alternatives = {
        "half the steps": law.loss(size, tokens / 2),
        "twice the steps": law.loss(size, 2 * tokens),
        "twice the text, as many steps": law.loss(size, tokens, text=2 * text),
        "twice the text and steps": law.loss(size, 2 * tokens, text=2 * text),
    }
    seen = {size}
    for name, config_of_recipe in _of_this_architecture(config):
        other = _size(config_of_recipe, data)
        length = other.tokens * run.flops / other.flops
        within = other.parameters <= _LARGER * largest.parameters and length >= min(one.tokens for one in learned)
        if within and other.parameters not in seen:
            seen.add(other.parameters)
            alternatives[f"{name}, as much computation"] = law.loss(other.parameters, length)
    return Forecast(
        parameters=size,
        tokens=tokens,
        text_tokens=text,
        loss=float(prediction.loss),
        low=float(prediction.low),
        high=float(prediction.high),
        bits_per_loss=largest.bits_per_character / largest.loss,
        seconds=run.flops / timing.flops_per_second,
        pilots=tuple(one._replace(learned=one in learned) for one in outcomes),
        alternatives=tuple((name, float(loss)) for name, loss in alternatives.items()),
        law={name: float(value) for name, value in vars(law).items()},
        curve=tuple((float(at), law.loss(size, at)) for at in np.geomspace(min(one.tokens for one in learned), tokens, 50)),
    )


def _of_this_architecture(config: RunConfig) -> list[tuple[str, RunConfig]]:
    """Recipes whose models differ from the run's in size alone, on the run's data."""
    recipes: list[tuple[str, RunConfig]] = []
    for name in list_recipes():
        model = load(name).model
        alike = ("architecture", "norm_position", "norm", "feed_forward", "positions", "masked_head")
        if all(getattr(model, field) == getattr(config.model, field) for field in alike) and model != config.model:
            sized = {**model.model_dump(), "max_positions": max(model.max_positions, config.model.max_positions)}
            recipes.append((name, config.model_copy(update={"model": type(model).model_validate(sized)})))
    return recipes
