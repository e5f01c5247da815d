"""An encoder with pooling: one vector per text, as in sentence-transformers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.config import ModelConfig
from tpulm.models import classifier
from tpulm.models.bert import Encoder, EncoderInput, encode
from tpulm.models.classifier import Pooling
from tpulm.nn.params import parameters
from tpulm.nn.transformer import Execution, Randomness


@parameters
class TextEncoder(Encoder):
    """An encoder without a head."""


def without_head(params: Encoder) -> TextEncoder:
    """The encoder of a model, or of its spec."""
    return TextEncoder(params.embeddings, params.projection, params.layers, params.final_norm)


def spec(config: ModelConfig, *, vocab_size: int) -> TextEncoder:
    """The tree of `ParamSpec`."""
    return without_head(classifier.spec(config, vocab_size=vocab_size, num_outputs=1))


def vectors(
    params: TextEncoder,
    tokens: EncoderInput,
    *,
    texts: int,
    pooling: Pooling,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    normalized: bool = True,
) -> Float[Array, "B E D"]:
    """Float32 vectors of the texts of rows with up to E = `texts` texts, their segments 0, 1, …; zeros for missing texts.

    normalized: of length 1; mean: over all tokens of a text, special tokens included; cls: its first token.
    """
    hidden = encode(params, tokens, config=config, execution=execution, randomness=randomness).astype(jnp.float32)
    with jax.named_scope("pool"):
        own = tokens.segments[:, None, :] == jnp.arange(texts, dtype=jnp.int32)[None, :, None]
        if pooling == "cls":
            assert tokens.positions is not None
            own = own & (tokens.positions == 0)[:, None, :]
        weights = own.astype(jnp.float32)
        pooled = jnp.einsum("bel,bld->bed", weights, hidden) / jnp.maximum(weights.sum(axis=2, keepdims=True), 1.0)
        if not normalized:
            return pooled
        return pooled * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(pooled), axis=2, keepdims=True), jnp.float32(1e-24)))
