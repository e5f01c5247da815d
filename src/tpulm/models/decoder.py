"""A causal language model: a pre-norm Transformer in which a token sees itself and the tokens before it in its segment.

With learned positions, layer norms and biases it has the layout of Hugging Face's GPT2LMHeadModel (Radford et al. 2019); with
RoPE, RMS norms, gated feed-forwards and no biases, that of LlamaForCausalLM (Touvron et al. 2023).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from tpulm.config import ModelConfig
from tpulm.models.bert import (
    Encoder,
    EncoderInput,
    Output,
    embed,
    encoder_spec,
    padded_vocab_size,
    rotations_of,
    vocabulary_logits,
)
from tpulm.nn.attention import attend_to_cache
from tpulm.nn.layers import Norm, normalize
from tpulm.nn.params import TruncatedNormal, param, parameters
from tpulm.nn.transformer import Execution, Layer, feed_forward


@parameters
class Decoder(Encoder):
    final_norm: Norm
    output: Float[Array, "V D"] | None  # None: tied to embeddings.tokens


def spec(config: ModelConfig, *, vocab_size: int) -> Decoder:
    """The tree of `ParamSpec`; `vocab_size` is the tokenizer's, padded here."""
    init, size = TruncatedNormal(config.initializer_range), config.hidden_size
    untied = param((padded_vocab_size(vocab_size), size), ("vocab", "embed"), init)
    return Decoder(
        **vars(encoder_spec(config, vocab_size=vocab_size)),
        output=None if config.tied_output else untied,
    )


def next_token_output(params: Decoder, hidden: Float[Array, "*B D"]) -> Output:
    table = params.embeddings.tokens if params.output is None else params.output
    return Output(hidden.reshape(-1, hidden.shape[-1]), table, None)


def next_token_logits(
    params: Decoder, hidden: Float[Array, "*B D"], *, execution: Execution, vocab_size: int
) -> Float[Array, "*B V"]:
    """Float32 logits over the padded vocabulary; entries past `vocab_size` are -1e9, so that they are never predicted."""
    logits = vocabulary_logits(next_token_output(params, hidden), dtype=execution.dtype, vocab_size=vocab_size)
    return logits.reshape(*hidden.shape[:-1], -1)


class Cache(NamedTuple):
    """Keys and values of positions 0 to M - 1 of each of B rows, by layer."""

    keys: tuple[Float[Array, "B H M K"], ...]
    values: tuple[Float[Array, "B H M K"], ...]


def empty_cache(config: ModelConfig, *, rows: int, places: int, execution: Execution) -> Cache:
    shape = (rows, config.num_heads, places, config.hidden_size // config.num_heads)
    keys, values = (tuple(jnp.zeros(shape, execution.dtype) for _ in range(config.num_layers)) for _ in range(2))
    return Cache(keys, values)


class Unstacked(NamedTuple):
    """A decoder with separate arrays for each layer: reading one layer for one token slices, and so copies, nothing."""

    decoder: Decoder  # its layers are empty
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, params: Decoder) -> Unstacked:
        leaves, structure = jax.tree.flatten(params.layers)
        layers = tuple(jax.tree.unflatten(structure, own) for own in zip(*leaves, strict=True))
        return cls(replace(params, layers=jax.tree.map(lambda leaf: leaf[:0], params.layers)), layers)


def extend(
    params: Unstacked,
    ids: Int[Array, "B L"],
    positions: Int[Array, "B L"],
    cache: Cache,
    *,
    config: ModelConfig,
    execution: Execution,
) -> tuple[Float[Array, "B L D"], Cache]:
    """The last layer's hidden states of tokens that follow those in the cache, and the cache with these tokens added.

    A token sees all positions up to its own. Rows may be at different positions: an entry written too early (by padding on a
    row's right) is overwritten before any token attends to it.
    """
    rows, length = ids.shape
    tokens = EncoderInput(ids, jnp.zeros_like(ids), None, positions)
    x, _ = embed(params.decoder.embeddings, tokens, config=config, execution=execution, randomness=None)
    rope = rotations_of(positions, config).everywhere if config.positions == "rotary" else None
    grown = list[tuple[Array, Array]]()
    for layer, *own in zip(params.layers, *cache, strict=True):
        branch = normalize(layer.attention_norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        attended = attend_to_cache(layer.attention, branch, positions, (own[0], own[1]), dtype=execution.dtype, rope=rope)
        grown.append((attended.keys, attended.values))
        x = x + attended.x
        branch = normalize(layer.feed_forward_norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        x = x + feed_forward(layer, branch, config=config, dtype=execution.dtype)
    x = normalize(params.decoder.final_norm, x, epsilon=config.norm_epsilon, kind=config.norm)
    keys, values = zip(*grown, strict=True)
    return x.reshape(rows, length, -1), Cache(keys, values)
