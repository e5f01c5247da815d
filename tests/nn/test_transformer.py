"""How layers are computed changes nothing in what is computed."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.nn.params import initialize
from tpulm.nn.transformer import Execution, Layer, Randomness, Remat, apply_stack, stack_spec

B, L = 2, 8
SEGMENTS = jnp.zeros((B, L), jnp.int32)


def tiny(**changes: object) -> ModelConfig:
    settings = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": 16}
    return ModelConfig.model_validate(settings | changes)


@cache
def compiled(config: ModelConfig, execution: Execution) -> Any:
    """(params, x, key or None) -> a weighted sum of the output, the output, and the gradients of the sum."""
    rows = jax.random.bits(jax.random.key(2), (B, 2), jnp.uint32)

    def loss(params: Layer, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        randomness = None if key is None else Randomness(key, rows)
        x = x.astype(execution.dtype)
        y = apply_stack(params, x, SEGMENTS, config=config, execution=execution, randomness=randomness)
        y = y.astype(jnp.float32)
        return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)), y

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))


def run(config: ModelConfig, execution: Execution, *, key: jax.Array | None) -> tuple[jax.Array, list[jax.Array]]:
    """The output and the gradients of its weighted sum."""
    params = initialize(stack_spec(config), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (B * L, config.hidden_size))
    (_, y), grads = compiled(config, execution)(params, x, key)  # pyright: ignore[reportArgumentType]
    return y, jax.tree.leaves(grads)


SMALL_MODERNBERT = {"architecture": "modernbert", "num_layers": 1, "local_window": 4}  # one layer in three is global


@pytest.mark.parametrize(
    ("settings", "remat", "unroll"),
    [
        ({"norm_position": "post"}, "none", True),
        ({"norm_position": "pre"}, "dots", False),
        (SMALL_MODERNBERT, "full", True),
    ],
)
def test_loop_and_recomputation_give_the_same_numbers(settings: dict[str, Any], remat: Remat, unroll: bool):
    config, key = tiny(**settings), None if settings is SMALL_MODERNBERT else jax.random.key(7)
    y, grads = run(config, Execution(jnp.float32, "none", False), key=key)
    other_y, other_grads = run(config, Execution(jnp.float32, remat, unroll), key=key)
    np.testing.assert_allclose(other_y, y, atol=1e-5)
    for a, b in zip(other_grads, grads, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_dropout_is_drawn_anew_for_each_key():
    execution = Execution(jnp.float32, "none", False)
    one, _ = run(tiny(), execution, key=jax.random.key(0))
    other, _ = run(tiny(), execution, key=jax.random.key(1))
    none, _ = run(tiny(), execution, key=None)
    assert not np.allclose(one, other, atol=1e-3)
    assert not np.allclose(one, none, atol=1e-3)


def test_what_is_computed_again():
    """With "dots" the attention scores alone of all products; with "full" everything that the gradients need."""

    def products(remat: Remat) -> int:
        config = tiny(feed_forward="gated")
        function = compiled(config, Execution(jnp.float32, remat, False))  # pyright: ignore[reportArgumentType]
        params = initialize(stack_spec(config), jax.random.key(0))
        return str(jax.make_jaxpr(function)(params, jnp.zeros((B * L, config.hidden_size)), None)).count("dot_general[")

    projections, widening = 3, 2
    assert products("dots") == products("none") + 1
    assert products("full") >= products("dots") + projections + widening
