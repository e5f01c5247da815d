"""Cross-entropy equals its definition, adds up over parts, and survives extremes."""

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.objectives.losses import cross_entropy


def some(rows: int = 12, classes: int = 7) -> tuple[jax.Array, jax.Array, jax.Array]:
    logits = jax.random.normal(jax.random.key(0), (rows, classes)) * 3.0
    labels = jax.random.randint(jax.random.key(1), (rows,), 0, classes, jnp.int32)
    return logits, labels, jnp.asarray([1.0, 0.0, 2.0] * (rows // 3))


def test_sums_and_gradient_are_those_of_the_definition():
    logits, labels, weights = some()
    sums = cross_entropy(logits, labels, weights)
    likelihood = np.asarray(jax.nn.log_softmax(logits))[np.arange(12), labels]
    np.testing.assert_allclose(sums.loss, -(likelihood * weights).sum(), rtol=1e-5)
    np.testing.assert_allclose(sums.correct, np.asarray(weights)[np.asarray(logits).argmax(1) == np.asarray(labels)].sum())
    assert float(sums.weight) == float(weights.sum())
    grads = jax.grad(lambda x: cross_entropy(x, labels, weights).loss)(logits)
    expected = (jax.nn.softmax(logits) - jax.nn.one_hot(labels, 7)) * weights[:, None]
    np.testing.assert_allclose(grads, expected, atol=1e-6)


def test_masked_classes_and_large_logits_are_finite():
    logits = jnp.asarray([[1e4, -1e4, -1e9], [-1e4, 1e4, -1e9]])
    labels, weights = jnp.zeros(2, jnp.int32), jnp.ones(2)
    loss, grads = jax.value_and_grad(lambda x: cross_entropy(x, labels, weights).loss)(logits)
    assert float(loss) == 2e4
    assert np.isfinite(grads).all()
    assert not np.asarray(grads)[:, 2].any()


def test_bfloat16_logits_are_summed_in_float32():
    logits = jnp.zeros((2, 1000), jnp.bfloat16)
    sums = cross_entropy(logits, jnp.zeros(2, jnp.int32), jnp.ones(2))
    assert sums.loss.dtype == jnp.float32
    np.testing.assert_allclose(sums.loss, 2 * np.log(1000), rtol=1e-6)
