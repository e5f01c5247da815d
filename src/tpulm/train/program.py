"""Everything of a pretraining run that can be decided and compiled before its data exists.

Compiling takes as long as preparing a small dataset, so the pipeline compiles in a thread while the dataset is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Lowered

from tpulm import accelerators, objectives
from tpulm.config import RunConfig
from tpulm.errors import ConfigError
from tpulm.objectives import Objective
from tpulm.special_tokens import SpecialTokens
from tpulm.tokenization import Tokenization
from tpulm.train.compiled import Compiled, execution_on
from tpulm.train.mesh import place, replicated
from tpulm.train.optimizer import Moments, with_moments
from tpulm.train.step import StepOutput, TrainState, make_evaluation_step

EVALUATION_BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch


class Program(Compiled):
    """A run laid out on its devices; each compiled piece is made when first asked for, or all of them by `compile`.

    Raises ConfigError where the batch or the model does not divide over the devices.
    """

    def __init__(self, config: RunConfig, *, vocab_size: int, special: SpecialTokens, devices: Sequence[Any] | None = None):
        devices = list(devices if devices is not None else jax.devices())
        self._first_moments: Moments | None = None
        self._config, self.vocab_size, self.special = config, vocab_size, special
        self._execution = execution_on(devices, config.hardware, config.train.compute_dtype)
        train = config.train
        super().__init__(
            self._objective(evaluation=False),
            train.optimizer,
            config.hardware,
            sequence_length=config.data.sequence_length,
            token_dtype=jnp.uint16 if vocab_size <= 2**16 else jnp.uint32,
            steps=train.steps,
            batch_size=train.batch_size,
            log_every_steps=train.log_every_steps,
            seed=train.seed,
            devices=devices,
        )
        shards = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        self.evaluation_batch_size = -(-EVALUATION_BATCH_SIZE // shards) * shards

    @property
    def compute_dtype(self) -> accelerators.ComputeType:
        return cast("accelerators.ComputeType", jnp.dtype(self._execution.dtype).name)

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
        state = super().initial_state()
        if (moments := self._first_moments) is None:
            return state
        step = None if moments.step is None else self.scalar(moments.step)
        placed = Moments(self.placed(moments.first), self.placed(moments.second), step)
        return replace(state, optimizer=with_moments(state.optimizer, placed))

    @property
    def lowered_step(self) -> Lowered:
        """The step as XLA is given it, with the seed as its last argument."""
        return self.lower_step(self._config.data.sequence_length)

    @property
    def step(self) -> Callable[[TrainState, Mapping[str, jax.Array], jax.Array], StepOutput]:
        """(state, batch, cursor) -> StepOutput; the state is donated."""
        return self.step_at(self._config.data.sequence_length)

    @cached_property
    def evaluation_step(self) -> Callable[..., Any]:
        """(params, sums so far, batch, number of its first row) -> sums; the sums are donated."""
        objective, length = self._objective(evaluation=True), self._config.data.sequence_length
        step = make_evaluation_step(objective, self.evaluation_batch_size)
        jitted = jax.jit(step, donate_argnums=1, out_shardings=replicated(self.mesh))
        batch = self._shapes(self.batch_shapes(length, rows=self.evaluation_batch_size, objective=objective))
        return jitted.lower(self.abstract_state.params, self._sums_shape, batch, self._scalar_shape).compile()

    def evaluation_sums(self) -> Any:
        """Zeros to begin an evaluation with: the objective's sums, and how often each token was a label [V]."""
        whole = replicated(self.mesh)
        return jax.tree.map(lambda leaf: place(np.zeros(leaf.shape, leaf.dtype), whole), self._sums_shape)

    def _objective(self, *, evaluation: bool) -> Objective:
        config = self._config
        return objectives.make(
            config.model,
            config.train.objective,
            self._execution,
            sequence_length=config.data.sequence_length,
            row_kind=config.data.rows,
            next_sentence=config.data.next_sentence,
            vocab_size=self.vocab_size,
            special=self.special,
            evaluation=evaluation,
        )

    @property
    def _sums_shape(self) -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
        whole = replicated(self.mesh)
        sums = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole) for name, shape in self._sum_shapes.items()}
        return sums, jax.ShapeDtypeStruct((self.vocab_size,), jnp.float32, sharding=whole)

    def columns_of(self, tokenization: Tokenization, *, evaluation: bool = False) -> dict[str, np.ndarray]:
        """The objective's columns that tokens say, by their id: [V] each."""
        columns = self._objective(evaluation=evaluation).columns
        found = {name: column.of_tokens and column.of_tokens(tokenization) for name, column in columns.items()}
        return {name: table.astype(columns[name].dtype) for name, table in found.items() if table is not None}
