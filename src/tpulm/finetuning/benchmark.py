"""A model on the tasks of a benchmark: fine-tune with several seeds and learning rates, select, report beside published scores.

W/TASK/lr-RATE/      a fine-tuning as `finetune` leaves it, with all seeds
W/TASK/task.json     its files and settings
W/bench.json, .md    the table, rewritten after each task
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from tpulm import storage
from tpulm.config import FinetuneConfig, changes, finetune_settings, listed
from tpulm.config.finetune import narrow_learning_rate
from tpulm.convert.huggingface import READS, LoadedModel, load_model
from tpulm.convert.markdown import table
from tpulm.corpus.readers.lines import find_codec
from tpulm.errors import ConfigError, WorkFolderMismatch
from tpulm.finetuning.classifier import Classifier
from tpulm.finetuning.run import OPERATIONAL, compare_rates, finetune, model_fingerprint, read_results
from tpulm.finetuning.suites import BenchTask, Suite, find_files, find_suite, read_parts
from tpulm.finetuning.summary import SeedResult
from tpulm.finetuning.tasks import find_task
from tpulm.labelled import Examples, summarize
from tpulm.progress import SILENT, Progress
from tpulm.readable import plural
from tpulm.report.finetuning import SUMMARY, is_finetuning
from tpulm.runtime import interrupt
from tpulm.workfolder import held

TABLE = "bench.md"
_SHOWN = {
    "f1": "F1",
    "macro_f1": "macro F1",
    "strict_macro_f1": "entity F1",
    "character_macro_f1": "character F1",
    "exact_match": "EM",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "micro_f1": "micro F1",
    "auprc": "AUPRC",
    "uas": "UAS",
    "las": "LAS",
}

Select = Literal["train", "dev"]
_GIVEN_BY = {"learning_rate": "--learning-rates", "seeds": "--seeds", "task": "--tasks"}  # settings with an option of their own


@dataclass(frozen=True)
class TaskResult:
    """The result of one task. Scores are fractions, by metric and seed, at the learning rate that was best on `chosen_on`."""

    name: str
    title: str
    state: Literal["done", "missing", "not supported"]
    why: str = ""  # why it is not done
    scores: dict[str, list[float]] = field(default_factory=dict)
    also: dict[str, dict[str, float]] = field(default_factory=dict)  # of the best seed's model, on further parts
    learning_rate: float | None = None
    tried: dict[str, float] = field(default_factory=dict)  # the mean of the selection score, by learning rate
    chosen_by: str = ""
    chosen_on: str = ""
    examples: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    health: str = ""

    def means(self) -> dict[str, dict[str, float]]:
        summaries = {metric: summarize(values)._asdict() for metric, values in self.scores.items()}
        names = {"means": "mean", "deviations": "deviation"}
        return {key: {metric: one[name] for metric, one in summaries.items()} for key, name in names.items()}


@dataclass(frozen=True)
class BenchReport:
    suite: str
    title: str
    model: str
    select: Select
    results: tuple[TaskResult, ...]
    described: Suite

    def header(self) -> list[str]:
        return [self.title, "this model", *(one.model for one in self.described.baselines)]

    def rows(self) -> list[list[str]]:
        """In percent: task and metric, our score with its deviation over the seeds, and the published ones."""
        table, bases = list[list[str]](), self.described.baselines
        for one in self.results:
            name = one.title.partition(",")[0]
            for number, metric in enumerate(self.described.tasks[one.name].metrics):
                score = percent(one.scores[metric]) if one.state == "done" else one.state
                published = [[*base.scores.get(one.name, ())][number : number + 1] for base in bases]
                others = [f"{value[0]:.2f}" if value else "" for value in published]
                table.append([f"{name}, {_format_metric(metric)}", score, *others])
            for part, scores in one.also.items():
                table += [
                    [f"{name} {part}, {_format_metric(metric)}", percent([value]), *("" for _ in bases)]
                    for metric, value in scores.items()
                ]
        return table

    def remarks(self) -> list[str]:
        """Notes on each task and on the table, one per line."""
        lines = list[str]()
        for one in self.results:
            name = one.title.partition(",")[0]
            if one.state != "done":
                lines.append(f"{name}: {one.state}, {one.why}")
                continue
            tried = ", ".join(f"{rate} ({100 * value:.2f})" for rate, value in one.tried.items())
            by = _format_metric(one.chosen_by)
            seeds = len(next(iter(one.scores.values())))
            counts = ", ".join(f"{part} {count:,}" for part, count in one.examples.items())
            rates = f"learning rate {one.learning_rate:g}" + (f" of {tried}" if len(one.tried) > 1 else "")
            lines.append(f"{name}: {rates} by {by} on {one.chosen_on}, {plural(seeds, 'seed')}; examples: {counts}")
            lines += [f"{name}: {note}" for note in [*one.notes, *([one.health] if one.health != "all right" else [])]]
        mode = (
            "Epochs and learning rates are chosen on a part of train, which remarks call dev; the table's dev is scored "
            "once for each seed, after that."
            if self.select == "train"
            else "Epochs and learning rates are chosen on dev, the part that is reported: these scores are optimistic."
        )
        return [*lines, mode, self.described.published, self.described.chosen]

    def values(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "model": self.model,
            "select": self.select,
            "tasks": {one.name: asdict(one) | one.means() for one in self.results},
            "published": [one.model_dump(mode="json") for one in self.described.baselines],
            "source": self.described.source,
        }

    def markdown(self) -> str:
        header, rows = self.header(), self.rows()
        right = range(1, len(header))
        sources = [f"- {one.model}: {one.source}" for one in self.described.baselines]
        return "\n\n".join(
            [
                f"# {self.title}: {self.model}",
                table(header, rows, right=right),
                "Percent; ± is the sample deviation over the seeds.",
                "\n".join(f"- {line}" for line in self.remarks()),
                "\n".join([*sources, f"- {self.described.source}"]) + "\n",
            ]
        )

    _repr_markdown_ = markdown


def bench(
    suite: str,
    folder: str | PurePath,
    model: str | PurePath,
    workdir: str | PurePath,
    *,
    tasks: Sequence[str] = (),
    seeds: int = 3,
    learning_rates: Sequence[float] = (),
    select: Select = "train",
    encoding: str = "utf-8",
    settings: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
) -> BenchReport:
    """Fine-tune `model` on the suite's tasks whose files are in `folder`; what is done in `workdir` already is not repeated.

    With select = "train" epochs and learning rates are chosen on a part of train, and dev is reported; with "dev" both use dev.
    `settings` of fine-tuning override the published ones. Raises ConfigError for an unknown name and for settings that the
    other arguments decide, WorkFolderMismatch for a work folder of another model, other files or other settings, DataError for
    files that are not the benchmark's.
    """
    settings = settings or {}
    for name, option in _GIVEN_BY.items():
        if name in settings:
            in_python = option[2:].replace("-", "_")
            raise ConfigError(f"{name} is no setting of a benchmark; give {option} ({in_python}=… in Python)")
    if select == "dev" and "dev_fraction" in settings:
        raise ConfigError('dev_fraction is of select = "train", which holds out a part of train; with "dev" leave it out')
    described, root, encoding = find_suite(suite), storage.as_path(workdir), find_codec(encoding)
    chosen, loaded = described.chosen_tasks(tasks), load_model(model, preferred=READS)
    names = list(storage.walk(folder)) if storage.is_folder(folder) else []
    if not names:
        raise ConfigError(f"{folder} has no files; name the folder of {described.title}'s files, as its repository has them")
    storage.check_writable(root)
    bench = _Bench(described, loaded, str(model), root, seeds, learning_rates, select, encoding, settings, progress)
    for task in chosen.values():
        if not task.why_not:
            bench._config(task)  # raises before anything is trained
    report = BenchReport(suite, described.title, str(model), select, (), described)
    with interrupt.handled(), held(root, "bench"):
        for name, task in chosen.items():
            interrupt.check()
            result = bench.run(name, task, storage.as_path(folder), names)
            report = replace(report, results=(*report.results, result))
            storage.write_json(root / "bench.json", report.values())
            storage.write_atomic(root / TABLE, report.markdown())
    return report


class _Bench(NamedTuple):
    suite: Suite
    loaded: LoadedModel
    model: str
    root: PurePath
    seeds: int
    learning_rates: Sequence[float]
    select: Select
    encoding: str
    settings: Mapping[str, Any]
    progress: Progress

    def run(self, name: str, task: BenchTask, folder: PurePath, names: Sequence[str]) -> TaskResult:
        if task.why_not:
            return TaskResult(name, task.title, "not supported", task.why_not)
        files = find_files(task, folder, names)
        if files.missing:
            return TaskResult(name, task.title, "missing", files.missing)
        config, notes = self._config(task)
        self._check_inputs(name, config, files.files)
        narrow = narrow_learning_rate(self.loaded.config, pretrained_here=self.loaded.pretrained_here)
        rates = self.learning_rates or ((narrow,) if narrow else self.suite.rates(task, self.loaded.config.architecture))
        if narrow and not self.learning_rates:
            notes.append(f"not as published: learning_rate = {narrow:g}, for a narrow model that tpulm pretrained")
        parts: dict[str, Examples] | None = None
        results = dict[float, tuple[SeedResult, ...]]()
        for rate in rates:
            output = self._output(name, rate)
            if len(read_results(output)) < self.seeds:
                parts = parts or read_parts(task, find_task(config), files.files, self.encoding)
                self.progress.note(f"{task.title}, learning rate {rate:g}")
                dev, test = (parts["dev"], None) if self.select == "dev" else (None, parts["dev"])
                at_rate = config.model_copy(update={"learning_rate": rate})
                finetune(self.model, parts["train"], output, dev=dev, test=test, config=at_rate, progress=self.progress)
            results[rate] = read_results(output)
        best, tried = compare_rates(results, config)
        summary = storage.read_json(self._output(name, best) / SUMMARY)
        scores = {metric: [self._score(one, metric, task, summary) for one in results[best]] for metric in task.metrics}
        skipped = [f"{count:,} rows left out: {reason}" for reason, count in summary["skipped"].items() if reason != "empty"]
        return TaskResult(
            name=name,
            title=task.title,
            state="done",
            scores=scores,
            also=self._score_further_parts(name, task, config, best, files.files),
            learning_rate=best,
            tried=tried,
            chosen_by=config.chosen_by,
            chosen_on="dev" if self.select == "dev" else f"{config.dev_fraction:.0%} of train",
            examples=_named(summary["examples"], self.select),
            files={part: str(path) for part, path in files.files.items()},
            settings=config.model_dump(mode="json", exclude_unset=True),
            notes=[*notes, *([files.note] if files.note else []), *skipped],
            health=summary["health"],
        )

    def _config(self, task: BenchTask) -> tuple[FinetuneConfig, list[str]]:
        """The settings, and where they differ from the published ones."""
        positions, notes = self.loaded.config.max_positions, list[str]()
        fields: dict[str, Any] = {"metric": task.metrics[0], **task.settings}
        if fields["max_length"] > positions and "max_length" not in self.settings:
            notes.append(f"texts of {positions} tokens, which is all that the model reads, not of {fields['max_length']}")
            fields["max_length"] = positions
        overrides = {name: value for name, value in self.settings.items() if name.partition(".")[0] not in OPERATIONAL}
        changed = {name: value for name, value in overrides.items() if fields.get(name) != value}
        if changed:
            notes.append("not as published: " + ", ".join(f"{name} = {value}" for name, value in changed.items()))
        return finetune_settings(None, {"task": task.task, "seeds": self.seeds, **fields, **self.settings}), notes

    def _output(self, name: str, rate: float) -> PurePath:
        return self.root / name / f"lr-{rate}"

    def _check_inputs(self, name: str, config: FinetuneConfig, files: Mapping[str, PurePath]) -> None:
        """Record the inputs. Raises WorkFolderMismatch, naming what differs, if others were trained on."""
        path = self.root / name / "task.json"
        begun = any(is_finetuning(folder) for folder in storage.list_folder(path.parent))
        inputs = {
            "model": model_fingerprint(self.loaded),
            "select": self.select,
            "files": {part: storage.sha256(file) for part, file in files.items()},
            "settings": config.model_dump(mode="json", exclude_unset=True, exclude=OPERATIONAL),
        }
        inputs |= {} if self.encoding == "utf-8" else {"encoding": self.encoding}
        if begun and storage.exists(path) and (changed := changes(storage.read_json(path), inputs)):
            raise WorkFolderMismatch(
                f"{path.parent} was begun with other inputs (there -> now):\n{listed(changed)}\n"
                "Set them back, use another --workdir, or delete this one to begin again."
            )
        storage.write_json(path, inputs)

    def _score(self, result: SeedResult, metric: str, task: BenchTask, summary: dict[str, Any]) -> float:
        scores = result.dev if result.test is None else result.test
        if metric in scores:
            return scores[metric]
        confusion, labels = np.array(result.confusion), summary["labels"]
        chosen = [
            number for number, one in enumerate(labels) if (one == task.positive if task.positive else one != task.negative)
        ]
        return micro_f1(confusion, chosen)

    def _score_further_parts(
        self, name: str, task: BenchTask, config: FinetuneConfig, rate: float, files: Mapping[str, PurePath]
    ) -> dict[str, dict[str, float]]:
        """The scores of the best seed's model on further parts, cached next to it."""
        if not task.also:
            return {}
        output = self._output(name, rate)
        path, trained = self.root / name / "also.json", hashlib.sha256(storage.read_bytes(output / SUMMARY)).hexdigest()
        cached = storage.read_json(path) if storage.exists(path) else {}
        if cached.get("of") != trained:
            inputs = {part: files[part] for part in ("train", "dev", *task.also)}
            parts, classifier = read_parts(task, find_task(config), inputs, self.encoding), Classifier(load_model(output))
            scores = {part: classifier.evaluate(parts[part]) for part in task.also}
            cached = {"of": trained, "scores": {part: {one: of[one] for one in task.metrics} for part, of in scores.items()}}
            storage.write_json(path, cached)
        return cached["scores"]


def micro_f1(confusion: np.ndarray, classes: Sequence[int]) -> float:
    """F1 of some classes counted together, from examples by true (rows) and predicted class; 0 if there are none of either.

    Like scikit-learn's f1_score with average="micro" and these labels; for one class the plain F1.
    """
    predicted_or_true = confusion[classes].sum() + confusion[:, classes].sum()
    return float(2 * np.diagonal(confusion)[classes].sum() / predicted_or_true) if predicted_or_true else 0.0


def _format_metric(metric: str) -> str:
    return _SHOWN.get(metric, metric.replace("_", " "))


def _named(examples: dict[str, int], select: Select) -> dict[str, int]:
    """Counts of examples, by the benchmark's names for the parts."""
    names = {"train": "train"} | ({"dev": "dev"} if select == "dev" else {"dev": "held out of train", "test": "dev"})
    return {shown: examples[part] for part, shown in names.items()}


def percent(values: Sequence[float]) -> str:
    mean, deviation = summarize([100 * value for value in values])
    return f"{mean:.2f} ± {deviation:.2f}" if len(values) > 1 else f"{mean:.2f}"
