"""The law of sampling: tokens come with their softmax probability, each row from its own key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.objectives.rtd import sample_tokens

V = 384
DRAWS = 20_000


def draw(logits: np.ndarray, *, temperature: float = 1.0, seed: int = 0) -> np.ndarray:
    """DRAWS samples of one distribution [V], spread over rows and positions."""
    keys = jax.random.split(jax.random.key(seed), DRAWS // 100)
    spread = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (len(keys), 100, V))
    return np.asarray(jax.jit(sample_tokens, static_argnames="temperature")(spread, keys, temperature=temperature)).ravel()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_those_of_the_softmax(temperature: float):
    logits = np.random.default_rng(0).normal(0, 1.5, V)
    expected = np.asarray(jax.nn.softmax(logits / temperature)) * DRAWS
    found = np.bincount(draw(logits, temperature=temperature), minlength=V)
    common = expected >= 5
    squares = np.sum((found - expected)[common] ** 2 / expected[common])
    rest = (found[~common].sum() - expected[~common].sum()) ** 2 / max(expected[~common].sum(), 1e-9)
    freedom = int(common.sum())
    assert squares + rest < freedom + 4 * np.sqrt(2 * freedom)  # chi-squared: four standard deviations


def test_a_token_of_probability_zero_is_never_drawn():
    logits = np.full(V, -1e9)
    logits[[5, 130]] = 0.0
    found = np.bincount(draw(logits), minlength=V)
    assert found[5] + found[130] == DRAWS
    assert abs(found[5] - DRAWS / 2) < 4 * np.sqrt(DRAWS / 4)


def test_a_rows_samples_depend_on_its_key_alone():
    logits = jax.random.normal(jax.random.key(1), (4, 7, V))
    keys = jax.random.split(jax.random.key(2), 4)
    whole, alone = sample_tokens(logits, keys), sample_tokens(logits[2:3], keys[2:3])
    np.testing.assert_array_equal(whole[2:3], alone)
