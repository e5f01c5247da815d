"""An encoder with a head on [CLS], for sequence classification or regression, or on every token, for token classification,
or with pooling, for one vector per text; and a causal model with a head on a text's last token.

Sequence heads are those of transformers' …ForSequenceClassification. BERT and Megatron: dropout of tanh(dense), then a linear
map (Devlin et al. 2019, section 4.1). ELECTRA: dropout before the dense layer too, and the erf GELU (Google's code has no dense
layer there). EuroBERT: the erf GELU and no dropout. ModernBERT: the dense layer and norm of its masked head, without biases,
then dropout. The latter two may see the mean of all tokens instead of [CLS]. Llama and GPT-2: a linear map without a bias, of
the last token, which alone has seen the whole text.

Token heads are those of …ForTokenClassification: dropout and a linear map; EuroBERT has no dropout, ModernBERT the dense layer
and norm first. …ForQuestionAnswering has the same head with two outputs, and dropout in ModernBERT only; …ForMultipleChoice has
the sequence head with one output. A text's vector is pooled as in sentence-transformers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from tpulm.config import ModelConfig
from tpulm.models.bert import Encoder, EncoderInput, encode, encoder_spec
from tpulm.nn.dropout import DropoutSeeds, dropout, seeds_at, site_seeds, token_seeds
from tpulm.nn.layers import Dense, Norm, activation, dense, dense_spec, norm_spec, normalize
from tpulm.nn.params import TruncatedNormal, parameters
from tpulm.nn.transformer import Execution, Randomness, initializers

Pooling = Literal["mean", "cls"]  # of hidden states: their mean, or the first one
HeadKind = Literal["bert", "electra", "eurobert", "modernbert"]


@parameters
class ClassificationHead:
    dense: Dense | None  # [D, D]; BERT calls it the pooler; None: a causal model's
    norm: Norm | None  # ModernBERT only
    output: Dense  # [D, C]


@parameters
class SequenceClassifier(Encoder):
    classification_head: ClassificationHead


@parameters
class TokenHead:
    dense: Dense | None  # [D, D]; ModernBERT only, like the norm
    norm: Norm | None
    output: Dense  # [D, C]


@parameters
class TokenClassifier(Encoder):
    token_head: TokenHead


class _Head(NamedTuple):
    """What a kind of head does between [CLS] and the last linear map."""

    activation: Literal["tanh", "gelu"] | None  # None: the model's
    dropout_before: bool
    dropout_after: bool


HEADS: dict[HeadKind, _Head] = {
    "bert": _Head("tanh", False, True),
    "electra": _Head("gelu", True, True),
    "eurobert": _Head("gelu", False, False),
    "modernbert": _Head(None, False, True),
}


def head_kind(config: ModelConfig) -> HeadKind:
    if config.architecture in ("electra", "modernbert"):
        return config.architecture
    return "eurobert" if config.masked_head == "plain" else "bert"


def spec(config: ModelConfig, *, vocab_size: int, num_outputs: int) -> SequenceClassifier:
    """The tree of `ParamSpec`; `num_outputs` is C, 1 for a regression."""
    head = head_spec(config, num_outputs=num_outputs)
    return SequenceClassifier(**vars(encoder_spec(config, vocab_size=vocab_size)), classification_head=head)


def head_spec(config: ModelConfig, *, num_outputs: int) -> ClassificationHead:
    """The head's spec. It has biases even if the encoder has none, as in all of transformers' classes but ModernBERT's, where
    only the output has a bias and is initialized with standard deviation D ** -0.5, and in causal models', which have none."""
    init, size = TruncatedNormal(config.initializer_range), config.hidden_size
    if config.architecture == "decoder":
        return ClassificationHead(None, None, dense_spec((size, num_outputs), (None, None), init, bias=False))
    modern = config.architecture == "modernbert"
    return ClassificationHead(
        dense=dense_spec((size, size), ("embed", None), initializers(config)[1], bias=not modern),
        norm=norm_spec(size, None, bias=False) if modern else None,
        output=dense_spec((size, num_outputs), (None, None), TruncatedNormal(size**-0.5) if modern else init),
    )


def logits(
    params: SequenceClassifier,
    tokens: EncoderInput,
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    pooling: Pooling = "cls",
) -> Float[Array, "B C"]:
    """Float32 logits; for a regression, the predicted number ([B, 1])."""
    below = None if randomness is None else Randomness(jax.random.fold_in(randomness.key, 0), randomness.rows)
    hidden = encode(params, tokens, config=config, execution=execution, randomness=below)
    with jax.named_scope("classification_head"):
        head, real = params.classification_head, tokens.segments >= 0
        if head.dense is None:
            last = jnp.max(jnp.where(real, jnp.arange(real.shape[1], dtype=jnp.int32), 0), axis=1)
            x = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
            return dense(head.output, x, dtype=execution.dtype).astype(jnp.float32)
        kind = HEADS[head_kind(config)]
        x = hidden[:, 0] if pooling == "cls" else _mean(hidden, real)
        act = jnp.tanh if kind.activation == "tanh" else activation(kind.activation or config.activation)
        first, second = _dropout_seeds(randomness, x.shape[0])
        x = dropout(x, rate=config.dropout, seeds=first) if kind.dropout_before else x
        x = act(dense(head.dense, x, dtype=execution.dtype))
        x = x if head.norm is None else normalize(head.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        x = dropout(x, rate=config.dropout, seeds=second) if kind.dropout_after else x
        return dense(head.output, x, dtype=execution.dtype).astype(jnp.float32)


def _mean(hidden: Float[Array, "B L D"], real: Bool[Array, "B L"]) -> Float[Array, "B D"]:
    weights = real.astype(jnp.float32)[:, :, None]
    return ((hidden.astype(jnp.float32) * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1.0)).astype(hidden.dtype)


def token_spec(config: ModelConfig, *, vocab_size: int, num_outputs: int) -> TokenClassifier:
    """The tree of `ParamSpec` of a token classifier; `num_outputs` is C."""
    head, modern = head_spec(config, num_outputs=num_outputs), config.architecture == "modernbert"
    own = TokenHead(head.dense if modern else None, head.norm, head.output)
    return TokenClassifier(**vars(encoder_spec(config, vocab_size=vocab_size)), token_head=own)


def token_logits(
    params: TokenClassifier,
    tokens: EncoderInput,
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    drop: bool = True,
) -> Float[Array, "B L C"]:
    """Float32 logits of each token; without `drop`, no dropout is applied to the last hidden states."""
    below = None if randomness is None else Randomness(jax.random.fold_in(randomness.key, 0), randomness.rows)
    hidden = encode(params, tokens, config=config, execution=execution, randomness=below)
    with jax.named_scope("token_head"):
        rows, length, size = hidden.shape
        head, x = params.token_head, hidden.reshape(-1, size)
        if head.dense is not None:
            x = activation(config.activation)(dense(head.dense, x, dtype=execution.dtype))
        x = x if head.norm is None else normalize(head.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        if drop and randomness is not None and head_kind(config) != "eurobert":
            site = site_seeds(jax.random.fold_in(randomness.key, 1), ())
            seeds = seeds_at(site, token_seeds(randomness.rows, length), (rows * length, 1))
            x = dropout(x, rate=config.dropout, seeds=seeds)
        return dense(head.output, x, dtype=execution.dtype).astype(jnp.float32).reshape(rows, length, -1)


def _dropout_seeds(randomness: Randomness | None, rows: int) -> tuple[DropoutSeeds | None, ...]:
    """The seeds of the head's two dropout sites, for [B, D]."""
    if randomness is None:
        return None, None
    sites = site_seeds(jax.random.fold_in(randomness.key, 1), (2,))
    return tuple(seeds_at(sites[place], randomness.rows, (rows, 1)) for place in range(2))


@parameters
class TextEncoder(Encoder):
    """An encoder without a head."""


def without_head(params: Encoder) -> TextEncoder:
    """The encoder of a model, or of its spec."""
    return TextEncoder(params.embeddings, params.projection, params.layers, params.final_norm)


def text_encoder_spec(config: ModelConfig, *, vocab_size: int) -> TextEncoder:
    """The tree of `ParamSpec`."""
    return without_head(encoder_spec(config, vocab_size=vocab_size))


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
