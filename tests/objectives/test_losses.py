"""Cross-entropy equals its definition, adds up over parts, and survives extremes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.models.bert import Output, vocabulary_logits
from tpulm.nn.transformer import Execution
from tpulm.objectives.losses import cross_entropy, vocabulary_cross_entropy


def test_sums_and_gradient_are_those_of_the_definition():
    logits, weights = jax.random.normal(jax.random.key(0), (12, 7)) * 3.0, jnp.asarray([1.0, 0.0, 2.0] * 4)
    labels = jax.random.randint(jax.random.key(1), (12,), 0, 7, jnp.int32)
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


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_vocabularys_loss_by_parts_is_that_of_the_whole(with_bias: bool):
    """Sums and gradients, of a number of tokens that the parts do not divide."""
    keys = jax.random.split(jax.random.key(0), 4)
    x, table, bias = (jax.random.normal(key, shape) for key, shape in zip(keys, [(30, 8), (128, 8), (128,)], strict=False))
    labels, weights = jax.random.randint(keys[3], (30,), 0, 100, jnp.int32), jnp.linspace(0.0, 2.0, 30)

    def loss(output: Output, tokens_at_once: int):
        execution = Execution(jnp.float32, "none", True, tokens_at_once=tokens_at_once)
        sums = vocabulary_cross_entropy(output, labels, weights, execution=execution, vocab_size=100)
        return 0.1 * sums.loss, sums

    def whole(output: Output):
        sums = cross_entropy(vocabulary_logits(output, dtype=jnp.float32, vocab_size=100), labels, weights)
        return 0.1 * sums.loss, sums

    output = Output(x, table, bias if with_bias else None)
    expected = jax.value_and_grad(whole, has_aux=True)(output)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), jax.value_and_grad(loss, has_aux=True)(output, 8), expected
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5), loss(output, 8), expected[0])
