"""Multi-head self-attention within the segments of a row, optionally causal or limited to a local window."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from tpulm.config import RotaryScaling
from tpulm.nn import flash, flash_gpu
from tpulm.nn.dropout import DropoutSeeds, dropout, row_seeds, seeds_at, site_seeds, token_seeds
from tpulm.nn.layers import PRODUCT, affine, multiply
from tpulm.nn.params import Initializer, param, parameters, zeros


class AttentionWindow(NamedTuple):
    """Which keys a query attends to: from position p, those at p - before to p + after (None: no limit)."""

    before: int | None = None
    after: int | None = None
    first: int = 0  # position of the first query among the keys


EVERYTHING, CAUSAL = AttentionWindow(), AttentionWindow(after=0)


class Rotation(NamedTuple):
    """Rotary position embeddings (RoPE): queries and keys rotate by angles that grow with the position (Su et al. 2021,
    section 3.2). One rotation per token, shared by all heads; float32."""

    cos: Float[Array, "B 1 L K/2"]
    sin: Float[Array, "B 1 L K/2"]


def rotation(positions: Int[Array, "B L"], *, head_size: int, theta: float, scaling: RotaryScaling | None = None) -> Rotation:
    """RoPE for these positions: pair i of a head rotates by position * frequency i."""
    frequencies = jnp.asarray(rotary_frequencies(head_size, theta, scaling), jnp.float32)
    angles = positions[:, None, :, None].astype(jnp.float32) * frequencies[None, None, None, :]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotary_frequencies(head_size: int, theta: float, scaling: RotaryScaling | None = None) -> np.ndarray:
    """RoPE frequencies theta ** (-2 i / head_size), float32 [K/2], each scaled between 1 and 1 / factor."""
    frequencies = 1.0 / theta ** (np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
    if scaling is None:
        return frequencies
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0) if scaling.rope_type == "llama3" else 0.0
    return (frequencies * (blend + (1 - blend) / scaling.factor)).astype(np.float32)


@jax.custom_vjp
def _rotate_halves(x: Array, cos: Array, sin: Array) -> Array:
    wide = x.astype(jnp.float32)
    first, second = jnp.split(wide, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


_rotate_halves.defvjp(
    lambda x, cos, sin: (_rotate_halves(x, cos, sin), (cos, sin)),
    lambda kept, g: (_rotate_halves(g, kept[0], -kept[1]), None, None),
)


def rotate(x: Float[Array, "B H L K"], by: Rotation) -> Float[Array, "B H L K"]:
    """Apply RoPE in float32; x's dtype is kept. Element i of a head's first half is paired with element i of its second, as
    in Hugging Face's models (the paper pairs neighbours). The gradient is the inverse rotation."""
    return cast("Array", _rotate_halves(x, by.cos, by.sin))


@parameters
class Heads:
    kernel: Float[Array, "D H K"]
    bias: Float[Array, "H K"] | None


@parameters
class Merge:
    kernel: Float[Array, "H K D"]
    bias: Float[Array, " D"] | None


@parameters
class Attention:
    query: Heads
    key: Heads
    value: Heads
    output: Merge


def attention_spec(
    hidden_size: int, num_heads: int, init: Initializer, init_output: Initializer, *, bias: bool = True
) -> Attention:
    """The tree of `ParamSpec`; `init_output` initializes the output projection."""
    head_size = hidden_size // num_heads
    heads = Heads(
        kernel=param((hidden_size, num_heads, head_size), ("embed", "heads", "head_size"), init),
        bias=param((num_heads, head_size), ("heads", "head_size"), zeros, decay=False) if bias else None,
    )
    return Attention(
        query=heads,
        key=heads,
        value=heads,
        output=Merge(
            kernel=param((num_heads, head_size, hidden_size), ("heads", "head_size", "embed"), init_output),
            bias=param((hidden_size,), ("embed",), zeros, decay=False) if bias else None,
        ),
    )


def attend(
    params: Attention,
    x: Float[Array, "R D"],
    segments: Int[Array, "B L"],
    *,
    dtype: DTypeLike,
    dropout_rate: float,
    seeds: DropoutSeeds | None,
    window: AttentionWindow = EVERYTHING,
    keep_weights: bool = True,
    rope: Rotation | None = None,
    kernels: NamedSharding | None = None,
) -> Float[Array, "R D"]:
    """Self-attention of each token over the tokens of its own segment within `window`; padding (segment -1) sees only padding.

    Dropout applies to the attention weights [B, H, L, M], as in BERT; `seeds` number them over H and M. `kernels`: the
    sharding of rows over devices that have attention kernels (flash.py, flash_gpu.py), which are used where they are faster.
    """
    with jax.named_scope("project"):
        query, key, value = project(params, x, segments.shape, dtype=dtype, rope=rope)
    with jax.named_scope("mix"):
        arguments = query, key, value, segments
        dropped: dict[str, Any] = {"seeds": seeds, "dropout_rate": dropout_rate}
        platform = "" if kernels is None else cast("Any", kernels.mesh.devices).flat[0].platform
        if kernels is not None and _kernel_is_faster(platform, window, segments.shape[1], query.shape[3]):
            mixed = _by_kernel(platform, *arguments, **dropped, window=window, rows=kernels)
        else:
            mixed = attention(*arguments, **dropped, window=window, keep_weights=keep_weights)
    with jax.named_scope("merge"):
        return merge(params.output, mixed, dtype=dtype)


class Projected(NamedTuple):
    query: Float[Array, "B H L K"]
    key: Float[Array, "B H L K"]
    value: Float[Array, "B H L K"]


def project(
    params: Attention, x: Float[Array, "R D"], shape: tuple[int, ...], *, dtype: DTypeLike, rope: Rotation | None
) -> Projected:
    """Queries, keys and values of rows of `shape` (B, L); RoPE is applied to queries and keys."""

    def heads(of: Heads) -> Float[Array, "B H L K"]:
        size, *split = of.kernel.shape
        y = affine(x, of.kernel.reshape(size, -1), None if of.bias is None else of.bias.reshape(-1), dtype=dtype)
        return y.reshape(*shape, *split).swapaxes(1, 2)

    query, key, value = heads(params.query), heads(params.key), heads(params.value)
    return Projected(query, key, value) if rope is None else Projected(rotate(query, rope), rotate(key, rope), value)


def merge(params: Merge, mixed: Float[Array, "B H L K"], *, dtype: DTypeLike) -> Float[Array, "R D"]:
    heads, size = mixed.shape[1], mixed.shape[3]
    mixed = mixed.swapaxes(1, 2).reshape(-1, heads * size)
    return affine(mixed, params.kernel.reshape(mixed.shape[1], -1), params.bias, dtype=dtype)


def attention(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H L K"],
    value: Float[Array, "B H L K"],
    segments: Int[Array, "B L"],
    *,
    seeds: DropoutSeeds | None,
    dropout_rate: float,
    window: AttentionWindow = EVERYTHING,
    keep_weights: bool = True,
) -> Float[Array, "B H L K"]:
    """softmax(query key^T / sqrt(K)) value within segments and window; softmax and its gradient are float32.

    The custom gradient fixes the order of the products, takes row sums from the output (sum_m w dw = sum_k o do, Dao et al.
    2022, section 3.1), and regenerates the dropout mask instead of storing it. Without `keep_weights` it also recomputes the
    softmax from stored log-normalizers (same paper, section 3): less memory for one more product.

    A symmetric window is computed in blocks as long as one side, each block attending to itself and its neighbours: linear
    time and memory in the row's length, if that is a multiple of the block and more than three blocks.
    """
    length, block = query.shape[2], window.before
    if block is None or window.after != block or length % block or length <= 3 * block:
        ids = segments[:, None]
        return cast("Array", _attention(query, key, value, ids, ids, seeds, dropout_rate, window, keep_weights))
    assert seeds is None or dropout_rate == 0.0  # ModelConfig ensures it: seeds number whole rows

    def blocks(x: Array) -> Array:  # [B, H, L, ...] -> [B, H, blocks, block, ...]
        return x.reshape(*x.shape[:2], -1, block, *x.shape[3:])

    def merged(x: Array) -> Array:  # each block a row with one head: products over many of both are slower on some processors
        return x.reshape(-1, 1, *x.shape[3:])

    def with_neighbours(x: Array, outside: int) -> Array:  # [B, H, blocks, block, ...] -> [B, H, blocks, 3 block, ...]
        edge = jnp.full_like(x[:, :, :1], outside)
        return jnp.concatenate([jnp.concatenate([edge, x[:, :, :-1]], 2), x, jnp.concatenate([x[:, :, 1:], edge], 2)], 3)

    ids = blocks(jnp.broadcast_to(segments[:, None], query.shape[:3]))
    mixed = _attention(
        merged(blocks(query)),
        merged(with_neighbours(blocks(key), 0)),
        merged(with_neighbours(blocks(value), 0)),
        merged(ids),
        merged(with_neighbours(ids, _OUTSIDE)),
        *(None, 0.0, window._replace(first=block), keep_weights),
    )
    return cast("Array", mixed).reshape(query.shape)


_OUTSIDE = -2  # the segment of positions before and after a row


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _attention(*arguments: Any) -> Array:
    return _attention_forward(*arguments)[0]


def _attention_forward(
    query: Array,
    key: Array,
    value: Array,
    segments: Array,
    key_segments: Array,
    seeds: DropoutSeeds | None,
    rate: float,
    window: AttentionWindow,
    keep_weights: bool,
) -> tuple[Array, tuple[Any, ...]]:
    """As `attention`, without blocks; `segments` are the queries' [B, 1 or H, L], `key_segments` the keys' [B, 1 or H, M]."""
    query, key, value = _row_major(query), _row_major(key), _row_major(value)
    scores = _scores(query, key, segments, key_segments, window)
    highest = jnp.max(scores, axis=-1, keepdims=True)
    unnormalized = jnp.exp(scores - highest)
    normalizer = jnp.sum(unnormalized, axis=-1, keepdims=True)
    weights = dropout(unnormalized / normalizer, rate=rate, seeds=seeds).astype(value.dtype)
    mixed = checkpoint_name(multiply("bhlm,bhmk->bhlk", weights, value), PRODUCT)
    residuals = query, key, value, segments, key_segments
    if keep_weights:
        return mixed, (*residuals, (unnormalized, normalizer), mixed, seeds)
    log_normalizer = checkpoint_name(highest + jnp.log(normalizer), PRODUCT)
    return mixed, (*residuals, log_normalizer, mixed, seeds)


def _scores(query: Array, key: Array, segments: Array, key_segments: Array, window: AttentionWindow) -> Float[Array, "B H L M"]:
    allowed = segments[..., :, None] == key_segments[..., None, :]
    if window.before is not None or window.after is not None:
        queries, keys = jnp.arange(query.shape[2], dtype=jnp.int32), jnp.arange(key.shape[2], dtype=jnp.int32)
        ahead = keys[None, :] - (queries[:, None] + window.first)
        visible = ahead >= -window.before if window.before is not None else jnp.ones_like(ahead, jnp.bool_)
        visible = visible & (ahead <= window.after) if window.after is not None else visible
        allowed = allowed & visible[None, None]
    scores = jnp.einsum("bhlk,bhmk->bhlm", query, key, preferred_element_type=jnp.float32)
    return jnp.where(allowed, scores * jnp.float32(query.shape[-1] ** -0.5), jnp.float32(-1e30))


def _attention_backward(
    rate: float, window: AttentionWindow, keep_weights: bool, residuals: tuple[Any, ...], g: Array
) -> tuple[Any, ...]:
    query, key, value, segments, key_segments, of_softmax, mixed, seeds = residuals
    g, dtype = _row_major(g), query.dtype
    if keep_weights:
        unnormalized, normalizer = of_softmax
        softmax = unnormalized / normalizer
    else:
        softmax = jnp.exp(_scores(query, key, segments, key_segments, window) - of_softmax)
    weights = dropout(softmax, rate=rate, seeds=seeds).astype(dtype)
    d_value = _sum_over_queries(weights, g)
    d_weights = jnp.einsum("bhlk,bhmk->bhlm", g, value, preferred_element_type=jnp.float32)
    d_softmax = dropout(d_weights, rate=rate, seeds=seeds)
    row_sums = jnp.sum(g.astype(jnp.float32) * mixed.astype(jnp.float32), axis=-1, keepdims=True)
    d_scores = (softmax * (d_softmax - row_sums) * jnp.float32(query.shape[-1] ** -0.5)).astype(dtype)
    d_query = multiply("bhlm,bhmk->bhlk", d_scores, key)
    return d_query, _sum_over_queries(d_scores, query), d_value, None, None, None


def _row_major(x: Float[Array, "B H L K"]) -> Float[Array, "B H L K"]:
    """x, copied to row-major layout if necessary: XLA's CPU compiler would fold a transpose into the product that follows, and
    then multiply bfloat16 in float32, which takes three times as long."""

    def copied(x: Array) -> Array:
        return jax.lax.optimization_barrier(x.reshape(-1, x.shape[-1])).reshape(x.shape)

    if x.dtype == jnp.float32:
        return x
    return cast("Array", jax.lax.platform_dependent(x, cpu=copied, default=lambda x: x))


def _sum_over_queries(weights: Float[Array, "B H L M"], x: Float[Array, "B H L K"]) -> Float[Array, "B H M K"]:
    """weights^T x. The fastest order of axes depends on the dtype: XLA's CPU compiler multiplies bfloat16 twice as fast when
    two axes are contracted (see `layers.kernel_gradient`), and float32 faster when the longer operand comes second."""

    def plain(weights: Array, x: Array) -> Array:
        return multiply("bhlk,bhlm->bhkm", x, weights).swapaxes(2, 3)

    def over_two_axes(weights: Array, x: Array) -> Array:
        split = (*x.shape[:2], 2, -1)
        return multiply("bhalm,bhalk->bhmk", weights.reshape(*split, weights.shape[3]), x.reshape(*split, x.shape[3]))

    if x.dtype == jnp.float32 or x.shape[2] % 2:
        return plain(weights, x)
    return cast("Array", jax.lax.platform_dependent(weights, x, cpu=over_two_axes, default=plain))


_attention.defvjp(_attention_forward, _attention_backward)


class Attended(NamedTuple):
    x: Float[Array, "R D"]
    keys: Float[Array, "B H M K"]
    values: Float[Array, "B H M K"]


def attend_to_cache(
    params: Attention,
    x: Float[Array, "R D"],
    positions: Int[Array, "B L"],
    cache: tuple[Float[Array, "B H M K"], Float[Array, "B H M K"]],
    *,
    dtype: DTypeLike,
    rope: Rotation | None,
) -> Attended:
    """Attention for generation: write the new tokens' keys and values into the cache at `positions`, then let each token
    attend to all positions up to its own."""
    query, key, value = project(params, x, positions.shape, dtype=dtype, rope=rope)
    row = jnp.arange(positions.shape[0], dtype=jnp.int32)[:, None]

    def written(old: Array, new: Array) -> Array:
        return old.at[row, :, positions].set(new.swapaxes(1, 2), mode="drop")

    keys, values = written(cache[0], key), written(cache[1], value)
    place = jnp.arange(keys.shape[2], dtype=jnp.int32)
    allowed = place[None, None, None, :] <= positions[:, None, :, None]
    scores = jnp.einsum("bhlk,bhmk->bhlm", query, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed, scores * jnp.float32(query.shape[-1] ** -0.5), jnp.float32(-1e30))
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("bhlm,bhmk->bhlk", weights, values)
    return Attended(merge(params.output, mixed, dtype=dtype), keys, values)


def has_kernels(device: Any) -> bool:
    return flash.runs_on(device) or flash_gpu.runs_on(device)


def _kernel_is_faster(platform: str, window: AttentionWindow, length: int, head_size: int) -> bool:
    if platform == "gpu":
        return flash_gpu.is_faster(length, head_size)
    return window in (EVERYTHING, CAUSAL) and flash.is_faster(length, head_size)


def _by_kernel(platform: str, *arguments: Array, window: AttentionWindow, **settings: Any) -> Array:
    if platform == "gpu":
        return flash_gpu.flash_attention(*arguments, before=window.before, after=window.after, **settings)
    return flash.flash_attention(*arguments, causal=window == CAUSAL, **settings)


# The windows that each kernel handles differently.
_CHECKED = {"tpu": (EVERYTHING,), "gpu": (EVERYTHING, AttentionWindow(64, 64))}


def kernels_agree(device: Any, platform: Literal["tpu", "gpu"]) -> bool:
    """Whether the kernels for `platform`, run on `device` (interpreted if that is another), give the plain formula's values
    and gradients up to bfloat16 rounding: full attention with dropout and, for GPUs, a local window without."""
    length, tolerance = flash.SHORTEST, 0.05
    with jax.default_device(device):
        query, key, value, g = jax.random.normal(jax.random.key(0), (4, 1, 2, length, 64), jnp.bfloat16)
        segments = (jnp.arange(length, dtype=jnp.int32) // (length // 3))[None]
        tokens = token_seeds(row_seeds(jax.random.split(jax.random.key(1), 1)), length)
        seeds = seeds_at(site_seeds(jax.random.key(2), ()), tokens, (1, 1, length, 1))
        rows = NamedSharding(Mesh(np.array([device]), "data"), PartitionSpec("data"))
        interpreted = {"rows": rows, "interpret": device.platform != platform}

        def both(function: Callable[..., Array], **settings: Any) -> list[Array]:
            results = list[Array]()
            for window in _CHECKED[platform]:
                dropped = (
                    {"seeds": seeds, "dropout_rate": 0.1} if window == EVERYTHING else {"seeds": None, "dropout_rate": 0.0}
                )
                mixed, pull = jax.vjp(
                    partial(function, segments=segments, window=window, **dropped, **settings), query, key, value
                )
                results += [mixed, *pull(g)]
            return results

        of_kernels = jax.jit(partial(both, partial(_by_kernel, platform), **interpreted))()
        pairs = zip(of_kernels, jax.jit(partial(both, attention))(), strict=True)
        return all(bool(jnp.max(jnp.abs(a - b)) <= tolerance * jnp.max(jnp.abs(b))) for a, b in pairs)
