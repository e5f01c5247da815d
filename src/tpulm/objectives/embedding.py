"""Text embeddings, learned from scored pairs, or contrastively from texts that belong together."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from tpulm.models import bert, classifier, embedding
from tpulm.nn.dropout import row_seeds
from tpulm.nn.transformer import Randomness
from tpulm.objectives.classification import Classification, LabelledInputs
from tpulm.objectives.losses import cross_entropy
from tpulm.objectives.rows import encoder_input

SCALE = 20.0  # factor of the cosines in both losses, as in sentence-transformers


@dataclass(frozen=True)
class Embedding(Classification):
    """Rows are `[CLS] A [SEP]`, or several such texts packed together, which do not attend to each other.

    The losses compare the rows of a batch with each other; with gradient accumulation, only those of one micro-batch.
    """

    pooling: classifier.Pooling = "mean"
    normalized: bool = True

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.texts, self.model.hidden_size)

    @cached_property
    def spec(self) -> Any:
        return embedding.spec(self.model, vocab_size=self.vocab_size)

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> LabelledInputs:
        return LabelledInputs(self._described(batch["tokens"]), batch["labels"], batch["weights"], row_seeds(row_keys))

    def outputs(self, params: Any, tokens: Int[Array, "B L"]) -> Float[Array, "B E D"]:
        return self.apply(params, self._described(tokens), None)

    def _described(self, tokens: Int[Array, "B L"]) -> bert.EncoderInput:
        return encoder_input(tokens.astype(jnp.int32), row_kind="packed", special=self.special)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "B E D"]:
        settings: Any = {"config": self.model, "execution": self.execution, "normalized": self.normalized}
        return embedding.vectors(params, tokens, texts=self.texts, pooling=self.pooling, randomness=randomness, **settings)


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
        entropy = cross_entropy(logits, rows, inputs.weights)
        return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}
