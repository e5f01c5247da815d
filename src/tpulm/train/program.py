"""Everything of a training run that can be decided and compiled before its data exists.

Compiling takes as long as preparing a small dataset, so the pipeline compiles in a thread while the dataset is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tpulm import objectives
from tpulm.config import RunConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import count
from tpulm.objectives import Objective, SpecialIds
from tpulm.train.mesh import batch_sharding, check_hosts, layout_batch, make_mesh, place, replicated
from tpulm.train.optimizer import Moments, learning_rate, make_optimizer, with_moments
from tpulm.train.step import (
    StepOutput,
    TrainState,
    make_evaluation_step,
    make_initializer,
    make_step,
    state_shardings,
    sum_shapes,
    with_shardings,
)

EVALUATION_BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch


class Program:
    """A run laid out on its devices; each compiled piece is made when first asked for, or all of them by `compile`.

    Raises ConfigError where the batch or the model does not divide over the devices.
    """

    def __init__(self, config: RunConfig, *, vocab_size: int, special: SpecialIds, devices: Sequence[Any] | None = None):
        devices = list(devices if devices is not None else jax.devices())
        self._first_params: Any = None
        self._first_moments: Moments | None = None
        self._config, self.vocab_size, self.special = config, vocab_size, special
        self.mesh = make_mesh(config.hardware, devices)
        check_hosts(self.mesh)
        self.layout = layout_batch(config.train.batch_size, self.mesh, config.hardware.microbatch_size)
        self.compute_dtype: Literal["float32", "bfloat16"] = _compute_dtype(config, devices)
        self.objective = self._objective(evaluation=False)
        self.num_parameters = count(self.objective.spec)
        shards = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self.evaluation_batch_size = -(-EVALUATION_BATCH_SIZE // shards) * shards

        self._optimizer = make_optimizer(config.train.optimizer, config.train.steps, self.objective.spec)
        self._sum_shapes = sum_shapes(self.objective, self._batch_shapes(config.train.batch_size), config.train.batch_size)
        self._initializer = make_initializer(self.objective, self._optimizer, seed=config.train.seed, sums=self._sum_shapes)
        abstract = jax.eval_shape(self._initializer)
        self._shardings = state_shardings(self.objective, self._optimizer, self.mesh, abstract)
        self.abstract_state: TrainState = with_shardings(abstract, self._shardings)  # the restore target

    def compile(self) -> None:
        """Compile everything that training needs, the longest first."""
        _ = self.step, self.evaluation_step

    def start_from(self, params: Any, moments: Moments | None = None) -> None:
        """Begin with these parameters (float32 arrays of the objective's spec) instead of random ones, and with these moments.

        Raises ConfigError where a bias correction needs the step of the moments and nothing says it.
        """
        if moments is not None and moments.step is None and self._config.train.optimizer.bias_correction:
            raise ConfigError(
                "train.optimizer.bias_correction needs the step that the optimiser's moments are of, and the checkpoint had "
                "none: set it to false, or train.start_optimizer"
            )
        self._first_params, self._first_moments = params, moments

    def initial_state(self) -> TrainState:
        """The state at step 0: parameters drawn from the seed and moments of zero, or what was given to `start_from`."""
        state: TrainState = jax.jit(self._initializer, out_shardings=self._shardings)()
        if self._first_params is None:
            return state
        state = replace(state, params=self._placed(self._first_params))
        if (moments := self._first_moments) is None:
            return state
        step = None if moments.step is None else self.scalar(moments.step)
        placed = Moments(self._placed(moments.first), self._placed(moments.second), step)
        return replace(state, optimizer=with_moments(state.optimizer, placed))

    def _placed(self, params: Any) -> Any:
        return jax.tree.map(place, jax.device_get(params), self._shardings.params)

    @cached_property
    def step(self) -> Callable[[TrainState, Mapping[str, jax.Array], jax.Array], StepOutput]:
        """(state, batch, cursor) -> StepOutput; the state is donated."""
        train = self._config.train
        step = make_step(self.objective, self._optimizer, self.layout, seed=train.seed, log_every_steps=train.log_every_steps)
        jitted = jax.jit(step, donate_argnums=0, out_shardings=StepOutput(self._shardings, replicated(self.mesh)))
        return jitted.lower(self.abstract_state, self._batch_shapes(train.batch_size), self._scalar_shape).compile()

    @cached_property
    def evaluation_step(self) -> Callable[..., Any]:
        """(params, sums so far, batch, number of its first row) -> sums; the sums are donated."""
        step = make_evaluation_step(self._objective(evaluation=True), self.evaluation_batch_size)
        jitted = jax.jit(step, donate_argnums=1, out_shardings=replicated(self.mesh))
        return jitted.lower(
            self.abstract_state.params, self._sums_shape, self._batch_shapes(self.evaluation_batch_size), self._scalar_shape
        ).compile()

    def evaluation_sums(self) -> Any:
        """Zeros to begin an evaluation with: the objective's sums, and how often each token was a label [V]."""
        whole = replicated(self.mesh)
        return jax.tree.map(lambda leaf: place(np.zeros(leaf.shape, leaf.dtype), whole), self._sums_shape)

    def learning_rate(self, count: int) -> float:
        """Of the update after `count` others."""
        rate = learning_rate(self._config.train.optimizer, self._config.train.steps)
        return float(np.asarray(rate(count)))

    def to_devices(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """This host's share of a batch as global arrays, rows split over the devices."""
        sharding = batch_sharding(self.mesh)
        return {name: jax.make_array_from_process_local_data(sharding, column) for name, column in batch.items()}

    def scalar(self, value: int) -> jax.Array:
        """An int32 that every device holds."""
        return place(np.asarray(value, np.int32), replicated(self.mesh))

    def gathered(self, params: Any) -> Any:
        """Parameters as numpy arrays, whole on every host; all hosts must ask."""
        if jax.process_count() == 1:
            return jax.device_get(params)
        whole = jax.jit(lambda leaf: leaf, out_shardings=replicated(self.mesh))
        return jax.tree.map(lambda leaf: jax.device_get(whole(leaf)), params)

    def _objective(self, *, evaluation: bool) -> Objective:
        config = self._config
        return objectives.make(
            config.model,
            config.train.objective,
            config.hardware,
            sequence_length=config.data.sequence_length,
            row_kind=config.data.rows,
            next_sentence=config.data.next_sentence,
            vocab_size=self.vocab_size,
            special=self.special,
            compute_dtype=jnp.dtype(self.compute_dtype),
            evaluation=evaluation,
        )

    @property
    def _scalar_shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(self.mesh))

    @property
    def _sums_shape(self) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
        whole = replicated(self.mesh)
        sums = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole) for name, shape in self._sum_shapes.items()}
        return sums, jax.ShapeDtypeStruct((self.vocab_size,), jnp.float32, sharding=whole)

    def _batch_shapes(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        data = self._config.data
        token_dtype = jnp.uint16 if self.vocab_size <= 2**16 else jnp.uint32
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {"tokens": ((rows, data.sequence_length), token_dtype)}
        if data.next_sentence:
            shapes["next_sentence"] = ((rows,), jnp.int8)
        sharding = batch_sharding(self.mesh)
        return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for name, (shape, dtype) in shapes.items()}


def _compute_dtype(config: RunConfig, devices: Sequence[Any]) -> Literal["float32", "bfloat16"]:
    """ "auto" is bfloat16 wherever the device has fast units for it."""
    if config.train.compute_dtype != "auto":
        return config.train.compute_dtype
    return "float32" if devices[0].platform == "cpu" else "bfloat16"


def use_compile_cache(folder: PurePath) -> None:
    """Keep compiled programs in `folder` for the next command, unless the environment names another place."""
    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
