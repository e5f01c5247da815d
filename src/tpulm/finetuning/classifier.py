"""A pretrained encoder as a classifier: fit, predict, evaluate, save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import numpy as np

from tpulm import storage
from tpulm.config import FinetuneConfig, finetune_settings
from tpulm.convert.config_json import Answers
from tpulm.convert.continuing import begin_classifier, random_classifier
from tpulm.convert.huggingface import CONFIG, READS, TOKENIZERS, WEIGHTS, LoadedModel, load_model, save_loaded
from tpulm.corpus.readers.jsonl import show
from tpulm.errors import ConfigError, DataError, some_of
from tpulm.finetuning.scoring import scores_of
from tpulm.labelled import Examples, LabelSet, examples_of, hold_out, numbers
from tpulm.labelled.rows import Rows
from tpulm.models.classifier import SequenceClassifier
from tpulm.predict.classify import Outputs, log_probabilities
from tpulm.progress import SILENT, Progress
from tpulm.tokenization.given import TOKENIZER_CONFIG
from tpulm.train import loop
from tpulm.train.loop import History, Selection, Step, steps_of
from tpulm.train.throughput import Meter
from tpulm.train.tuning import Labelled, Tuning

_FILES = {CONFIG, WEIGHTS, TOKENIZER_CONFIG, *TOKENIZERS, "special_tokens_map.json"}  # of a saved classifier


class Fitted(NamedTuple):
    """How training went."""

    history: History  # an epoch each
    best_epoch: int  # from 1
    ended_early: bool
    rows_per_second: float | None  # of the steps alone; None where all had been done before


class Classifier:
    """`model` is a folder (an export, a work folder, an import, a classifier saved before) or what `load_model` gave.

        classifier = tpulm.Classifier("w/export", labels=("neg", "pos"), epochs=3)
        classifier.fit(train, dev).save_pretrained("out")

    `labels` are the classes in the order of the outputs; left out, they are those of the training examples. Examples are a file
    (tsv, csv, jsonl, parquet), a list of (text, label) or (text, pair, label), or columns {"text": …, "label": …}. Settings are
    the fields of `FinetuneConfig`; with task = "regression" labels are numbers. Raises ConfigError for settings and models that
    do not fit, DataError for examples that do not.
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
        found = self.model.answers
        if config is None and found is not None and found.is_regression:
            settings.setdefault("task", "regression")
        config = finetune_settings(config, settings)
        if config.task == "regression" and labels is not None:
            raise ConfigError("a regression has no labels: leave them out")
        of_model = self.model.config
        self.config = config.for_architecture(of_model.architecture, of_model.max_positions, self.model.max_length)
        self.labels: LabelSet | None = None
        self.fitted: Fitted | None = None
        self._params: SequenceClassifier | None = None  # numpy
        self._outputs: Outputs | None = None
        self._placed: Any = None
        self._tuning: Tuning | None = None
        if labels is not None:
            self._take_labels(LabelSet.given(labels))
        elif found is not None and found.names and config.task == "classification":
            self._take_labels(LabelSet.given(found.names))
        elif config.task == "regression":
            self._take_labels(None)

    # -- training -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        dev: Any = None,
        *,
        seed: int | None = None,
        folder: PurePath | None = None,
        progress: Progress = SILENT,
    ) -> Classifier:
        """Train on `train`; the parameters kept are those of the epoch with the best score on `dev`, by default a part of
        `train` that is held out (`config.dev_fraction`). Every call begins with the pretrained weights."""
        examples = examples_of(train)
        examples, held_out = self.split(examples) if dev is None else (examples, examples_of(dev))
        data, dev_data = self.encode(examples, learn=True), self.encode(held_out)
        return self.fit_encoded(data, dev_data, seed=seed, folder=folder, progress=progress)

    def split(self, examples: Examples) -> tuple[Examples, Examples]:
        """What is trained on, and the part that is held out as dev where no other is given; the labels are those of both."""
        classes = None if self.is_regression else self.learn_labels(examples).encode(examples)
        split = hold_out(examples, classes, fraction=self.config.dev_fraction)
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
    ) -> Classifier:
        """`fit` of what `encode` gave."""
        seed = self.config.seed if seed is None else seed
        outputs = self._of()

        def score(params: Any) -> dict[str, float]:
            return scores_of(outputs.of(params, dev.rows), dev.labels, self.config)

        tuning, config = self.tuning_of(data).beginning(seed, self.first_params(seed)), self.config
        selection = Selection(config.chosen_by, config.is_better, config.patience, config.epochs)
        result = loop.train(
            tuning,
            tuning.settings,
            tuning.batches(data),
            score,
            folder,
            meter=Meter(unit="texts"),
            identity=identity or {},
            progress=progress,
            title=title,
            selection=selection,
        )
        best, ended_early = selection.best(result.history), result.steps < tuning.settings.steps
        self.fitted = Fitted(result.history, best, ended_early, result.rate.per_second or None)
        self.params = jax.device_get(result.best)
        return self

    def steps(self, train: Any) -> Iterator[Step]:
        """What `fit` does, step by step, for a loop of one's own: `tpulm.training_steps`."""
        data, seed = self.encode(examples_of(train), learn=True), self.config.seed
        tuning = self.tuning_of(data).beginning(seed, self.first_params(seed))
        yield from steps_of(tuning, tuning.batches(data), tuning.initial_state(), 0, tuning.settings.steps)

    def encode(self, examples: Any, *, learn: bool = False) -> Labelled:
        """Rows of token ids with their labels; with `learn` the labels are found there, where none were given.

        Raises DataError for a label that is not among the known ones, or if there is only one class or number to learn.
        """
        examples = examples_of(examples)
        if self.is_regression:
            labels = numbers(examples)
            if learn and np.all(labels == labels[0]):
                raise DataError(
                    f"all {len(examples):,} examples are labelled {labels[0]:g}; to learn numbers takes at least two of them"
                )
        else:
            known = self.learn_labels(examples) if learn else self._known_labels()
            labels = known.encode(examples)
            if learn and len(np.unique(labels)) < 2:
                only = known.names[int(labels[0])]
                raise DataError(
                    f"all {len(examples):,} examples are labelled '{only}'; to tell classes apart, examples of at least two "
                    "are needed"
                )
        return Labelled(self._of().rows(examples.texts, examples.pairs), labels)

    # -- use ------------------------------------------------------------------------------------------------------------

    @property
    def params(self) -> SequenceClassifier:
        """The parameters, as numpy arrays; those of a loop of one's own can be put here."""
        if self._params is None:
            raise ConfigError("this classifier has not been trained: fit it first")
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        self._params, self._placed = jax.device_get(params), None

    def predict(self, texts: Any, pairs: Sequence[str] | None = None) -> list[Any]:
        """The label of each text, as in the training examples, or of a regression the number.

        `texts` are a list of texts or of (text, pair), or columns {"text": …, "pair": …}; the second texts may be `pairs` too.
        Raises DataError for a single string, and for texts that are blank or no strings.
        """
        outputs = self._outputs_of(self._unlabelled(texts, pairs))
        if self.is_regression:
            return outputs[:, 0].tolist()
        return [self._known_labels().values[index] for index in outputs.argmax(axis=1)]

    def predict_proba(self, texts: Any, pairs: Sequence[str] | None = None) -> np.ndarray:
        """float64 [N, C]: the probability of each label, in the order of `labels.names`. Texts as in `predict`."""
        if self.is_regression:
            raise ConfigError("a regression has no probabilities; use predict")
        return np.exp(log_probabilities(self._outputs_of(self._unlabelled(texts, pairs))))

    def evaluate(self, examples: Any, *, params: Any = None) -> dict[str, float]:
        """accuracy, macro_f1, matthews, loss; or pearson, spearman, mean_squared_error. `params`: others than its own."""
        data = examples if isinstance(examples, Labelled) else self.encode(examples)
        return scores_of(self._outputs_of(data.rows, params), data.labels, self.config)

    def scores_before(self, data: Labelled, seed: int) -> dict[str, float]:
        """Of the parameters that training with this seed begins with."""
        outputs = self._of()
        return scores_of(outputs.of(outputs.place(self.first_params(seed)), data.rows), data.labels, self.config)

    def outputs(self, data: Labelled) -> np.ndarray:
        """float32 [N, C]: logits, or of a regression the number."""
        return self._outputs_of(data.rows)

    def save_pretrained(self, folder: str | PurePath) -> None:
        """A folder that transformers' AutoModelForSequenceClassification and `tpulm.Classifier` load.

        A model that is there already is replaced. Raises ConfigError for a folder with anything else in it.
        """
        model, target = self.model, storage.as_path(folder)
        _check_replaceable(target)
        length = self.config.max_length
        save_loaded(target, model._replace(params=self.params, head="classification", answers=self.answers, max_length=length))

    # -- what they share ------------------------------------------------------------------------------------------------

    @property
    def is_regression(self) -> bool:
        return self.config.task == "regression"

    def learn_labels(self, examples: Examples) -> LabelSet:
        """Those of the examples, unless they are known already."""
        if self.labels is None:
            self._take_labels(LabelSet.of(examples))
        return self._known_labels()

    def _known_labels(self) -> LabelSet:
        if self.labels is None:
            raise ConfigError("the labels are not known yet: fit the classifier, or give it labels=(…)")
        return self.labels

    def _take_labels(self, labels: LabelSet | None) -> None:
        """From here on the number of outputs is known; a classifier of the same labels can be used at once."""
        self.labels = labels
        if self.model.answers is not None and self.model.answers == self.answers:
            assert isinstance(self.model.params, SequenceClassifier)
            self.params = self.model.params

    @property
    def answers(self) -> Answers:
        """What the outputs mean. Raises ConfigError while the labels are not known."""
        return Answers(()) if self.is_regression else Answers(self._known_labels().names)

    def _of(self) -> Outputs:
        if self._outputs is None:
            self._outputs = Outputs(self.model, self.config, num_classes=self.answers.num_classes)
        return self._outputs

    def _unlabelled(self, texts: Any, pairs: Sequence[str] | None) -> Rows:
        if isinstance(texts, str):
            raise DataError(f"the texts are one string, {show(texts)}; give a list of texts: [{show(texts)}]")
        if pairs is None and isinstance(texts, Sized) and not isinstance(texts, Mapping) and not len(texts):
            return self._of().rows([])
        examples = examples_of(texts if pairs is None else {"text": texts, "pair": pairs}, labelled=False)
        return self._of().rows(examples.texts, examples.pairs)

    def _outputs_of(self, rows: Any, params: Any = None) -> np.ndarray:
        outputs = self._of()
        if params is not None:
            return outputs.of(params, rows)
        if self._placed is None:
            self._placed = outputs.place(self.params)
        return outputs.of(self._placed, rows)

    def first_params(self, seed: int) -> SequenceClassifier:
        """What training with this seed begins with."""
        spec = self._of().objective.spec
        if self.config.from_scratch:
            return random_classifier(spec, seed=seed)
        return begin_classifier(self.model.params, spec, answers=self.model.answers, wanted=self.answers, seed=seed)

    def tuning_of(self, data: Labelled) -> Tuning:
        """The compiled program for as much data: the last one if it fits, so that what is compiled serves all seeds."""
        if self._tuning is None or self._tuning.num_rows != len(data.rows):
            self._tuning = Tuning(
                self.model.config,
                self.config,
                num_rows=len(data.rows),
                num_classes=self.answers.num_classes,
                vocab_size=self.model.vocab_size,
                special=self.model.tokenization.special,
            )
        return self._tuning


def _check_replaceable(folder: PurePath) -> None:
    """Raises ConfigError for a folder with more in it than a saved classifier, all of which saving would remove.

    Weights without a config.json are a model that was not wholly uploaded.
    """
    found = {path.name for path in storage.list_folder(folder)}
    others = sorted(found - _FILES)
    if others:
        raise ConfigError(
            f"{folder} holds what is no part of a saved classifier ({some_of(others)}), and saving would remove it; name a new "
            "folder"
        )
    if CONFIG in found and WEIGHTS not in found:
        raise ConfigError(
            f"{folder} holds {CONFIG} without {WEIGHTS}: this is no model, and saving would replace it; name a new folder"
        )
