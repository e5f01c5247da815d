"""The law of dropout: the right share, nothing to see between elements, the same mask whatever the layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from kernels import weight_seeds

from tpulm.nn.dropout import DropoutSeeds, dropout, mix, random_bits, row_seeds, seeds_at, site_seeds, token_seeds

ROWS, LENGTH, WIDTH = 64, 32, 128


def seeds_of(keys: jax.Array, length: int, *, step: int = 1, site: int = 0) -> DropoutSeeds:
    """Seeds of the tokens of rows with these keys, [rows * length, 1]."""
    sites = site_seeds(jax.random.key(step), (4,))
    return seeds_at(sites[site], token_seeds(row_seeds(keys), length), (len(keys) * length, 1))


def row_keys(seed: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), ROWS)


def kept(seed: int, *, site: int = 0) -> np.ndarray:
    """Which elements of [ROWS, LENGTH, WIDTH] are kept at a rate of 0.1."""
    seeds = seeds_of(row_keys(seed), LENGTH, step=seed + 1, site=site)
    return np.asarray(dropout(jnp.ones((ROWS * LENGTH, WIDTH)), rate=0.1, seeds=seeds)).reshape(ROWS, LENGTH, WIDTH) > 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.003])
def test_share_dropped_and_scale(rate: float):
    y = np.asarray(dropout(jnp.full((512, 700), 2.0), rate=rate, seeds=seeds_of(row_keys(1), 8)))
    assert abs((y == 0).sum() - y.size * rate) < 5 * np.sqrt(y.size * rate * (1 - rate))  # deviations of a binomial count
    np.testing.assert_allclose(np.unique(y), [0.0, 2.0 / (1.0 - rate)], rtol=1e-6)


def test_every_marginal_has_the_right_share():
    """By row, by position and by feature: chi-square of the counts within five deviations of its mean."""
    dropped = ~kept(5)
    for axis in range(3):
        counts = dropped.sum(axis=tuple(i for i in range(3) if i != axis))
        trials = dropped.size // counts.size
        chi_square = ((counts - trials * 0.1) ** 2 / (trials * 0.1 * 0.9)).sum()
        assert abs(chi_square - counts.size) < 5 * np.sqrt(2 * counts.size)


def test_no_correlation_between_neighbours_rows_sites_and_steps():
    mask = kept(7)
    others = {
        "feature": (mask[..., 1:], mask[..., :-1]),
        "position": (mask[:, 1:], mask[:, :-1]),
        "row": (mask[1:], mask[:-1]),
        "site": (mask, kept(7, site=1)),
        "step": (mask, kept(8)),
    }
    for name, (a, b) in others.items():
        both = (~a & ~b).sum()
        assert abs(both - a.size * 0.01) < 5 * np.sqrt(a.size * 0.01), name


def test_a_change_of_any_input_bit_changes_half_of_the_output_bits():
    x = jax.random.bits(jax.random.key(0), (2000,), jnp.uint32)
    zeros = jnp.zeros_like(x)
    for bit in range(32):
        flipped = np.asarray(mix(x, zeros) ^ mix(x ^ jnp.uint32(1 << bit), zeros))
        changed = np.unpackbits(flipped.view(np.uint8)).mean()
        assert changed == pytest.approx(0.5, abs=0.02), bit


def test_weights_are_numbered_over_heads_and_keys():
    bits = np.asarray(random_bits(weight_seeds(4, 8), (4, 3, 8, 8)))
    assert len(np.unique(bits)) == bits.size  # 768 of 2**32: a collision has probability 7e-5


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_the_mask_does_not_depend_on_the_devices(shape: tuple[int, int]):
    mesh = Mesh(np.asarray(jax.devices()).reshape(shape), ("data", "tensor"))

    def masked(keys: jax.Array) -> jax.Array:
        return dropout(jnp.ones((keys.shape[0] * 8, 16)), rate=0.1, seeds=seeds_of(keys, 8))

    keys = jax.random.split(jax.random.key(0), 16)
    rows, parts = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ("data", "tensor")))
    split = jax.jit(masked, in_shardings=rows, out_shardings=parts)
    np.testing.assert_array_equal(split(keys), jax.jit(masked)(keys))
