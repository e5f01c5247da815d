from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tpulm.config import OptimizerConfig
from tpulm.nn.params import ParamSpec, zeros
from tpulm.train.optimizer import learning_rate, make_optimizer

SPEC = {
    "kernel": ParamSpec((3, 4, 5), ("layers", "embed", "feed_forward"), zeros, decay=True),
    "bias": ParamSpec((3, 5), ("layers", "feed_forward"), zeros, decay=False),
}


def random_tree(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for name, leaf in SPEC.items()}


PLAIN = {"learning_rate": 1.0, "schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0, "clip_norm": None}


def updates_of(params: Any, grads: Any, spec: Any = SPEC, **settings: Any) -> Any:
    """Of the first step."""
    optimizer = make_optimizer(OptimizerConfig.model_validate(PLAIN | settings), 10, spec)
    return optimizer.update(grads, optimizer.init(params), params)[0]


N = np.arange(1, 101)  # the number of the update, of a hundred
REST = np.clip((100 - N) / 20, 0.0, 1.0)  # of a decay over the last twenty


def test_schedules() -> None:
    for settings, expected in (
        ({"schedule": "linear"}, np.where(N <= 10, N / 10, 1 - N / 100)),
        ({"schedule": "linear", "warmup_kind": "multiply"}, np.minimum(N / 10, 1) * (1 - N / 100)),  # ELECTRA's
        ({"schedule": "rsqrt"}, np.where(N <= 10, N / 10, np.sqrt(10 / np.maximum(N, 10)))),
        ({"schedule": "wsd", "decay_steps": 20}, np.where(N <= 10, N / 10, REST)),
        # lr = a + (1 - a) (1 - sqrt(t)), t from 0 to 1 over the decay (AnswerDotAI/ModernBERT, src/scheduler.py)
        ({"schedule": "wsd", "decay_steps": 20, "decay_type": "1-sqrt"}, np.where(N <= 10, N / 10, 1 - np.sqrt(1 - REST))),
        ({"schedule": "cosine", "warmup_steps": 0}, (1 + np.cos(np.pi * N / 100)) / 2),
    ):
        schedule = learning_rate(OptimizerConfig.model_validate({"learning_rate": 1.0, "warmup_steps": 10} | settings), 100)
        found = np.array([schedule(count) for count in range(100)])
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(settings))


def test_adamw_is_the_one_of_bert() -> None:
    """Against Google's AdamWeightDecayOptimizer, written out in numpy; the gradient is small enough not to be clipped."""
    config = OptimizerConfig(learning_rate=0.1, schedule="constant", warmup_steps=0, weight_decay=0.01, bias_correction=False)
    optimizer = make_optimizer(config, 10, SPEC)
    params: Any = random_tree(0)
    state = optimizer.init(params)
    expected = {name: np.asarray(value, np.float64) for name, value in params.items()}
    m, v = ({name: np.zeros(value.shape) for name, value in expected.items()} for _ in range(2))
    for seed in (1, 2, 3):
        grads = jax.tree.map(lambda x: x * jnp.float32(0.01), random_tree(seed))
        updates, state = optimizer.update(grads, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        for name, grad in grads.items():
            g = np.asarray(grad, np.float64)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g * g
            step = m[name] / (np.sqrt(v[name]) + 1e-6)
            if name == "kernel":
                step += 0.01 * expected[name]
            expected[name] = expected[name] - 0.1 * step
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=2e-5, atol=1e-6)


def test_clipping_is_by_the_global_norm() -> None:
    def update(scale: float) -> Any:
        grads = jax.tree.map(lambda x: x * jnp.float32(scale), random_tree(1))
        return optax.tree.norm(updates_of(random_tree(0), grads, clip_norm=1.0, epsilon=1e3))

    assert update(10.0) == pytest.approx(float(update(100.0)), rel=1e-4)
    assert update(10.0) == pytest.approx(1 / 1e3, rel=1e-2)  # clipped norm of one / epsilon


def test_lamb_scales_each_layer_by_itself() -> None:
    params = random_tree(0)
    updates = updates_of(params, random_tree(1), name="lamb")
    sizes = [np.sqrt(np.square(tree["kernel"]).sum((1, 2))) for tree in (updates, params)]
    np.testing.assert_allclose(*sizes, rtol=1e-5)


def test_the_default_is_optax_adam_with_its_bias_correction() -> None:
    params, grads, theirs = random_tree(0), random_tree(1), optax.adam(0.1, eps=1e-6)
    found = updates_of(params, grads, learning_rate=0.1)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        expected, _ = theirs.update(grads, theirs.init(params), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_a_stack_of_layers_is_updated_as_its_layers_one_by_one(name: str) -> None:
    """Over three steps; the reference has a tree for each layer, in which nothing is stacked."""
    config = OptimizerConfig.model_validate(
        {"name": name, "learning_rate": 0.1, "warmup_steps": 2, "weight_decay": 0.1, "clip_norm": None, "layer_decay": 0.5}
    )

    def steps(spec: Any, pick: Any, config: OptimizerConfig) -> Any:
        optimizer = make_optimizer(config, 10, spec)
        params = {leaf: pick(value) for leaf, value in random_tree(0).items()}
        state = optimizer.init(params)
        for seed in (1, 2, 3):
            grads = {leaf: pick(value) for leaf, value in random_tree(seed).items()}
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params

    stacked = steps(SPEC, lambda value: value, config)
    alone = {
        leaf: ParamSpec(spec.shape[1:], tuple(f"own {axis}" for axis in spec.axes[1:]), zeros, decay=spec.decay)
        for leaf, spec in SPEC.items()
    }
    for layer in range(3):
        rate = config.learning_rate * 0.5 ** (3 - layer)
        own = config.model_copy(update={"learning_rate": rate, "layer_decay": None})
        found = steps(alone, lambda value, layer=layer: value[layer], own)
        for leaf, value in found.items():
            np.testing.assert_allclose(stacked[leaf][layer], value, rtol=1e-5, atol=1e-6, err_msg=f"{leaf} {layer}")


def test_layer_wise_decay_goes_from_the_head_down_to_the_embeddings() -> None:
    def leaf(axis: str | None, size: int = 3) -> ParamSpec:
        return ParamSpec((size, 2), (axis, None), zeros, decay=True)

    def model(layers: int) -> Any:
        return {"embeddings": {"tokens": leaf("vocab")}, "layers": {"up": leaf("layers", layers)}, "head": {"bias": leaf(None)}}

    spec = {"generator": model(2), "discriminator": model(3)}
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), spec, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    updates = updates_of(ones, ones, spec, beta1=0.0, beta2=0.0, epsilon=1e-12, layer_decay=0.5)
    for half, expected in (("generator", [0.125, 0.25, 0.5, 1.0]), ("discriminator", [0.0625, 0.125, 0.25, 0.5, 1.0])):
        found = [updates[half]["embeddings"]["tokens"], updates[half]["layers"]["up"], updates[half]["head"]["bias"]]
        first, layers, last = (leaf[:, 0] for leaf in found)
        np.testing.assert_allclose(-np.array([first[0], *layers, last[0]]), expected, rtol=1e-5)


def orthogonalized(gradient: np.ndarray) -> np.ndarray:
    """Five steps of Newton-Schulz, as Jordan et al. 2024 write them (kellerjordan.github.io/posts/muon)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient / np.linalg.norm(gradient)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def test_muon_orthogonalizes_the_matrices_of_layers_and_is_adam_for_the_rest() -> None:
    """Scaled as in arXiv 2502.16982, equation 4; heads lie flat beside each other."""
    spec = {
        "query": ParamSpec((2, 8, 2, 4), ("layers", "embed", "heads", "head_size"), zeros, decay=True),
        "merge": ParamSpec((2, 2, 4, 8), ("layers", "heads", "head_size", "embed"), zeros, decay=True),
        "up": ParamSpec((2, 8, 12), ("layers", "embed", "feed_forward"), zeros, decay=True),
        "norm": ParamSpec((2, 8), ("layers", "embed"), zeros, decay=False),
        "tokens": ParamSpec((30, 8), ("vocab", "embed"), zeros, decay=True),
    }
    rng = np.random.default_rng(0)
    trees = [{name: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for name, leaf in spec.items()} for _ in range(2)]
    muon, adam = (updates_of(trees[1], trees[0], spec, name=name) for name in ("muon", "adamw"))
    for name, shape in (("query", (8, 8)), ("merge", (8, 8)), ("up", (8, 12))):
        for layer, gradient in zip(np.asarray(muon[name]), np.asarray(trees[0][name]), strict=True):
            expected = -0.2 * np.sqrt(max(shape)) * orthogonalized(gradient.reshape(shape))
            np.testing.assert_allclose(layer.reshape(shape), expected, atol=1e-4, err_msg=name)
    for name in ("norm", "tokens"):
        np.testing.assert_array_equal(muon[name], adam[name])
