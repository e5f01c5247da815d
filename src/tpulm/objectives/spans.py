"""Extractive question answering: the first and last token of an answer, from rows `[CLS] question [SEP] text [SEP]`."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.models import bert, classifier
from tpulm.nn.transformer import Randomness
from tpulm.objectives.classification import Classification, LabelledInputs
from tpulm.objectives.losses import cross_entropy


@dataclass(frozen=True)
class SpanPrediction(Classification):
    """A row's label is two positions, both 0 ([CLS]) where it has no answer, and a third number that only scoring uses.

    Each token has two logits, for being the answer's first and last token; the loss is the mean of the two cross-entropies in
    nats, over a row's tokens without padding.
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
        entropy = cross_entropy(shown.transpose(0, 2, 1), inputs.labels[:, :2], weights)
        return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}
