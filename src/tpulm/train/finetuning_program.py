"""The fine-tuning program, with a compiled step for each of a few row lengths, and its batches."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.labelled import Examples
from tpulm.labelled.rows import Groups, PaddedBatch, Rows, epoch_batches, fixed_lengths
from tpulm.objectives import TrainingObjective
from tpulm.objectives.classification import Classification
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.train.mesh import make_mesh
from tpulm.train.program import BaseProgram, BatchShapes


class Labelled(NamedTuple):
    """Rows, their labels: class numbers (int32 [N]), numbers (float32 [N]), or as the task encodes them; and what the rows were
    made from, for tasks that score texts."""

    rows: Rows
    labels: np.ndarray
    examples: Examples


class FinetuningProgram(BaseProgram):
    """Fine-tuning of one model on `num_rows` rows, or on as many groups of up to `group` rows each; runs with different seeds
    share what is compiled.

    `config` is that of the objective (`predict.classify.make_objective`). Raises ConfigError where the batch or the model does
    not divide over the devices.
    """

    def __init__(self, objective: Classification, config: FinetuneConfig, *, num_rows: int, group: int | None = None):
        self.config = config.model_copy(update={"max_length": objective.sequence_length})  # a row may hold several texts
        self.group, self.unit, self._pad = group, objective.unit, objective.special.pad
        batch_size = _batch_size(config, num_rows, jax.devices())
        self.steps_per_epoch = -(-num_rows // config.batch_size)
        steps = self.steps_per_epoch * config.epochs
        self.settings = config.training(steps, batch_size=batch_size, steps_per_epoch=self.steps_per_epoch)
        super().__init__(
            objective,
            self.settings,
            config.hardware,
            sequence_length=objective.sequence_length,
            token_dtype=jnp.int32,
            devices=jax.devices(),
        )
        self._seed = config.seed

    def beginning(self, seed: int, params: Any) -> Self:
        """A copy with another seed and these initial parameters (float32 arrays of the objective's spec)."""
        program = copy.copy(self)
        program._seed, program._first_params = seed, params
        return program

    def batch_shapes(self, length: int, *, rows: int | None = None, objective: TrainingObjective | None = None) -> BatchShapes:
        batch = super().batch_shapes(length, rows=rows, objective=objective)
        (count, _), dtype = batch["tokens"]
        return batch if self.group is None else {**batch, "tokens": ((count, self.group, length), dtype)}

    def batches(self, data: Labelled, hosts: Hosts = ALONE) -> Epochs:
        grouped = self.group is not None
        size = self.layout.batch_size
        return Epochs(data, self.config, self._seed, batch_size=size, pad=self._pad, hosts=hosts, grouped=grouped)


class Epochs:
    """Batches of labelled rows, epoch after epoch; host h of H gets the h-th of H equal slices of each.

    Every epoch visits every row once, in an order that is a function of (seed, epoch); the last batch of an epoch is padded to
    `batch_size` with rows of weight 0. The other weights are 1, or those of their classes.
    """

    def __init__(
        self,
        data: Labelled,
        config: FinetuneConfig,
        seed: int,
        *,
        batch_size: int,
        pad: int,
        hosts: Hosts = ALONE,
        grouped: bool = False,
    ):
        assert config.max_length is not None
        self._share = batch_size // hosts.count
        self._first = hosts.index * self._share
        self._rows, self._labels, self._config = Groups.from_rows(data.rows) if grouped else data.rows, data.labels, config
        self._seed, self._size, self._pad = seed, batch_size, pad
        self._lengths = fixed_lengths(config.max_length)
        self._weights = np.ones(len(self._rows), np.float32)
        if config.class_weights == "balanced":
            _, classes, counts = np.unique(data.labels, return_inverse=True, return_counts=True)
            self._weights = (len(classes) / (len(counts) * counts))[classes].astype(np.float32)
        self._epoch, self._batches = -1, list[PaddedBatch]()

    def iterate(
        self, start_cursor: int, *, skipped: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """(cursor, batch) without end; `skipped` is ignored."""
        cursor = start_cursor
        while True:
            yield cursor, self._columns(self._batch(cursor))
            cursor += self._size

    def row_indices(self, cursor: int) -> np.ndarray:
        return self._batch(cursor).indices

    def lengths(self) -> list[int]:
        """Those of the first epoch's batches."""
        self._batch(0)
        return sorted({batch.length for batch in self._batches})

    def _batch(self, cursor: int) -> PaddedBatch:
        rows, size = self._rows, self._config.batch_size
        epoch, number = divmod(cursor // self._size, -(-len(rows) // size))
        if epoch != self._epoch:
            by_length = self._config.group_by_length
            settings: dict[str, Any] = {"batch_size": size, "seed": self._seed, "group_by_length": by_length}
            self._epoch, self._batches = epoch, epoch_batches(rows.lengths, self._lengths, epoch=epoch, **settings)
        return self._batches[number]

    def _columns(self, batch: PaddedBatch) -> dict[str, np.ndarray]:
        size, indices = self._share, batch.indices[self._first : self._first + self._share]
        labels = np.zeros((size, *self._labels.shape[1:]), self._labels.dtype)
        labels[: len(indices)] = self._labels[indices]
        weights = np.zeros(size, np.float32)
        weights[: len(indices)] = self._weights[indices]
        tokens = self._rows.padded(indices, rows=size, length=batch.length, pad=self._pad)
        return {"tokens": tokens, "labels": labels, "weights": weights}


def _batch_size(config: FinetuneConfig, num_rows: int, devices: Sequence[Any]) -> int:
    """The batch size that is computed: at most what holds all `num_rows`, in equal shares of whole micro-batches.

    The other rows of a larger batch would have weight 0, and take memory.
    """
    mesh = make_mesh(config.hardware, devices)
    unit = mesh.shape["data"] * mesh.shape["fsdp"] * (config.hardware.microbatch_size or 1)
    return min(config.batch_size, -(-num_rows // unit) * unit)
