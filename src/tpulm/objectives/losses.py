"""Cross-entropy in float32, as sums that add up over rows, micro-batches and devices."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from tpulm.models.bert import Output, vocabulary_logits
from tpulm.nn.transformer import Execution


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


def vocabulary_cross_entropy(
    output: Output, labels: Int[Array, " R"], weights: Float[Array, " R"], *, execution: Execution, vocab_size: int
) -> WeightedSums:
    """`cross_entropy` of the logits that `output` makes, of at most `execution.tokens_at_once` tokens at a time.

    A part's gradients are computed right after its loss, while its logits are in the cache, and scaled by the loss's gradient
    afterwards: logits over a vocabulary are most of what a small model's step would write and read again.
    """
    dtype, most = jnp.dtype(execution.dtype), execution.tokens_at_once
    if most is None or len(labels) <= most:
        return _whole(output, labels, weights, dtype=dtype, vocab_size=vocab_size)
    size = -(-len(labels) // -(-len(labels) // most))  # of parts that are as many as must be, and as equal as can be
    missing = -len(labels) % size

    def parts(x: Array) -> Array:  # [R, ...] -> [parts, size, ...], the last one filled up with zeros, which weigh nothing
        return jnp.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))).reshape(-1, size, *x.shape[1:])

    arguments = output._replace(x=parts(output.x)), parts(labels), parts(weights)
    return cast("WeightedSums", _by_parts(*arguments, dtype, vocab_size))


def _whole(output: Output, labels: Array, weights: Array, *, dtype: DTypeLike, vocab_size: int) -> WeightedSums:
    return cross_entropy(vocabulary_logits(output, dtype=dtype, vocab_size=vocab_size), labels, weights)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _by_parts(output: Output, labels: Array, weights: Array, dtype: DTypeLike, vocab_size: int) -> WeightedSums:
    def add(sums: WeightedSums, part: tuple[Array, ...]) -> tuple[WeightedSums, None]:
        x, *of_part = part
        own = _whole(output._replace(x=x), *of_part, dtype=dtype, vocab_size=vocab_size)
        return WeightedSums(*map(jnp.add, sums, own)), None

    return jax.lax.scan(add, WeightedSums(*jnp.zeros(3)), (output.x, labels, weights))[0]


def _by_parts_forward(output: Output, labels: Array, weights: Array, dtype: DTypeLike, vocab_size: int) -> Any:
    def loss(output: Output, *of_part: Array) -> tuple[Array, WeightedSums]:
        sums = _whole(output, *of_part, dtype=dtype, vocab_size=vocab_size)
        return sums.loss, sums

    def add(so_far: Any, part: tuple[Array, ...]) -> tuple[Any, Array]:
        x, *of_part = part
        (_, own), gradients = jax.value_and_grad(loss, has_aux=True)(output._replace(x=x), *of_part)
        return jax.tree.map(jnp.add, so_far, (own, gradients[1:])), gradients.x

    zeros = WeightedSums(*jnp.zeros(3)), jax.tree.map(jnp.zeros_like, output[1:])
    (sums, shared), x = jax.lax.scan(add, zeros, (output.x, labels, weights))
    return sums, Output(x, *shared)


def _by_parts_backward(dtype: DTypeLike, vocab_size: int, gradients: Output, g: WeightedSums) -> tuple[Any, None, None]:
    return jax.tree.map(lambda of: (of * g.loss).astype(of.dtype), gradients), None, None


_by_parts.defvjp(_by_parts_forward, _by_parts_backward)
