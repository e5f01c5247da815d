"""Masked language modelling, with next-sentence prediction where the rows are made for it (Devlin et al. 2019)."""

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
from jaxtyping import Float, Int

from tpulm.models import bert
from tpulm.nn.dropout import row_seeds
from tpulm.nn.transformer import Randomness
from tpulm.objectives.interface import Column, LossAndSums, Setup, ratio
from tpulm.objectives.losses import cross_entropy, vocabulary_cross_entropy
from tpulm.objectives.masking import MaskedRows, MaskingConfig, mask_rows, masking_config
from tpulm.objectives.rows import encoder_input


class MaskedInputs(NamedTuple):
    tokens: bert.EncoderInput
    predicted: Int[Array, "B P"]  # positions
    labels: Int[Array, "B P"]
    weights: Float[Array, "B P"]
    row_weights: Float[Array, " B"]  # 0 for a row that is all padding
    next_sentence: Int[Array, " B"] | None
    row_seeds: Array  # uint32 [B, 2], for dropout


@dataclass(frozen=True)
class MaskedLanguageModel(Setup):
    """The loss is the mean over all predictions of the global batch, plus the mean over its rows of the next-sentence loss."""

    causal: ClassVar[bool] = False  # True: a token does not see later ones

    @cached_property
    def spec(self) -> bert.Bert:
        return bert.spec(self.model, vocab_size=self.vocab_size, next_sentence=self.next_sentence)

    @cached_property
    def masking(self) -> MaskingConfig:
        return masking_config(
            self.model.architecture,
            self.objective,
            sequence_length=self.sequence_length,
            vocab_size=self.vocab_size,
            special=self.special,
            evaluation=self.evaluation,
        )

    @property
    def columns(self) -> dict[str, Column]:
        result = {"next_sentence": Column((), jnp.int8)} if self.next_sentence else {}
        if self.masking.whole_words:
            result["word_start"] = Column((self.sequence_length,), jnp.int8, of_tokens=lambda made: made.word_starts())
        return result

    @property
    def predictions(self) -> int:
        """The most tokens predicted per row, P."""
        return self.masking.max_predictions

    @property
    def flops_per_row(self) -> float:
        return self.flops(self.predictions)

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> MaskedInputs:
        ids = batch["tokens"].astype(jnp.int32)
        tokens = encoder_input(ids, row_kind=self.row_kind, special=self.special)
        keys = jax.vmap(lambda key: jax.random.split(key, 2))(row_keys)
        masked = self.masked(ids, tokens.segments, keys[:, 0], batch)
        return MaskedInputs(
            tokens=tokens._replace(ids=masked.ids),
            predicted=masked.positions,
            labels=masked.labels,
            weights=masked.weights,
            row_weights=jnp.any(ids != self.special.pad, axis=1).astype(jnp.float32),
            next_sentence=batch["next_sentence"].astype(jnp.int32) if self.next_sentence else None,
            row_seeds=row_seeds(keys[:, 1]),
        )

    def masked(
        self, ids: Int[Array, "B L"], segments: Int[Array, "B L"], keys: Array, batch: Mapping[str, Array]
    ) -> MaskedRows:
        """The rows that the model sees, and what it predicts in them."""
        return mask_rows(ids, keys, self.masking, word_start=batch["word_start"] if self.masking.whole_words else None)

    def totals(self, inputs: MaskedInputs) -> dict[str, Array]:
        return {"mlm": jnp.sum(inputs.weights), "next_sentence": jnp.sum(inputs.row_weights)}

    def loss(
        self, params: bert.Bert, inputs: MaskedInputs, totals: Mapping[str, Array], *, dropout_key: Array | None
    ) -> LossAndSums:
        randomness = None if dropout_key is None else Randomness(dropout_key, inputs.row_seeds)
        hidden = bert.encode(
            params, inputs.tokens, config=self.model, execution=self.execution, randomness=randomness, causal=self.causal
        )
        with jax.named_scope("gather"):
            chosen = jnp.take_along_axis(hidden, inputs.predicted[:, :, None], axis=1, mode="clip")
            chosen = chosen.reshape(-1, chosen.shape[-1])
        output = bert.masked_output(params, chosen, config=self.model, execution=self.execution)
        labels, weights = inputs.labels.reshape(-1), inputs.weights.reshape(-1)
        with jax.named_scope("loss"):
            masked = vocabulary_cross_entropy(output, labels, weights, execution=self.execution, vocab_size=self.vocab_size)
            loss = masked.loss / jnp.maximum(totals["mlm"], 1.0)
            sums = {"mlm_loss": masked.loss, "mlm_correct": masked.correct, "mlm_weight": masked.weight}
        if params.next_sentence is not None and inputs.next_sentence is not None:
            logits = bert.next_sentence_logits(params.next_sentence, hidden, execution=self.execution)
            pairs = cross_entropy(logits, inputs.next_sentence, inputs.row_weights)
            loss = loss + pairs.loss / jnp.maximum(totals["next_sentence"], 1.0)
            sums |= {
                "next_sentence_loss": pairs.loss,
                "next_sentence_correct": pairs.correct,
                "next_sentence_weight": pairs.weight,
            }
        return LossAndSums(loss, sums)

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Mean losses in nats and accuracies as fractions; 0 where there was nothing to predict."""
        result = {
            "mlm_loss": ratio(sums, "mlm_loss", "mlm_weight"),
            "mlm_accuracy": ratio(sums, "mlm_correct", "mlm_weight"),
        }
        loss = result["mlm_loss"]
        if self.next_sentence:
            result["next_sentence_loss"] = ratio(sums, "next_sentence_loss", "next_sentence_weight")
            result["next_sentence_accuracy"] = ratio(sums, "next_sentence_correct", "next_sentence_weight")
            loss += result["next_sentence_loss"]
        return {"loss": loss, **result}


@dataclass(frozen=True)
class NextTokenOfEncoder(MaskedLanguageModel):
    """An encoder that predicts each token from those before it in its text, for a phase before masked training: better than
    masking alone on a short budget (Gisserot-Boukhlef et al. 2025, arXiv 2507.00994). [CLS] is never predicted.

    Parameters and sums are the masked objective's, so that a run can switch from one to the other.
    """

    causal: ClassVar[bool] = True

    @property
    def columns(self) -> dict[str, Column]:
        return {}

    @property
    def predictions(self) -> int:
        return self.sequence_length

    def masked(
        self, ids: Int[Array, "B L"], segments: Int[Array, "B L"], keys: Array, batch: Mapping[str, Array]
    ) -> MaskedRows:
        """The rows unmasked."""
        predicts = jnp.pad((segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] >= 0), ((0, 0), (0, 1)))
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1], dtype=jnp.int32)[None, :], ids.shape)
        return MaskedRows(ids, positions, jnp.where(predicts, jnp.roll(ids, -1, axis=1), 0), predicts.astype(jnp.float32))

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Loss and accuracy, under the causal objective's names."""
        result = super().metrics(sums)
        return {"loss": result["loss"], "accuracy": result["mlm_accuracy"]}
