"""Predictions of a classifier: labels with probabilities, or numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.config import FinetuneConfig, HardwareConfig
from tpulm.convert.huggingface import READS, LoadedModel, load_model
from tpulm.errors import ConfigError, DataError, brief
from tpulm.labelled.examples import text_fault
from tpulm.labelled.rows import PaddedBatch, Rows, encode_rows, fixed_lengths, ordered_batches
from tpulm.nn.params import shapes
from tpulm.objectives.classification import Classification
from tpulm.runtime.memory import naming_shortage
from tpulm.tokenization import Tokenization
from tpulm.train.distributed import check_alone
from tpulm.train.mesh import batch_sharding, make_mesh, parameter_shardings, replicated, to_global_array
from tpulm.train.program import execution_on
from tpulm.train.step import with_shardings

BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch
_IN_FLIGHT = 4  # batches the host may be ahead of the devices


def make_objective(
    kind: Callable[..., Classification], model: LoadedModel, config: FinetuneConfig, *, num_classes: int | None
) -> Classification:
    """The objective of `kind` for a model and this machine's devices; `config` is complete (`FinetuneConfig.for_model`)."""
    of_model = model.config
    if config.dropout is not None:
        of_weights = {} if of_model.architecture == "modernbert" else {"attention_dropout": config.dropout}
        of_model = of_model.model_copy(update={"dropout": config.dropout, **of_weights})
    pooled: dict[str, Any] = {} if config.pooling is None else {"pooling": config.pooling}
    return kind(
        **pooled,
        model=of_model,
        execution=execution_on(jax.devices(), config.hardware, config.compute_dtype),
        sequence_length=config.max_length,
        vocab_size=model.vocab_size,
        special=model.tokenization.special,
        num_classes=num_classes,
    )


class Outputs:
    """Computes the outputs of rows without dropout, in batches on all devices; the same on every host."""

    def __init__(self, objective: Classification, hardware: HardwareConfig, tokenization: Tokenization):
        self.objective, self._tokenization = objective, tokenization
        self._mesh = make_mesh(hardware)
        shards = self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        self._batch_size = -(-BATCH_SIZE // shards) * shards
        self._shardings = parameter_shardings(objective.spec, self._mesh)
        self._compiled: dict[int, Callable[[Any, jax.Array], jax.Array]] = {}  # by row length

    def rows(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Rows:
        return encode_rows(self._tokenization, texts, pairs, max_length=self.objective.sequence_length)

    @naming_shortage()
    def place(self, params: Any) -> Any:
        """Put parameters on the devices, as `of` takes them."""
        return jax.tree.map(to_global_array, params, self._shardings)

    @naming_shortage()
    def compile(self, rows: Rows) -> None:
        """What `of` needs for these rows, ahead."""
        for batch in self._batches(rows):
            self._at(batch.length)

    @naming_shortage()
    def of(self, params: Any, rows: Rows, *, advance: Callable[[float], None] = lambda rows: None) -> np.ndarray:
        """float32 [N, *output_shape], in row order: logits [N, C], or for a regression the number [N, 1]."""
        result = np.zeros((len(rows), *self.objective.output_shape), np.float32)
        waiting: deque[tuple[np.ndarray, jax.Array]] = deque()

        def collect() -> None:
            indices, outputs = waiting.popleft()
            result[indices, : outputs.shape[1]] = np.asarray(outputs)[: len(indices)]
            advance(len(indices))
            check_alone()

        for batch in self._batches(rows):
            tokens = rows.padded(batch.indices, rows=self._batch_size, length=batch.length, pad=self.objective.special.pad)
            placed = to_global_array(tokens, batch_sharding(self._mesh))
            waiting.append((batch.indices, self._at(batch.length)(params, placed)))
            if len(waiting) > _IN_FLIGHT:
                collect()
        while waiting:
            collect()
        return result

    def _batches(self, rows: Rows) -> list[PaddedBatch]:
        lengths = fixed_lengths(self.objective.sequence_length)
        return ordered_batches(rows.lengths, lengths, batch_size=self._batch_size)

    def _at(self, length: int) -> Callable[[Any, jax.Array], jax.Array]:
        if length not in self._compiled:
            tokens = jax.ShapeDtypeStruct((self._batch_size, length), jnp.int32, sharding=batch_sharding(self._mesh))
            params = with_shardings(shapes(self.objective.spec), self._shardings)
            jitted = jax.jit(self.objective.outputs, out_shardings=replicated(self._mesh))
            self._compiled[length] = jitted.lower(params, tokens).compile()
        return self._compiled[length]


def log_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Log-softmax over C, the last axis, in float64."""
    shifted = outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def logistic(outputs: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), in float64."""
    return np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))


class Classified(NamedTuple):
    """The most likely label with its probability, and the probabilities of all; for a regression only the number."""

    label: str | None
    score: float  # probability of the label, or the number
    probabilities: dict[str, float] | None  # by label, in the order of the model's outputs
    labels: tuple[str, ...] | None = None  # multi-label: those with a probability above one half


class ClassifierForUse:
    """A classifier on the devices. Raises ConfigError for a model that is not a classifier."""

    def __init__(self, model: LoadedModel):
        if model.head_config is None:
            raise ConfigError("this model is not a classifier; 'tpulm finetune' trains one from labelled texts")
        if model.head == "embedding":
            raise ConfigError("this model embeds texts, and classifies none: tpulm embed, or tpulm.embed(model, texts)")
        if model.head != "classification":
            does = {"tokens": "labels tokens", "spans": "answers questions", "choice": "chooses answers"}[model.head]
            raise ConfigError(f"this model {does}; tpulm.Classifier(model).predict(…) gives what it says")
        self.max_length = model.max_length or model.config.max_positions  # tokens of a text
        settings = FinetuneConfig(
            task="regression" if model.head_config.is_regression else "classification", max_length=self.max_length
        ).for_model(model.config)
        settings = settings.model_copy(update={"pooling": model.head_config.pooling})
        self._columns = model.columns
        self._names, self._several = model.head_config.names, model.head_config.several
        objective = make_objective(Classification, model, settings, num_classes=model.head_config.num_classes)
        self._outputs = Outputs(objective, settings.hardware, model.tokenization)
        self._params = self._outputs.place(model.params)
        self.cut = 0  # texts truncated so far

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Classified]:
        """One prediction for each text (or pair), in order. Raises ConfigError where the model was fine-tuned on the other, and
        DataError for a text that is blank or not a string."""
        check_paired(self._columns, pairs is not None)
        check_texts(texts, "text")
        if pairs is not None:
            check_texts(pairs, "second text")
            if len(pairs) != len(texts):
                raise DataError(f"there are {len(texts)} texts and {len(pairs)} second texts")
        rows = self._outputs.rows(texts, pairs)
        self.cut += rows.cut
        outputs = self._outputs.of(self._params, rows)
        return [self._answer(row) for row in outputs]

    def _answer(self, outputs: np.ndarray) -> Classified:
        if not self._names:
            return Classified(None, float(outputs[0]), None)
        shares = logistic(outputs) if self._several else np.exp(log_probabilities(outputs[None]))[0]
        best = int(outputs.argmax())
        labels = tuple(self._names[index] for index in np.flatnonzero(outputs > 0)) if self._several else None
        return Classified(self._names[best], float(shares[best]), dict(zip(self._names, shares.tolist(), strict=True)), labels)


def classify(
    model: LoadedModel | str | PurePath, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None
) -> list[Classified]:
    """Classify texts, or pairs of texts, with a model or the folder of one.

    Raises ConfigError for a model that is not a classifier, DataError for a text that is blank or not a string.
    """
    model = model if isinstance(model, LoadedModel) else load_model(model, preferred=READS)
    return ClassifierForUse(model)(listed(texts), None if pairs is None else listed(pairs))


def listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def check_paired(columns: Mapping[str, str] | None, paired: bool) -> None:
    """Raise ConfigError for single texts where a model's `columns` are of pairs, or the reverse; None says neither."""
    if columns is not None and paired != ("pair" in columns):
        kind, fix = ("single texts", "leave them out") if paired else ("pairs of texts", "give each text its second one")
        raise ConfigError(
            f"this model was fine-tuned on {kind}, and there are {'' if paired else 'no '}second texts; {fix} (--pair, for a "
            "file --pair-column; in Python (text, pair) or pairs=[…])"
        )


def check_strings(texts: Sequence[Any]) -> None:
    """Raise DataError for what is no string."""
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"it is {brief(text)}, not a text", location=f"text {number} of {len(texts)}")


def check_texts(texts: Sequence[str], role: str) -> None:
    for number, text in enumerate(texts, start=1):
        if (fault := text_fault(text, role)) is not None:
            raise DataError(fault[1], location=f"text {number} of {len(texts)}")
