"""The next token is drawn as the law says."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.predict.generate import choose, draw, row_keys

jitted_choose = jax.jit(choose, static_argnames=("top_k", "greedy"))
key = partial(jax.random.key, impl="threefry2x32")
DRAWS = 4000
LOGITS = np.log([0.02, 0.4, 0.03, 0.25, 0.1, 0.15, 0.05]).astype(np.float32)


def shares(temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
    logits = np.broadcast_to([*LOGITS, *[np.float32(-1e9)] * 3], (DRAWS, 10))  # a vocabulary padded by three
    law = {"temperature": jnp.float32(temperature), "top_p": jnp.float32(top_p), "top_k": top_k, "greedy": temperature == 0.0}
    chosen = jitted_choose(logits, row_keys(key(0), jnp.arange(DRAWS, dtype=jnp.int32), jnp.int32(0)), **law)
    return np.bincount(chosen, minlength=10) / DRAWS


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "weights"),
    [
        (1.0, None, 1.0, [0.02, 0.4, 0.03, 0.25, 0.1, 0.15, 0.05]),
        (0.5, None, 1.0, [0.02**2, 0.4**2, 0.03**2, 0.25**2, 0.1**2, 0.15**2, 0.05**2]),
        (1.0, 3, 1.0, [0, 0.4, 0, 0.25, 0, 0.15, 0]),
        (1.0, None, 0.66, [0, 0.4, 0, 0.25, 0, 0.15, 0]),  # 0.65 is not enough, so a third stays
        (1.0, None, 0.64, [0, 0.4, 0, 0.25, 0, 0, 0]),
        (1.0, 2, 0.64, [0, 0.4, 0, 0.25, 0, 0, 0]),  # of the two, 0.4 is 62 %
        (1.0, 2, 0.6, [0, 1, 0, 0, 0, 0, 0]),
        (1.0, None, 1e-9, [0, 1, 0, 0, 0, 0, 0]),
        (0.0, None, 1.0, [0, 1, 0, 0, 0, 0, 0]),
    ],
)
def test_draws_follow_the_law(temperature: float, top_k: int | None, top_p: float, weights: list[float]):
    expected = np.array([*weights, 0, 0, 0]) / sum(weights)
    found = shares(temperature, top_k, top_p)
    assert not found[expected == 0].any()
    np.testing.assert_allclose(found, expected, atol=4 * np.sqrt(0.25 / DRAWS))


def test_draws_from_a_large_vocabulary_with_ties():
    """Against numpy's stable sort, the formula of https://arxiv.org/abs/1904.09751, section 3.1, by a chi-square test."""
    weights = np.round(np.random.default_rng(0).exponential(size=700), 1).astype(np.float32)
    probabilities = weights / weights.sum()
    order = np.argsort(-probabilities, kind="stable")
    kept = order[: np.searchsorted(np.cumsum(probabilities[order]), 0.9) + 1]
    assert weights[kept[-1]] == weights[order[len(kept)]], "the cut goes through a tie"
    number = 10_000
    keys = row_keys(key(1), jnp.arange(number, dtype=jnp.int32), jnp.int32(0))
    drawn = jax.jit(draw)(np.broadcast_to(probabilities, (number, 700)), keys, top_p=jnp.float32(0.9))
    counts = np.bincount(drawn, minlength=700)
    assert counts[kept].sum() == number
    expected = number * probabilities[kept] / probabilities[kept].sum()
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert abs(chi_square - (len(kept) - 1)) < 4 * np.sqrt(2 * (len(kept) - 1))


def test_keys_belong_to_texts_and_places_in_them():
    first = jax.random.key_data(row_keys(key(0), jnp.arange(3, dtype=jnp.int32), jnp.int32(5)))
    later = jax.random.key_data(row_keys(key(0), jnp.arange(2, 5, dtype=jnp.int32), jnp.int32(5)))
    np.testing.assert_array_equal(first[2], later[0])
    other = jax.random.key_data(row_keys(key(0), jnp.arange(3, dtype=jnp.int32), jnp.int32(6)))
    assert not np.array_equal(first, other)
