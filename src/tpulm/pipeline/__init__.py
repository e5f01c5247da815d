"""The stages of a run, in order: corpus, tokenizer, dataset, train, evaluate, export.

Each stage takes (config, workdir), skips what is done, resumes what was interrupted, and writes a manifest as its last act.
`run` runs them all: `preparation` makes the data while `programs` compiles the training step in a thread; then `Stages`
trains, evaluates and exports. `training_steps` leaves the loop to the user, `pilots` forecast a run by small ones, and
`samples` shows what a model predicts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from tpulm import corpus, dataset, storage, tokenization
from tpulm.config import Phase, RunConfig, SourceConfig, flattened, phase_at, phases_of
from tpulm.errors import CheckpointError, ConfigError, DataError, some_of
from tpulm.notebook import shown
from tpulm.pipeline.preparation import PreparedData, check_named_inputs, load_prepared, prepare_data
from tpulm.pipeline.programs import Programs
from tpulm.progress import SILENT, Progress
from tpulm.runtime import watchdog
from tpulm.runtime.hosts import ALONE, Hosts, Membership
from tpulm.runtime.memory import naming_shortage
from tpulm.train.health import advice_for, judge, loss_formula, verdict, why_losses_differ
from tpulm.train.trackers import check_trackers
from tpulm.workfolder import (
    REVISIONS,
    averaging,
    begin,
    is_imported,
    newer_checkpoint,
    open_run,
    read_result,
    read_results,
    same_average,
    working_in,
    write_result,
)

if TYPE_CHECKING:  # JAX takes seconds to import and no stage before training needs it
    import numpy as np

    from tpulm.convert.huggingface import LoadedModel
    from tpulm.convert.model_card import CardFacts
    from tpulm.dataset.manifest import SplitManifest
    from tpulm.finetuning import Classifier
    from tpulm.predict.minimal_pairs import PairsReport
    from tpulm.report.facts import RunData
    from tpulm.train.evaluate import Evaluation
    from tpulm.train.loop import TrainResult, TrainStep
    from tpulm.train.program import PretrainingProgram

_COUNTED_TOKENS = 4_000_000  # of the training rows, for the token frequencies that scores are compared with
_ON_THE_CARD = ("name", "description", "language")  # settings after whose change only the export is redone


@dataclass(frozen=True)
class Summary:
    """What `run` returns and `--json` prints; `eval_` scores are of held-out text."""

    name: str
    workdir: str
    steps: int
    parameters: int
    train_loss: float
    eval_loss: float
    eval_accuracy: float
    eval_baseline_accuracy: float  # of always guessing the most common training token
    train_scores: dict[str, float]  # of the last logged steps, by name
    eval_scores: dict[str, float]
    loss_is: str  # the terms of both losses, if they are sums
    losses_differ: str  # why they are not the same quantity, if they are not
    bits_per_character: float
    tokens_per_second: float  # of text
    text_fraction: float  # the fraction of the rows' slots that is not padding
    mfu: float | None  # counting text only
    unknown_fraction: float  # of the characters trained on
    health: str  # the verdict: held-out scores against what is known of healthy runs
    export: str
    stages: dict[str, str] = field(default_factory=dict)  # stage -> "done", "resumed" or "skipped"

    @property
    def nothing_to_do(self) -> bool:
        return all(state == "skipped" for state in self.stages.values())

    def _repr_html_(self) -> str:
        from tpulm.report import Report

        return Report(self.workdir).html()


def run(
    config: RunConfig, workdir: str | PurePath, *, member: Membership | None = None, progress: Progress | None = None
) -> Summary:
    """Run all stages, skipping what is done and resuming what was interrupted. In a notebook `progress` is shown by default.

    With several hosts each of them calls this, with its own `member` (`tpulm.runtime.hosts.membership`).
    """
    with shown(progress) as reporter, working_in(config, workdir, member=member, progress=reporter) as folder:
        return _run(config, folder.path, folder.hosts, reporter)


def _run(config: RunConfig, workdir: PurePath, hosts: Hosts, progress: Progress) -> Summary:
    _initialize(hosts)
    programs, states, results = Programs(workdir, progress), dict[str, str](), read_results(workdir)
    is_trained = "train" in results
    if not is_trained:  # better now than after hours of preparing
        _check_surroundings(config)
        if not storage.exists(workdir / "corpus" / "manifest.json") and not is_imported(workdir):
            check_named_inputs(config)
            programs.check_settings(phases_of(config))

    def ended(stage: str, was_done: bool) -> None:
        states[stage] = "skipped" if was_done else "done"
        programs.check()
        # Not before: reading Python's own text parses it, and CPython 3.11's `ast` is not safe while a thread imports JAX
        # ("AST constructor recursion depth mismatch").
        if stage == "corpus" and not is_trained:
            programs.begin(phase_at(phases_of(config), newest_step(workdir, results) or 0))

    data = prepare_data(config, workdir, hosts=hosts, progress=progress, ended=ended)
    stages = Stages(config, workdir, hosts, progress, data, programs, results)
    trained, states["train"], model = stages.train()
    scores, states["evaluate"], model = stages.evaluate(model)
    exported, states["export"] = stages.export(model)
    if set(states.values()) != {"skipped"} or "report" not in results:
        stages.report(last=True)
    text = data.datasets[-1].train
    return Summary(
        name=config.name,
        workdir=str(workdir),
        steps=trained["steps"],
        parameters=trained["parameters"],
        train_loss=trained["train_loss"],
        eval_loss=scores["loss"],
        eval_accuracy=scores["accuracy"],
        eval_baseline_accuracy=scores["baseline_accuracy"],
        train_scores=trained.get("scores", {}),  # results of older versions have none
        eval_scores={name: value for name, value in scores.items() if isinstance(value, float)},
        loss_is=loss_formula(config),
        losses_differ=why_losses_differ(config),
        bits_per_character=scores["bits_per_character"],
        tokens_per_second=trained["tokens_per_second"],
        text_fraction=text.text_fraction,
        mfu=trained["mfu"],
        unknown_fraction=text.counts.unknown_fraction,
        health=scores["health"],
        export=str(exported),
        stages=states,
    )


def train(config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, progress: Progress = SILENT) -> dict[str, Any]:
    """Pretrain, from the newest checkpoint if there is one; the result is also in W/results/train.json."""
    return _stages(config, workdir, hosts, progress).train().values


def evaluate(config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, progress: Progress = SILENT) -> dict[str, Any]:
    """Score the newest checkpoint on the whole holdout; the result is also in W/results/evaluation.json."""
    return _trained(config, workdir, hosts, progress).evaluate().values


def export(config: RunConfig, workdir: PurePath, *, hosts: Hosts = ALONE, progress: Progress = SILENT) -> PurePath:
    """Export the newest checkpoint as a Hugging Face folder, W/export."""
    return _trained(config, workdir, hosts, progress).export().folder


def export_revisions(config: RunConfig, workdir: PurePath, *, progress: Progress = SILENT) -> dict[str, PurePath]:
    """Export the checkpoints that `train.checkpoint.keep_at_words` kept, W/revisions/NAME, by name."""
    return _trained(config, workdir, ALONE, progress).export_revisions()


def evaluate_read_only(
    config: RunConfig, workdir: PurePath, *, on: Sequence[SourceConfig] = (), progress: Progress = SILENT
) -> dict[str, Any]:
    """Like `evaluate`, while others may work in the folder: the newest checkpoint as it is, on one device, writing nothing.

    With `on` the text scored is that of these sources, cleaned and laid out like the run's own.
    """
    stages = _trained(config, workdir, ALONE, progress, read_only=True)
    return stages.evaluate_on(on) if on else stages.evaluate().values


def current_model(workdir: PurePath, *, preferred: Sequence[str], progress: Progress = SILENT) -> LoadedModel:
    """The current model of a work folder: its export unless a checkpoint is newer, else the newest checkpoint.

    `progress` receives which. Raises ConfigError if there is neither.
    """
    from tpulm.convert.huggingface import load_model

    config, has_export = open_run(workdir), storage.exists(workdir / "export")
    if has_export and newer_checkpoint(workdir) is None:
        return load_model(workdir / "export", preferred=preferred)
    stages = _trained(config, workdir, ALONE, progress, read_only=True)
    with storage.scratch_folder() as folder:
        step, params = stages.newest_model()
        stages.save(folder / "export", params)
        older = "" if not has_export else f"; {workdir / 'export'} is older"
        progress.note(f"the model is {stages.which(step)}{older}")
        return load_model(folder / "export", preferred=preferred)


def record_pairs(workdir: PurePath, name: str, report: PairsReport) -> None:
    """Keep the accuracy of the current model on minimal pairs in W/results/pairs.json, and rewrite the report.

    Raises InUse if another process works in the folder.
    """
    from tpulm.report import write

    with storage.held(workdir):
        step = newest_step(workdir, results := read_results(workdir))
        score = {"step": step, "accuracy": report.accuracy, **report.total._asdict(), "method": report.method}
        score |= averaging(open_run(workdir))
        write_result(workdir, "pairs", {**results.get("pairs", {}), name: score})
        write(workdir)


@overload
def training_steps(what: RunConfig, data: str | PurePath, *, progress: Progress = SILENT) -> Iterator[TrainStep]: ...
@overload
def training_steps(what: Classifier, data: Any) -> Iterator[TrainStep]: ...
def training_steps(what: RunConfig | Classifier, data: Any, *, progress: Progress = SILENT) -> Iterator[TrainStep]:
    """(step, state, metrics) after each compiled step: batches sharded over all devices, metrics summed over them.

    `training_steps(config, workdir)` pretrains, after preparing the data. `training_steps(classifier, train)` fine-tunes, with
    the very steps of `Classifier.fit`. Nothing is saved or scored, and training begins at step 0. The state is valid until the
    next step, and so are metrics that were not read.
    """
    if isinstance(what, RunConfig):
        return _pretraining_steps(what, data, progress)
    from tpulm.finetuning import Classifier

    if isinstance(what, Classifier):
        return what.steps(data)
    raise ConfigError(f"training_steps takes a run's configuration or a Classifier, not {type(what).__name__}")


def _pretraining_steps(config: RunConfig, workdir: str | PurePath, progress: Progress) -> Iterator[TrainStep]:
    folder = storage.check_writable(workdir)
    with storage.held(folder):
        begin(config, folder, progress)
        data = prepare_data(config, folder, progress=progress)
        yield from Stages(config, folder, ALONE, progress, data, Programs(folder, progress), read_results(folder)).steps()


def _stages(config: RunConfig, workdir: PurePath, hosts: Hosts, progress: Progress, *, read_only: bool = False) -> Stages:
    """The stages that follow what an earlier command prepared."""
    _initialize(hosts)
    programs = Programs(workdir, progress, read_only=read_only)
    return Stages(config, workdir, hosts, progress, load_prepared(config, workdir), programs, read_results(workdir), read_only)


def _trained(config: RunConfig, workdir: PurePath, hosts: Hosts, progress: Progress, *, read_only: bool = False) -> Stages:
    """Like `_stages`, for a run with a checkpoint; that it has none is reported before anything else missing."""
    if not storage.committed_steps(workdir / "checkpoints") and read_result(workdir, "train") is None:
        raise _no_checkpoint(workdir)
    return _stages(config, workdir, hosts, progress, read_only=read_only)


def _no_checkpoint(workdir: PurePath) -> ConfigError:
    if read_result(workdir, "train") is not None:
        return ConfigError(f"{workdir} has no checkpoint any more; delete {workdir / 'export'}, and 'tpulm run' trains again")
    return ConfigError(f"{workdir} has no checkpoint yet; 'tpulm run' or 'tpulm train' makes one")


def _initialize(hosts: Hosts) -> None:
    if hosts.are_several:
        from tpulm.train.distributed import initialize

        initialize(hosts)


def _check_surroundings(config: RunConfig) -> None:
    """Raise ConfigError or DeviceError without the devices or the trackers that the run asks for."""
    from tpulm.train.platforms import check_platform

    check_platform(config.hardware.platform)
    check_trackers(config.track)


def newest_step(workdir: PurePath, results: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The steps of the finished training, else of the newest checkpoint; None without either."""
    if "train" in results:
        return results["train"]["steps"]
    return max(storage.committed_steps(workdir / "checkpoints"), default=None)


class Model(NamedTuple):
    step: int
    params: Any  # on the devices


class StageResult(NamedTuple):
    values: dict[str, Any]  # as W/results/train.json or W/results/evaluation.json has them
    state: str  # "done", "resumed" or "skipped"
    model: Model | None  # None: skipped, and not loaded


class Exported(NamedTuple):
    folder: PurePath
    state: str


@dataclass(frozen=True)
class Stages:
    """Training, evaluation and export of prepared data. Stages keep no model: each takes that of the one before, or loads the
    newest checkpoint if it is given none."""

    config: RunConfig
    workdir: PurePath
    hosts: Hosts
    progress: Progress
    data: PreparedData
    programs: Programs  # compiled on first use
    results: dict[str, dict[str, Any]]  # of the stages done, by name, as W/results has them; `_save_result` adds to both
    read_only: bool = False  # while others work in the folder: nothing is written
    _counted: dict[str, np.ndarray] = field(default_factory=dict)  # cache: how often each token occurs, by a phase's folder

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self.config)

    def train(self) -> StageResult:
        if (done := self.results.get("train")) is not None:
            return StageResult(done, "skipped", None)
        import jax

        from tpulm.train.checkpoint import check_mean
        from tpulm.train.metrics import read_metrics, repair

        if self.hosts.is_first:
            repair(self.workdir, self.progress)
        _check_surroundings(self.config)
        newest = newest_step(self.workdir, self.results) or 0
        check_mean(self.workdir / "checkpoints", self.config.train.checkpoint.averaged_steps(self.config.train.steps), newest)
        result = self._train(phase_at(self.phases, newest - 1))  # a phase's last step may not be scored yet
        step, resumed_at = result.steps, result.resumed_at
        while step < self.config.train.steps:
            result = self._train(phase_at(self.phases, step))
            step = result.steps
        rate = result.rate
        speed = {"tokens_per_second": round(rate.per_second, 1), "mfu": None if rate.mfu is None else round(rate.mfu, 4)}
        if not rate.per_second:  # trained by an attempt that was killed before it wrote this, or whose result was damaged
            logged = [one.values for one in read_metrics(self.workdir) if one.kind == "train"]
            speed |= {name: logged[-1][name] for name in speed if logged and name in logged[-1]}
        program, device = self._program(self.phases[-1]), jax.devices()[0]
        values = {
            "steps": step,
            "parameters": program.num_parameters,
            "train_loss": result.train_loss,
            "scores": result.train_values,
            **speed,
            "skipped_rows": [list(window) for window in result.skipped],
            "attempts": result.attempt,
            "compute_dtype": program.compute_dtype,
            "devices": jax.device_count(),
            "device_kind": device.device_kind,
            "platform": device.platform,
        }
        self._save_result("train", values)
        return StageResult(values, "resumed" if resumed_at else "done", self._final(Model(step, result.state.weights)))

    def _train(self, phase: Phase) -> TrainResult:
        """Train one phase to its end, or until a rollback to a good checkpoint before the phase."""
        from tpulm.train import loop
        from tpulm.train.throughput import Meter, peak_flops
        from tpulm.train.trackers import Tracking

        config, of_several = phase.config, len(self.phases) > 1
        text_fraction, program = self._dataset(phase).train.text_fraction, self._program(phase)
        if not newest_step(self.workdir, self.results):
            self._begin(program)
        run = loop.Run(
            program=program,
            config=config.train,
            stream=self._rows(phase),
            evaluate=lambda params, advance: self._score(phase, params, config.train.evaluation_rows, advance=advance).values(),
            workdir=self.workdir,
            meter=Meter(
                per_row=config.data.sequence_length,
                flops_per_row=program.objective.flops_per_row,
                peak=peak_flops(program.mesh, program.compute_dtype),
                text_fraction=text_fraction,
            ),
            identity=self._identity(),
            progress=self.progress,
            steps=(phase.first_step, phase.last_step),
            title=f"Training, phase {phase.number} of {len(self.phases)}" if of_several else "Training",
            hosts=self.hosts,
            advice=self._advice(phase),
            evaluated=self.report,
            kept_steps=self._kept_steps,
            tracking=Tracking(self.config.track, self.config.name, flattened(self.config), self.progress),
        )
        return loop.train(run)

    def report(self, *, last: bool = False) -> None:
        """Write W/report/index.html, from the first host."""
        if self.hosts.is_first:
            self._reporter(last=last)
            if last:
                self._save_result("report", {}, product=self.workdir / "report")

    @cached_property
    def _reporter(self) -> Callable[..., None]:
        from tpulm.report import Reporter

        return Reporter(self.workdir, self.progress, self._known)

    @property
    def _known(self) -> RunData:
        from tpulm.report.facts import RunData

        return RunData(self.config, self.results, self.data.tokenizer, self.data.datasets)

    def _advice(self, phase: Phase) -> str:
        """What to change if the run does no better than unigrams."""
        made = self._dataset(phase)
        unknown_fraction = made.train.counts.unknown_fraction
        return advice_for(self.config, unknown_fraction=unknown_fraction, imported="imported" in made.inputs)

    def _begin(self, program: PretrainingProgram) -> None:
        """Give the program the weights that the run starts from, if it names some."""
        path = self.config.train.start_from
        if path is not None:
            from tpulm.convert.continuing import initial_weights

            tokenizer, spec = self.data.tokenizer, program.objective.spec
            initial = initial_weights(
                path,
                self.config.model,
                spec,
                tokenizer,
                with_moments=self.config.train.start_optimizer,
                other_vocabulary=self.config.tokenizer.path is not None,
            )
            program.start_from(initial.params, initial.moments)
            self.progress.note(initial.summary)

    def _rows(self, phase: Phase) -> dataset.Batches:
        train, program = phase.config.train, self._program(phase)
        return dataset.Batches(
            self._dataset(phase).train,
            batch_size=train.batch_size,
            seed=train.seed,
            first_cursor=phase.first_cursor,
            host_index=self.hosts.index,
            num_hosts=self.hosts.count,
            columns=program.columns(),
            of_tokens=program.columns_of(self.data.tokenizer),
        )

    def evaluate(self, model: Model | None = None) -> StageResult:
        done, newest = self.results.get("evaluation"), newest_step(self.workdir, self.results)
        if done is not None and done["step"] == newest and same_average(self.config, done):
            return StageResult(done, "skipped", model)
        watchdog.report("evaluate")
        model = model or self.newest_model()
        phase = phase_at(self.phases, model.step - 1)  # that it was trained in
        if self.read_only:
            self.progress.note(f"evaluating {self.which(model.step)}; nothing is written into {self.workdir}")
        self.progress.start("Evaluating", self._dataset(phase).holdout.counts.rows, "row")
        scores = self._score(phase, model.params, None, advance=self.progress.advance)
        checks = judge(model.step, scores.values())
        values = {
            "step": model.step,
            "rows": scores.rows,
            **scores.values(),
            "health": verdict(checks, model.step, advice=self._advice(phase)),
            **averaging(self.config),
        }
        self._save_result("evaluation", values)
        return StageResult(values, "done", model)

    def evaluate_on(self, sources: Sequence[SourceConfig]) -> dict[str, Any]:
        """The scores on other text, and counts of that text."""
        step, params = self.newest_model()
        self.progress.note(f"evaluating {self.which(step)}; nothing is written into {self.workdir}")
        phase = phase_at(self.phases, step - 1)
        data, skipped = phase.config.data, Counter[str]()
        with storage.scratch_folder() as folder:
            self.progress.start("Reading the text")
            texts = corpus.read_texts(sources, self.config.corpus.cleaning, skipped)
            tokenizer = self.data.tokenizer
            first = next(texts, [])
            for doubt in tokenization.vocabulary_warnings(tokenizer, first, "the beginning of the text"):
                self.progress.note(doubt)
            manifest = dataset.prepare_texts(_in_parts(chain([first], texts), data.part_bytes), folder, data, tokenizer)
            if not manifest.counts.rows:
                left_out = f": {', '.join(f'{count:,} {reason}' for reason, count in skipped.items())}" if skipped else ""
                raise DataError(f"there is no text to score in {', '.join(source.path for source in sources)}{left_out}")
            self.progress.start("Evaluating", manifest.counts.rows, "row")
            scores = self._score(phase, params, None, advance=self.progress.advance, split=manifest)
        counts = {name: getattr(manifest.counts, name) for name in ("documents", "characters", "tokens", "unknown_tokens")}
        return {"step": step, "rows": scores.rows, **scores.values(), **counts, "skipped": dict(skipped)}

    def export(self, model: Model | None = None) -> Exported:
        folder = self.workdir / "export"
        done, named = self.results.get("export"), {name: getattr(self.config, name) for name in _ON_THE_CARD}
        expected = {"step": newest_step(self.workdir, self.results), **named}
        pairs = self.results.get("pairs", {})
        if (
            done is not None
            and expected.items() <= done.items()
            and same_average(self.config, done)
            and storage.exists(folder)
            and (done.get("pairs", {}) == pairs or not storage.committed_steps(self.workdir / "checkpoints"))
        ):
            return Exported(folder, "skipped")
        from tpulm.pipeline.samples import samples
        from tpulm.report.facts import gather
        from tpulm.report.history import History
        from tpulm.train.metrics import repair

        watchdog.report("export")
        step, params = model or self.newest_model()
        phase = phase_at(self.phases, step)
        params = self._program(phase).gathered(params)
        self.hosts.barrier("export begun")
        if self.hosts.is_first:
            self.progress.start("Exporting")
            if not self.hosts.are_several:  # what one host computes alone would wait for the others
                holdout, tokenizer = self._dataset(phase).holdout, self.data.tokenizer
                self._save_result("samples", samples(params, self.config.model, tokenizer, holdout, step=step))
            history = History.read(self.workdir, self.results, repair(self.workdir, self.progress))
            self.save(folder, params, card=gather(self._known, history, step=step))
        values = {"step": step, **named, **averaging(self.config), "samples": not self.hosts.are_several, "pairs": pairs}
        self._save_result("export", values, product=folder)
        self.hosts.barrier("export")
        return Exported(folder, "done")

    def export_revisions(self) -> dict[str, PurePath]:
        """Export the checkpoints of `keep_at_words` as Hugging Face folders, by name: W/revisions/chck_1M, …

        Raises ConfigError if there is none yet, CheckpointError if one is damaged.
        """
        from tpulm.train.checkpoint import weights_at

        committed, folder = storage.committed_steps(self.workdir / "checkpoints"), self.workdir / REVISIONS
        steps = {name: step for name, step in self.revisions.items() if step in committed}
        if not steps:
            why = "none is left" if self.revisions else "train.checkpoint.keep_at_words asks for them"
            if (words := self.config.train.checkpoint.keep_at_words) and not self.revisions:
                why = f"the run reads fewer than {min(words):,}"
            raise ConfigError(f"{self.workdir} has no checkpoint by words: {why}")
        if absent := ", ".join(name for name in self.revisions if name not in steps):
            self.progress.note(f"{absent}: no checkpoint; training has not come so far, or was past it when it was asked for")
        for name, step in steps.items():
            place = self.workdir / "checkpoints" / str(step)
            if (damage := storage.find_damage(place)) is not None:
                raise CheckpointError(f"{name}: {place} is damaged ({damage}); delete it to export the others")
        learned = {name: phase_at(self.phases, at - 1).config.objectives[-1] for name, at in steps.items()}
        if before := [name for name, objective in learned.items() if objective != self.config.objectives[-1]]:
            objective = f"the phase of '{self.config.objectives[-1]}', for which their heads are untrained"
            self.progress.note(f"{', '.join(before)}: from before {objective}")
        for other in storage.list_folder(folder):
            if other.name not in self.revisions:  # asked for by other settings: 'tpulm push' would send it
                self.progress.note(f"removed {other}: no checkpoint by words of these settings")
                storage.remove(other)
        self.progress.start("Exporting", len(steps), "checkpoint")
        for name, step in steps.items():
            state = self._program(phase_at(self.phases, step)).abstract_state
            self.save(folder / name, weights_at(self.workdir / "checkpoints", step, state))
            self.progress.advance(1)
        return {name: folder / name for name in steps}

    def steps(self) -> Iterator[TrainStep]:
        from tpulm.train.loop import steps_of

        state, cursor = None, 0
        for phase in self.phases:
            program, rows, span = self._program(phase), self._rows(phase), (phase.first_step, phase.last_step)
            if state is None:
                self._begin(program)
                state = program.initial_state()
            for step in steps_of(program, rows, state, *span, cursor=cursor):
                yield step
                state, cursor = step.state, cursor + rows.batch_size

    def steps_from(self, phase: Phase) -> Iterator[TrainStep]:
        """The steps of one phase, from first weights."""
        from tpulm.train.loop import steps_of

        program = self._program(phase)
        return steps_of(program, self._rows(phase), program.initial_state(), phase.first_step, phase.last_step)

    # -- shared helpers -------------------------------------------------------------------------------------------------

    def save(self, folder: PurePath, params: Any, card: CardFacts | None = None) -> None:
        """Save as a Hugging Face folder."""
        from tpulm.convert.huggingface import is_pretrained_here, save_parts

        tokenizer, start = self.data.tokenizer, self.config.train.start_from
        save_parts(
            folder,
            params,
            self.config.model,
            vocab_size=tokenizer.vocab_size,
            tokenization_folder=self.workdir / "tokenizer",
            tokenizer=tokenizer,
            pretrained_here=start is None or is_pretrained_here(start),
            card=card,
        )

    def which(self, step: int) -> str:
        """The checkpoint of this step, in words."""
        steps = self.config.train.steps
        under_way = storage.holder(self.workdir) is not None
        state = "" if step == steps else ", training is under way" if under_way else ", training has not ended"
        return f"checkpoint {step:,} of {steps:,}{state}"

    def newest_model(self) -> Model:
        """The model of the newest checkpoint. Raises ConfigError if there is none."""
        from tpulm.train.checkpoint import Checkpoints, newest_weights

        folder, step = self.workdir / "checkpoints", newest_step(self.workdir, self.results)
        if step is None:
            raise _no_checkpoint(self.workdir)
        program = self._program(phase_at(self.phases, step))
        if self.read_only:
            if (newest := newest_weights(folder, program.abstract_state, self.progress)) is None:
                raise ConfigError(f"{self.workdir} has no checkpoint any more")
            return self._final(Model(newest.step, program.placed(newest.weights)))
        checkpoints = self.config.train.checkpoint
        shared: dict[str, Any] = {"kept_steps": self._kept_steps, "hosts": self.hosts, "progress": self.progress}
        with Checkpoints(folder, checkpoints, **shared) as saved:
            if saved.last_step is not None:
                self.progress.start("Loading the checkpoint")
            restored = saved.restore_latest(program.abstract_state, self._identity())
        if restored is None:
            raise _no_checkpoint(self.workdir)
        return self._final(Model(restored.metadata["step"], restored.state.weights))

    def _final(self, model: Model) -> Model:
        """At the end of training the mean of the last checkpoints, if `average_last` asks for it; else the model itself."""
        from tpulm.train.checkpoint import mean_weights

        steps = self.config.train.checkpoint.averaged_steps(self.config.train.steps)
        if model.step != self.config.train.steps or len(steps) == 1:
            return model
        program = self._program(self.phases[-1])
        mean = mean_weights(self.workdir / "checkpoints", steps, program.abstract_state)
        return Model(model.step, program.placed(mean))

    @cached_property
    def _kept_steps(self) -> frozenset[int]:
        averaged = self.config.train.checkpoint.averaged_steps(self.config.train.steps)
        return frozenset((*self.revisions.values(), *(averaged if len(averaged) > 1 else ())))

    @cached_property
    def revisions(self) -> dict[str, int]:
        """The step of each checkpoint of `keep_at_words` by its name, as BabyLM asks: chck_1M after a million words.

        Words are the dataset's, as white space parts them. Raises ConfigError if they are unknown.
        """
        thresholds, names = sorted(self.config.train.checkpoint.keep_at_words), dict[str, int]()
        read = 0.0
        for phase in self.phases if thresholds else ():
            counts = self._dataset(phase).train.counts
            if not (counts.words and counts.blanks):
                uncounted = "in imported rows, and in datasets of earlier versions, they are not counted"
                raise ConfigError(f"train.checkpoint.keep_at_words needs a text with white space between words; {uncounted}")
            per_step = counts.words / counts.rows * phase.config.train.batch_size
            for words in thresholds:
                step = phase.first_step + math.ceil((words - read) / per_step)
                if phase.first_step < step <= phase.last_step:
                    names[f"chck_{words // 1_000_000}M" if words % 1_000_000 == 0 else f"chck_{words}"] = step
            read += per_step * (phase.last_step - phase.first_step)
        if beyond := [f"{words:,}" for words in thresholds if words > read]:
            self.progress.note(
                f"train.checkpoint.keep_at_words: this run reads {read:,.0f} words, and has no checkpoint at {some_of(beyond)}"
            )
        return names

    @naming_shortage("Take shorter rows, a smaller model, or more devices: tensor or fsdp in hardware divides the weights")
    def _score(
        self,
        phase: Phase,
        params: Any,
        max_rows: int | None,
        *,
        advance: Callable[[float], None] = lambda rows: None,
        split: SplitManifest | None = None,
    ) -> Evaluation:
        """The scores of the holdout, or of another split."""
        from tpulm.train.evaluate import evaluate as score

        split = split or self._dataset(phase).holdout
        program = self._program(phase)
        size, columns = program.evaluation_batch_size, program.columns(evaluation=True)
        of_tokens = program.columns_of(self.data.tokenizer, evaluation=True)

        def batches() -> Iterator[Any]:
            hosts = {"host_index": self.hosts.index, "num_hosts": self.hosts.count}
            for batch in dataset.evaluation_batches(split, batch_size=size, max_rows=max_rows, columns=columns, **hosts):
                yield dataset.with_columns(batch, of_tokens)
                watchdog.report()

        return score(
            program,
            params,
            batches(),
            rows=min(split.counts.rows, max_rows or split.counts.rows),
            batch_size=size,
            tokens_per_character=split.tokens_per_character,
            training_counts=self._training_counts(phase),
            advance=advance,
        )

    def _training_counts(self, phase: Phase) -> np.ndarray:
        if phase.folder not in self._counted:
            self._counted[phase.folder] = dataset.token_counts(self._dataset(phase).train, max_tokens=_COUNTED_TOKENS)
        return self._counted[phase.folder]

    def _dataset(self, phase: Phase) -> dataset.DatasetManifest:
        return self.data.datasets[phase.number - 1]

    def _program(self, phase: Phase) -> PretrainingProgram:
        tokenizer = self.data.tokenizer
        return self.programs.get(phase, tokenization.Vocabulary(tokenizer.vocab_size, tokenizer.special))

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must have in common with this run to be resumed from."""
        fingerprints = dict.fromkeys(manifest.fingerprint for manifest in self.data.datasets)
        return {
            "seed": self.config.train.seed,
            "tokenizer_fingerprint": self.data.tokenizer.fingerprint,
            "dataset_fingerprint": " ".join(fingerprints),
            "model": self.config.model.identity(),
            "config": self.config.model_dump(mode="json"),
        }

    def _save_result(self, name: str, values: dict[str, Any], *, product: PurePath | None = None) -> None:
        """Written by the first host; the values are the same on all."""
        self.results[name] = values
        if self.hosts.is_first and not self.read_only:
            write_result(self.workdir, name, values, product=product)


def _in_parts(texts: Iterable[list[str]], part_bytes: int) -> Iterator[list[str]]:
    """The same documents in lists of about `part_bytes`."""
    part, size = list[str](), 0
    for some in texts:
        part += some
        size += sum(map(len, some))
        if size >= part_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part
