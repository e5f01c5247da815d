"""Classification of texts or text pairs, and regression, from labelled rows."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
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
from tpulm.objectives.rows import encoder_input
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
        tokens = encoder_input(batch["tokens"].astype(jnp.int32), row_kind="segments", special=self.special)
        return LabelledInputs(tokens, batch["labels"], batch["weights"], row_seeds(row_keys))

    def totals(self, inputs: LabelledInputs) -> dict[str, Array]:
        return {"rows": jnp.sum(inputs.weights)}

    def outputs(self, params: classifier.SequenceClassifier, tokens: Int[Array, "B L"]) -> Float[Array, "B ..."]:
        """What `apply` gives for these ids, without dropout."""
        return self.apply(params, encoder_input(tokens.astype(jnp.int32), row_kind="segments", special=self.special), None)

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
        entropy = cross_entropy(outputs, inputs.labels, inputs.weights)
        return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}

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
