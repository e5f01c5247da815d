"""Fine-tuning tasks by name: what labels are, how the model is scored, and what is wrong with it, in words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.config.finetune import METRIC_NAMES, METRICS, TASKS
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.heads import Head
from tpulm.convert.huggingface import LoadedModel
from tpulm.corpus.documents import Fault
from tpulm.errors import ConfigError, DataError, TpulmError, shorten, some_of, suggest
from tpulm.labelled import (
    Columns,
    Examples,
    LabelSet,
    average_auprc,
    class_scores,
    example_fault,
    examples_of,
    label_fault,
    label_name,
    label_set_scores,
    number_fault,
    numbers,
    read_examples,
    regression_scores,
)
from tpulm.labelled.labels import FEW_EXAMPLES, are_amounts, labels_of
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.objectives.classification import Classification
from tpulm.predict.classify import log_probabilities
from tpulm.readable import decimals
from tpulm.tokenization import SpecialTokens, Tokenization, vocabulary_warnings
from tpulm.train.finetuning_program import Labelled

NEARLY_ALL = 0.99  # fraction of predictions from which on they count as constant
_MOST_CONFUSED = 1_000  # classes of which each pair is counted
_HARDLY_ANY = 0.05  # of the labels' deviation, below which a regression's predictions count as constant
_MANY_CUT = 0.1  # of the texts
_IMBALANCED = 0.75  # of the training labels are one class
_SHOWN = 3  # classes in a warning, each compared with all others
_OF_OWN_FILES = ("tag", "qa", "choice")  # tasks whose files look like no others


class Mistake(NamedTuple):
    """`confidence` is the probability of the wrong label, or for a regression the distance from the true number."""

    text: str
    pair: str | None
    label: Any
    predicted: Any
    confidence: float
    place: str  # where the example is


class Task(ABC):
    """What defines a task; all but `scores` and `predictions` has defaults for one label for a text, or a pair of texts.

    `outputs` are float32 [N, *output_shape] of the objective for the N rows of `data`, the result of `encode`; `names` are the
    classes (empty for a task without classes).
    """

    config: FinetuneConfig  # of the fine-tuning; `find_task` sets it
    embedder = HeadConfig(())  # of the embedding model that is fine-tuned, if it is one: its prompts, and the like
    null = False  # whether there may be no answer; learnt from the examples of a task that finds answers

    kind = "A model"  # begins a sentence of the model card
    mistakes_are = ("Most confident mistakes", "confidence")  # a title, and what `Mistake.confidence` is
    has_classes = True  # whether outputs are classes with names
    columns = Columns()  # of its files, if no others are given
    cut_texts = "texts"  # what `Rows.cut` counts
    objective: type[Classification] = Classification  # the head and the loss
    head: Head = "classification"  # of the saved model
    pipeline = "text-classification"  # transformers' name of the task
    library = "transformers"
    usage = ("from transformers import pipeline", "", 'classify = pipeline("{pipeline}", model="this folder")')  # on the card

    def read(self, path: str | PurePath, columns: Columns, **reading: Any) -> Examples:
        """The examples of a file; `reading` has `format` and `on_error` of `read_examples`."""
        return read_examples(path, columns.over(self.columns), fault=self.fault, adapt=self.adapt, **reading)

    def take(self, data: Any) -> Examples:
        """The examples of Python objects."""
        return examples_of(data, fault=self.fault)

    def adapt(self, values: dict[str, Any]) -> dict[str, Any]:
        """A file's row with the columns of `columns`, for files that have others."""
        return values

    def fault(self, values: Mapping[str, Any]) -> Fault:
        """Why an example cannot be used: `values` are its "text" and, if present, "pair" and "label"."""
        return example_fault(values, self.label_fault)

    def label_fault(self, label: Any) -> Fault:
        """Why a value of the data is not a label; rows with such values are refused, or skipped."""
        return label_fault(label)

    def learn(self, examples: Examples) -> LabelSet:
        """The classes of training examples. Raises DataError for labels that are not classes."""
        return LabelSet.of(examples)

    def strata(self, examples: Examples, classes: LabelSet) -> np.ndarray | None:
        """int [N]: the strata, of each of which a fraction is held out as dev; None: of all examples together."""
        return None

    def held_out_by(self, examples: Examples) -> Examples:
        """What is compared when dev is held out: examples that are equal in it stay on one side."""
        return examples

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        """The objective's labels [N, *label_shape]. Raises DataError for unknown labels and, with `learn`, nothing to learn."""
        raise NotImplementedError  # unused if a task overrides `encode`

    def rows(self, tokenization: Tokenization, examples: Examples, *, max_length: int) -> Rows:
        return encode_rows(tokenization, examples.texts, examples.pairs, max_length=max_length)

    def encode(
        self, examples: Examples, classes: LabelSet, tokenization: Tokenization, *, max_length: int, learn: bool
    ) -> Labelled:
        """Rows of token ids with their labels. A task with labels per token overrides this, since they depend on the tokens."""
        rows = self.rows(tokenization, examples, max_length=max_length)
        return Labelled(rows, self.labels(examples, classes, learn=learn), examples)

    def scaled(self, params: Any, training: Labelled) -> Any:
        """The initial parameters with a new head, on the scale of the labels."""
        return params

    def unit(self, training: Labelled) -> float:
        """What labels and outputs are divided by in training: a power of two, which makes the division exact."""
        return 1.0

    @abstractmethod
    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """Every metric that the task was registered with, and possibly others."""

    @abstractmethod
    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[Any]:
        """A prediction for each text, in the form of the training labels."""

    def head_config(self, classes: LabelSet) -> HeadConfig:
        """What the outputs mean, for config.json."""
        pooling = "mean" if self.config.pooling == "mean" else None
        return HeadConfig(classes.names, pooling=pooling, null=self.null)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """float64 [N, C], for a task with classes."""
        return np.exp(log_probabilities(outputs))

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        """Notes on the labels of a part, in words."""
        return []

    def classes_of(self, examples: Examples) -> Iterable[Iterable[str]]:
        """The classes of each example; nothing for a task without classes."""
        return ()

    @property
    def longest(self) -> int:
        """How many tokens are kept of what `Rows.cut` counts."""
        return self.config.max_length or 0

    def whole_length(self, rows: Rows, special: SpecialTokens) -> int | None:
        """The `max_length` that would hold 95% of these rows' texts, if any would."""
        texts = max(1.0, np.count_nonzero(rows.ids == special.cls) / len(rows))  # of a row; a causal model's have no [CLS]
        return math.ceil(np.quantile(rows.whole_lengths, 0.95, method="higher") / texts)

    def confusion(self, outputs: np.ndarray, data: Labelled) -> list[list[int]] | None:
        """Counts of examples by true and predicted class; None for a task that has none, or very many classes."""
        return None

    def by_class(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, list[int]]:
        """By class, how often it was correctly predicted, predicted, and true."""
        return {}

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """What the model gets wrong, most confident first."""
        return []

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        """What the outputs on dev say against a model, in words."""
        return []


class TextClassification(Task):
    kind = "A classifier"

    def classes_of(self, examples: Examples) -> Iterable[Iterable[str]]:
        return ([label_name(label)] for label in labels_of(examples))

    def strata(self, examples: Examples, classes: LabelSet) -> np.ndarray:
        return classes.encode(examples)

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        labels = classes.encode(examples)
        if learn and len(np.unique(labels)) < 2:
            only = classes.names[int(labels[0])]
            raise DataError(
                f"all {len(examples):,} examples are labelled '{only}'; to tell classes apart, examples of at least two are "
                "needed"
            )
        return labels

    def notes(self, data: Labelled, classes: LabelSet) -> list[str]:
        if not classes.are_ids(data.examples):
            return []
        listed = ", ".join(f"{index} {name}" for index, name in enumerate(classes.names))
        return [f"labels are ids of the classes: {shorten(listed, 200, quoted=False)}"]

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        """The loss is in nats."""
        labels = data.labels
        scores = class_scores(labels, outputs.argmax(axis=1), outputs.shape[1])
        chosen = log_probabilities(outputs)[np.arange(len(labels)), labels]
        return {
            "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1,
            "matthews": scores.matthews,
            "auprc": average_auprc(labels, self.probabilities(outputs)),
            "loss": float(-chosen.mean()),
        }

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[Any]:
        return [classes.values[index] for index in outputs.argmax(axis=1)]

    def confusion(self, outputs: np.ndarray, data: Labelled) -> list[list[int]] | None:
        classes = outputs.shape[1]
        if classes > _MOST_CONFUSED:
            return None
        flat = data.labels.astype(np.int64) * classes + outputs.argmax(axis=1)
        return np.bincount(flat, minlength=classes**2).reshape(classes, classes).tolist()

    def by_class(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, list[int]]:
        counts = class_scores(data.labels, outputs.argmax(axis=1), outputs.shape[1]).counts
        return dict(zip(names, counts.tolist(), strict=True))

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        labels, predicted = data.labels, outputs.argmax(axis=1)
        confidence = np.exp(log_probabilities(outputs).max(axis=1))
        wrong = np.flatnonzero(predicted != labels)
        true, answers = ([names[label] for label in part] for part in (labels, predicted))
        return ordered_mistakes(examples, wrong, true, answers, confidence)

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        labels, name = data.labels, self.config.chosen_by
        if len(np.unique(labels)) < 2:
            return []
        warnings, scores, counts = list[str](), self.scores(outputs, data, names), np.bincount(outputs.argmax(axis=1))
        only, commonest = int(counts.argmax()), int(np.bincount(training.labels).argmax())
        if counts[only] >= NEARLY_ALL * len(labels):
            warnings.append(
                f"it answers {names[only]} to {counts[only] / len(labels):.0%} of dev, where {np.mean(labels == only):.0%} are "
                f"labelled so (macro F1 {scores['macro_f1']:.3f})"
            )
        constant = np.zeros_like(outputs)
        constant[:, commonest] = 1.0
        of_constant = self.scores(constant, data, names)[name]
        if not self.config.is_better(scores[name], of_constant):
            warnings.append(no_better(name, scores[name], f"always answering {names[commonest]}", of_constant))
        share, can_weigh = np.mean(training.labels == commonest), self.config.task == "classification"
        if warnings and can_weigh and self.config.class_weights is None and share >= _IMBALANCED:
            metric = ' and metric = "macro_f1"' if name == "accuracy" else ""
            warnings.append(
                f'{share:.0%} of the training labels are {names[commonest]}: class_weights = "balanced"{metric} may help'
            )
        return warnings


class TextRegression(Task):
    kind = "A regression"
    mistakes_are = ("Farthest off", "distance")
    has_classes = False

    def label_fault(self, label: Any) -> Fault:
        return number_fault(label)

    def labels(self, examples: Examples, classes: LabelSet, *, learn: bool) -> np.ndarray:
        labels = numbers(examples)
        if learn and np.all(labels == labels[0]):
            raise DataError(f"all {len(examples):,} examples are labelled {labels[0]:g}; there is nothing to learn")
        return labels

    def scaled(self, params: Any, training: Labelled) -> Any:
        """Start with predictions around the labels' mean: steps of Adam, each at most a learning rate long, are slow to get
        there."""
        unit = self.unit(training)
        labels = training.labels / unit
        return transformed(params, unit * labels.std(), unit * labels.mean())

    def unit(self, training: Labelled) -> float:
        """That by which the labels' deviation becomes 1 to 2,000. Adam's steps have one length on every scale, too long for
        smaller labels; squares of much larger ones overflow."""
        deviation = max(float(training.labels.std(dtype=np.float64)), 1e-30)
        return 2.0 ** math.floor(math.log2(deviation / min(max(deviation, 1.0), 1000.0)))

    def scores(self, outputs: np.ndarray, data: Labelled, names: tuple[str, ...]) -> dict[str, float]:
        result, threshold = regression_scores(data.labels, outputs[:, 0])._asdict(), self.config.f1_threshold
        if threshold is not None:
            result["f1"] = label_set_scores(data.labels[:, None] >= threshold, outputs >= threshold).micro_f1
        return result

    def predictions(self, outputs: np.ndarray, rows: Rows, examples: Examples, classes: LabelSet) -> list[Any]:
        return outputs[:, 0].tolist()

    def mistakes(self, examples: Examples, data: Labelled, outputs: np.ndarray, names: tuple[str, ...]) -> list[Mistake]:
        """All examples, farthest off first."""
        distance = np.abs(outputs[:, 0] - data.labels)
        return ordered_mistakes(examples, np.arange(len(distance)), data.labels.tolist(), outputs[:, 0].tolist(), distance)

    def warnings(self, outputs: np.ndarray, data: Labelled, *, training: Labelled, names: tuple[str, ...]) -> list[str]:
        labels, outputs = data.labels.astype(np.float64), outputs.astype(np.float64)
        warnings, spread, constant = list[str](), float(labels.std()), float(training.labels.mean())
        if outputs.std() <= _HARDLY_ANY * spread:
            warnings.append(
                f"it answers {outputs.mean():.3g} to everything: its answers deviate by {outputs.std():.2g}, the labels by "
                f"{spread:.2g}"
            )
        error = self.scores(outputs, data, names)["mean_squared_error"]
        of_constant = float(np.mean((labels - constant) ** 2))
        if error >= of_constant:
            warnings.append(
                f"its mean squared error on dev, {decimals(error)}, is no better than that of always answering {constant:.3g}, "
                f"the mean of the training labels ({decimals(of_constant)})"
            )
        return warnings


def transformed(params: Any, factor: Any, offset: Any = 0.0) -> Any:
    """A regression's parameters whose output is that of `params` times a factor, plus an offset."""
    head = params.classification_head
    output = replace(head.output, kernel=head.output.kernel * factor, bias=head.output.bias * factor + offset)
    return replace(params, classification_head=replace(head, output=output))


_REGISTRY: dict[str, Task] = {}  # those of tpulm are registered in `finetuning`


def register_task(name: str, task: Task, *, metrics: Mapping[str, Literal["highest", "lowest"]]) -> None:
    """Make `task = name` a setting of fine-tuning.

    `metrics` are those of its `scores` that may choose the best epoch, the default first, and which of their values is best.
    """
    METRICS[name] = dict(metrics)
    for metric in metrics:
        METRIC_NAMES.add(metric)
    _REGISTRY[name] = task
    TASKS.add(name)


def find_task(config: FinetuneConfig) -> Task:
    """The task of a fine-tuning, with its settings."""
    task = copy(_REGISTRY[config.task])
    task.config = config
    return task


def read_for(task: Task, path: str | PurePath, columns: Columns, **reading: Any) -> Examples:
    """`Task.read`. If the file is refused and one of the tasks with files of their own reads it, the error names that task."""
    try:
        return task.read(path, columns, **reading)
    except (ConfigError, DataError) as error:
        others = [name for name in _OF_OWN_FILES if name != task.config.task]
        if name := next((name for name in others if _reads(name, path, columns, **reading)), None):
            error.args = (f'{error} It reads as examples of another task: give --task {name} (task="{name}" in Python).',)
        raise


def _reads(name: str, path: str | PurePath, columns: Columns, **reading: Any) -> bool:
    try:
        find_task(FinetuneConfig(task=name)).read(path, columns, **{**reading, "on_error": "stop"})
    except TpulmError:
        return False
    return True


def task_of(model: LoadedModel) -> str:
    """The task that a fine-tuned model was made for."""
    if model.head in (of_head := {"tokens": "tag", "embedding": "embed", "spans": "qa", "choice": "choice"}):
        return of_head[model.head]
    if model.head_config is not None and model.head_config.several:
        return "multilabel"
    return "regression" if model.head_config is not None and model.head_config.is_regression else "classification"


def model_warnings(
    outputs: np.ndarray, data: Labelled, *, training: Labelled, before: float, task: Task, names: tuple[str, ...]
) -> list[str]:
    """What the outputs on dev say against a model; `before` is the score that selects, before the first step."""
    name = task.config.chosen_by
    warnings = task.warnings(outputs, data, training=training, names=names)
    value = task.scores(outputs, data, names)[name]
    perfect = value == before == 1.0  # of every metric whose highest value is the best, the highest
    if not task.config.is_better(value, before) and not perfect:
        warnings.append(f"training did not help: its {score_text(name, value)} is no better than before: {decimals(before)}")
    return warnings


def text_warnings(task: Task, rows: Rows, *, max_positions: int, special: SpecialTokens) -> list[str]:
    """A warning if many texts were truncated."""
    if (share := rows.cut / max(1, rows.num_examples)) < _MANY_CUT:
        return []
    holds, fix = task.whole_length(rows, special), ""
    if holds is not None:
        most = f", and the model reads at most {max_positions}" if holds > max_positions else ""
        fix = f"; max_length = {holds} would hold 95% of them{most}"
    return [f"{share:.0%} of the {task.cut_texts} are longer than {task.longest} tokens and were cut{fix}"]


def label_warnings(task: Task, examples: Examples) -> list[str]:
    """A warning of classes that a single training example has, which may be published: of its place it has the line alone."""
    places = defaultdict[str, list[str]](list)
    for names, place in zip(task.classes_of(examples), examples.places, strict=False):
        for name in names:
            places[name].append(place)
    lines = {name: at[0].rpartition(", ")[2] for name, at in places.items() if len(at) == 1}
    alone = [f"'{name}' ({line})" for name, line in lines.items()]
    if not alone or len(examples) < FEW_EXAMPLES:
        return []
    if are_amounts(places):
        return [
            f"the {len(places)} different labels are numbers, each learned as a class of its own ({len(alone)} have a single "
            "training example): numbers to predict need --regression"
        ]
    shown = [told + suggest(name, places.keys() - {name}) for name, told in islice(zip(lines, alone, strict=True), _SHOWN)]
    return [
        f"{len(alone)} of {len(places)} classes have a single training example, as a misspelt label would: "
        f"{some_of([*shown, *alone[_SHOWN:]], _SHOWN)}"
    ]


def part_vocabulary_warnings(tokenization: Tokenization, name: str, examples: Examples) -> list[str]:
    """`vocabulary_warnings` about a part, which may be published: without words."""
    pairs = ([pair] if isinstance(pair, str) else pair for pair in examples.pairs or [])
    return vocabulary_warnings(tokenization.reading_added, [*examples.texts, *chain.from_iterable(pairs)], name, words=False)


def score_text(metric: str, value: float) -> str:
    return f"{metric.replace('_', ' ')} on dev, {decimals(value)},"


def no_better(metric: str, value: float, than: str, of_that: float) -> str:
    return f"its {score_text(metric, value)} is no better than that of {than} ({of_that:.4f})"


def ordered_mistakes(
    examples: Examples, wrong: np.ndarray, labels: list[Any], predicted: list[Any], confidence: np.ndarray
) -> list[Mistake]:
    return [
        Mistake(
            examples.texts[i],
            None if examples.pairs is None else examples.pairs[i],
            labels[i],
            predicted[i],
            float(f"{confidence[i]:.6g}"),
            examples.places[i],
        )
        for i in wrong[np.argsort(-confidence[wrong], kind="stable")]
    ]
