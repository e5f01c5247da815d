"""What holds for every objective: global means whatever the split, and learning; silent transfers are in train/test_step.py."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, VOCAB_SIZE, Case, L

from tpulm.errors import ConfigError
from tpulm.nn.params import initialize


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@cache
def begun(objective: Any) -> Any:
    return initialize(objective.spec, jax.random.key(0))


def assert_same_tree(ours: Any, theirs: Any, atol: float) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), ours, theirs)


@pytest.mark.parametrize("case", ["masked, with next sentence", "replaced", "causal, as GPT-2"], indirect=True)
def test_micro_batches_add_up_to_the_whole(case: Case):
    """Dropout included: masks belong to rows, not to micro-batches."""
    objective = case.make()
    params, data = begun(objective), case.batch()
    loss, sums, grads = cases.run(objective, params, data)
    split_loss, split_sums, split_grads = cases.run(objective, params, data, parts=4)
    assert split_loss == pytest.approx(loss, abs=1e-5)
    assert_same_tree(split_sums, sums, 1e-4)
    assert_same_tree(split_grads, grads, 1e-5)
    assert objective.metrics(sums)["loss"] == pytest.approx(loss, abs=1e-5)


def test_nothing_but_padding_is_a_loss_of_zero(case: Case):
    objective = case.make()
    data = case.batch() | {"tokens": jnp.zeros((8, L), jnp.uint16)}
    loss, sums, grads = cases.run(objective, begun(objective), data)
    assert loss == 0.0
    assert objective.metrics(sums)["loss"] == 0.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_the_first_loss_is_that_of_guessing(case: Case):
    objective = case.make()
    loss, _, _ = cases.run(objective, begun(objective), case.batch())
    judgements = 50 if case.model.get("architecture") == "electra" else int(case.next_sentence)  # each worth one bit
    assert loss == pytest.approx(np.log(VOCAB_SIZE) + judgements * np.log(2), rel=0.02, abs=0.1)


def test_every_parameter_gets_a_gradient(case: Case):
    objective = case.make()
    _, _, grads = cases.run(objective, begun(objective), case.batch())
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("case", ["masked, with next sentence", "causal, as Llama"], indirect=True)
def test_bfloat16_is_near_float32(case: Case):
    data, params = case.batch(), begun(case.make())
    wide, _, _ = cases.run(case.make(), params, data)
    narrow, _, grads = cases.run(case.make(dtype=jnp.bfloat16), params, data)
    assert narrow == pytest.approx(wide, abs=0.02)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


def test_special_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(ConfigError, match="'mask'"):
        cases.make(special=dataclasses.replace(cases.SPECIAL, mask=50))
