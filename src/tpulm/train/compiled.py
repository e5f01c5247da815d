"""An objective with its optimiser on a mesh of devices: the state, batches on their way to the devices, and compiled steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from tpulm.config import HardwareConfig, OptimizerConfig
from tpulm.nn.params import count
from tpulm.nn.transformer import Execution
from tpulm.objectives import Objective
from tpulm.train.mesh import batch_sharding, check_hosts, layout_batch, make_mesh, place, replicated
from tpulm.train.optimizer import learning_rate, make_optimizer
from tpulm.train.step import (
    StepOutput,
    TrainState,
    make_initializer,
    make_step,
    state_shardings,
    sum_shapes,
    with_shardings,
)

BatchShapes = Mapping[str, tuple[tuple[int, ...], Any]]  # column -> (shape, dtype), rows first
# (state, batch, cursor, seed), the last two from `Compiled.cursor` and `Compiled.scalar`; the state is donated
Step = Callable[[TrainState, Mapping[str, jax.Array], jax.Array, jax.Array], StepOutput]


class Compiled:
    """What pretraining and fine-tuning share. Raises ConfigError where the batch or the model does not divide over the devices.

    `sequence_length` is that of the longest rows.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: OptimizerConfig,
        hardware: HardwareConfig,
        *,
        sequence_length: int,
        token_dtype: Any,
        steps: int,
        batch_size: int,
        log_every_steps: int,
        seed: int,
        devices: Sequence[Any],
    ):
        self.mesh = make_mesh(hardware, devices)
        check_hosts(self.mesh)
        self.layout = layout_batch(batch_size, self.mesh, hardware.microbatch_size)
        self.objective, self._token_dtype = objective, token_dtype
        self._seed, self._first_params = seed, None
        self._compiled: dict[int, Step] = {}  # by the length of rows
        self.num_parameters = count(objective.spec)
        self._steps, self._log_every_steps = steps, log_every_steps
        self._optimizer_config = optimizer
        self._optimizer = make_optimizer(optimizer, steps, objective.spec)
        self._sum_shapes = sum_shapes(objective, self._shapes(self.batch_shapes(sequence_length)), batch_size)
        self._initializer = make_initializer(objective, self._optimizer, sums=self._sum_shapes)
        abstract = jax.eval_shape(self._initializer, self._scalar_shape)
        self._shardings = state_shardings(objective, self._optimizer, self.mesh, abstract)
        self.abstract_state: TrainState = with_shardings(abstract, self._shardings)  # the restore target

    def initial_state(self) -> TrainState:
        """The state at step 0: parameters drawn from the seed, or those to begin with."""
        state: TrainState = jax.jit(self._initializer, out_shardings=self._shardings)(self.scalar(self._seed))
        return state if self._first_params is None else replace(state, params=self.placed(self._first_params))

    def placed(self, params: Any) -> Any:
        """Parameters laid out as the state's."""
        return jax.tree.map(place, jax.device_get(params), self._shardings.params)

    def step_at(self, length: int) -> Callable[[TrainState, Mapping[str, jax.Array], jax.Array], StepOutput]:
        """(state, batch, cursor) -> StepOutput for rows of this length, compiled when first asked for; the state is donated."""
        if length not in self._compiled:
            self._compiled[length] = self.lower_step(length).compile()
        step, seed = self._compiled[length], self.scalar(self._seed)
        return lambda state, batch, cursor: step(state, batch, cursor, seed)

    def lower_step(self, length: int) -> Lowered:
        """What XLA is given. The seed is an argument, so that runs which differ in it alone share a program."""

        def step(state: TrainState, batch: Mapping[str, jax.Array], cursor: jax.Array, seed: jax.Array) -> StepOutput:
            update = make_step(self.objective, self._optimizer, self.layout, seed=seed, log_every_steps=self._log_every_steps)
            return update(state, batch, cursor)

        cursor = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=replicated(self.mesh))
        jitted = jax.jit(step, donate_argnums=0, out_shardings=StepOutput(self._shardings, replicated(self.mesh)))
        return jitted.lower(self.abstract_state, self._shapes(self.batch_shapes(length)), cursor, self._scalar_shape)

    def window_metrics(self, state: TrainState) -> dict[str, float]:
        """The objective's, and "grad_norm", over all devices and steps since the last multiple of `log_every_steps`."""
        window = jax.device_get(state.window)
        steps = max(float(window["steps"]), 1.0)
        return {**self.objective.metrics(window), "grad_norm": float(window["grad_norm"]) / steps}

    def learning_rate(self, count: int) -> float:
        """Of the update after `count` others."""
        return float(np.asarray(learning_rate(self._optimizer_config, self._steps)(count)))

    def to_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """This host's share of a batch as global arrays, rows split over the devices."""
        sharding = batch_sharding(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, column) for name, column in batch.items()}

    def scalar(self, value: int) -> jax.Array:
        """An int32 that every device holds."""
        return place(np.asarray(value, np.int32), replicated(self.mesh))

    def cursor(self, rows: int) -> jax.Array:
        """The number of a batch's first row, as the step takes it: two words, since a run may visit more than 2**32 rows."""
        return place(np.array(divmod(rows, 1 << 32), np.uint32), replicated(self.mesh))

    def gathered(self, params: Any) -> Any:
        """Parameters as numpy arrays, whole on every host; all hosts must ask."""
        if jax.process_count() == 1:
            return jax.device_get(params)
        whole = jax.jit(lambda leaf: leaf, out_shardings=replicated(self.mesh))
        return jax.tree.map(lambda leaf: jax.device_get(whole(leaf)), params)

    @property
    def _scalar_shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(self.mesh))

    def batch_shapes(self, length: int, *, rows: int | None = None, objective: Objective | None = None) -> BatchShapes:
        """Of so many rows, a whole batch if it is not said, with what the objective reads."""
        rows, columns = rows or self.layout.batch_size, (objective or self.objective).columns
        tokens = ((rows, length), self._token_dtype)
        return {"tokens": tokens, **{name: ((rows, *column.shape), column.dtype) for name, column in columns.items()}}

    def _shapes(self, batch: BatchShapes) -> dict[str, jax.ShapeDtypeStruct]:
        sharding = batch_sharding(self.mesh)
        return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in batch.items()}


def execution_on(
    devices: Sequence[Any], hardware: HardwareConfig, compute_dtype: Literal["auto", "float32", "bfloat16"]
) -> Execution:
    """What is "auto" in the settings, decided for these devices: bfloat16 where there are fast units for it, straight code on a
    CPU, which runs it faster, and on a TPU only products kept, since its memory is slow beside its units (docs/experiments.md).
    """
    platform = devices[0].platform
    dtype = ("float32" if platform == "cpu" else "bfloat16") if compute_dtype == "auto" else compute_dtype
    remat = ("dots" if platform == "tpu" else "none") if hardware.remat == "auto" else hardware.remat
    unroll = platform == "cpu" if hardware.unroll == "auto" else hardware.unroll
    split = hardware.fsdp * hardware.tensor > 1
    return Execution(jnp.dtype(dtype), remat, unroll, rows=batch_sharding(make_mesh(hardware, devices)) if split else None)
