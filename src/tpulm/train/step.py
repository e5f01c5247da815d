"""The compiled training step: one function of (state, batch, data cursor), with the state donated.

Masks are a function of (seed, row number counted over the whole run), dropout masks of these and the step, so a resumed run
continues bit for bit, and masks do not depend on the device mesh or the batch size.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportMissingTypeStubs=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from tpulm.nn.params import initialize, shapes
from tpulm.objectives import Objective, TrainingObjective
from tpulm.train.mesh import BatchLayout, parameter_shardings, replicated

Batch = Mapping[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a checkpoint must hold for training to continue bit for bit (or a tree of its shapes or shardings)."""

    step: Any  # int32, updates done
    params: Any
    optimizer: Any
    window: dict[str, Any]  # float32 sums over the steps since the last log
    bad_step: Any  # int32, updates done before the first with a non-finite loss or gradient, or -1
    average: Any = None  # the exponential moving average of the parameters, with `average_decay`

    @property
    def weights(self) -> Any:
        """What is evaluated and exported."""
        return self.params if self.average is None else self.average


OWN_SUMS: dict[str, tuple[int, ...]] = {"grad_norm": (), "steps": ()}  # in the window, besides the objective's


class StepOutput(NamedTuple):
    state: TrainState
    loss: Any  # float32, of this step alone


def row_keys(seed: int | jax.Array, cursor: jax.Array, rows: int) -> jax.Array:
    """The threefry keys [rows] of rows `cursor`, `cursor` + 1, …; `cursor` is uint32 [2], high word first."""
    low = cursor[1] + jnp.arange(rows, dtype=jnp.uint32)
    high = cursor[0] + (low < cursor[1]).astype(jnp.uint32)  # carry where the low word has wrapped around
    base = jax.random.key(seed, impl="threefry2x32")
    return jax.vmap(lambda *words: jax.random.fold_in(jax.random.fold_in(base, words[0]), words[1]))(high, low)


def sum_shapes(objective: TrainingObjective, batch: Any, rows: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the sums that the objective's loss returns, by name; `batch` may be of ShapeDtypeStructs."""

    def sums(params: Any, batch: Batch) -> dict[str, jax.Array]:
        inputs = objective.make_inputs(batch, row_keys(0, jnp.zeros((2,), jnp.uint32), rows))
        return objective.loss(params, inputs, objective.totals(inputs), dropout_key=None).sums

    shapes_of_sums = jax.eval_shape(sums, shapes(objective.spec), batch)
    return {name: shapes_of_sums[name].shape for name in sorted(shapes_of_sums)}


def initialize_state(
    objective: TrainingObjective,
    optimizer: optax.GradientTransformation,
    seed: jax.Array,
    *,
    sums: Mapping[str, tuple[int, ...]],
    averages: bool,
) -> TrainState:
    """The state at step 0; `sums` are the shapes of the objective's sums."""
    params = initialize(objective.spec, jax.random.key(seed, impl="threefry2x32"))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=optimizer.init(params),
        window={name: jnp.zeros(shape, jnp.float32) for name, shape in {**sums, **OWN_SUMS}.items()},
        bad_step=jnp.full((), -1, jnp.int32),
        average=jax.tree.map(jnp.copy, params) if averages else None,
    )


def state_shardings(
    objective: TrainingObjective, optimizer: optax.GradientTransformation, mesh: Mesh, abstract: TrainState
) -> TrainState:
    """The state's shardings: parameters by their specs, the optimizer's moments like their parameters, the rest replicated."""
    whole = replicated(mesh)
    params = parameter_shardings(objective.spec, mesh)
    moments = optax.tree_map_params(
        optimizer,
        lambda moment, sharding: moment if isinstance(moment, optax.MaskedNode) else sharding,
        abstract.optimizer,
        params,
        transform_non_params=lambda _: whole,
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),  # parameters that another optimizer handles (Muon)
    )
    return TrainState(
        step=whole,
        params=params,
        optimizer=moments,
        window=dict.fromkeys(abstract.window, whole),
        bad_step=whole,
        average=None if abstract.average is None else params,
    )


def make_step(
    objective: TrainingObjective,
    optimizer: optax.GradientTransformation,
    layout: BatchLayout,
    *,
    seed: int | jax.Array,
    log_every_steps: int,
    average_decay: float | None = None,
) -> Callable[[TrainState, Batch, jax.Array], StepOutput]:
    """The step to compile. Losses are weighted means over the global batch, whatever the layout.

    With gradient accumulation the weights of the whole batch are computed first (masks are cheap), so the micro-batches'
    gradients add up to exactly the gradient of that mean.
    """

    def step(state: TrainState, batch: Batch, cursor: jax.Array) -> StepOutput:
        with jax.named_scope("prepare"):
            inputs = objective.make_inputs(batch, row_keys(seed, cursor, layout.batch_size))
            totals = objective.totals(inputs)
        dropout_key = jax.random.fold_in(jax.random.key(seed, impl="rbg"), state.step)
        gradient = jax.value_and_grad(objective.loss, has_aux=True)

        if layout.accumulation == 1:
            (loss, sums), grads = gradient(state.params, inputs, totals, dropout_key=dropout_key)
        else:

            def add(carry: Any, item: Any) -> tuple[Any, None]:
                (loss, sums), grads = gradient(state.params, item, totals, dropout_key=dropout_key)
                return jax.tree.map(jnp.add, carry, (loss, sums, grads)), None

            zeros = (
                jnp.zeros((), jnp.float32),
                {name: jnp.zeros_like(total) for name, total in state.window.items() if name not in OWN_SUMS},
                jax.tree.map(jnp.zeros_like, state.params),
            )
            (loss, sums, grads), _ = jax.lax.scan(add, zeros, _micro_batches(inputs, layout))

        with jax.named_scope("optimizer"):
            grad_norm = optax.tree.norm(grads)
            updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)

        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        carried = jnp.where(state.step % log_every_steps == 0, 0.0, 1.0)
        fresh = {**sums, "grad_norm": grad_norm, "steps": jnp.ones((), jnp.float32)}
        after = TrainState(
            step=state.step + 1,
            params=params,
            optimizer=optimizer_state,
            window={name: carried * state.window[name] + fresh[name] for name in state.window},
            bad_step=jnp.where(finite | (state.bad_step >= 0), state.bad_step, state.step),
            average=None if average_decay is None else _averaged(state, params, average_decay),
        )
        return StepOutput(after, loss)

    return step


def _averaged(state: TrainState, params: Any, decay: float) -> Any:
    """The moving average after this step; TensorFlow's ExponentialMovingAverage begins the same way (its `num_updates`)."""
    done = (state.step + 1).astype(jnp.float32)
    share = 1.0 - jnp.minimum(decay, (1.0 + done) / (10.0 + done))
    return jax.tree.map(lambda mean, new: mean + share * (new - mean), state.average, params)


def _micro_batches(inputs: Any, layout: BatchLayout) -> Any:
    """[B, ...] -> [accumulation, B / accumulation, ...], each micro-batch spread over all devices."""

    def cut(x: jax.Array) -> jax.Array:
        x = x.reshape(layout.shards, layout.accumulation, layout.microbatch_size, *x.shape[1:])
        return x.swapaxes(0, 1).reshape(layout.accumulation, layout.shards * layout.microbatch_size, *x.shape[3:])

    return jax.tree.map(cut, inputs)


EVALUATION_SEED = 20_181_011  # fixed, so that every run is scored on the same masked positions


def evaluate_batch(objective: Objective, params: Any, so_far: Any, batch: Batch, first_row: jax.Array) -> Any:
    """(sums, label counts) `so_far` with those of the batch added; `first_row` is the number of its first row.

    A row's masks depend only on its number in the holdout, so evaluations are comparable across steps, runs and batch sizes.
    """
    base = jax.random.key(EVALUATION_SEED, impl="threefry2x32")
    rows = first_row.astype(jnp.uint32) + jnp.arange(len(batch["tokens"]), dtype=jnp.uint32)
    inputs = objective.make_inputs(batch, jax.vmap(lambda row: jax.random.fold_in(base, row))(rows))
    _, fresh = objective.loss(params, inputs, objective.totals(inputs), dropout_key=None)
    sums, labels = so_far
    return jax.tree.map(jnp.add, sums, fresh), labels + objective.label_counts(inputs)


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """ShapeDtypeStructs with shardings, to compile for and to restore into."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract, shardings
    )
