"""BERT's parameters are the published ones, padding of the vocabulary is inert, and FLOPs are those of its products."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.models import bert
from tpulm.nn.params import initialize, named_leaves, shapes
from tpulm.nn.transformer import Execution

EXECUTION = Execution(jnp.float32, "none", False)
VOCAB_SIZE = 100


def tiny(**changes: object) -> ModelConfig:
    settings = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": 16}
    return ModelConfig.model_validate(settings | changes)


def some_tokens(rows: int = 2, length: int = 8) -> bert.EncoderInput:
    ids = jax.random.randint(jax.random.key(0), (rows, length), 0, VOCAB_SIZE, jnp.int32)
    zeros = jnp.zeros_like(ids)
    return bert.EncoderInput(ids, zeros, zeros, None)


def test_decay_skips_norms_and_biases():
    leaves = named_leaves(bert.spec(tiny(), vocab_size=VOCAB_SIZE, next_sentence=True))
    undecayed = {name for name, leaf in leaves.items() if not leaf.decay}
    assert undecayed == {name for name in leaves if "bias" in name or "norm" in name}


def test_padding_of_the_vocabulary_is_never_predicted_and_gets_no_gradient():
    config = tiny()
    params = initialize(bert.spec(config, vocab_size=VOCAB_SIZE, next_sentence=False), jax.random.key(0))

    @jax.jit
    def run(params: bert.Bert) -> tuple[jax.Array, Any]:
        def loss(params: bert.Bert) -> tuple[jax.Array, jax.Array]:
            hidden = bert.encode(params, some_tokens(), config=config, execution=EXECUTION, randomness=None)
            logits = bert.masked_logits(params, hidden, config=config, execution=EXECUTION, vocab_size=VOCAB_SIZE)
            return -jnp.mean(jax.nn.log_softmax(logits)[..., 5]), logits

        (_, logits), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return logits, grads

    logits, grads = run(params)
    assert logits.shape == (2, 8, 128)
    assert (logits[..., VOCAB_SIZE:] <= -1e8).all()
    assert (np.asarray(jax.nn.softmax(logits))[..., VOCAB_SIZE:] == 0).all()
    assert not np.asarray(grads.embeddings.tokens)[VOCAB_SIZE:].any()
    assert not np.asarray(grads.masked_head.output_bias)[VOCAB_SIZE:].any()
    assert np.asarray(grads.embeddings.tokens)[:VOCAB_SIZE].any(axis=1).all()


@pytest.mark.parametrize("next_sentence", [False, True])
def test_flops_are_those_of_the_products_in_the_program(next_sentence: bool):
    """Counted in the jaxpr of a forward pass over one row, padding of the vocabulary included there."""
    config, length, predictions = tiny(num_layers=3), 8, 3

    def forward(params: bert.Bert, tokens: bert.EncoderInput) -> Any:
        hidden = bert.encode(params, tokens, config=config, execution=EXECUTION, randomness=None)
        out = [bert.masked_logits(params, hidden[0, :predictions], config=config, execution=EXECUTION, vocab_size=128)]
        if params.next_sentence is not None:
            out.append(bert.next_sentence_logits(params.next_sentence, hidden, execution=EXECUTION))
        return out

    abstract = shapes(bert.spec(config, vocab_size=128, next_sentence=next_sentence))
    counted = product_flops(jax.make_jaxpr(forward)(abstract, some_tokens(1, length)).jaxpr)
    of_row: dict[str, Any] = {"sequence_length": length, "predictions": predictions, "vocab_size": 128}
    assert counted == bert.forward_flops(config, **of_row, next_sentence=next_sentence)


def product_flops(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            inner = np.prod([equation.invars[0].aval.shape[axis] for axis in contracted])
            total += 2.0 * inner * np.prod(equation.outvars[0].aval.shape)
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(product_flops(inner) for inner in inner_jaxprs(equation.params))
    return total


def inner_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value
