"""Causal language modelling: each token is predicted from those before it in its text (Radford et al. 2019).

In a row of kind "causal" (objectives/rows.py) every token but the row's first is predicted from the earlier tokens of its own
text in the row, back to and including the [SEP] that ended the previous text. So the first token of a text is predicted from
[SEP] alone, and the [SEP] that ends a text from the text. As each row begins with the last token of the previous one
(dataset/layouts.py), every token of a dataset and every end of a text is predicted exactly once per epoch.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from tpulm.models import bert, decoder
from tpulm.nn.dropout import row_seeds
from tpulm.nn.transformer import Randomness
from tpulm.objectives.interface import Column, LossAndSums, Setup, ratio
from tpulm.objectives.losses import vocabulary_cross_entropy
from tpulm.objectives.rows import encoder_input


class CausalInputs(NamedTuple):
    tokens: bert.EncoderInput
    labels: Int[Array, "B L"]  # the next token
    weights: Float[Array, "B L"]  # 0 where no token follows in the row
    row_seeds: Array  # uint32 [B, 2], for dropout


@dataclass(frozen=True)
class CausalLanguageModel(Setup):
    """The loss is the mean over all predictions of the global batch."""

    @property
    def columns(self) -> dict[str, Column]:
        return {}

    @cached_property
    def spec(self) -> decoder.Decoder:
        return decoder.spec(self.model, vocab_size=self.vocab_size)

    @property
    def flops_per_row(self) -> float:
        """Attention weights that the causal mask sets to zero count as computed."""
        return self.flops(self.sequence_length)

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> CausalInputs:
        ids = batch["tokens"].astype(jnp.int32)
        following = jnp.pad(ids[:, 1:], ((0, 0), (0, 1)), constant_values=self.special.pad)
        predicted = following != self.special.pad
        return CausalInputs(
            tokens=encoder_input(ids, row_kind=self.row_kind, special=self.special),
            labels=jnp.where(predicted, following, 0),
            weights=predicted.astype(jnp.float32),
            row_seeds=row_seeds(row_keys),
        )

    def totals(self, inputs: CausalInputs) -> dict[str, Array]:
        return {"predicted": jnp.sum(inputs.weights)}

    def loss(
        self, params: decoder.Decoder, inputs: CausalInputs, totals: Mapping[str, Array], *, dropout_key: Array | None
    ) -> LossAndSums:
        randomness = None if dropout_key is None else Randomness(dropout_key, inputs.row_seeds)
        hidden = bert.encode(params, inputs.tokens, config=self.model, execution=self.execution, randomness=randomness)
        output = decoder.next_token_output(params, hidden)
        labels, weights = inputs.labels.reshape(-1), inputs.weights.reshape(-1)
        with jax.named_scope("loss"):
            sums = vocabulary_cross_entropy(output, labels, weights, execution=self.execution, vocab_size=self.vocab_size)
        loss = sums.loss / jnp.maximum(totals["predicted"], 1.0)
        return LossAndSums(loss, {"loss": sums.loss, "correct": sums.correct, "predicted": sums.weight})

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Means over predictions: loss in nats, accuracy as a fraction, perplexity per token of this vocabulary."""
        loss = ratio(sums, "loss", "predicted")
        perplexity = math.exp(loss) if loss < 700.0 else math.inf
        return {"loss": loss, "accuracy": ratio(sums, "correct", "predicted"), "perplexity": perplexity}
