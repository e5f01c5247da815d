"""Cross-entropy in float32, as sums that add up over rows, micro-batches and devices."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownMemberType=false
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


class WeightedSums(NamedTuple):
    """Float32 scalars, summed over all entries: negative log-likelihood in nats, right predictions (both weighted), weights."""

    loss: Array
    correct: Array
    weight: Array


def cross_entropy(logits: Float[Array, "*B V"], labels: Int[Array, "*B"], weights: Float[Array, "*B"]) -> WeightedSums:
    """Sums of the cross-entropy. A prediction is right when no logit exceeds the label's.

    The label's logit is selected by comparing with an iota, not by a gather: that fuses with the reductions, its gradient
    needs no scatter, and it stays local where the vocabulary is sharded over devices.
    """
    logits = logits.astype(jnp.float32)
    classes = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    highest = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    shifted = logits - highest[..., None]
    log_normalizer = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
    label_logit = jnp.sum(jnp.where(classes == labels[..., None], shifted, jnp.float32(0.0)), axis=-1)
    right = (label_logit >= 0.0).astype(jnp.float32)
    return WeightedSums(
        loss=jnp.sum((log_normalizer - label_logit) * weights), correct=jnp.sum(right * weights), weight=jnp.sum(weights)
    )
