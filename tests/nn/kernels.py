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

    arrays = [jax.random.normal(jax.random.key(seed), shape, jnp.float32) for seed in range(4)]
    for (ours, theirs), atol in zip(zip(*jax.jit(both)(*arrays), strict=True), (2e-6, 5e-6, 5e-6, 5e-6), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=atol)
