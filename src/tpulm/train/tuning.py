"""A classifier laid out on its devices, with a compiled step for each of a few row lengths."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.config import FinetuneConfig, ModelConfig
from tpulm.labelled.batches import Batch, epoch_batches, fixed_lengths
from tpulm.labelled.rows import Rows
from tpulm.objectives import SpecialIds
from tpulm.objectives.classification import Classification
from tpulm.train.compiled import BatchShapes, Compiled, Step, execution_on
from tpulm.train.mesh import make_mesh
from tpulm.train.step import TrainState

_IN_FLIGHT = 2  # steps the host may be ahead of the devices


class Labelled(NamedTuple):
    """Rows and what they are labelled with: class numbers (int32 [N]) or numbers (float32 [N])."""

    rows: Rows
    labels: np.ndarray


class Update(NamedTuple):
    """One step of fine-tuning; the state is valid until the next."""

    step: int  # updates done
    state: TrainState
    epoch: int  # from 1
    ends_epoch: bool
    rows: int  # real ones in the batch


class Tuning(Compiled):
    """Fine-tuning of one model on `num_rows` rows; runs with several seeds share what is compiled.

    `config` is filled in (`FinetuneConfig.for_architecture`). Raises ConfigError where the batch or the model does not divide
    over the devices.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: FinetuneConfig,
        *,
        num_rows: int,
        num_classes: int | None,
        vocab_size: int,
        special: SpecialIds,
        devices: Sequence[Any] | None = None,
    ):
        assert config.max_length is not None
        devices = list(devices if devices is not None else jax.devices())
        self.config, self.num_rows = config, num_rows
        self.lengths = fixed_lengths(config.max_length)
        self._batch_rows = _batch_rows(config, num_rows, devices)
        self.steps_per_epoch = -(-num_rows // config.batch_size)
        self.steps = self.steps_per_epoch * config.epochs
        self.classification = classification(
            model, config, num_classes=num_classes, vocab_size=vocab_size, special=special, devices=devices
        )
        super().__init__(
            self.classification,
            config.optimizer(self.steps),
            config.hardware,
            self._batch(config.max_length),
            steps=self.steps,
            batch_size=self._batch_rows,
            log_every_steps=config.log_every_steps,
            devices=devices,
        )
        self._compiled: dict[int, Step] = {}

    def updates(self, state: TrainState, data: Labelled, *, seed: int, first_step: int = 0) -> Iterator[Update]:
        """One update after another, from `first_step` to the end of the last epoch.

        Every epoch visits every row once, in an order that is a function of (seed, epoch); the last batch of an epoch is filled
        up with rows that weigh nothing.
        """
        in_flight: collections.deque[jax.Array] = collections.deque()
        held, batches = self.scalar(seed), list[Batch]()
        for step in range(first_step, self.steps):
            epoch, number = divmod(step, self.steps_per_epoch)
            if number == 0 or not batches:
                batches = self._epoch(data, seed=seed, epoch=epoch)
            batch = batches[number]
            columns = self.to_devices(self._columns(data, batch))
            state, loss = self._step(batch.length)(state, columns, self.cursor(step * self._batch_rows), held)
            in_flight.append(loss)
            if len(in_flight) > _IN_FLIGHT:
                jax.block_until_ready(in_flight.popleft())
            yield Update(step + 1, state, epoch + 1, number + 1 == self.steps_per_epoch, len(batch.indices))

    def _epoch(self, data: Labelled, *, seed: int, epoch: int) -> list[Batch]:
        return epoch_batches(
            data.rows.lengths,
            self.lengths,
            batch_size=self.config.batch_size,
            seed=seed,
            epoch=epoch,
            group_by_length=self.config.group_by_length,
        )

    def _columns(self, data: Labelled, batch: Batch) -> Mapping[str, np.ndarray]:
        size, real = self._batch_rows, len(batch.indices)
        labels = np.zeros(size, data.labels.dtype)
        labels[:real] = data.labels[batch.indices]
        weights = (np.arange(size) < real).astype(np.float32)
        tokens = data.rows.padded(batch.indices, rows=size, length=batch.length, pad=self.classification.special.pad)
        return {"tokens": tokens, "labels": labels, "weights": weights}

    def _batch(self, length: int) -> BatchShapes:
        size = self._batch_rows
        label = jnp.int32 if self.classification.num_classes else jnp.float32
        return {
            "tokens": ((size, length), jnp.int32),
            "labels": ((size,), label),
            "weights": ((size,), jnp.float32),
        }

    def _step(self, length: int) -> Step:
        if length not in self._compiled:
            self._compiled[length] = self.compile_step(self._batch(length))
        return self._compiled[length]


def _batch_rows(config: FinetuneConfig, num_rows: int, devices: Sequence[Any]) -> int:
    """How many rows of a batch are computed: no more than hold all `num_rows`, in equal shares of whole micro-batches.

    The rest of a larger batch would weigh nothing, and take memory.
    """
    mesh = make_mesh(config.hardware, devices)
    unit = mesh.shape["data"] * mesh.shape["fsdp"] * (config.hardware.microbatch_size or 1)
    return min(config.batch_size, -(-num_rows // unit) * unit)


def classification(
    model: ModelConfig,
    config: FinetuneConfig,
    *,
    num_classes: int | None,
    vocab_size: int,
    special: SpecialIds,
    devices: Sequence[Any],
) -> Classification:
    """The objective, computed as `config` and the devices want it."""
    assert config.max_length is not None
    if config.dropout is not None:
        model = model.model_copy(update={"dropout": config.dropout, "attention_dropout": config.dropout})
    return Classification(
        model=model,
        execution=execution_on(devices, config.hardware, config.compute_dtype),
        sequence_length=config.max_length,
        vocab_size=vocab_size,
        special=special,
        num_classes=num_classes,
    )
