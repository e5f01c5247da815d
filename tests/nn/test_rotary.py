"""Rotary positions: what attention sees of them is the distance, and the gradient is the turn back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.nn.attention import rotate, rotation

B, H, L, K = 2, 3, 7, 8
POSITIONS = jnp.asarray([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3]], jnp.int32)


def normal(seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (B, H, L, K), jnp.float32)


def test_the_gradient_is_autodiffs_of_the_formula():
    rope, g = rotation(POSITIONS, head_size=K, theta=100.0), normal(2)

    def plain(x: jax.Array) -> jax.Array:
        first, second = x[..., : K // 2], x[..., K // 2 :]
        return jnp.concatenate([first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin], axis=-1)

    y, pull = jax.vjp(lambda x: rotate(x, rope), normal(0))
    expected, expected_pull = jax.vjp(plain, normal(0))
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_allclose(pull(g)[0], expected_pull(g)[0], atol=1e-6)


def test_bfloat16_is_turned_in_float32():
    far = POSITIONS + 1000  # a whole turn is lost in a bfloat16 position
    x = normal(0).astype(jnp.bfloat16)
    rope = rotation(far, head_size=K, theta=100.0)
    assert rotate(x, rope).dtype == jnp.bfloat16
    np.testing.assert_allclose(rotate(x, rope).astype(jnp.float32), rotate(x.astype(jnp.float32), rope), atol=0.02, rtol=0.01)
