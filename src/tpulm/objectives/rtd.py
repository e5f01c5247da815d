"""Replaced-token detection (ELECTRA): a generator fills in masked tokens, a discriminator detects which were replaced.

The rules, after Clark et al. 2020 and google-research/electra:

- Masked positions are drawn as for BERT (masking.py): 15 % of a row's tokens, never [CLS] or [SEP]. The authors draw with
  replacement, so that about 93 % of theirs are distinct; here all are. 85 % of them become [MASK], 15 % are kept.
- The generator's samples (temperature 1, float32, no gradient through them) replace all chosen tokens, including those that
  were kept. A token counts as replaced where the sample differs from the original.
- The discriminator judges every token but padding. loss = generator_weight * masked loss + discriminator_weight * detection
  loss, 1 and 50, each a mean over the global batch; the authors average over each replica.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from tpulm.models import bert, electra
from tpulm.nn.transformer import Randomness
from tpulm.objectives.interface import LossAndSums, ratio
from tpulm.objectives.losses import cross_entropy
from tpulm.objectives.mlm import MaskedInputs, MaskedLanguageModel

_BINS, _WIDEST_LOGIT = 256, 16.0  # of the score histogram; scores in one bin (1/8 wide) or beyond the limits are ties


class DetectionInputs(NamedTuple):
    masked: MaskedInputs
    originals: Int[Array, "B L"]
    sample_keys: Array  # uint32 [B, 2], a threefry key per row
    weights: Float[Array, "B L"]  # 0 for padding


@dataclass(frozen=True)
class ReplacedTokenDetection(MaskedLanguageModel):
    """The generator is trained as a masked language model: same rows, same masks, same metrics."""

    @cached_property
    def spec(self) -> electra.Electra:  # pyright: ignore[reportIncompatibleVariableOverride]
        return electra.spec(self.model, vocab_size=self.vocab_size)

    @property
    def flops_per_row(self) -> float:
        return 3.0 * electra.forward_flops_of_both(
            self.model,
            sequence_length=self.sequence_length,
            predictions=self.masking.max_predictions,
            vocab_size=self.vocab_size,
        )

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> DetectionInputs:  # pyright: ignore
        originals = batch["tokens"].astype(jnp.int32)
        sample_keys = jax.vmap(lambda key: jax.random.key_data(jax.random.fold_in(key, 2)))(row_keys)
        weights = (originals != self.special.pad).astype(jnp.float32)
        return DetectionInputs(super().make_inputs(batch, row_keys), originals, sample_keys, weights)

    def totals(self, inputs: DetectionInputs) -> dict[str, Array]:  # pyright: ignore
        return {"mlm": jnp.sum(inputs.masked.weights), "detection": jnp.sum(inputs.weights)}

    def loss(  # pyright: ignore
        self, params: electra.Electra, inputs: DetectionInputs, totals: Mapping[str, Array], *, dropout_key: Array | None
    ) -> LossAndSums:
        both = electra.halves(params)
        generator_key, discriminator_key = (None, None) if dropout_key is None else jax.random.split(dropout_key, 2)
        with jax.named_scope("generator"):
            masked, samples = self._generate(both.generator, inputs, generator_key)
        with jax.named_scope("discriminator"):
            ids = self._replace(inputs, samples)
            tokens = inputs.masked.tokens._replace(ids=ids)
            randomness = _randomness(discriminator_key, inputs.masked)
            hidden = bert.encode(both.discriminator, tokens, config=self.model, execution=self.execution, randomness=randomness)
            head = both.discriminator.detection_head
            logits = electra.replaced_logits(head, hidden, config=self.model, execution=self.execution)
            detection = _detection_sums(logits, ids != inputs.originals, inputs.weights)
        loss = self.objective.generator_weight * masked.loss / jnp.maximum(totals["mlm"], 1.0)
        loss = loss + self.objective.discriminator_weight * detection["detection_loss"] / jnp.maximum(totals["detection"], 1.0)
        sums = {"mlm_loss": masked.loss, "mlm_correct": masked.correct, "mlm_weight": masked.weight}
        return LossAndSums(loss, {**sums, **detection})

    def label_counts(self, inputs: DetectionInputs) -> Array:
        return super().label_counts(inputs.masked)

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The masked objective's metrics, and detection loss, accuracy, AUC, and precision and recall of "replaced"."""
        masked = super().metrics(sums)
        result = {
            "detection_loss": ratio(sums, "detection_loss", "detection_weight"),
            "detection_accuracy": ratio(sums, "detection_correct", "detection_weight"),
            "detection_auc": _area_under_curve(np.asarray(sums["replaced_scores"]), np.asarray(sums["original_scores"])),
            "detection_precision": ratio(sums, "replaced_found", "replaced_called"),
            "detection_recall": ratio(sums, "replaced_found", "replaced"),
            "replaced_fraction": ratio(sums, "replaced", "detection_weight"),
        }
        weights = self.objective
        loss = weights.generator_weight * masked["mlm_loss"] + weights.discriminator_weight * result["detection_loss"]
        return {**masked, **result, "loss": loss}

    def _generate(self, generator: electra.Generator, inputs: DetectionInputs, key: Array | None) -> tuple[Any, Array]:
        """The sums of the masked loss, and a sampled token for each predicted position [B, P]."""
        model, masked = electra.generator_config(self.model), inputs.masked
        hidden = bert.encode(
            generator, masked.tokens, config=model, execution=self.execution, randomness=_randomness(key, masked)
        )
        chosen = jnp.take_along_axis(hidden, masked.predicted[:, :, None], axis=1, mode="clip")
        logits = bert.masked_logits(generator, chosen, config=model, execution=self.execution, vocab_size=self.vocab_size)
        keys = jax.random.wrap_key_data(inputs.sample_keys, impl="threefry2x32")
        samples = sample_tokens(logits, keys, temperature=self.objective.temperature)
        return cross_entropy(logits, masked.labels, masked.weights), samples

    def _replace(self, inputs: DetectionInputs, samples: Int[Array, "B P"]) -> Int[Array, "B L"]:
        """The original rows with the samples at the predicted positions."""
        masked = inputs.masked
        places = jnp.where(masked.weights > 0, masked.predicted, inputs.originals.shape[1])
        return jax.vmap(lambda row, place, sample: row.at[place].set(sample, mode="drop"))(inputs.originals, places, samples)


def _randomness(key: Array | None, masked: MaskedInputs) -> Randomness | None:
    return None if key is None else Randomness(key, masked.row_seeds)


def _detection_sums(
    logits: Float[Array, "B L"], replaced: Array, weights: Float[Array, "B L"]
) -> dict[str, Float[Array, "..."]]:
    """Sums of binary cross-entropy (nats) and right judgements, and all that precision, recall and AUC need."""
    truth = replaced.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - truth * logits
    called = (logits > 0).astype(jnp.float32)
    scores = jax.lax.stop_gradient(logits)
    position = (jnp.clip(scores / _WIDEST_LOGIT, -1.0, 1.0) + 1.0) * (0.5 * (_BINS - 1))
    bins = jax.nn.one_hot(jnp.round(position).astype(jnp.int32).reshape(-1), _BINS, dtype=jnp.float32)

    def histogram(counted: Array) -> Array:
        return jnp.matmul(counted.reshape(1, -1), bins, precision=jax.lax.Precision.HIGHEST)[0]

    return {
        "detection_loss": jnp.sum(losses * weights),
        "detection_correct": jnp.sum((called == truth).astype(jnp.float32) * weights),
        "detection_weight": jnp.sum(weights),
        "replaced": jnp.sum(truth * weights),
        "replaced_called": jnp.sum(called * weights),
        "replaced_found": jnp.sum(called * truth * weights),
        "replaced_scores": histogram(truth * weights),
        "original_scores": histogram((1.0 - truth) * weights),
    }


def _area_under_curve(positive: np.ndarray, negative: np.ndarray) -> float:
    """The probability that a replaced token scores above an original one, ties counted half; 0.5 where either is missing."""
    pairs = float(positive.sum()) * float(negative.sum())
    if not pairs:
        return 0.5
    below = np.concatenate([[0.0], np.cumsum(negative, dtype=np.float64)[:-1]])
    return float(np.sum(positive * (below + 0.5 * negative)) / pairs)


_BLOCK = 128  # tokens; divides the padded vocabulary size


def sample_tokens(logits: Float[Array, "B P V"], keys: Array, *, temperature: float = 1.0) -> Int[Array, "B P"]:
    """A token for each position, drawn with probability softmax(logits / temperature); `keys` are one per row [B].

    Everything is float32. First a block of 128 tokens is drawn by its probability, then a token within it, each with a separate
    uniform number, so that the rarest tokens are drawn with the resolution of their block. A token of probability 0 is never
    drawn. V must be a multiple of 128. There is no gradient.

    Inverting the distribution function takes one exponential per logit and two uniforms per draw. The Gumbel trick takes a
    random number and two logarithms per logit, and makes ELECTRA-small's whole step 1.18 times as long on a CPU
    (docs/experiments.md). The distribution is the same.
    """
    logits = jax.lax.stop_gradient(logits.astype(jnp.float32)) / jnp.float32(temperature)
    rows, predictions, size = logits.shape
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (predictions, 2), jnp.float32))(keys)
    weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    blocks = weights.reshape(rows, predictions, size // _BLOCK, _BLOCK)
    block = _draw(jnp.sum(blocks, axis=-1), uniforms[..., 0])
    within = jnp.take_along_axis(blocks, block[..., None, None], axis=2)[:, :, 0]
    return block * _BLOCK + _draw(within, uniforms[..., 1])


def _draw(weights: Float[Array, "B P N"], uniform: Float[Array, "B P"]) -> Int[Array, "B P"]:
    """The first index whose cumulative weight exceeds uniform * total."""
    cumulated = jnp.cumsum(weights, axis=-1)
    total = cumulated[..., -1]
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.float32(0.0)))
    return jnp.sum((cumulated <= target[..., None]).astype(jnp.int32), axis=-1)
