"""Attention as GPU kernels; the attention weights never leave the chip (Dao 2023).

They compute what `attention.attention` does, with the same dropout masks: forward one block of queries, backward one block of
keys and one of queries, each looping over the blocks of the other side within its reach. JAX's own kernels (Pallas' `mha`,
cuDNN's behind jax.nn) do not take dropout masks that change with the step, and were slower without (benchmarks/RESULTS.md).

They use Pallas' Triton backend, which JAX 0.12 has but deprecates; where it is gone, `runs_on` returns False.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jaxtyping import Bool, Float, Int

from tpulm.nn.dropout import DropoutSeeds, keep_mask, mix
from tpulm.nn.flash import dot, over_rows
from tpulm.nn.layers import PRODUCT

_LONG, _SHORT = 128, 64  # tokens in a block of the side a kernel computes, and of the side it loops over
_WARPS = 8  # per block: four run out of registers
_LOG2E = math.log2(math.e)  # scores are base-2 logarithms, since exp2 is the GPU's native exponential


class _Settings(NamedTuple):
    rate: float
    before: int | None  # positions before a query that it sees; None: all
    after: int | None
    rows: NamedSharding
    interpret: bool


def runs_on(device: Any) -> bool:
    """Whether the device is an NVIDIA GPU from Ampere on (bfloat16 products) and JAX has the Triton backend."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdecimal() and int(major) >= 8 and importlib.util.find_spec("jax.experimental.pallas.triton") is not None


def is_faster(length: int, head_size: int) -> bool:
    """Whether the kernels beat the compiler's attention, which moves weights through memory, as measured on an H100."""
    return length % _LONG == 0 and head_size in (16, 32, 64, 128)


def flash_attention(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    segments: Int[Array, "B L"],
    *,
    seeds: DropoutSeeds | None,
    dropout_rate: float,
    before: int | None,
    after: int | None,
    rows: NamedSharding,
    interpret: bool = False,
) -> Float[Array, "B H L K"]:
    """As `attention.attention`; L must be a multiple of 128 and K a power of 2."""
    batch, length = segments.shape
    zeros = jnp.zeros((batch, length), jnp.uint32)
    first, second = (zeros, zeros) if seeds is None else (seed.reshape(batch, length) for seed in seeds)
    settings = _Settings(0.0 if seeds is None else dropout_rate, before, after, rows, interpret)
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))  # [B, L, H, K], the projections' layout
    return cast("Array", _flash(query, key, value, segments, first, second, settings)).swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _flash(*arguments: Any) -> Array:
    return _forward(*arguments)[0]


def _forward(*operands: Any) -> tuple[Array, tuple[Array, ...]]:
    *arguments, settings = operands
    mixed, log_normalizer = (checkpoint_name(x, PRODUCT) for x in _call(_forward_kernel, arguments, "bwwttt", "bn", settings))
    return mixed, (*arguments, mixed, log_normalizer)


def _backward(settings: _Settings, residuals: tuple[Array, ...], g: Array) -> tuple[Array | None, ...]:
    query, key, value, *of_tokens, mixed, log_normalizer = residuals
    row_sums = jnp.sum(g.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1).swapaxes(1, 2)
    of_queries = *of_tokens, log_normalizer, row_sums
    d_key, d_value = _call(_keys_kernel, (key, value, query, g, *of_queries), "bbwwttthh", "bb", settings)
    (d_query,) = _call(_queries_kernel, (query, g, key, value, *of_queries), "bbwwttthh", "b", settings)
    return d_query, d_key, d_value, None, None, None


_flash.defvjp(_forward, _backward)


class _Block(NamedTuple):
    """Consecutive tokens of a row, along one axis of a block of weights: arrays of [N, 1] or [1, N]."""

    place: Array
    tokens: list[Array]  # segments; of queries also dropout seeds and, backward, log-normalizers and row sums


def _block(begin: Array, size: int, refs: Sequence[Any], axis: int) -> _Block:
    at = (slice(None), None) if axis == 0 else (None, slice(None))
    place = begin + jnp.arange(size, dtype=jnp.int32)
    return _Block(place[at], [ref[pl.ds(begin, size)][at] for ref in refs])


def _scores(products: Array, size: int, queries: _Block, keys: _Block, settings: _Settings) -> Float[Array, "..."]:
    """Base-2 scores; -1e30 where a query must not see a key."""
    allowed = queries.tokens[0] == keys.tokens[0]
    ahead = keys.place - queries.place
    if settings.before is not None:
        allowed = allowed & (ahead >= -settings.before)
    if settings.after is not None:
        allowed = allowed & (ahead <= settings.after)
    return jnp.where(allowed, products * jnp.float32(_LOG2E * size**-0.5), jnp.float32(-1e30))


def _keep_mask(queries: _Block, keys: _Block, of_head: Array, rate: float) -> Bool[Array, "..."]:
    """The mask of `dropout.dropout` for weights numbered over heads and keys; this head's numbers begin at `of_head`."""
    _, first, second = queries.tokens[:3]
    return keep_mask(mix((of_head + keys.place).astype(jnp.uint32) ^ first, second), rate)


def _parts(begin: Array, before: int | None, after: int | None, length: int) -> tuple[Any, Any]:
    """The range [first, end) of short blocks within reach of the long block that starts at `begin`."""
    first = 0 if before is None else jax.lax.div(jnp.maximum(begin - before, 0), _SHORT)
    if after is None:
        return first, length // _SHORT
    return first, jax.lax.div(jnp.minimum(begin + (_LONG + after + _SHORT - 1), length), _SHORT)


def _forward_kernel(settings: _Settings, query: Any, key: Any, value: Any, *refs: Any) -> None:
    *of_queries, mixed, log_normalizer = refs
    (length, size), begin, own = key.shape, pl.program_id(0) * _LONG, query[...]
    queries, of_head = _block(begin, _LONG, of_queries, 0), pl.program_id(2) * length

    def add(part: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, highest, normalizer = sums
        keys, here = _block(part * _SHORT, _SHORT, of_queries[:1], 1), pl.ds(part * _SHORT, _SHORT)
        scores = _scores(dot(own, key[here, :], (1, 1)), size, queries, keys, settings)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp2(scores - higher[:, None]), jnp.exp2(highest - higher)
        normalizer = shrink * normalizer + jnp.sum(weights, axis=1)
        if settings.rate:
            weights = jnp.where(_keep_mask(queries, keys, of_head, settings.rate), weights, jnp.float32(0.0))
        return shrink[:, None] * total + dot(weights.astype(value.dtype), value[here, :], (1, 0)), higher, normalizer

    zeros = jnp.zeros((_LONG, size), jnp.float32), jnp.full((_LONG,), -1e30, jnp.float32), jnp.zeros((_LONG,), jnp.float32)
    parts = _parts(begin, settings.before, settings.after, length)
    total, highest, normalizer = jax.lax.fori_loop(*parts, add, zeros)
    mixed[...] = (total * (jnp.float32(1.0 / (1.0 - settings.rate)) / normalizer)[:, None]).astype(mixed.dtype)
    log_normalizer[...] = highest + jnp.log2(normalizer)


def _weights(
    products: Array, d_weights: Array, queries: _Block, keys: _Block, of_head: Array, size: int, settings: _Settings
) -> tuple[Array, Array]:
    """The weights after dropout and the gradient of the scores, from the products of queries with keys and of the output's
    gradient with values."""
    *_, log_normalizer, row_sums = queries.tokens
    softmax = jnp.exp2(_scores(products, size, queries, keys, settings) - log_normalizer)
    weights = softmax
    if settings.rate:
        retained = jnp.where(
            _keep_mask(queries, keys, of_head, settings.rate), jnp.float32(1.0 / (1.0 - settings.rate)), jnp.float32(0.0)
        )
        weights, d_weights = softmax * retained, d_weights * retained
    return weights, softmax * (d_weights - row_sums) * jnp.float32(size**-0.5)


def _keys_kernel(settings: _Settings, key: Any, value: Any, query: Any, g: Any, *refs: Any) -> None:
    *of_queries, d_key, d_value = refs
    (length, size), begin, own_key, own_value = query.shape, pl.program_id(0) * _LONG, key[...], value[...]
    keys, of_head = _block(begin, _LONG, of_queries[:1], 0), pl.program_id(2) * length

    def add(part: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        here = pl.ds(part * _SHORT, _SHORT)
        queries, some, some_g = _block(part * _SHORT, _SHORT, of_queries, 1), query[here, :], g[here, :]
        products, d_weights = dot(own_key, some, (1, 1)), dot(own_value, some_g, (1, 1))
        weights, d_scores = _weights(products, d_weights, queries, keys, of_head, size, settings)
        return sums[0] + dot(d_scores.astype(some.dtype), some, (1, 0)), sums[1] + dot(weights.astype(g.dtype), some_g, (1, 0))

    zeros = jnp.zeros((_LONG, size), jnp.float32)
    sums = jax.lax.fori_loop(*_parts(begin, settings.after, settings.before, length), add, (zeros, zeros))
    d_key[...], d_value[...] = sums[0].astype(d_key.dtype), sums[1].astype(d_value.dtype)


def _queries_kernel(settings: _Settings, query: Any, g: Any, key: Any, value: Any, *refs: Any) -> None:
    *of_queries, d_query = refs
    (length, size), begin, own, own_g = key.shape, pl.program_id(0) * _LONG, query[...], g[...]
    queries, of_head = _block(begin, _LONG, of_queries, 0), pl.program_id(2) * length

    def add(part: Array, total: Array) -> Array:
        here = pl.ds(part * _SHORT, _SHORT)
        keys, some = _block(part * _SHORT, _SHORT, of_queries[:1], 1), key[here, :]
        products, d_weights = dot(own, some, (1, 1)), dot(own_g, value[here, :], (1, 1))
        _, d_scores = _weights(products, d_weights, queries, keys, of_head, size, settings)
        return total + dot(d_scores.astype(some.dtype), some, (1, 0))

    parts = _parts(begin, settings.before, settings.after, length)
    d_query[...] = jax.lax.fori_loop(*parts, add, jnp.zeros((_LONG, size), jnp.float32)).astype(d_query.dtype)


def _call(kernel: Callable[..., None], arguments: Sequence[Array], reads: str, writes: str, settings: _Settings) -> list[Array]:
    """Run `kernel` on a grid of blocks, rows and heads. The letters of `reads` and `writes` name the block of each argument and
    result: b a block of the row's vectors, n of its numbers, w all vectors, h all numbers of this head, t all numbers that
    the heads share."""
    from jax.experimental.pallas import triton

    _, length, heads, size = arguments[0].shape
    specs = {
        "b": pl.BlockSpec((None, _LONG, None, size), lambda part, row, head: (row, part, head, 0)),
        "n": pl.BlockSpec((None, None, _LONG), lambda part, row, head: (row, head, part)),
        "w": pl.BlockSpec((None, length, None, size), lambda part, row, head: (row, 0, head, 0)),
        "h": pl.BlockSpec((None, None, length), lambda part, row, head: (row, head, 0)),
        "t": pl.BlockSpec((None, length), lambda part, row, head: (row, 0)),
    }

    def local(*arguments: Array) -> list[Array]:
        vectors, rows = arguments[0], arguments[0].shape[0]
        numbers = jax.ShapeDtypeStruct((rows, heads, length), jnp.float32)
        return pl.pallas_call(
            partial(kernel, settings),
            grid=(length // _LONG, rows, heads),
            in_specs=[specs[letter] for letter in reads],
            out_specs=[specs[letter] for letter in writes],
            out_shape=[numbers if letter == "n" else jax.ShapeDtypeStruct(vectors.shape, vectors.dtype) for letter in writes],
            compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=2),
            interpret=settings.interpret,
        )(*arguments)

    return over_rows(local, settings.rows)(*arguments)
