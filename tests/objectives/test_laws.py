"""What holds for every objective: global means whatever the split, any layout, no silent transfers, and learning."""

from __future__ import annotations

import dataclasses
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, VOCAB_SIZE, Case, L
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpulm.errors import ConfigError
from tpulm.nn.params import initialize, map_specs

SLOWEST = ("masked, with next sentence", "causal, as GPT-2", "causal, as Llama")  # as many as differ in their layout


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def begun(objective: Any) -> Any:
    return initialize(objective.spec, jax.random.key(0))


def assert_same_tree(ours: Any, theirs: Any, atol: float) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), ours, theirs)


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
    objective = case.make(dropout=0.0, attention_dropout=0.0)
    _, _, grads = cases.run(objective, begun(objective), case.batch())
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_bfloat16_is_near_float32(case: Case):
    data, params = case.batch(), begun(case.make())
    wide, _, _ = cases.run(case.make(), params, data)
    narrow, _, grads = cases.run(case.make(dtype=jnp.bfloat16), params, data)
    assert narrow == pytest.approx(wide, abs=0.02)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


def test_no_array_moves_between_host_and_device(case: Case):
    objective = case.make()
    params, data = begun(objective), case.batch()
    prepare, gradient = cases.compiled(objective)
    key = jax.random.key(1)
    gradient(params, *prepare(data), dropout_key=key)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(gradient(params, *prepare(data), dropout_key=key))


def rule(axes: tuple[str | None, ...]) -> PartitionSpec:
    names = {"vocab": "tensor", "heads": "tensor", "feed_forward": "tensor", "embed": "fsdp"}
    return PartitionSpec(*(names.get(axis) if axis else None for axis in axes))


@pytest.mark.parametrize("name", SLOWEST)
@pytest.mark.devices
def test_twenty_steps_on_eight_devices_are_those_on_one(name: str):
    """2 data x 2 fsdp x 2 tensor, dropout on: losses within 1e-4 at every step."""
    objective = CASES[name].make(dropout=0.2, attention_dropout=0.2)
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    over_rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    layout = map_specs(lambda leaf: NamedSharding(mesh, rule(leaf.axes)), objective.spec)

    def step(params: Any, data: Any, number: jax.Array) -> tuple[Any, jax.Array]:
        key = jax.random.fold_in(jax.random.key(0), number)
        inputs = objective.prepare(data, jax.random.split(key, data["tokens"].shape[0]))
        gradient = jax.value_and_grad(objective.loss, has_aux=True)
        (loss, _), grads = gradient(params, inputs, objective.totals(inputs), dropout_key=key)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss

    def train(place_params: Any, place_batch: Any) -> list[float]:
        params, data = place_params(begun(objective)), place_batch(CASES[name].batch(16))
        compiled = jax.jit(step, donate_argnums=0).lower(params, data, jnp.int32(0)).compile()
        losses = []
        for number in range(20):
            params, loss = compiled(params, data, jnp.int32(number))
            losses.append(float(loss))
        return losses

    one = train(lambda x: x, lambda x: x)
    eight = train(lambda x: jax.device_put(x, layout), lambda x: jax.device_put(x, over_rows))
    np.testing.assert_allclose(eight, one, atol=1e-4)
    assert one[-1] < one[0]


def test_rows_longer_than_the_model_are_refused(case: Case):
    with pytest.raises(ConfigError, match=r"rows of 16 tokens exceed model.max_positions 8"):
        case.make(max_positions=8)


def test_special_tokens_outside_the_vocabulary_are_refused(case: Case):
    with pytest.raises(ConfigError, match=r"'mask': 50.* outside the vocabulary of 50"):
        case.make(special=dataclasses.replace(cases.SPECIAL, mask=50))
