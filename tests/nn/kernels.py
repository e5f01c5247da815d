"""What the tests of attention share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import devices
from tpulm.config import HardwareConfig
from tpulm.nn.attention import AttentionWindow, attention
from tpulm.nn.dropout import DropoutSeeds, row_seeds, seeds_at, site_seeds, token_seeds
from tpulm.train.mesh import batch_sharding, make_mesh

Mixing = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # queries, keys and values [B, H, L, K]


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def weight_seeds(rows: int, length: int) -> DropoutSeeds:
    """Seeds of the dropout of attention weights [rows, H, length, length]."""
    tokens = token_seeds(row_seeds(jax.random.split(jax.random.key(0), rows)), length)
    return seeds_at(site_seeds(jax.random.key(1), ()), tokens, (rows, 1, length, 1))


def on_devices(count: int) -> NamedSharding:
    return batch_sharding(make_mesh(HardwareConfig(), devices.first(count)))


def check_flash(kernel: Callable[..., jax.Array], shape: tuple[int, ...], window: AttentionWindow, rate: float) -> None:
    """Values and gradients, of rows of several blocks with segments and padding, are those of plain attention."""
    length, place = shape[2], jnp.arange(shape[2], dtype=jnp.int32)[None]
    segments = jnp.where(place < jnp.asarray([[int(0.65 * length)], [length]]), place // int(0.3 * length), -1)
    settings: dict[str, Any] = {"seeds": weight_seeds(shape[0], length) if rate else None, "dropout_rate": rate}
    mixings: list[Mixing] = [
        lambda query, key, value: kernel(query, key, value, segments, **settings, interpret=True),
        lambda query, key, value: attention(query, key, value, segments, **settings, window=window),
    ]

    def both(*arrays: jax.Array) -> list[list[jax.Array]]:
        found = []
        for mixing in mixings:
            value, pull = jax.vjp(mixing, *arrays[:3])
            found.append([value, *pull(arrays[3])])
        return found

    arrays = [normal(seed, *shape) for seed in range(4)]
    for (ours, theirs), atol in zip(zip(*jax.jit(both)(*arrays), strict=True), (2e-6, 5e-6, 5e-6, 5e-6), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=atol)


def trace_gradients(kernel: Callable[..., jax.Array], rows: int, sharding: NamedSharding | None = None) -> Any:
    """The gradients of a kernel with dropout, over bfloat16 rows of 512 tokens with two heads of 64, traced."""

    def abstract(*shape: int, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=sharding)

    def gradients(g: jax.Array, arrays: list[jax.Array], segments: jax.Array, seeds: DropoutSeeds) -> Any:
        return jax.vjp(lambda *mixed: kernel(*mixed, segments, seeds=seeds, dropout_rate=0.1), *arrays)[1](g)

    array, seeds = abstract(2, 512, 64, dtype=jnp.bfloat16), abstract(1, 512, 1, dtype=jnp.uint32)
    both: Any = DropoutSeeds(seeds, seeds)  # pyright: ignore[reportArgumentType]
    return jax.jit(gradients).trace(array, [array] * 3, abstract(512, dtype=jnp.int32), both)
