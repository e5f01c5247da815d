"""Dropout whose mask is a pure function of a key, the row's seed and the position in the row.

The mask is a hash of counters, computed where it is used: it fuses into its consumer, is never stored for the backward pass,
and does not depend on how arrays are sharded over devices or rows split into micro-batches. (JAX's "rbg" keys cost more, and
their bits depend on which rows are computed together; docs/experiments.md has the comparison.)
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, UInt32


class DropoutSeeds(NamedTuple):
    """Two seeds per token for one dropout site in the model; size 1 in the axes over which `random_bits` numbers elements."""

    first: UInt32[Array, "..."]
    second: UInt32[Array, "..."]


def row_seeds(row_keys: Array) -> UInt32[Array, "B 2"]:
    """Two seeds per row, from its threefry key."""
    return jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(row_keys)


def token_seeds(rows: UInt32[Array, "B 2"], length: int) -> UInt32[Array, "B L 2"]:
    """Two seeds per token, from its row's seeds and its position."""
    position = jnp.arange(length, dtype=jnp.uint32)[None, :, None]
    return mix(rows[:, None, :] ^ position, rows[:, None, ::-1])


def site_seeds(key: Array, shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
    """Two seeds for each of `shape` dropout sites."""
    return jax.random.bits(key, (*shape, 2), jnp.uint32)


def seeds_at(site: UInt32[Array, "2"], tokens: UInt32[Array, "*B 2"], shape: tuple[int, ...]) -> DropoutSeeds:
    """The seeds of all tokens at one dropout site, reshaped to `shape` for broadcasting."""
    first = mix(tokens[..., 0] ^ site[0], jnp.broadcast_to(site[1], tokens.shape[:-1]))
    second = mix(tokens[..., 1] ^ site[1], jnp.broadcast_to(site[0], tokens.shape[:-1]))
    return DropoutSeeds(first.reshape(shape), second.reshape(shape))


def mix(x: Array, between: Array) -> Array:
    """A low-bias bijection of 32-bit words, "lowbias32" of C. Wellons' hash-prospector; `between` is XORed in halfway."""
    x = x ^ (x >> jnp.uint32(16))
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ between
    x = x ^ (x >> jnp.uint32(15))
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> jnp.uint32(16))


def random_bits(seeds: DropoutSeeds, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits for each element of an array of `shape`; a token must not have more than 2**32 elements."""
    numbered = tuple(size if own == 1 else 1 for size, own in zip(shape, seeds.first.shape, strict=True))
    counter, stride = jnp.zeros(numbered, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        if numbered[axis] > 1:
            counter = counter + jax.lax.broadcasted_iota(jnp.uint32, numbered, axis) * jnp.uint32(stride)
            stride *= numbered[axis]
    return mix(counter ^ seeds.first, seeds.second)


def keep_mask(bits: UInt32[Array, "..."], rate: float) -> Bool[Array, "..."]:
    """True with probability 1 - `rate`."""
    return bits >= jnp.uint32(round(rate * 2**32))


def dropout(x: Float[Array, "..."], *, rate: float, seeds: DropoutSeeds | None) -> Float[Array, "..."]:
    """Zero elements with probability `rate` and scale the others by 1 / (1 - rate); without seeds, return x unchanged."""
    if seeds is None or rate == 0.0:
        return x
    return jnp.where(
        keep_mask(random_bits(seeds, x.shape), rate), x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype)
    )
