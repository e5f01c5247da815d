"""The losses of fine-tuning, from labelled rows: classification of texts or text pairs and regression, multiple choice,
multi-label classification, extractive question answering, token classification, and text embeddings."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from tpulm.config import ModelConfig
from tpulm.models import bert, classifier
from tpulm.nn.dropout import row_seeds
from tpulm.nn.transformer import Execution, Randomness
from tpulm.objectives.interface import Column, LossAndSums
from tpulm.objectives.losses import cross_entropy
from tpulm.objectives.rows import RowKind, encoder_input
from tpulm.special_tokens import SpecialTokens


class LabelledInputs(NamedTuple):
    tokens: bert.EncoderInput
    labels: Int[Array, "B ..."] | Float[Array, "B ..."]
    weights: Float[Array, " B"]  # 0 for a row that pads the batch
    row_seeds: Array  # uint32 [B, 2], for dropout


@dataclass(frozen=True)
class Classification:
    """Rows `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` of any length, with one label each.

    The loss is the mean over the real rows of the global batch, by their weights: cross-entropy in nats, or squared error for a
    regression (`num_classes` None). There the outputs in training are in units of `unit`, and what is reported is not.

    Other fine-tuning tasks override what differs: `label_shape`, `output_shape`, `spec`, `apply`, `sums` and, where the
    loss is not a mean over rows, `totals` and `metrics`.
    """

    texts: ClassVar[int] = 1  # per row; each may have as many tokens as a row of one text
    row_kind: ClassVar[RowKind] = "segments"

    model: ModelConfig
    execution: Execution
    sequence_length: int  # of the longest row
    vocab_size: int
    special: SpecialTokens
    num_classes: int | None
    pooling: classifier.Pooling = "cls"
    unit: float = 1.0  # of a regression's labels in training

    label_dtype: ClassVar[DTypeLike | None] = None  # None: int32 for classes, float32 for numbers
    grouped_rows = False  # True: the rows of an example are trained on together, tokens [B, G, L]

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one row's label."""
        return ()

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of one row's output at `sequence_length`; the first axis may be shorter for shorter rows."""
        return (self.num_classes or 1,)

    @property
    def columns(self) -> dict[str, Column]:
        dtype = self.label_dtype or (jnp.int32 if self.num_classes else jnp.float32)
        return {"labels": Column(self.label_shape, dtype), "weights": Column((), jnp.float32)}

    @cached_property
    def spec(self) -> classifier.SequenceClassifier:
        return classifier.spec(self.model, vocab_size=self.vocab_size, num_outputs=self.num_classes or 1)

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> LabelledInputs:
        tokens = encoder_input(batch["tokens"].astype(jnp.int32), row_kind=self.row_kind, special=self.special)
        return LabelledInputs(tokens, batch["labels"], batch["weights"], row_seeds(row_keys))

    def totals(self, inputs: LabelledInputs) -> dict[str, Array]:
        return {"rows": jnp.sum(inputs.weights)}

    def outputs(self, params: classifier.SequenceClassifier, tokens: Int[Array, "B L"]) -> Float[Array, "B ..."]:
        """What `apply` gives for these ids, without dropout."""
        return self.apply(params, encoder_input(tokens.astype(jnp.int32), row_kind=self.row_kind, special=self.special), None)

    def apply(
        self, params: classifier.SequenceClassifier, tokens: bert.EncoderInput, randomness: Randomness | None
    ) -> Float[Array, "B ..."]:
        """The model's outputs: float32 [B, *output_shape]."""
        return classifier.logits(
            params, tokens, config=self.model, execution=self.execution, randomness=randomness, pooling=self.pooling
        )

    def sums(self, outputs: Float[Array, "B ..."], inputs: LabelledInputs) -> dict[str, Array]:
        """Sums over rows: "loss", "rows" (their weights), and what else `metrics` reports."""
        if self.num_classes is None:
            loss = jnp.sum(jnp.square(outputs[:, 0] - inputs.labels / self.unit) * inputs.weights)
            return {"loss": loss, "rows": jnp.sum(inputs.weights)}
        return _entropy_sums(outputs, inputs.labels, inputs.weights)

    def loss(
        self,
        params: classifier.SequenceClassifier,
        inputs: LabelledInputs,
        totals: Mapping[str, Array],
        *,
        dropout_key: Array | None,
    ) -> LossAndSums:
        randomness = None if dropout_key is None else Randomness(dropout_key, inputs.row_seeds)
        outputs = self.apply(params, inputs.tokens, randomness)
        with jax.named_scope("loss"):
            sums = self.sums(outputs, inputs)
        return LossAndSums(sums["loss"] / jnp.maximum(totals["rows"], 1.0), sums)

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Means over rows: "loss" and, for classes, "accuracy"."""
        rows, units = max(float(sums["rows"]), 1.0), {"loss": self.unit**2, "correct": 1.0}
        named = (("loss", "loss"), ("accuracy", "correct"))
        return {name: float(sums[key]) * units[key] / rows for name, key in named if key in sums}


@dataclass(frozen=True)
class MultipleChoice(Classification):
    """Each row, `[CLS] question [SEP] choice [SEP]`, has a logit; the loss is the cross-entropy in nats over a question's rows.

    Training batches have tokens [B, G, L], G rows per question; a question with fewer choices has rows of padding, which are
    masked out. For prediction, rows are scored one by one.
    """

    label_dtype = jnp.int32
    grouped_rows = True

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> LabelledInputs:
        questions, choices, length = batch["tokens"].shape
        ids = batch["tokens"].astype(jnp.int32).reshape(-1, length)
        tokens = encoder_input(ids, row_kind=self.row_kind, special=self.special)
        tokens = jax.tree.map(lambda part: part.reshape(questions, choices, length), tokens)
        number = jnp.arange(choices, dtype=jnp.uint32)[None, :, None] * jnp.uint32(0x9E3779B9)  # 2**32 / golden ratio
        return LabelledInputs(tokens, batch["labels"], batch["weights"], row_seeds(row_keys)[:, None] ^ number)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "*B 1"]:
        """The score of each row, or of each choice of each question."""
        shape = tokens.ids.shape
        flat = jax.tree.map(lambda part: part.reshape(-1, shape[-1]), tokens)
        drawn = None if randomness is None else Randomness(randomness.key, randomness.rows.reshape(-1, 2))
        return super().apply(params, flat, drawn).reshape(*shape[:-1], 1)

    def sums(self, outputs: Float[Array, "B G 1"], inputs: LabelledInputs) -> dict[str, Array]:
        empty = inputs.tokens.segments[:, :, 0] < 0
        logits = jnp.where(empty, jnp.finfo(jnp.float32).min, outputs[:, :, 0])
        return _entropy_sums(logits, inputs.labels, inputs.weights)


@dataclass(frozen=True)
class MultiLabelClassification(Classification):
    """The loss is the mean over the real rows of the global batch and over the labels: binary cross-entropy in nats.

    A row's labels are 0 or 1 for each class. "correct" counts rows with all labels right.
    """

    label_dtype = jnp.float32

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.num_classes or 1,)

    def sums(self, outputs: Float[Array, "B C"], inputs: LabelledInputs) -> dict[str, Array]:
        entropy = jax.nn.softplus(outputs) - outputs * inputs.labels
        correct = jnp.all((outputs > 0.0) == (inputs.labels > 0.0), axis=1).astype(jnp.float32)
        return {
            "loss": jnp.sum(jnp.mean(entropy, axis=1) * inputs.weights),
            "correct": jnp.sum(correct * inputs.weights),
            "rows": jnp.sum(inputs.weights),
        }


@dataclass(frozen=True)
class SpanPrediction(Classification):
    """Rows `[CLS] question [SEP] text [SEP]`, whose labels are the answer's first and last position.

    Both are 0 ([CLS]) where a row has no answer; only scoring uses the third number of a label. Each token has two
    logits, for being the answer's first and last token; the loss is the mean of the two cross-entropies in nats, over a row's
    tokens without padding.
    """

    label_dtype = jnp.int32

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.sequence_length, 2)

    @cached_property
    def spec(self) -> Any:
        return classifier.token_spec(self.model, vocab_size=self.vocab_size, num_outputs=2)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "B L 2"]:
        drop = self.model.architecture == "modernbert"
        return classifier.token_logits(
            params, tokens, config=self.model, execution=self.execution, randomness=randomness, drop=drop
        )

    def sums(self, outputs: Float[Array, "B L 2"], inputs: LabelledInputs) -> dict[str, Array]:
        shown = jnp.where(inputs.tokens.segments[:, :, None] < 0, jnp.finfo(jnp.float32).min, outputs)
        weights = jnp.stack([inputs.weights, inputs.weights], axis=1) / 2
        return _entropy_sums(shown.transpose(0, 2, 1), inputs.labels[:, :2], weights)


@dataclass(frozen=True)
class TokenClassification(Classification):
    """The loss is the mean over the labelled tokens of the global batch: cross-entropy in nats.

    A row's labels are its tokens' classes: -1 for none, class + C in an entity whose ends are not token boundaries (trained on
    as the class). After them come C counts: the entities beginning with each class that have no token left. Only scoring uses
    the + C and the counts.
    """

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.sequence_length + (self.num_classes or 1),)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.sequence_length, self.num_classes or 1)

    @cached_property
    def spec(self) -> Any:
        return classifier.token_spec(self.model, vocab_size=self.vocab_size, num_outputs=self.num_classes or 1)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "B L C"]:
        return classifier.token_logits(params, tokens, config=self.model, execution=self.execution, randomness=randomness)

    def totals(self, inputs: LabelledInputs) -> dict[str, Array]:
        return {"rows": jnp.sum(self._weights(inputs, self.sequence_length))}

    def sums(self, outputs: Float[Array, "B L C"], inputs: LabelledInputs) -> dict[str, Array]:
        length = outputs.shape[1]
        labels = jnp.maximum(inputs.labels[:, :length], 0) % (self.num_classes or 1)
        return _entropy_sums(outputs, labels, self._weights(inputs, length))

    @staticmethod
    def _weights(inputs: LabelledInputs, length: int) -> Float[Array, "B L"]:
        return (inputs.labels[:, :length] >= 0).astype(jnp.float32) * inputs.weights[:, None]


SCALE = 20.0  # factor of the cosines in both losses, as in sentence-transformers


@dataclass(frozen=True)
class Embedding(Classification):
    """Rows are `[CLS] A [SEP]`, or several such texts packed together, which do not attend to each other.

    The losses compare the rows of a batch with each other; with gradient accumulation, only those of one micro-batch.
    """

    row_kind: ClassVar[RowKind] = "packed"

    pooling: classifier.Pooling = "mean"
    normalized: bool = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.texts, self.model.hidden_size)

    @cached_property
    def spec(self) -> Any:
        return classifier.text_encoder_spec(self.model, vocab_size=self.vocab_size)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "B E D"]:
        settings: Any = {"config": self.model, "execution": self.execution, "normalized": self.normalized}
        return classifier.vectors(params, tokens, texts=self.texts, pooling=self.pooling, randomness=randomness, **settings)


@dataclass(frozen=True)
class ScoredPairs(Embedding):
    """The label is the similarity of the two texts; only the order of labels matters.

    CoSENT: log(1 + sum exp(20 (cos_i - cos_j))) over the pairs of rows in which j has the higher label (Huang et al. 2024).
    """

    texts: ClassVar[int] = 2

    def sums(self, outputs: Float[Array, "B E D"], inputs: LabelledInputs) -> dict[str, Array]:
        cosines, labels, real = SCALE * jnp.sum(outputs[:, 0] * outputs[:, 1], axis=1), inputs.labels, inputs.weights > 0.0
        counts = (labels[:, None] < labels[None, :]) & real[:, None] & real[None, :]
        excess = jnp.where(counts, cosines[:, None] - cosines[None, :], jnp.float32(-1e30))
        loss = jax.nn.logsumexp(jnp.append(excess.reshape(-1), jnp.float32(0.0)))
        rows = jnp.sum(inputs.weights)
        return {"loss": loss * rows, "rows": rows}


@dataclass(frozen=True)
class RankedTexts(Embedding):
    """A row is an anchor, a positive and, optionally, a negative; labels are the numbers of these texts, -1 for none.

    The loss is the cross-entropy of the anchor's positive among the positives and negatives of all rows (in-batch negatives;
    Henderson et al. 2017, section 4.4), without the anchor itself and its other known positives.
    """

    texts: ClassVar[int] = 3
    label_dtype = jnp.int32

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.texts,)

    def sums(self, outputs: Float[Array, "B E D"], inputs: LabelledInputs) -> dict[str, Array]:
        anchor, own, other = inputs.labels.T
        rows = jnp.arange(len(anchor), dtype=jnp.int32)
        candidates, ids = jnp.concatenate([outputs[:, 1], outputs[:, 2]]), jnp.concatenate([own, other])
        real = jnp.tile(inputs.weights > 0.0, 2) & (ids >= 0)
        same_anchor = (anchor[:, None] == anchor[None, :]).astype(jnp.float32) * inputs.weights[None, :]
        known = same_anchor @ (own[:, None] == ids[None, :]).astype(jnp.float32) > 0.0
        wrong = real[None, :] & ~known & (ids[None, :] != anchor[:, None])
        allowed = wrong | (jnp.arange(len(ids), dtype=jnp.int32)[None, :] == rows[:, None])
        logits = jnp.where(allowed, SCALE * (outputs[:, 0] @ candidates.T), jnp.float32(-1e30))
        return _entropy_sums(logits, rows, inputs.weights)


def _entropy_sums(logits: Array, labels: Array, weights: Array) -> dict[str, Array]:
    entropy = cross_entropy(logits, labels, weights)
    return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}
