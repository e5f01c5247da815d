"""The masked objective: global means whatever the split, deterministic inputs, and learning."""

from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpulm import objectives
from tpulm.config import HardwareConfig, ModelConfig, ObjectiveConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import initialize, map_specs
from tpulm.objectives import Objective, SpecialIds

SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4)
VOCAB_SIZE, L = 50, 16


def make(
    *,
    rows: Literal["segments", "packed"] = "segments",
    next_sentence: bool = False,
    dtype: Any = jnp.float32,
    evaluation: bool = False,
    objective: ObjectiveConfig | None = None,
    special: SpecialIds = SPECIAL,
    **model: object,
) -> Objective:
    settings = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "max_positions": L}
    return objectives.make(
        ModelConfig.model_validate(settings | model),
        objective or ObjectiveConfig(),
        HardwareConfig(unroll=False),
        sequence_length=L,
        row_kind=rows,
        next_sentence=next_sentence,
        vocab_size=VOCAB_SIZE,
        special=special,
        compute_dtype=dtype,
        evaluation=evaluation,
    )


def batch(rows: int = 8, *, next_sentence: bool = False, seed: int = 0) -> dict[str, jax.Array]:
    """Rows of several lengths, the last one nothing but padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, VOCAB_SIZE, (rows, L)).astype(np.uint16)
    for i, row in enumerate(tokens):
        length = L - i if i < rows - 1 else 0
        row[length:] = SPECIAL.pad
        if length:
            row[0], row[length // 2], row[length - 1] = SPECIAL.cls, SPECIAL.sep, SPECIAL.sep
    result = {"tokens": jnp.asarray(tokens)}
    if next_sentence:
        result["next_sentence"] = jnp.asarray(rng.integers(0, 2, rows).astype(np.uint8))
    return result


def keys(rows: int = 8, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), rows)


@cache
def compiled(objective: Objective) -> Any:
    """(batch -> inputs and totals), (params, inputs, totals, key -> loss, sums and gradients)."""

    def prepare(data: Any) -> Any:
        inputs = objective.prepare(data, keys(data["tokens"].shape[0]))
        return inputs, objective.totals(inputs)

    return jax.jit(prepare), jax.jit(jax.value_and_grad(objective.loss, has_aux=True))


def run(objective: Objective, params: Any, data: Any, *, parts: int = 1) -> tuple[float, dict, Any]:
    """Loss, sums and gradients, with the rows computed in `parts` micro-batches."""
    prepare, gradient = compiled(objective)
    inputs, totals = jax.device_get(prepare(data))
    size = data["tokens"].shape[0] // parts
    results = []
    for part in range(parts):
        some = jax.tree.map(lambda x, part=part: x[part * size : (part + 1) * size], inputs)
        results.append(jax.device_get(gradient(params, some, totals, dropout_key=jax.random.key(1))))
    (loss, sums), grads = jax.tree.map(lambda *x: sum(x), *results)
    return float(loss), sums, grads


def assert_same_tree(ours: Any, theirs: Any, atol: float) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), ours, theirs)


@pytest.mark.parametrize(("rows", "next_sentence"), [("segments", True), ("packed", False)])
def test_micro_batches_add_up_to_the_whole(rows: Literal["segments", "packed"], next_sentence: bool):
    """Dropout included: masks belong to rows, not to micro-batches."""
    objective = make(rows=rows, next_sentence=next_sentence)
    params, data = initialize(objective.spec, jax.random.key(0)), batch(next_sentence=next_sentence)
    loss, sums, grads = run(objective, params, data)
    split_loss, split_sums, split_grads = run(objective, params, data, parts=4)
    assert split_loss == pytest.approx(loss, abs=1e-5)
    assert_same_tree(split_sums, sums, 1e-4)
    assert_same_tree(split_grads, grads, 1e-5)
    metrics = objective.metrics(sums)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    names = {"loss", "mlm_loss", "mlm_accuracy"}
    assert set(metrics) == names | ({"next_sentence_loss", "next_sentence_accuracy"} if next_sentence else set())


def test_rows_of_padding_count_for_nothing():
    objective = make(next_sentence=True)
    inputs, totals = compiled(objective)[0](batch(next_sentence=True))
    np.testing.assert_array_equal(inputs.row_weights, [1, 1, 1, 1, 1, 1, 1, 0])
    assert not np.asarray(inputs.weights)[-1].any()
    assert float(totals["next_sentence"]) == 7
    assert float(totals["mlm"]) == np.asarray(inputs.weights)[:7].sum()


def test_nothing_but_padding_is_a_loss_of_zero():
    objective = make()
    data = {"tokens": jnp.zeros((8, L), jnp.uint16)}
    loss, sums, grads = run(objective, initialize(objective.spec, jax.random.key(0)), data)
    assert loss == 0.0
    assert objective.metrics(sums) == {"loss": 0.0, "mlm_loss": 0.0, "mlm_accuracy": 0.0}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_the_first_loss_is_that_of_guessing():
    objective = make()
    loss, _, _ = run(objective, initialize(objective.spec, jax.random.key(0)), batch())
    assert loss == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)


def test_evaluation_masks_its_own_share():
    config = ObjectiveConfig(mask_fraction=0.5, evaluation_mask_fraction=0.15)
    counts = {}
    for evaluation in (False, True):
        prepare, _ = compiled(make(objective=config, evaluation=evaluation))
        _, totals = prepare(batch())
        counts[evaluation] = int(totals["mlm"])
    lengths = [16, 15, 14, 13, 12, 11, 10, 0]
    assert counts[True] == sum(round(length * 0.15) for length in lengths)
    assert counts[False] == sum(min(8, round(length * 0.5)) for length in lengths)


def test_label_counts():
    objective = make()
    inputs, totals = compiled(objective)[0](batch())
    counts = np.asarray(objective.label_counts(inputs))
    assert counts.shape == (VOCAB_SIZE,)
    assert counts.sum() == float(totals["mlm"])
    labels = np.asarray(inputs.labels)[np.asarray(inputs.weights) > 0]
    np.testing.assert_array_equal(counts, np.bincount(labels, minlength=VOCAB_SIZE))


def test_flops_are_three_forward_passes_with_the_budget_of_predictions():
    objective = make(objective=ObjectiveConfig(max_predictions=3))
    layers = 2 * L * (4 * 16 * 16 + 2 * 16 * 32) + 4 * L * L * 16
    assert objective.flops_per_row == 3 * (layers + 2 * 3 * (16 * 16 + 16 * VOCAB_SIZE))


def rule(axes: tuple[str | None, ...]) -> PartitionSpec:
    names = {"vocab": "tensor", "heads": "tensor", "feed_forward": "tensor", "embed": "fsdp"}
    return PartitionSpec(*(names.get(axis) if axis else None for axis in axes))


def test_twenty_steps_on_eight_devices_are_those_on_one():
    """2 data x 2 fsdp x 2 tensor, dropout on: losses within 1e-4 at every step."""
    objective = make(next_sentence=True, dropout=0.2, attention_dropout=0.2)
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
        params = place_params(initialize(objective.spec, jax.random.key(0)))
        data = place_batch(batch(16, next_sentence=True))
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


def test_bfloat16_is_near_float32():
    data = batch()
    params = initialize(make().spec, jax.random.key(0))
    wide, _, _ = run(make(), params, data)
    narrow, _, grads = run(make(dtype=jnp.bfloat16), params, data)
    assert narrow == pytest.approx(wide, abs=0.02)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


def test_no_array_moves_between_host_and_device():
    objective = make()
    params, data = initialize(objective.spec, jax.random.key(0)), batch()

    prepare, gradient = compiled(objective)
    key = jax.random.key(1)
    gradient(params, *prepare(data), dropout_key=key)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(gradient(params, *prepare(data), dropout_key=key))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"rows of 16 tokens exceed model.max_positions 8"):
        make(max_positions=8)
    with pytest.raises(ConfigError, match=r"next_sentence needs rows = 'segments'"):
        make(rows="packed", next_sentence=True)
    with pytest.raises(ConfigError, match=r"'mask': 50.* outside the vocabulary of 50"):
        make(special=SPECIAL._replace(mask=50))
