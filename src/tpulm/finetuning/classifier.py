"""A pretrained model as a classifier: fit, predict, evaluate, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm import storage
from tpulm.config import FinetuneConfig, finetune_settings
from tpulm.convert.config_json import HeadConfig, model_type_of
from tpulm.convert.continuing import FineTuned, begin_classifier, check_trainable
from tpulm.convert.huggingface import CONFIG, READS, TOKENIZERS, WEIGHTS, LoadedModel, load_model, save_loaded
from tpulm.convert.sentence_transformers import EMBEDDER_FILES
from tpulm.corpus.readers.jsonl import show
from tpulm.errors import ConfigError, DataError, some_of
from tpulm.finetuning.tasks import find_task, read_for, task_of, transformed
from tpulm.labelled import Columns, Examples, LabelSet, examples_of, hold_out
from tpulm.labelled.examples import is_table_of_columns
from tpulm.labelled.labels import NO_CLASSES
from tpulm.labelled.rows import Groups, Rows
from tpulm.models.classifier import SequenceClassifier
from tpulm.nn.params import initialize
from tpulm.notebook import shown
from tpulm.objectives.classification import Classification
from tpulm.predict.classify import Outputs, check_paired, make_objective
from tpulm.progress import SILENT, Progress
from tpulm.runtime import watchdog
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.runtime.memory import naming_shortage
from tpulm.tokenization.hf_files import TOKENIZER_CONFIG
from tpulm.train import loop
from tpulm.train.finetuning_program import FinetuningProgram, Labelled
from tpulm.train.loop import History, Selection, TrainStep, steps_of
from tpulm.train.program import fastest_compute_dtype, recorded_compute_dtype
from tpulm.train.throughput import Meter
from tpulm.train.trackers import Tracking

# Of a saved classifier.
_FILES = {CONFIG, WEIGHTS, TOKENIZER_CONFIG, *TOKENIZERS, *EMBEDDER_FILES, "onnx", "special_tokens_map.json"}


class Fitted(NamedTuple):
    """The course of training."""

    history: History  # one entry per epoch
    best_epoch: int  # from 1
    ended_early: bool
    rows_per_second: float | None  # of the steps alone; None if all had been done before


class Classifier:
    """A pretrained encoder, or a causal model that tpulm pretrained, fine-tuned for a task. `model` is a folder (an export, a
    work folder, an import, a saved classifier) or the result of `load_model`.

        classifier = tpulm.Classifier("w/export", labels=("neg", "pos"), epochs=3)
        classifier.fit(train, dev).save_pretrained("out")

    `labels` are the classes in the order of the outputs, by default those of the training examples. Examples are a file (tsv,
    csv, jsonl, parquet), a list of (text, label) or (text, pair, label), or columns {"text": …, "label": …}. Settings are the
    fields of `FinetuneConfig`; with task = "regression" labels are numbers, and `register_task` adds tasks. Raises ConfigError
    for settings and models that do not fit, DataError for examples that do not.
    """

    def __init__(
        self,
        model: LoadedModel | str | PurePath,
        labels: Sequence[Any] | None = None,
        *,
        config: FinetuneConfig | None = None,
        **settings: Any,
    ):
        self.model = model if isinstance(model, LoadedModel) else load_model(model, preferred=READS)
        head_config = self.model.head_config
        if config is None and head_config is not None:
            settings.setdefault("task", task_of(self.model))
        config = finetune_settings(config, settings)
        of_model, length = self.model.config, self.model.max_length
        goes_on = head_config is not None and find_task(config).head == self.model.head
        if length is None and goes_on and config.task != "qa":
            length = of_model.max_positions  # what transformers reads then; its pipeline of questions reads windows of 384
        self.config = config.for_model(of_model, classifier_length=length, pretrained_here=self.model.pretrained_here)
        if self.config.pooling is None and head_config is not None and goes_on:
            self.config = self.config.model_copy(update={"pooling": head_config.pooling})
        self.task = find_task(self.config)
        model_type_of(of_model, self.task.head)
        if self.model.head == "causal":
            check_trainable(None if isinstance(model, LoadedModel) else model, self.model.tokenization)
            self.model = self.model._replace(tokenization=self.model.tokenization.for_classes())
        self.task.null = head_config is not None and head_config.null
        if self.model.head == "embedding" and head_config is not None:
            self.task.embedder = head_config
        if not self.task.has_classes and labels is not None:
            raise ConfigError(f"a {config.task} has no labels: leave them out")
        self.columns = self.model.columns
        self.labels: LabelSet | None = None
        self.fitted: Fitted | None = None
        self.cut = 0  # texts that `predict` truncated so far, as they exceeded max_length
        self._params: SequenceClassifier | None = None  # numpy
        self._placed: Any = None
        self._tuning: tuple[tuple[Any, ...], FinetuningProgram] | None = None
        if labels is not None:
            self._take_labels(LabelSet.from_names(labels))
        elif head_config is not None and head_config.names and self.task.has_classes:
            self._take_labels(LabelSet.from_names(head_config.names))
        elif not self.task.has_classes:
            self._take_labels(None)

    # -- training -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        dev: Any = None,
        *,
        seed: int | None = None,
        folder: PurePath | None = None,
        progress: Progress | None = None,
    ) -> Classifier:
        """Train on `train`, and keep the parameters of the epoch with the best score on `dev`, by default a held-out part of
        `train` (`config.dev_fraction`). Every call starts from the pretrained weights. In a notebook `progress` is shown by
        default."""
        examples = self._examples(train)
        examples, held_out = self.split(examples) if dev is None else (examples, self._examples(dev))
        data, dev_data = self.encode(examples, learn=True), self.encode(held_out)
        with shown(progress) as reporter:
            return self.fit_encoded(data, dev_data, seed=seed, folder=folder, progress=reporter)

    def split(self, examples: Examples) -> tuple[Examples, Examples]:
        """The examples to train on, and those held out as dev if no others are given; the labels are those of both."""
        strata = self.task.strata(examples, self._classes(examples))
        split = hold_out(self.task.held_out_by(examples), strata, fraction=self.config.dev_fraction)
        return examples.take(split.train), examples.take(split.held_out)

    def fit_encoded(
        self,
        data: Labelled,
        dev: Labelled,
        *,
        seed: int | None = None,
        folder: PurePath | None = None,
        identity: dict[str, Any] | None = None,
        progress: Progress = SILENT,
        title: str = "Fine-tuning",
        evaluated: Callable[[], None] = lambda: None,
        tracking: Tracking | None = None,
        hosts: Hosts = ALONE,
    ) -> Classifier:
        """`fit` on results of `encode`; `evaluated` is called after each epoch. Several hosts all call it alike."""
        seed = self.config.seed if seed is None else seed
        outputs, tuning, config = self._outputs, self._beginning(data, seed, folder), self.config
        unit = tuning.unit
        self._remember_columns(data)

        def score(params: Any, advance: Callable[[float], None]) -> dict[str, float]:
            logits = outputs.of(params, dev.rows, advance=advance)
            return self.task.scores(logits if unit == 1.0 else logits * unit, dev, self.head_config.names)

        selection = Selection(config.chosen_by, config.is_better, config.patience, config.epochs)
        stream = tuning.batches(data, hosts)
        progress.start("Compiling")  # or this time would count in that of the steps to come
        with naming_shortage():
            for length in stream.lengths():
                watchdog.report("compile")
                tuning.step_at(length)
        outputs.compile(dev.rows)
        run = loop.Run(
            program=tuning,
            config=tuning.settings,
            stream=stream,
            evaluate=score,
            workdir=folder,
            meter=Meter(unit="texts"),
            identity=(identity or {}) | ({} if unit == 1.0 else {"unit": unit}),
            progress=progress,
            title=title,
            selection=selection,
            evaluated=evaluated,
            tracking=tracking,
            hosts=hosts,
        )
        result = loop.train(run)
        best, ended_early = selection.best(result.history), result.steps < tuning.settings.steps
        self.fitted = Fitted(result.history, best, ended_early, result.rate.per_second or None)
        self.params = _with_unit(tuning.gathered(result.best), unit)
        return self

    def steps(self, train: Any) -> Iterator[TrainStep]:
        """The steps of `fit` one by one, for a user-written loop: `tpulm.training_steps`."""
        data, seed = self.encode(train, learn=True), self.config.seed
        self._remember_columns(data)
        tuning = self._beginning(data, seed)
        for step in steps_of(tuning, tuning.batches(data), tuning.initial_state(), 0, tuning.settings.steps):
            yield step._replace(state=replace(step.state, params=_with_unit(step.state.params, tuning.unit)))

    def _beginning(self, data: Labelled, seed: int, folder: PurePath | None = None) -> FinetuningProgram:
        """The program with the first parameters for this seed, whose outputs are in the task's unit."""
        tuning = self.tuning_of(data, folder)
        return tuning.beginning(seed, _with_unit(self.first_params(seed, data), 1 / tuning.unit))

    def _remember_columns(self, data: Labelled) -> None:
        paired = {} if data.examples.pairs is None else {"pair": "pair"}
        self.columns = {"text": "text", **paired, **data.examples.columns}

    def encode(self, examples: Any, *, learn: bool = False) -> Labelled:
        """Rows of token ids with their labels; with `learn` the classes are taken from the examples, if none were given.

        Raises DataError for an unknown label, or if there is only one class or number to learn.
        """
        examples = self._examples(examples)
        classes = self._classes(examples if learn else None)
        max_length = self.config.max_length
        assert max_length is not None
        return self.task.encode(examples, classes, self.model.tokenization, max_length=max_length, learn=learn)

    # -- use ------------------------------------------------------------------------------------------------------------

    @property
    def params(self) -> SequenceClassifier:
        """The parameters, as numpy arrays; those of a user-written loop can be assigned here."""
        if self._params is None:
            raise ConfigError("this classifier has not been trained: fit it first")
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        self._params, self._placed = jax.device_get(params), None

    def predict(self, texts: Any, pairs: Sequence[Any] | None = None) -> list[Any]:
        """The label of each text, as in the training examples (once saved and loaded, a string): for a regression the
        number, for tags [[begin, end, type], …], for questions and choices a mapping of the answer and its probability.

        `texts` are a list of texts or of (text, pair), or columns {"text": …, "pair": …}; second texts may also be `pairs`: the
        text that answers a question, or the list of its choices. Raises DataError for a single string, and for texts that are
        blank or not strings.
        """
        examples = self._unlabelled(texts, pairs)
        rows = self._rows(examples)
        self.cut += rows.cut
        return self.task.predictions(self._outputs_of(rows), rows, examples, self._classes())

    def predict_proba(self, texts: Any, pairs: Sequence[str] | None = None) -> np.ndarray:
        """float64 [N, C]: the probability of each label, in the order of `labels.names`. Texts as in `predict`."""
        if not self.task.has_classes:
            raise ConfigError(f"a {self.config.task} has no probabilities; use predict")
        return self.task.probabilities(self._outputs_of(self._rows(self._unlabelled(texts, pairs))))

    def evaluate(self, examples: Any, *, params: Any = None) -> dict[str, float]:
        """The task's scores: accuracy, macro_f1, matthews, loss; or pearson, spearman, mean_squared_error. `params` are scored
        instead of its own parameters."""
        data = examples if isinstance(examples, Labelled) else self.encode(examples)
        self._check_paired(data.examples)
        return self.task.scores(self._outputs_of(data.rows, params), data, self.head_config.names)

    def scores_before(self, data: Labelled, seed: int, training: Labelled | None = None) -> dict[str, float]:
        """The scores of the initial parameters of training with this seed."""
        logits = self._outputs.of(self._outputs.place(self.first_params(seed, training)), data.rows)
        return self.task.scores(logits, data, self.head_config.names)

    def outputs(self, data: Labelled) -> np.ndarray:
        """float32 [N, C]: logits, or for a regression the number; for other tasks as their objective has them."""
        return self._outputs_of(data.rows)

    def save_pretrained(self, folder: str | PurePath) -> None:
        """Save a folder that transformers' AutoModelForSequenceClassification and `tpulm.Classifier` load.

        A model that is already there is replaced. Raises ConfigError for a folder with anything else in it.
        """
        model, target = self.model._replace(params=self.params, head=self.task.head), storage.as_path(folder)
        _check_replaceable(target)
        length = self.config.max_length
        save_loaded(target, model._replace(head_config=self.head_config, columns=self.columns, max_length=length))

    # -- shared helpers -------------------------------------------------------------------------------------------------

    def _examples(self, data: Any) -> Examples:
        if isinstance(data, str | PurePath):
            return read_for(self.task, data, Columns())
        return self.task.take(data)

    def _classes(self, learn_from: Examples | None = None) -> LabelSet:
        """The known labels, or those of `learn_from` if none are known yet; empty for a task without classes."""
        if not self.task.has_classes:
            return NO_CLASSES
        if self.labels is None and learn_from is not None:
            self._take_labels(self.task.learn(learn_from))
        if self.labels is None:
            raise ConfigError("the labels are not known yet: fit the classifier, or give it labels=(…)")
        return self.labels

    def _take_labels(self, labels: LabelSet | None) -> None:
        """Set the labels, and with them the number of outputs; a classifier with the same labels can be used at once."""
        self.labels = labels
        if self.task.head == self.model.head and self.model.head_config == self.head_config:
            self.params = self.model.params

    @property
    def head_config(self) -> HeadConfig:
        """What the outputs mean. Raises ConfigError until the labels are known."""
        return self.task.head_config(self._classes())

    @cached_property
    def _outputs(self) -> Outputs:
        return Outputs(self._objective(self.config), self.config.hardware, self.model.tokenization)

    def _objective(self, config: FinetuneConfig) -> Classification:
        """The task's objective, for rows that may hold several texts."""
        config = config.model_copy(update={"max_length": (config.max_length or 0) * self.task.objective.texts})
        return make_objective(self.task.objective, self.model, config, num_classes=self.head_config.num_classes)

    def _unlabelled(self, texts: Any, pairs: Sequence[Any] | None) -> Examples:
        if isinstance(texts, str):
            raise DataError(f"the texts are one string, {show(texts)}; give a list of texts: [{show(texts)}]")
        column = texts["text"] if is_table_of_columns(texts) and "text" in texts else texts
        if isinstance(column, Sized) and not len(column):
            return Examples([], None, None, [])
        columns = texts if pairs is None else {"text": texts, "pair": pairs}
        examples = examples_of(columns, labelled=False, fault=self.task.fault)
        self._check_paired(examples)
        return examples

    def _check_paired(self, examples: Examples) -> None:
        if self.task.head != "embedding":  # single texts have vectors, too
            check_paired(self.columns, examples.pairs is not None)

    def _rows(self, examples: Examples) -> Rows:
        assert self.config.max_length is not None
        return self.task.rows(self.model.tokenization, examples, max_length=self.config.max_length)

    def _outputs_of(self, rows: Any, params: Any = None) -> np.ndarray:
        if params is not None:
            return self._outputs.of(params, rows)
        if self._placed is None:
            self._placed = self._outputs.place(self.params)
        return self._outputs.of(self._placed, rows)

    def first_params(self, seed: int, training: Labelled | None = None) -> FineTuned:
        """The initial parameters for this seed; a new head of a regression is on the scale of the `training` labels."""
        spec = self._outputs.objective.spec
        known = None if self.model.head_config is None else self.model.head_config._replace(null=self.task.null)
        again = self.model.head == self.task.head and known == self.head_config and not self.config.from_scratch
        if self.config.from_scratch:
            params = jax.device_get(initialize(spec, jax.random.key(seed, impl="threefry2x32")))
        else:
            params = begin_classifier(self.model.params, spec, again=again, seed=seed)
        return params if again or training is None else self.task.scaled(params, training)

    def tuning_of(self, data: Labelled, folder: PurePath | None = None) -> FinetuningProgram:
        """The compiled program for as much data: the last one if it fits, so that all seeds share one compilation.

        With "auto" it computes in the dtype that trains fastest, or in that of the checkpoints in `folder`. Scores stay in
        float32 on a CPU, like those of `predict`.
        """
        dtype = self.config.compute_dtype
        if dtype == "auto":
            dtype = fastest_compute_dtype() if folder is None else recorded_compute_dtype(folder)
        groups = Groups.from_rows(data.rows) if self.task.objective.grouped_rows else None
        num_rows, group = (len(data.rows), None) if groups is None else (len(groups), groups.most)
        key = (num_rows, group, dtype, self.task.unit(data))
        if self._tuning is None or self._tuning[0] != key:
            config = self.config.model_copy(update={"compute_dtype": dtype})
            objective = replace(self._objective(config), unit=key[-1])
            self._tuning = key, FinetuningProgram(objective, config, num_rows=num_rows, group=group)
        return self._tuning[1]


def _with_unit(params: Any, unit: float) -> Any:
    """Parameters whose outputs are in units of `unit`, as those of the same outputs in units of 1."""
    return params if unit == 1.0 else transformed(params, unit)


def _check_replaceable(folder: PurePath) -> None:
    """Raise ConfigError for a folder that holds more than a saved classifier, all of which saving would remove.

    Weights without a config.json are a model whose upload was not finished.
    """
    names = {path.name for path in storage.list_folder(folder)}
    others = sorted(names - _FILES)
    if others:
        raise ConfigError(
            f"{folder} holds what is no part of a saved classifier ({some_of(others)}), and saving would remove it; name a new "
            "folder"
        )
    if CONFIG in names and WEIGHTS not in names:
        raise ConfigError(f"{folder} holds {CONFIG} without {WEIGHTS}, which saving would replace; name a new folder")
