"""The causal objective: every token but a row's first is predicted, from its own text and nothing else."""

from __future__ import annotations

import cases
import jax
import jax.numpy as jnp
import numpy as np
from cases import CASES, VOCAB_SIZE, L

from tpulm.models import bert, decoder
from tpulm.nn.params import initialize
from tpulm.objectives.clm import CausalLanguageModel

PAD, SEP = cases.SPECIAL.pad, cases.SPECIAL.sep


def make(**changes: object) -> CausalLanguageModel:
    made = CASES["causal, as GPT-2"].make(**changes)
    assert isinstance(made, CausalLanguageModel)
    return made


def rows(*lists: list[int]) -> dict[str, jax.Array]:
    padded = [one + [PAD] * (L - len(one)) for one in lists]
    return {"tokens": jnp.asarray(padded, jnp.uint16)}


def test_labels_are_the_tokens_that_follow():
    objective = make()
    data = rows([9, 8, SEP, 7, 6, SEP, 5], [SEP, *range(10, 10 + L - 1)], [])
    inputs = objective.make_inputs(data, cases.keys(3))
    np.testing.assert_array_equal(inputs.labels[0, :7], [8, SEP, 7, 6, SEP, 5, 0])
    np.testing.assert_array_equal(inputs.weights[0], [1.0] * 6 + [0.0] * (L - 6))
    np.testing.assert_array_equal(inputs.labels[1], [*range(10, 10 + L - 1), 0])
    assert float(objective.totals(inputs)["predicted"]) == 6 + L - 1


def test_a_texts_logits_do_not_depend_on_its_neighbours():
    """Alone in a row, after another text, before another text, or with padding behind it."""
    objective = make(dropout=0.0, attention_dropout=0.0, num_layers=2, initializer_range=0.5)
    params = initialize(objective.spec, jax.random.key(0))
    text = [SEP, 11, 12, 13, 14]
    data = rows(text, [20, 21, 22, *text], [*text, SEP, 30, 31], [SEP, 40, *text, SEP, 41, 42])

    @jax.jit
    def logits(data: dict[str, jax.Array]) -> jax.Array:
        inputs = objective.make_inputs(data, cases.keys(4))
        hidden = bert.encode(params, inputs.tokens, config=objective.model, execution=objective.execution, randomness=None)
        return decoder.next_token_logits(params, hidden, execution=objective.execution, vocab_size=VOCAB_SIZE)

    found = np.asarray(logits(data))[..., :VOCAB_SIZE]
    assert np.abs(found).max() > 3.0  # or the tolerance would say little
    for row, start in ((1, 3), (2, 0), (3, 2)):
        np.testing.assert_allclose(found[row, start : start + 5], found[0, :5], atol=1e-4)
