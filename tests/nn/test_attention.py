"""Attention stays within segments; gradients written out, of rotary positions too, are autodiff's of the plain formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import normal, weight_seeds

from tpulm.nn.attention import CAUSAL, EVERYTHING, AttentionWindow, attend, attention, attention_spec, rotate, rotation
from tpulm.nn.dropout import DropoutSeeds, dropout
from tpulm.nn.params import TruncatedNormal, initialize

B, H, L, K = 3, 2, 10, 4
SEGMENTS = jnp.asarray([10 * [0], [0, 0, 0, 1, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0, -1, -1, -1]], jnp.int32)


def plain(
    query: jax.Array, key: jax.Array, value: jax.Array, seeds: DropoutSeeds | None, rate: float, window: AttentionWindow
) -> jax.Array:
    scores = jnp.einsum("bhlk,bhmk->bhlm", query, key) / jnp.sqrt(jnp.float32(K))
    allowed = SEGMENTS[:, None, :, None] == SEGMENTS[:, None, None, :]
    ahead = np.arange(L)[None, :] - np.arange(L)[:, None]
    allowed = allowed & (ahead >= -(L if window.before is None else window.before))[None, None]
    allowed = allowed & (ahead <= (L if window.after is None else window.after))[None, None]
    weights = jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhlm,bhmk->bhlk", dropout(weights, rate=rate, seeds=seeds), value)


@pytest.mark.parametrize(
    ("rate", "window", "keep_weights"),
    [
        (0.3, EVERYTHING, True),
        (0.3, CAUSAL, True),
        (0.3, EVERYTHING, False),
        (0.0, AttentionWindow(3, 3), True),  # in one piece: ten tokens are no whole blocks of three
        (0.0, AttentionWindow(2, 0), True),  # in one piece: to one side
        (0.0, AttentionWindow(2, 2), True),  # by blocks of two tokens
        (0.0, AttentionWindow(2, 2), False),
    ],
)
def test_value_and_gradients_are_those_of_the_formula(rate: float, window: AttentionWindow, keep_weights: bool):
    seeds = weight_seeds(B, L) if rate else None
    *arrays, g = (normal(i, B, H, L, K) for i in range(4))
    settings: Any = {"seeds": seeds, "dropout_rate": rate, "window": window, "keep_weights": keep_weights}

    @jax.jit
    def both(*arrays: jax.Array) -> Any:
        ours, pull = jax.vjp(lambda q, k, v: attention(q, k, v, SEGMENTS, **settings), *arrays)
        theirs, expected_pull = jax.vjp(lambda q, k, v: plain(q, k, v, seeds, rate, window), *arrays)
        return (ours, *pull(g)), (theirs, *expected_pull(g))

    for ours, theirs in zip(*both(*arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_sees_its_own_segment_alone(causal: bool):
    params = initialize(attention_spec(H * K, H, TruncatedNormal(0.5), TruncatedNormal(0.5)), jax.random.key(0))
    x = normal(1, B * L, H * K)

    window = CAUSAL if causal else EVERYTHING
    layer = jax.jit(lambda x: attend(params, x, SEGMENTS, dtype=jnp.float32, dropout_rate=0.0, seeds=None, window=window))

    def run(x: jax.Array) -> np.ndarray:
        return np.asarray(layer(x)).reshape(B, L, -1)

    before = run(x)
    for row, position in ((1, 4), (2, 6), (2, 0)):
        moved = np.abs(run(x.at[row * L + position].add(1.0)) - before).max(axis=-1) > 0
        expected = np.zeros((B, L), bool)
        expected[row] = np.asarray(SEGMENTS)[row] == SEGMENTS[row, position]
        expected[row] &= (np.arange(L) >= position) | (not causal)
        np.testing.assert_array_equal(moved, expected)


def test_softmax_is_float32_in_bfloat16():
    """Scores of 160 and 160.5 are one number in bfloat16."""
    query = jnp.full((1, 1, 2, 4), 8.0, jnp.bfloat16)
    key = jnp.asarray([[[[10.0] * 4, [10.0, 10.0, 10.0, 10.125]]]], jnp.bfloat16)
    value = jnp.asarray([[[[1.0] * 4, [0.0] * 4]]], jnp.bfloat16)
    mixed = attention(query, key, value, jnp.zeros((1, 2), jnp.int32), seeds=None, dropout_rate=0.0)
    assert mixed.dtype == jnp.bfloat16
    np.testing.assert_allclose(mixed.astype(jnp.float32), 1.0 / (1.0 + np.exp(0.5)), rtol=0.01)


# -- rotary positions -------------------------------------------------------------------------------------------------------

POSITIONS = jnp.asarray([[*range(10)], [0, 1, 2, 0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3, 4, 5, 6, 0, 0, 0]], jnp.int32)


def test_rotary_positions_have_autodiffs_gradient():
    rope, g = rotation(POSITIONS, head_size=K, theta=100.0), normal(2, B, H, L, K)

    def plain(x: jax.Array) -> jax.Array:
        first, second = x[..., : K // 2], x[..., K // 2 :]
        return jnp.concatenate([first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin], axis=-1)

    x = normal(0, B, H, L, K)
    (y, pull), (expected, expected_pull) = jax.vjp(lambda x: rotate(x, rope), x), jax.vjp(plain, x)
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_allclose(pull(g)[0], expected_pull(g)[0], atol=1e-6)


def test_bfloat16_is_rotated_in_float32():
    rope = rotation(POSITIONS + 1000, head_size=K, theta=100.0)  # a whole turn is lost in a bfloat16 position
    x = normal(0, B, H, L, K).astype(jnp.bfloat16)
    assert rotate(x, rope).dtype == jnp.bfloat16
    np.testing.assert_allclose(rotate(x, rope).astype(jnp.float32), rotate(x.astype(jnp.float32), rope), atol=0.02, rtol=0.01)
