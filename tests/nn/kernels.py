"""What the tests of both kernels for attention share."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import devices
from tpulm.config import HardwareConfig
from tpulm.train.mesh import batch_sharding, make_mesh

Mixing = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]  # queries, keys and values [B, H, L, K]


def on_devices(count: int) -> NamedSharding:
    return batch_sharding(make_mesh(HardwareConfig(), devices.first(count)))


def check_values_and_gradients(kernel: Mixing, plain: Mixing, shape: tuple[int, int, int, int]) -> None:
    query, key, value, g = (jax.random.normal(jax.random.key(seed), shape, jnp.float32) for seed in range(4))
    expected, expected_pull = jax.vjp(plain, query, key, value)
    found, pull = jax.vjp(kernel, query, key, value)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    for ours, theirs in zip(pull(g), expected_pull(g), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-6)
