"""Fine-tuning from files to a folder: read, split, train with each seed, score, save.

DIR/                      the model of the best seed, as transformers loads it
DIR/finetune.json         the summary
DIR/mistakes.jsonl        what the best seed's model gets wrong on dev, most confident first
DIR/report/index.html     a page of all this
DIR/finetuning/           inputs.json; seed-N/ with result, metrics and, until it is done, checkpoints; best/ the model so far,
                          and best.json its seed
DIR/finetuning/lr-RATE/   such a folder for each learning rate, if several were to be tried
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import PurePath
from typing import Any, Literal

import numpy as np

from tpulm import storage
from tpulm.config import FinetuneConfig, changes, finetune_settings, flattened, listed
from tpulm.convert.huggingface import CONFIG, READS, LoadedModel, load_model
from tpulm.errors import ConfigError, WorkFolderMismatch, some_of
from tpulm.finetuning.classifier import Classifier
from tpulm.finetuning.summary import FinetuneSummary, SeedResult, card_text
from tpulm.finetuning.tasks import (
    Mistake,
    label_warnings,
    model_warnings,
    part_vocabulary_warnings,
    read_for,
    text_warnings,
)
from tpulm.labelled import Columns, Examples, summarize
from tpulm.labelled.labels import NO_CLASSES
from tpulm.labelled.records import OnError, RowFormat
from tpulm.nn.params import named_leaves
from tpulm.notebook import shown
from tpulm.progress import Progress
from tpulm.report import Reporter
from tpulm.report.finetuning import INPUTS, MISTAKES, SUMMARY, WORK, read_lines
from tpulm.runtime import interrupt
from tpulm.runtime.hosts import Hosts, Membership
from tpulm.train.distributed import initialize
from tpulm.train.finetuning_program import Labelled
from tpulm.train.program import enable_compilation_cache
from tpulm.train.trackers import Tracking, check_trackers
from tpulm.workfolder import held, joined

# How the work is carried out, not what it computes: these may differ between attempts.
OPERATIONAL = {"checkpoint", "hardware", "log_every_steps", "seeds", "track"}
_STAGE = "finetune"
_KEPT = "best.json"
_BEGIN_AGAIN = "Use another --output, or begin again with --overwrite (overwrite=True in Python)."
_UNTRAINED = "nothing was trained yet"
_MANY_KNOWN = 0.01  # of dev or test, of texts that are in train, too: so many make scores doubtful


def finetune(
    model: str | PurePath,
    train: str | PurePath | Examples,
    output: str | PurePath,
    *,
    dev: str | PurePath | Examples | None = None,
    test: str | PurePath | Examples | None = None,
    columns: Columns | Mapping[str, Columns] | None = None,
    config: FinetuneConfig | None = None,
    format: RowFormat | Literal["auto"] = "auto",
    on_error: OnError = "stop",
    learning_rates: Sequence[float] = (),
    overwrite: bool = False,
    member: Membership | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> FinetuneSummary:
    """Train a classifier on labelled files, or on examples already read, and save it in `output`; finished work is skipped,
    interrupted work is resumed. The best epoch and the best seed are chosen on dev; test is scored once for each seed, after
    that.

    Settings are the fields of `FinetuneConfig`, by name (epochs=1) or as `config`. `columns` are those of all files, or by
    file: {"train": …, "dev": …, "test": …}, where a file that is not named has those of train. With `learning_rates` each is
    tried with all seeds, and the best on dev is kept. `overwrite` begins again where `output` was begun with other inputs.

    With several hosts each of them calls this, with its own `member` (`tpulm.runtime.hosts.membership`).
    """
    paths = {"train": train, "dev": dev, "test": test}
    if isinstance(columns, Mapping) and (unknown := [name for name in columns if name not in paths]):
        raise ConfigError(f"columns are of {', '.join(map(repr, paths))}, and not of {', '.join(map(repr, unknown))}")
    by_file = columns if isinstance(columns, Mapping) else {"train": columns or Columns()}
    reading: dict[str, Any] = {"format": format, "on_error": on_error}
    config = finetune_settings(config, settings)
    if learning_rates:
        if member is not None or config.learning_rate is not None:
            raise ConfigError("several learning rates are tried on one host, and without a learning_rate beside them")
        given: dict[str, Any] = {"dev": dev, "test": test, "columns": columns, "overwrite": overwrite, **reading}
        with shown(progress) as reporter:
            train_at = partial(finetune, model, train, progress=reporter, **given)
            return _finetune_at_rates(train_at, learning_rates, storage.as_path(output), config, reporter, overwrite=overwrite)
    named = [_fingerprint(part) if isinstance(part, Examples) else str(part) for part in paths.values()]
    run = repr((str(model), named, by_file, reading, config))  # the same on all hosts
    with (
        shown(progress) as reporter,
        interrupt.handled() if member is not None else nullcontext(),  # one host alone saves nothing before it trains
        joined(storage.as_path(output) / WORK, member, run=run, stage=_STAGE, progress=reporter) as hosts,
    ):
        initialize(hosts)
        return _Finetuning(
            str(model), paths, storage.as_path(output), reading, by_file, config, hosts, reporter, overwrite
        ).run()


def compare_rates(results: Mapping[float, Sequence[SeedResult]], config: FinetuneConfig) -> tuple[float, dict[str, float]]:
    """The learning rate that is best on dev, and by rate the mean over the seeds of the score that selects."""
    scores = {rate: summarize([one.dev[config.chosen_by] for one in seeds]).mean for rate, seeds in results.items()}
    return config.best_of(scores), {str(rate): score for rate, score in scores.items()}


def _finetune_at_rates(
    train_at: Callable[..., FinetuneSummary],
    rates: Sequence[float],
    output: PurePath,
    config: FinetuneConfig,
    progress: Progress,
    *,
    overwrite: bool,
) -> FinetuneSummary:
    """Fine-tune in a folder for each rate, and copy what the best one made to `output`."""
    _check_output(output)
    work, folders = output / WORK, {rate: output / WORK / f"lr-{rate}" for rate in rates}
    if storage.exists(work / INPUTS) and not (overwrite or any(map(storage.is_folder, folders.values()))):
        raise WorkFolderMismatch(f"{output} was begun with one learning rate, not several. {_BEGIN_AGAIN}")
    summaries = dict[float, FinetuneSummary]()
    for rate, folder in folders.items():
        progress.note(f"learning rate {rate:g}")
        summaries[rate] = train_at(folder, config=config.model_copy(update={"learning_rate": rate}))
    rate, scores = compare_rates({rate: one.seeds for rate, one in summaries.items()}, config)
    best = folders[rate]
    complete = _read_summary(output).get("learning_rates") == scores and all(one.nothing_to_do for one in summaries.values())
    summary = dataclasses.replace(summaries[rate], output=str(output), learning_rates=scores, nothing_to_do=complete)
    if not complete:
        for seed in summary.seeds:
            storage.copy_files(best / WORK / f"seed-{seed.seed}", work / f"seed-{seed.seed}")
        storage.copy_files(best / WORK / "best", work / "best")
        for name in (MISTAKES, _KEPT, INPUTS):  # as if the best rate alone had been trained, so that seeds can follow
            storage.write_atomic(work / name, storage.read_bytes(best / WORK / name))
        _publish(summary, best / WORK)
        Reporter(output, progress)(last=True)
    return summary


@dataclasses.dataclass
class _Data:
    """The parts, by name."""

    rows: dict[str, Labelled]
    skipped: dict[str, int]
    doubts: list[str]


@dataclasses.dataclass
class _Finetuning:
    model: str
    paths: dict[str, str | PurePath | Examples | None]
    output: PurePath
    reading: dict[str, Any]
    columns: Mapping[str, Columns]
    config: FinetuneConfig
    hosts: Hosts
    progress: Progress
    overwrite: bool

    def __post_init__(self) -> None:
        self.work = self.output / WORK
        if self.hosts.is_first:
            _check_output(self.output)
            check_trackers(self.config.track)
            storage.check_writable(self.output)
        enable_compilation_cache()
        self.classifier = Classifier(load_model(self.model, preferred=READS), config=self.config)
        self.config, self.task = self.classifier.config, self.classifier.task
        self.report = Reporter(self.output, self.progress)

    def run(self) -> FinetuneSummary:
        if self.hosts.is_first:
            storage.make_folder(self.work)
        with interrupt.handled(), held(self.work, _STAGE, self.hosts, self.progress):
            data = self._read()
            inputs = self._describe_inputs(data)
            _check_inputs(self.work, inputs, output=self.output, hosts=self.hosts, overwrite=self.overwrite)
            seeds = self._seeds()
            done = {seed: result for seed in seeds if (result := self._result(seed)) is not None}
            summarized = _read_summary(self.output).get("seeds") == seeds
            complete = len(done) == len(seeds) and summarized and self._kept() == self._best(done)
            self.hosts.barrier("what is done")
            for seed in seeds:
                if seed not in done:
                    done[seed] = self._train(seed, data, inputs, done)
            self.hosts.barrier("what was trained")
            best = self._best(done)
            if self._kept() != best:  # a seed that counts no longer was killed between its model and its result
                done[best] = self._train(best, data, inputs, {})
            results = tuple(done[seed] for seed in seeds)
            summary = FinetuneSummary(
                model=self.model,
                output=str(self.output),
                task=self.config.task,
                labels=self.classifier.head_config.names,
                examples={name: len(part.examples) for name, part in data.rows.items()},
                skipped=data.skipped,
                cut=sum(part.rows.cut for part in data.rows.values()),
                settings=self.config,
                seeds=results,
                best=seeds.index(best),
                doubts=tuple(data.doubts),
                nothing_to_do=complete,
            )
            if not complete and self.hosts.is_first:
                _publish(summary, self.work)
                self.report(last=True)
            self.hosts.barrier("end")
            return summary

    # -- reading --------------------------------------------------------------------------------------------------------

    def _read(self) -> _Data:
        self.progress.start("Reading labelled text")
        examples: dict[str, Examples] = {}
        skipped: Counter[str] = Counter()
        for name, path in self.paths.items():
            if isinstance(path, Examples):
                examples[name] = self.task.take(path)
            elif path is not None:
                columns = self.columns.get(name) or self.columns.get("train") or Columns()
                examples[name] = read_for(self.task, path, columns, **self.reading)
                interrupt.check(_UNTRAINED)
                skipped += examples[name].skipped
        if "dev" not in examples:
            examples["train"], examples["dev"] = self.classifier.split(examples["train"])
        examples = {name: examples[name] for name in self.paths if name in examples}
        self.progress.start("Encoding", sum(len(part) for part in examples.values()), "text")
        rows: dict[str, Labelled] = {}
        for name, part in examples.items():
            rows[name] = self.classifier.encode(part, learn=name == "train")
            for note in self.task.notes(rows[name], self.classifier.labels or NO_CLASSES):
                self.progress.note(f"{name}: {note}")
            self.progress.advance(len(part))
            interrupt.check(_UNTRAINED)
        if skipped:
            left_out = ", ".join(f"{reason} {count:,}" for reason, count in skipped.most_common())
            self.progress.note(f"{sum(skipped.values()):,} rows were left out: {left_out}")
        warnings, trained_on = label_warnings(self.task, examples["train"]), set(_texts_of(examples["train"]))
        for name in [name for name in examples if name != "train"]:
            if again := sum(text in trained_on for text in _texts_of(examples[name])):
                overlap = f"{again:,} of the {len(examples[name]):,} texts of {name} are in train, too"
                if again >= _MANY_KNOWN * len(examples[name]):
                    warnings.append(f"{overlap}: scores on them say little")
                else:
                    self.progress.note(overlap)
        warnings += text_warnings(
            self.task,
            rows["train"].rows,
            max_positions=self.classifier.model.config.max_positions,
            special=self.classifier.model.tokenization.special,
        )
        for name, part in examples.items():
            warnings += part_vocabulary_warnings(self.classifier.model.tokenization, name, part)
        for doubt in warnings:
            self.progress.note(doubt)
        return _Data(rows, dict(skipped), warnings)

    def _describe_inputs(self, data: _Data) -> dict[str, Any]:
        """JSON: the settings, and SHA-256 of the weights, the tokenizer and each part's examples."""
        model = self.classifier.model
        parts = {name: _fingerprint(data.rows[name].examples) if name in data.rows else None for name in self.paths}
        return {
            "model": model_fingerprint(model),
            "tokenizer": model.tokenization.fingerprint,
            **{f"{name} examples": value for name, value in parts.items()},
            "labels": list(self.classifier.head_config.names),
            "settings": self.config.model_dump(mode="json", exclude=OPERATIONAL),
        }

    # -- one seed -------------------------------------------------------------------------------------------------------

    def _train(self, seed: int, data: _Data, inputs: dict[str, Any], done: dict[int, SeedResult]) -> SeedResult:
        folder, config = self.work / f"seed-{seed}", self.config
        number = f", seed {seed - config.seed + 1} of {config.seeds}" if config.seeds > 1 else ""
        self.classifier.fit_encoded(
            data.rows["train"],
            data.rows["dev"],
            seed=seed,
            folder=folder,
            identity={"seed": seed, "inputs": inputs},
            progress=self.progress,
            title=f"Fine-tuning{number}",
            evaluated=self.report,
            tracking=Tracking(config.track, f"{self.output.name}-seed-{seed}", flattened(config), self.progress),
            hosts=self.hosts,
        )
        fitted = self.classifier.fitted
        assert fitted is not None
        outputs = {name: self.classifier.outputs(data.rows[name]) for name in ("dev", "test") if name in data.rows}
        names = self.classifier.head_config.names
        scores = {name: self.task.scores(logits, data.rows[name], names) for name, logits in outputs.items()}
        last = "test" if "test" in outputs else "dev"
        warnings = model_warnings(
            outputs["dev"],
            data.rows["dev"],
            training=data.rows["train"],
            before=self.classifier.scores_before(data.rows["dev"], seed, data.rows["train"])[config.chosen_by],
            task=self.task,
            names=names,
        )
        result = SeedResult(
            seed=seed,
            best_epoch=fitted.best_epoch,
            epochs=len(fitted.history),
            dev=scores["dev"],
            test=scores.get("test"),
            confusion=self.task.confusion(outputs[last], data.rows[last]),
            by_class=self.task.by_class(outputs[last], data.rows[last], names),
            history=[dict(epoch) for epoch in fitted.history],
            rows_per_second=None if fitted.rows_per_second is None else round(fitted.rows_per_second, 1),
            doubts=warnings,
        )
        self.hosts.barrier(f"scores of seed {seed}")  # no host uses its checkpoints any more
        if self.hosts.is_first:
            self._keep(result, data, outputs["dev"], best=self._best({**done, seed: result}) == seed)
        return result

    def _keep(self, result: SeedResult, data: _Data, outputs: np.ndarray, *, best: bool) -> None:
        """Save the result and, for the best seed so far, its model and its mistakes."""
        folder = self.work / f"seed-{result.seed}"
        if best:
            storage.write_json(self.work / _KEPT, {"seed": None})  # until all of it is there
            self.classifier.save_pretrained(self.work / "best")
            dev = data.rows["dev"]
            wrong = self.task.mistakes(dev.examples, dev, outputs, self.classifier.head_config.names)
            lines = (json.dumps(mistake._asdict(), ensure_ascii=False) for mistake in wrong)
            storage.write_atomic(self.work / MISTAKES, "".join(f"{line}\n" for line in lines))
            storage.write_json(self.work / _KEPT, {"seed": result.seed})
        storage.write_json(folder / "result.json", dataclasses.asdict(result))
        storage.remove(folder / "checkpoints")

    def _seeds(self) -> list[int]:
        """The requested seeds, and later ones that were trained here before, which count, too."""
        first, count = self.config.seed, self.config.seeds
        while self._result(first + count) is not None:
            count += 1
        if count > self.config.seeds:
            self.progress.note(f"{count} seeds were trained here before; all of them count")
        return list(range(first, first + count))

    def _kept(self) -> int | None:
        """The seed whose model is in best/. An earlier version recorded it only in the summary."""
        recorded = self.work / _KEPT
        return storage.read_json(recorded)["seed"] if storage.exists(recorded) else _read_summary(self.output).get("best_seed")

    def _result(self, seed: int) -> SeedResult | None:
        path = self.work / f"seed-{seed}" / "result.json"
        return SeedResult(**storage.read_json(path)) if storage.exists(path) else None

    def _best(self, results: dict[int, SeedResult]) -> int:
        """The seed that is best on dev."""
        return self.config.best_of({seed: results[seed].dev[self.config.chosen_by] for seed in sorted(results)})


# -- the folder -----------------------------------------------------------------------------------------------------------


def _check_output(output: PurePath) -> None:
    """Raise ConfigError for a folder of the user's own files, some of which publishing would replace.

    A work folder in it shows that a fine-tuning was begun here, even if it failed.
    """
    if storage.is_folder(output / WORK):
        return
    names = [path.name for path in storage.list_folder(output)]
    existing = [name for name in names if not name.endswith(storage.TEMPORARY_SUFFIX)]  # left by a killed probe
    if existing:
        raise ConfigError(
            f"{output} is not empty ({some_of(existing)}), and no fine-tuning was begun there; name an empty or new folder "
            "with --output"
        )


def _publish(summary: FinetuneSummary, work: PurePath) -> None:
    """Copy the best model's files to the output, config.json after the weights, the summary last."""
    output = storage.as_path(summary.output)
    storage.copy_files(work / "best", output, last=CONFIG)
    storage.write_atomic(output / "README.md", card_text(summary))
    storage.write_atomic(output / MISTAKES, storage.read_bytes(work / MISTAKES))
    storage.write_json(output / SUMMARY, summary.values())


def read_mistakes(output: str | PurePath) -> list[Mistake]:
    """The mistakes that `finetune` wrote to DIR/mistakes.jsonl."""
    return [Mistake(**values) for values in read_lines(storage.as_path(output) / MISTAKES)]


def read_results(output: str | PurePath) -> tuple[SeedResult, ...]:
    """The results of all seeds of a finished fine-tuning, from its summary; none if it has not finished."""
    work = storage.as_path(output) / WORK
    seeds = _read_summary(output).get("seeds", ())
    return tuple(SeedResult(**storage.read_json(work / f"seed-{seed}" / "result.json")) for seed in seeds)


def _read_summary(output: str | PurePath) -> dict[str, Any]:
    """The summary of a finished fine-tuning; empty if it has not finished."""
    path = storage.as_path(output) / SUMMARY
    return storage.read_json(path) if storage.exists(path) else {}


# -- the inputs of a fine-tuning, so that others never resume it ----------------------------------------------------------


def _texts_of(examples: Examples) -> list[str]:
    """The texts with what is paired with them."""
    return [json.dumps(both, default=str) for both in zip(examples.texts, examples.pairs or examples.texts, strict=True)]


def _check_inputs(folder: PurePath, inputs: dict[str, Any], *, output: PurePath, hosts: Hosts, overwrite: bool) -> None:
    """Record the inputs with the results. Raises WorkFolderMismatch, naming what differs, if others have left a checkpoint or
    a result; with `overwrite` these, and lesser leftovers, are removed. With several hosts the first does this, and the others
    compare."""
    path = folder / INPUTS
    if not hosts.is_first:
        hosts.barrier("inputs")
        if differ := changes(storage.read_json(path), inputs):
            raise WorkFolderMismatch(f"host {hosts.index} reads other inputs than the first (there -> here):\n{listed(differ)}")
        return
    left = [item for item in storage.list_folder(folder) if item.name.startswith(("seed-", "lr-"))]
    differ = changes(storage.read_json(path), inputs) if storage.exists(path) else []
    has_results = any(storage.exists(one / "result.json") or storage.committed_steps(one / "checkpoints") for one in left)
    if differ and has_results and not overwrite:
        raise WorkFolderMismatch(
            f"{output} was begun with other inputs (there -> now):\n{listed(differ)}\nSet them back. {_BEGIN_AGAIN}"
        )
    for one in [output / SUMMARY, folder / "best", folder / _KEPT, *left] if differ else []:
        storage.remove(one)
    storage.write_json(path, inputs)
    hosts.barrier("inputs")


def model_fingerprint(model: LoadedModel) -> str:
    """SHA-256 of the weights."""
    digest = hashlib.sha256()
    for name, leaf in named_leaves(model.params).items():
        digest.update(f"{name} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).data)
    return digest.hexdigest()


def _fingerprint(examples: Examples) -> str:
    digest = hashlib.sha256()
    for column in (examples.texts, examples.pairs, examples.labels):
        digest.update(json.dumps(column, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
