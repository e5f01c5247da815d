"""Laws of the pieces of a layer; gradients written out equal autodiff's of the plain formula."""

import math
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import normal

from tpulm.nn.layers import Activation, Dense, Norm, activation, affine, dense, normalize, project


def test_norm_of_bfloat16_is_computed_in_float32():
    x = (normal(0, 4, 256) + 100.0).astype(jnp.bfloat16)  # the mean would swallow the rest in bfloat16
    params = Norm(scale=jnp.ones(256), bias=jnp.zeros(256))
    y = normalize(params, x, epsilon=1e-12)
    assert y.dtype == jnp.bfloat16
    wide = normalize(params, x.astype(jnp.float32), epsilon=1e-12)
    np.testing.assert_allclose(y.astype(jnp.float32), wide, atol=0.02)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [256, 10])  # a multiple of the contracted block, and not
def test_affine_gradients_are_those_of_the_formula(rows: int, has_bias: bool):
    x, kernel, bias, g = normal(0, rows, 6), normal(1, 6, 4), normal(2, 4) if has_bias else None, normal(3, rows, 4)
    y, pull = jax.vjp(lambda *a: affine(*a, dtype=jnp.float32), x, kernel, bias)
    expected, expected_pull = jax.vjp(lambda x, kernel, b: x @ kernel + (0.0 if b is None else b[None]), x, kernel, bias)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(pull(g)), jax.tree.leaves(expected_pull(g)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=1e-5)


def test_gradients_of_parameters_are_float32_in_bfloat16():
    params = Dense(kernel=normal(1, 6, 4), bias=normal(2, 4))
    x = normal(0, 1001, 6).astype(jnp.bfloat16)
    loss = lambda params: jnp.sum(dense(params, x, dtype=jnp.bfloat16).astype(jnp.float32))  # noqa: E731
    assert dense(params, x, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    grads = jax.grad(loss)(params)
    assert grads.kernel.dtype == grads.bias.dtype == jnp.float32
    assert grads.bias.tolist() == [1001.0] * 4  # bfloat16 cannot count beyond 256


def projected_loss(x: jax.Array, table: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Mean cross-entropy of the first classes, of x [R, D] and table [V, D]."""
    return -jnp.mean(jax.nn.log_softmax(project(x, table, dtype=dtype))[:, 0])


def test_a_projection_s_gradients_are_autodiff_s_in_float32_to_the_last_bit():
    x, table, g = normal(0, 256, 32), normal(1, 384, 32), normal(2, 256, 384)

    def pulled(f: Callable[[jax.Array, jax.Array], jax.Array]) -> list[jax.Array]:
        y, pull = jax.vjp(f, x, table)
        return [y, *pull(g)]

    ours = jax.jit(lambda: pulled(lambda x, table: project(x, table, dtype=jnp.float32)))()
    plain = jax.jit(lambda: pulled(lambda x, table: jnp.einsum("rd,vd->rv", x, table)))()
    for found, expected in zip(ours, plain, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_projection_and_its_gradients_multiply_in_bfloat16_and_add_in_float32():
    x, table = normal(0, 256, 32).astype(jnp.bfloat16), normal(1, 384, 32)
    gradient = jax.grad(projected_loss, argnums=(0, 1))
    program = jax.jit(gradient, static_argnums=2).lower(x, table, jnp.bfloat16).as_text()
    products = re.findall(r"dot_general.*: \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\) -> tensor<[\dx]*x(\w+)>", program)
    assert products == [("bf16", "bf16", "f32")] * 3
    found = gradient(x, table, jnp.bfloat16)
    assert [part.dtype for part in found] == [jnp.bfloat16, jnp.float32]
    for part, wide in zip(found, gradient(x.astype(jnp.float32), table, jnp.float32), strict=True):
        assert jnp.linalg.norm(part.astype(jnp.float32) - wide) < 2**-7 * jnp.linalg.norm(wide)


FORMULAS: dict[Activation, Callable[[float], float]] = {
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1.0 + math.exp(-x)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_and_their_slopes(name: Activation):
    x, function, formula = np.linspace(-8.0, 8.0, 401), activation(name), FORMULAS[name]
    np.testing.assert_allclose(function(jnp.asarray(x, jnp.float32)), [formula(v) for v in x], atol=2e-6)
    slopes = jax.vmap(jax.grad(lambda v: function(v[None])[0]))(jnp.asarray(x + 1e-3, jnp.float32))
    numeric = [(formula(v + 1e-3 + 1e-6) - formula(v + 1e-3 - 1e-6)) / 2e-6 for v in x]
    np.testing.assert_allclose(slopes, numeric, atol=1e-5)
    assert function(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16
