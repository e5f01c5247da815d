"""An encoder with a head that reads its first hidden state, [CLS]'s, for classes or one number; or each, for classes of tokens.

The heads are those of transformers' …ForSequenceClassification. BERT and Megatron's: dropout of tanh(dense), then a linear map
(Devlin et al. 2019, section 4.1). ELECTRA: dropout before the dense layer too, and the erf GELU (Google's code has no dense
layer there). EuroBERT, pooled at "bos": the erf GELU and no dropout. ModernBERT: the dense layer and norm of its masked head,
without biases, and dropout after them.

For tokens they are those of …ForTokenClassification: dropout and a linear map, in EuroBERT without dropout, in ModernBERT with
the dense layer and norm before. …ForQuestionAnswering has the same with two outputs, and dropout in ModernBERT alone;
…ForMultipleChoice the head for classes with one output.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.config import ModelConfig
from tpulm.models.bert import Embeddings, Tokens, embeddings_spec, encode
from tpulm.models.electra import embedding_size, projection_spec
from tpulm.nn.dropout import DropoutSeeds, dropout, seeds_at, site_seeds, token_seeds
from tpulm.nn.layers import Dense, Norm, activation, dense, dense_spec, norm_spec, normalize
from tpulm.nn.params import TruncatedNormal, parameters
from tpulm.nn.transformer import Execution, Layer, Randomness, has_norm_bias, initializers, stack_spec

HeadKind = Literal["bert", "electra", "eurobert", "modernbert"]


@parameters
class ClassificationHead:
    dense: Dense  # [D, D]; BERT calls it the pooler
    norm: Norm | None  # ModernBERT only
    output: Dense  # [D, C]


@parameters
class SequenceClassifier:
    embeddings: Embeddings
    projection: Dense | None
    layers: Layer
    final_norm: Norm | None
    classification_head: ClassificationHead


@parameters
class TokenHead:
    dense: Dense | None  # [D, D]; ModernBERT only, as the norm
    norm: Norm | None
    output: Dense  # [D, C]


@parameters
class TokenClassifier:
    embeddings: Embeddings
    projection: Dense | None
    layers: Layer
    final_norm: Norm | None
    token_head: TokenHead


class _Head(NamedTuple):
    """What one kind does between [CLS] and the last linear map."""

    activation: Literal["tanh", "gelu"]
    dropout_before: bool
    dropout_after: bool


HEADS: dict[HeadKind, _Head] = {
    "bert": _Head("tanh", False, True),
    "electra": _Head("gelu", True, True),
    "eurobert": _Head("gelu", False, False),
    "modernbert": _Head("gelu", False, True),
}


def head_kind(config: ModelConfig) -> HeadKind:
    if config.architecture in ("electra", "modernbert"):
        return config.architecture
    return "eurobert" if config.masked_head == "plain" else "bert"


def spec(config: ModelConfig, *, vocab_size: int, num_outputs: int) -> SequenceClassifier:
    """The tree of `ParamSpec`; `num_outputs` is C, 1 for a regression."""
    size, post = config.hidden_size, config.norm_position == "post"
    return SequenceClassifier(
        embeddings=embeddings_spec(config, embedding_size(config), vocab_size=vocab_size),
        projection=projection_spec(config),
        layers=stack_spec(config),
        final_norm=None if post else norm_spec(size, bias=has_norm_bias(config)),
        classification_head=head_spec(config, num_outputs=num_outputs),
    )


def head_spec(config: ModelConfig, *, num_outputs: int) -> ClassificationHead:
    """With biases, whatever the encoder has, as in all of transformers' classes but ModernBERT's, whose output alone has them
    and begins with a deviation of D ** -0.5."""
    init, size = TruncatedNormal(config.initializer_range), config.hidden_size
    modern = config.architecture == "modernbert"
    return ClassificationHead(
        dense=dense_spec((size, size), ("embed", None), initializers(config)[1], bias=not modern),
        norm=norm_spec(size, None, bias=False) if modern else None,
        output=dense_spec((size, num_outputs), (None, None), TruncatedNormal(size**-0.5) if modern else init),
    )


def logits(
    params: SequenceClassifier,
    tokens: Tokens,
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
) -> Float[Array, "B C"]:
    """Float32 logits, or the number itself ([B, 1]) of a regression."""
    below = None if randomness is None else Randomness(jax.random.fold_in(randomness.key, 0), randomness.rows)
    hidden = encode(params, tokens, config=config, execution=execution, randomness=below)
    with jax.named_scope("classification_head"):
        kind, head = HEADS[head_kind(config)], params.classification_head
        x = hidden[:, 0]
        act = jnp.tanh if kind.activation == "tanh" else activation("gelu")
        first, second = _dropout_seeds(randomness, x.shape[0])
        x = dropout(x, rate=config.dropout, seeds=first) if kind.dropout_before else x
        x = act(dense(head.dense, x, dtype=execution.dtype))
        x = x if head.norm is None else normalize(head.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        x = dropout(x, rate=config.dropout, seeds=second) if kind.dropout_after else x
        return dense(head.output, x, dtype=execution.dtype).astype(jnp.float32)


def token_spec(config: ModelConfig, *, vocab_size: int, num_outputs: int) -> TokenClassifier:
    """The tree of `ParamSpec` of a classifier of tokens into C classes."""
    whole, modern = spec(config, vocab_size=vocab_size, num_outputs=num_outputs), config.architecture == "modernbert"
    head = whole.classification_head
    own = TokenHead(head.dense if modern else None, head.norm, head.output)
    return TokenClassifier(whole.embeddings, whole.projection, whole.layers, whole.final_norm, own)


def token_logits(
    params: TokenClassifier,
    tokens: Tokens,
    *,
    config: ModelConfig,
    execution: Execution,
    randomness: Randomness | None,
    drop: bool = True,
) -> Float[Array, "B L C"]:
    """Float32 logits of each token; without `drop` the last hidden states have no dropout."""
    below = None if randomness is None else Randomness(jax.random.fold_in(randomness.key, 0), randomness.rows)
    hidden = encode(params, tokens, config=config, execution=execution, randomness=below)
    with jax.named_scope("token_head"):
        rows, length, size = hidden.shape
        head, x = params.token_head, hidden.reshape(-1, size)
        if head.dense is not None:
            x = activation("gelu")(dense(head.dense, x, dtype=execution.dtype))
        x = x if head.norm is None else normalize(head.norm, x, epsilon=config.norm_epsilon, kind=config.norm)
        if drop and randomness is not None and head_kind(config) != "eurobert":
            site = site_seeds(jax.random.fold_in(randomness.key, 1), ())
            seeds = seeds_at(site, token_seeds(randomness.rows, length), (rows * length, 1))
            x = dropout(x, rate=config.dropout, seeds=seeds)
        return dense(head.output, x, dtype=execution.dtype).astype(jnp.float32).reshape(rows, length, -1)


def _dropout_seeds(randomness: Randomness | None, rows: int) -> tuple[DropoutSeeds | None, ...]:
    """What the two places of the head draw from, for [B, D]."""
    if randomness is None:
        return None, None
    sites = site_seeds(jax.random.fold_in(randomness.key, 1), (2,))
    return tuple(seeds_at(sites[place], randomness.rows, (rows, 1)) for place in range(2))
