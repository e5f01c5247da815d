"""Drawing tokens from logits, cheaply enough to do it at every masked position of every step.

Inverting the distribution function takes one exponential a logit and two uniforms a draw. The Gumbel trick takes a random
number and two logarithms a logit, and with it ELECTRA-small's whole step takes 1.18 times as long on a CPU
(docs/experiments.md). The law is the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

_BLOCK = 128  # of the vocabulary, whose padded size is a multiple


def sample_tokens(logits: Float[Array, "B P V"], keys: Array, *, temperature: float = 1.0) -> Int[Array, "B P"]:
    """A token for each position, drawn with probability softmax(logits / temperature), from the keys of the rows [B].

    Everything is float32. First a block of 128 tokens is drawn by its probability, then a token within it, each with a uniform
    of its own: so the rarest tokens are drawn with the resolution of their block. A token of probability 0 is never drawn. V
    must be a multiple of 128. Gradients do not pass.
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
    """The first index whose cumulated weight exceeds uniform * total."""
    cumulated = jnp.cumsum(weights, axis=-1)
    total = cumulated[..., -1]
    target = jnp.minimum(uniform * total, jnp.nextafter(total, jnp.float32(0.0)))
    return jnp.sum((cumulated <= target[..., None]).astype(jnp.int32), axis=-1)
