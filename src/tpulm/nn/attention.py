"""Multi-head self-attention, confined to segments of a row."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from tpulm.nn.dropout import DropoutWords, dropout
from tpulm.nn.layers import affine
from tpulm.nn.params import Initializer, param, parameters, zeros


@parameters
class Heads:
    kernel: Float[Array, "D H K"]
    bias: Float[Array, "H K"]


@parameters
class Merge:
    kernel: Float[Array, "H K D"]
    bias: Float[Array, " D"]


@parameters
class Attention:
    query: Heads
    key: Heads
    value: Heads
    output: Merge


def attention_spec(hidden_size: int, num_heads: int, init: Initializer) -> Attention:
    head_size = hidden_size // num_heads

    def heads() -> Heads:
        return Heads(
            kernel=param((hidden_size, num_heads, head_size), ("embed", "heads", "head_size"), init),
            bias=param((num_heads, head_size), ("heads", "head_size"), zeros, decay=False),
        )

    return Attention(
        query=heads(),
        key=heads(),
        value=heads(),
        output=Merge(
            kernel=param((num_heads, head_size, hidden_size), ("heads", "head_size", "embed"), init),
            bias=param((hidden_size,), ("embed",), zeros, decay=False),
        ),
    )


def attend(
    params: Attention,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    *,
    dtype: DTypeLike,
    dropout_rate: float,
    words: DropoutWords | None,
) -> Float[Array, "R D"]:
    """Self-attention of each token to those of its own segment, padding (segment -1) to padding alone.

    `words` number attention weights [B, H, L, M] over H and M; the weights are dropped out, as in BERT.
    """

    def project(heads: Heads) -> Float[Array, "B H L K"]:
        size, *split = heads.kernel.shape
        y = affine(x, heads.kernel.reshape(size, -1), heads.bias.reshape(-1), dtype=dtype)
        return y.reshape(*segments.shape, *split).swapaxes(1, 2)

    with jax.named_scope("project"):
        query, key, value = project(params.query), project(params.key), project(params.value)
    with jax.named_scope("mix"):
        mixed = attention(query, key, value, segments, words=words, dropout_rate=dropout_rate)
    with jax.named_scope("merge"):
        mixed = mixed.swapaxes(1, 2).reshape(x.shape[0], -1)
        return affine(mixed, params.output.kernel.reshape(mixed.shape[1], -1), params.output.bias, dtype=dtype)


def attention(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    value: Float[Array, "B H M K"],
    segments: Int[Array, "B L"],
    *,
    words: DropoutWords | None,
    dropout_rate: float,
) -> Float[Array, "B H L K"]:
    """softmax(query key^T / sqrt(K)) value within segments; softmax and its gradient are float32.

    The gradient is written out for the order of its products, for the rows' sums from the output (sum_m w dw = sum_k o do,
    Dao et al. 2022, section 3.1), and to draw the dropout mask again instead of keeping it.
    """
    return cast("Array", _attention(query, key, value, segments, words, dropout_rate))


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(query: Array, key: Array, value: Array, segments: Array, words: DropoutWords | None, rate: float) -> Array:
    return _attention_forward(query, key, value, segments, words, rate)[0]


def _attention_forward(
    query: Array, key: Array, value: Array, segments: Array, words: DropoutWords | None, rate: float
) -> tuple[Array, tuple[Any, ...]]:
    allowed = (segments[:, :, None] == segments[:, None, :])[:, None]
    scores = jnp.einsum("bhlk,bhmk->bhlm", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed, scores * jnp.float32(query.shape[-1] ** -0.5), jnp.float32(-1e30))
    unnormalized = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    normalizer = jnp.sum(unnormalized, axis=-1, keepdims=True)
    weights = dropout(unnormalized / normalizer, rate=rate, words=words).astype(value.dtype)
    mixed = jnp.einsum("bhlm,bhmk->bhlk", weights, value)
    return mixed, (query, key, value, unnormalized, normalizer, mixed, words)


def _attention_backward(rate: float, kept: tuple[Any, ...], g: Array) -> tuple[Any, ...]:
    query, key, value, unnormalized, normalizer, mixed, words = kept
    dtype = query.dtype
    softmax = unnormalized / normalizer
    weights = dropout(softmax, rate=rate, words=words).astype(dtype)
    d_value = jnp.einsum("bhlk,bhlm->bhkm", g, weights).swapaxes(2, 3)
    d_weights = jnp.einsum("bhlk,bhmk->bhlm", g, value, preferred_element_type=jnp.float32)
    d_softmax = dropout(d_weights, rate=rate, words=words)
    row_sums = jnp.sum(g.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1, keepdims=True)
    d_scores = (softmax * (d_softmax - row_sums) * jnp.float32(query.shape[-1] ** -0.5)).astype(dtype)
    d_query = jnp.einsum("bhlm,bhmk->bhlk", d_scores, key)
    d_key = jnp.einsum("bhlk,bhlm->bhkm", query, d_scores).swapaxes(2, 3)
    return d_query, d_key, d_value, None, None


_attention.defvjp(_attention_forward, _attention_backward)
