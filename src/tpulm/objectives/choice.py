"""Multiple choice, from rows `[CLS] question [SEP] choice [SEP]`, with the rows of a question kept together."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.models import bert
from tpulm.nn.dropout import row_seeds
from tpulm.nn.transformer import Randomness
from tpulm.objectives.classification import Classification, LabelledInputs
from tpulm.objectives.losses import cross_entropy
from tpulm.objectives.rows import encoder_input


@dataclass(frozen=True)
class MultipleChoice(Classification):
    """Each row has one logit; the loss is the cross-entropy in nats over the rows of a question.

    Training batches have tokens [B, G, L], G rows per question; a question with fewer choices has rows of padding, which are
    masked out. For prediction, rows are scored one by one.
    """

    label_dtype = jnp.int32
    grouped_rows = True

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> LabelledInputs:
        questions, choices, length = batch["tokens"].shape
        ids = batch["tokens"].astype(jnp.int32).reshape(-1, length)
        tokens = encoder_input(ids, row_kind="segments", special=self.special)
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
        entropy = cross_entropy(logits, inputs.labels, inputs.weights)
        return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}
