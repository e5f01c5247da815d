"""BERT: an encoder with a masked-language-model head and, optionally, next-sentence prediction.

Post-norm is the published model (Devlin et al. 2019; Hugging Face's BertForPreTraining). Pre-norm has the layout of Hugging
Face's MegatronBert: no norm after the embeddings, a norm before each branch, and a final norm (Shoeybi et al. 2019, section 3).
With RoPE, gated feed-forwards, RMS norms, no biases and a plain head, pre-norm has the layout of Hugging Face's EuroBert.
ModernBERT (Warner et al. 2024) is pre-norm with a norm after the embeddings, and windowed attention in most layers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from tpulm.config import ModelConfig
from tpulm.nn.attention import rotation
from tpulm.nn.dropout import dropout, seeds_at, site_seeds, token_seeds
from tpulm.nn.layers import Activation, Dense, Norm, activation, add_bias, dense, dense_spec, norm_spec, normalize, project
from tpulm.nn.params import TruncatedNormal, param, parameters, zeros
from tpulm.nn.transformer import (
    Execution,
    Layer,
    Randomness,
    Rotations,
    apply_stack,
    has_norm_bias,
    initializers,
    layer_kind,
    stack_spec,
)

VOCABULARY_MULTIPLE = 128  # the parameters' vocabulary size is rounded up to a multiple, for even tiles and shards


@parameters
class Embeddings:
    tokens: Float[Array, "V D"]
    positions: Float[Array, "S D"] | None  # learned positions only
    types: Float[Array, "T D"] | None
    norm: Norm | None  # post-norm and ModernBERT only


@parameters
class MaskedHead:
    dense: Dense | None  # absent from a plain head, as is its norm
    norm: Norm | None
    output: Float[Array, "V D"] | None  # None: tied to embeddings.tokens
    output_bias: Float[Array, " V"] | None


@parameters
class NextSentenceHead:
    pooler: Dense
    output: Dense  # [D, 2]; class 1 is "a random second segment"


@parameters
class Encoder:
    """What `encode` needs of a model; each model adds its heads."""

    embeddings: Embeddings
    projection: Dense | None  # where embeddings are not as wide as layers
    layers: Layer  # every leaf stacked on a leading axis N
    final_norm: Norm | None  # pre-norm only


@parameters
class MaskedModel(Encoder):
    masked_head: MaskedHead


@parameters
class Bert(MaskedModel):
    next_sentence: NextSentenceHead | None


def padded_vocab_size(vocab_size: int) -> int:
    return -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def spec(config: ModelConfig, *, vocab_size: int, next_sentence: bool) -> Bert:
    """The tree of `ParamSpec`; `vocab_size` is the tokenizer's, padded here."""
    init, size = TruncatedNormal(config.initializer_range), config.hidden_size
    return Bert(
        **vars(encoder_spec(config, vocab_size=vocab_size)),
        masked_head=masked_head_spec(config, size, vocab_size=vocab_size),
        next_sentence=NextSentenceHead(
            pooler=dense_spec((size, size), ("embed", None), init, bias=config.biases),
            output=dense_spec((size, 2), (None, None), init, bias=config.biases),
        )
        if next_sentence
        else None,
    )


def encoder_spec(config: ModelConfig, *, vocab_size: int) -> Encoder:
    """The part of a model's spec below its heads."""
    init, size, width = TruncatedNormal(config.initializer_range), config.hidden_size, embedding_size(config)
    return Encoder(
        embeddings=embeddings_spec(config, width, vocab_size=vocab_size),
        projection=None if width == size else dense_spec((width, size), ("embed", None), init),
        layers=stack_spec(config),
        final_norm=None if config.norm_position == "post" else norm_spec(size, bias=has_norm_bias(config)),
    )


def embedding_size(config: ModelConfig) -> int:
    return config.embedding_size or config.hidden_size


def embeddings_spec(config: ModelConfig, size: int, *, vocab_size: int) -> Embeddings:
    init, learned = TruncatedNormal(config.initializer_range), config.positions == "learned"
    types = config.architecture != "decoder" and config.token_types > 0
    return Embeddings(
        tokens=param((padded_vocab_size(vocab_size), size), ("vocab", "embed"), init),
        positions=param((config.max_positions, size), ("positions", "embed"), init) if learned else None,
        types=param((config.token_types, size), ("types", "embed"), init) if types else None,
        norm=norm_spec(size, bias=has_norm_bias(config))
        if config.norm_position == "post" or config.architecture == "modernbert"
        else None,
    )


def masked_head_spec(config: ModelConfig, size: int, *, vocab_size: int) -> MaskedHead:
    """The head from hidden states to logits over token embeddings of `size`."""
    (init, into_stream), padded = initializers(config), padded_vocab_size(vocab_size)
    transform = config.masked_head == "transform"
    return MaskedHead(
        dense=dense_spec((config.hidden_size, size), ("embed", None), into_stream, bias=config.biases) if transform else None,
        norm=norm_spec(size, None, bias=has_norm_bias(config)) if transform else None,
        output=None if config.tied_output else param((padded, size), ("vocab", "embed"), init),
        output_bias=param((padded,), ("vocab",), zeros, decay=False)
        if config.biases or config.architecture == "modernbert"
        else None,
    )


class EncoderInput(NamedTuple):
    """The encoder's input; attention stays within `segments` (padding is -1)."""

    ids: Int[Array, "B L"]
    segments: Int[Array, "B L"]
    types: Int[Array, "B L"] | None
    positions: Int[Array, "B L"] | None  # None: 0, 1, 2, … in every row


def encode(
    params: Encoder,
    tokens: EncoderInput,
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    causal: bool | None = None,
) -> Float[Array, "B L D"]:
    """The last layer's hidden states. `causal`: tokens see only themselves and earlier ones (None: in a decoder)."""
    rows, length = tokens.ids.shape
    x, below = embed(params.embeddings, tokens, config=config, execution=execution, randomness=randomness)
    if params.projection is not None:
        x = dense(params.projection, x, dtype=execution.dtype)
    rope = rotations_of(_positions(tokens), config) if config.positions == "rotary" else None
    causal = config.architecture == "decoder" if causal is None else causal
    x = apply_stack(
        params.layers, x, tokens.segments, config=config, execution=execution, randomness=below, rope=rope, causal=causal
    )
    if params.final_norm is not None:
        x = normalize(params.final_norm, x, epsilon=config.norm_epsilon, kind=config.norm)
    return x.reshape(rows, length, -1)


def rotations_of(positions: Int[Array, "B L"], config: ModelConfig) -> Rotations:
    size = config.hidden_size // config.num_heads
    everywhere = rotation(positions, head_size=size, theta=config.rotary_theta, scaling=config.rotary_scaling)
    if config.global_every == 1:
        return Rotations(everywhere, everywhere)
    return Rotations(everywhere, rotation(positions, head_size=size, theta=config.local_theta))


def _positions(tokens: EncoderInput) -> Int[Array, "B L"]:
    if tokens.positions is not None:
        return tokens.positions
    return jnp.broadcast_to(jnp.arange(tokens.ids.shape[1], dtype=jnp.int32)[None, :], tokens.ids.shape)


def embed(
    params: Embeddings, tokens: EncoderInput, *, config: ModelConfig, execution: Execution, randomness: Randomness | None
) -> tuple[Float[Array, "R D"], Randomness | None]:
    """The first layer's input, after norm and dropout, and the randomness left for the layers."""
    with jax.named_scope("embed"):
        x = jnp.take(params.tokens, tokens.ids.reshape(-1), axis=0, mode="clip")
        if params.positions is not None:
            # A gather even for 0, 1, 2, …: the gradient of a broadcast is a sum over rows, which is slower on a CPU.
            x = x + jnp.take(params.positions, _positions(tokens).reshape(-1), axis=0, mode="clip")
        if params.types is not None and tokens.types is not None:
            x = x + jnp.take(params.types, tokens.types.reshape(-1), axis=0, mode="clip")
        x = x if params.norm is None else normalize(params.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        if randomness is None:
            return x.astype(execution.dtype), None
        rows, length = tokens.ids.shape
        here, below = jax.random.split(randomness.key)
        seeds = seeds_at(site_seeds(here, ()), token_seeds(randomness.rows, length), (rows * length, 1))
        x = dropout(x, rate=config.dropout, seeds=seeds)
        return x.astype(execution.dtype), Randomness(below, randomness.rows)


class Output(NamedTuple):
    """What logits over the vocabulary are made of."""

    x: Float[Array, "R D"]
    table: Float[Array, "V D"]
    bias: Float[Array, " V"] | None


def masked_activation(config: ModelConfig) -> Activation:
    """ELECTRA's is GELU whatever the layers have, as in transformers' ElectraForMaskedLM."""
    return "gelu" if config.architecture == "electra" else config.activation


def masked_output(params: MaskedModel, hidden: Float[Array, "*B D"], *, config: ModelConfig, execution: Execution) -> Output:
    head, x = params.masked_head, hidden.reshape(-1, hidden.shape[-1])
    if head.dense is not None and head.norm is not None:
        with jax.named_scope("masked_head"):
            x = activation(masked_activation(config))(dense(head.dense, x, dtype=execution.dtype))
            x = normalize(head.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
    return Output(x, params.embeddings.tokens if head.output is None else head.output, head.output_bias)


def masked_logits(
    params: MaskedModel, hidden: Float[Array, "*B D"], *, config: ModelConfig, execution: Execution, vocab_size: int
) -> Float[Array, "*B V"]:
    """Float32 logits over the padded vocabulary; entries past `vocab_size` are -1e9, so that they are never predicted."""
    output = masked_output(params, hidden, config=config, execution=execution)
    logits = vocabulary_logits(output, dtype=execution.dtype, vocab_size=vocab_size)
    return logits.reshape(*hidden.shape[:-1], -1)


def vocabulary_logits(output: Output, *, dtype: DTypeLike, vocab_size: int) -> Float[Array, "R V"]:
    """Float32 products of hidden states with all token vectors, plus the bias; -1e9 past `vocab_size`."""
    with jax.named_scope("output"):
        logits = project(output.x, output.table, dtype=dtype)
        real = jnp.arange(output.table.shape[0]) < vocab_size
        if output.bias is None:
            return jnp.where(real[None, :], logits, jnp.float32(-1e9))
        return add_bias(logits, jnp.where(real, output.bias, jnp.float32(-1e9)))


def next_sentence_logits(
    params: NextSentenceHead, hidden: Float[Array, "B L D"], *, execution: Execution
) -> Float[Array, "B 2"]:
    """Float32 logits; class 1 means that the second segment is a random one."""
    with jax.named_scope("next_sentence_head"):
        pooled = jnp.tanh(dense(params.pooler, hidden[:, 0], dtype=execution.dtype))
        return dense(params.output, pooled, dtype=execution.dtype).astype(jnp.float32)


def forward_flops(
    config: ModelConfig, *, sequence_length: int, predictions: int, vocab_size: int, next_sentence: bool
) -> float:
    """FLOPs of the matrix products in one row's forward pass (a multiply-add is two); the head sees `predictions` positions."""
    size, inner, length = config.hidden_size, config.intermediate_size, sequence_length
    matrices = 3 if config.feed_forward == "gated" else 2
    projections = 2 * length * (4 * size * size + matrices * size * inner)
    window = min(length, config.local_window + 1)
    local = sum(layer_kind(number, config, causal=False).is_local for number in range(config.num_layers))
    scores_and_mixing = 2 * 2 * length * size * (local * window + (config.num_layers - local) * length)
    transform = size * size if config.architecture != "decoder" and config.masked_head == "transform" else 0
    head = 2 * predictions * (transform + size * vocab_size)
    pooler = 2 * (size * size + 2 * size) if next_sentence else 0
    return float(config.num_layers * projections + scores_and_mixing + head + pooler)
