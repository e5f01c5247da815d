"""Attention as one forward and one backward TPU kernel; the attention weights never leave the chip (Dao et al. 2022).

The kernels compute what `attention.attention` does, with the same dropout masks: for each row, head and block of queries, the
weights of all keys of the row at once. So the softmax is the plain one, and a single backward pass computes the weights once
for all three gradients.

Inside, arrays are transposed: the sequence lies along the lanes, so that heads of 64 fill whole tiles, per-query values are
vectors of lanes, and sums over keys add registers.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jaxtyping import Float, Int, Shaped

from tpulm.nn.dropout import DropoutSeeds, keep_mask, mix
from tpulm.nn.layers import PRODUCT

_WEIGHTS = 512 * 512  # in a block, at most: 1 MiB in float32, of the chip's 16 MiB or more
_BLOCK = 128  # queries in a block, at least
SHORTEST, _LONGEST = 512, _WEIGHTS // _BLOCK  # tokens in a row
_WITHOUT_BFLOAT16 = ("TPU v2", "TPU v3")  # Pallas has no bfloat16 products for these


class _Settings(NamedTuple):
    rate: float
    causal: bool
    rows: NamedSharding
    interpret: bool


def runs_on(device: Any) -> bool:
    return device.platform == "tpu" and device.device_kind not in _WITHOUT_BFLOAT16


def is_faster(length: int, head_size: int) -> bool:
    """Whether the kernels beat the compiler's attention for rows of this length (docs/experiments.md)."""
    return SHORTEST <= length <= _LONGEST and length % _BLOCK == 0 and head_size % 16 == 0


def flash_attention(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    segments: Int[Array, "B L"],
    *,
    seeds: DropoutSeeds | None,
    dropout_rate: float,
    causal: bool,
    rows: NamedSharding,
    interpret: bool = False,
) -> Float[Array, "B H L K"]:
    """As `attention.attention`; L must be a multiple of 128.

    `rows`: the sharding of rows over devices; each computes its own. `interpret`: run on any device, for tests.
    """
    batch, length = segments.shape
    of_query, of_key = segments[:, None], segments[:, :, None]
    zeros = jnp.zeros((batch, 1, length), jnp.uint32)
    first, second = (zeros, zeros) if seeds is None else (seed.reshape(batch, 1, length) for seed in seeds)
    settings = _Settings(0.0 if seeds is None else dropout_rate, causal, rows, interpret)
    query, key, value = (x.swapaxes(2, 3) for x in (query, key, value))
    return cast("Array", _flash(query, key, value, of_query, of_key, first, second, settings)).swapaxes(2, 3)


@partial(jax.custom_vjp, nondiff_argnums=(7,))
def _flash(*arguments: Any) -> Array:
    return _forward(*arguments)[0]


def _forward(*operands: Any) -> tuple[Array, tuple[Array, ...]]:
    *arguments, settings = operands
    mixed, log_normalizer = (checkpoint_name(x, PRODUCT) for x in _call(_forward_kernel, arguments, "qkkvcvv", "qn", settings))
    return mixed, (*arguments, mixed, log_normalizer)


def _backward(settings: _Settings, residuals: tuple[Array, ...], g: Array) -> tuple[Array | None, ...]:
    return *_call(_backward_kernel, [*residuals, g], "qkkvcvvqnq", "qkk", settings), None, None, None, None


_flash.defvjp(_forward, _backward)


def dot(x: Array, y: Array, contracted: tuple[int, int]) -> Array:
    """The product of two matrices, contracted over one axis of each; float32."""
    axes = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(x, y, axes, preferred_element_type=jnp.float32)


def _scores(
    query: Float[Array, "K L"], key: Float[Array, "K M"], of_query: Int[Array, "1 L"], of_key: Int[Array, "M 1"], causal: bool
) -> Float[Array, "M L"]:
    scores = dot(key, query, (0, 0))
    allowed = of_key == of_query
    if causal:
        place = [jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1)]
        allowed = allowed & (place[0] <= pl.program_id(2) * scores.shape[1] + place[1])
    return jnp.where(allowed, scores * jnp.float32(query.shape[0] ** -0.5), jnp.float32(-1e30))


def _keep_mask(shape: tuple[int, ...], first: Array, second: Array, rate: float) -> Shaped[Array, "M L"]:
    """The mask of `dropout.dropout` for weights numbered over heads and keys; True where kept."""
    begin = (pl.program_id(1) * shape[0]).astype(jnp.uint32)
    number = jax.lax.broadcasted_iota(jnp.int32, shape, 0).astype(jnp.uint32) + begin
    return keep_mask(mix(number ^ first, second), rate)


def _forward_kernel(settings: _Settings, *refs: Any) -> None:
    query, key, value, of_query, of_key, first, second = (ref[...] for ref in refs[:7])
    mixed, log_normalizer = refs[7:]
    scores = _scores(query, key, of_query, of_key, settings.causal)
    highest = jnp.max(scores, axis=0, keepdims=True)
    weights = jnp.exp(scores - highest)
    normalizer = jnp.sum(weights, axis=0, keepdims=True)
    if settings.rate:
        weights = jnp.where(_keep_mask(weights.shape, first, second, settings.rate), weights, 0.0)
    scale = jnp.float32(1.0 / (1.0 - settings.rate)) / normalizer
    mixed[...] = (dot(value, weights.astype(value.dtype), (1, 0)) * scale).astype(mixed.dtype)
    log_normalizer[...] = highest + jnp.log(normalizer)


def _backward_kernel(settings: _Settings, *refs: Any) -> None:
    query, key, value, of_query, of_key, first, second, mixed, log_normalizer, g = (ref[...] for ref in refs[:10])
    d_query, d_key, d_value, *sums = refs[10:]
    softmax = jnp.exp(_scores(query, key, of_query, of_key, settings.causal) - log_normalizer)
    weights, d_softmax = softmax, dot(value, g, (0, 0))
    if settings.rate:
        scale = jnp.where(
            _keep_mask(softmax.shape, first, second, settings.rate), jnp.float32(1.0 / (1.0 - settings.rate)), jnp.float32(0.0)
        )
        weights, d_softmax = softmax * scale, d_softmax * scale
    row_sums = jnp.sum(g.astype(jnp.float32) * mixed.astype(jnp.float32), axis=0, keepdims=True)
    d_scores = (softmax * (d_softmax - row_sums) * jnp.float32(query.shape[0] ** -0.5)).astype(query.dtype)
    d_query[...] = dot(key, d_scores, (1, 0)).astype(d_query.dtype)
    part, parts = pl.program_id(2), pl.num_programs(2)
    here = dot(query, d_scores, (1, 1)), dot(g, weights.astype(g.dtype), (1, 1))
    for total, added, out in zip(sums, here, (d_key, d_value), strict=True):
        total[...] = jnp.where(part == 0, added, total[...] + added)

        @pl.when(part == parts - 1)
        def _(out: Any = out, total: Any = total) -> None:
            out[...] = total[...].astype(out.dtype)


def _call(kernel: Callable[..., None], arguments: Any, reads: str, writes: str, settings: _Settings) -> list[Array]:
    """Run `kernel` on a grid of rows, heads and blocks of queries. The letters of `reads` and `writes` name the block of each
    argument and result: q a block of queries, v and n a number for each of them (v shared by all heads), k vectors of
    all keys, c a number for each key, as a column shared by all heads."""
    _, heads, size, length = arguments[0].shape
    block = min(length, _WEIGHTS // length)
    specs = {
        "q": pl.BlockSpec((None, None, size, block), lambda row, head, part: (row, head, 0, part)),
        "k": pl.BlockSpec((None, None, size, length), lambda row, head, part: (row, head, 0, 0)),
        "n": pl.BlockSpec((None, None, 1, block), lambda row, head, part: (row, head, 0, part)),
        "v": pl.BlockSpec((None, 1, block), lambda row, head, part: (row, 0, part)),
        "c": pl.BlockSpec((None, length, 1), lambda row, head, part: (row, 0, 0)),
    }

    def local(*arguments: Array) -> list[Array]:
        query, rows = arguments[0], arguments[0].shape[0]
        numbers = jax.ShapeDtypeStruct((rows, heads, 1, length), jnp.float32)
        out = [numbers if letter == "n" else jax.ShapeDtypeStruct(query.shape, query.dtype) for letter in writes]
        products, sums = (2, 0) if kernel is _forward_kernel else (5, 2)
        weights = rows * heads * length * length
        return pl.pallas_call(
            partial(kernel, settings),
            grid=(rows, heads, length // block),
            in_specs=[specs[letter] for letter in reads],
            out_specs=[specs[letter] for letter in writes],
            out_shape=out,
            scratch_shapes=[pltpu.VMEM((size, length), jnp.float32)] * sums,
            # a TPU v4 device is two cores, which divide rows and heads
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=2 * products * weights * size,
                transcendentals=weights,
                bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arguments, *out)),
            ),
            interpret=settings.interpret,
        )(*arguments)

    return over_rows(local, settings.rows)(*arguments)


def over_rows(local: Callable[..., list[Array]], rows: NamedSharding) -> Callable[..., list[Array]]:
    """`local`, mapped over devices: each runs it on its own rows of every argument and result."""
    return jax.shard_map(local, mesh=rows.mesh, in_specs=rows.spec, out_specs=rows.spec, check_vma=False)
