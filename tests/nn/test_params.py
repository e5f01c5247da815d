"""Laws of parameter specs: one tree gives values, shapes, counts and the decay mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.nn.params import ParamSpec, TruncatedNormal, count, initialize, named_leaves, param, parameters, shapes, stack, zeros


@parameters
class Inner:
    kernel: jax.Array
    bias: jax.Array


@parameters
class Outer:
    first: Inner
    second: Inner | None


def inner() -> Inner:
    kernel = param((4, 6), ("embed", "feed_forward"), TruncatedNormal(0.5))
    return Inner(kernel, bias=param((6,), ("feed_forward",), zeros, decay=False))


def test_names_are_paths_and_absent_parts_have_none():
    spec = Outer(inner(), None)
    assert count(spec) == 30
    found = {name: leaf.shape for name, leaf in named_leaves(shapes(spec)).items()}
    assert found == {"first/kernel": (4, 6), "first/bias": (6,)}
    assert list(named_leaves(Outer(inner(), inner()))) == [*found, "second/kernel", "second/bias"]


def test_a_leaf_begins_the_same_whatever_else_the_tree_holds():
    key = jax.random.key(3)
    alone, together = initialize(Outer(inner(), None), key), initialize(Outer(inner(), inner()), key)
    np.testing.assert_array_equal(alone.first.kernel, together.first.kernel)
    assert together.second is not None
    assert not np.array_equal(together.first.kernel, together.second.kernel)
    assert alone.first.kernel.dtype == jnp.float32


def test_stacked_layers_differ_from_each_other():
    spec = stack(inner(), 3)
    assert spec.kernel == ParamSpec((3, 4, 6), ("layers", "embed", "feed_forward"), TruncatedNormal(0.5), True)
    values = initialize(spec, jax.random.key(0))
    assert not np.array_equal(values.kernel[0], values.kernel[1])


def test_truncated_normal_is_cut_at_two_deviations():
    values = np.asarray(TruncatedNormal(0.02)(jax.random.key(0), (50_000,)))
    assert np.abs(values).max() <= 0.04
    assert values.std() == pytest.approx(0.02 * 0.87962566, rel=0.02)  # of a normal cut at two deviations
    assert values.mean() == pytest.approx(0.0, abs=3e-4)


def test_axes_must_name_every_dimension():
    with pytest.raises(ValueError, match=r"2 axis names"):
        ParamSpec((3, 4), ("embed",), zeros, True)
