"""The fine-tuning program, with a compiled step for each of a few row lengths, its batches, and prediction."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tpulm.config import FinetuneConfig, ModelConfig
from tpulm.labelled import Examples
from tpulm.labelled.rows import Groups, PaddedBatch, Rows, epoch_batches, fixed_lengths, ordered_batches
from tpulm.nn.params import is_spec
from tpulm.objectives import TrainingObjective
from tpulm.objectives.classification import Classification
from tpulm.runtime.hosts import ALONE, Hosts
from tpulm.special_tokens import SpecialTokens
from tpulm.train.distributed import check_alone
from tpulm.train.mesh import batch_sharding, make_mesh, parameter_shardings, replicated, to_global_array
from tpulm.train.program import BaseProgram, BatchShapes, execution_on


class Labelled(NamedTuple):
    """Rows and their labels: class numbers (int32 [N]), numbers (float32 [N]), or as the task encodes them.

    `examples` are what the rows were made from, for tasks that score texts.
    """

    rows: Rows
    labels: np.ndarray
    examples: Examples | None = None


class FinetuningProgram(BaseProgram):
    """Fine-tuning of one model on `num_rows` rows, or on as many groups of up to `group` rows each; runs with different seeds
    share what is compiled.

    `config` must be complete (`FinetuneConfig.for_model`). Raises ConfigError where the batch or the model does not
    divide over the devices.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: FinetuneConfig,
        *,
        num_rows: int,
        group: int | None = None,
        num_classes: int | None,
        vocab_size: int,
        special: SpecialTokens,
        objective: type[Classification] = Classification,
        devices: Sequence[Any] | None = None,
    ):
        assert config.max_length is not None
        devices = list(devices if devices is not None else jax.devices())
        self.config, self.num_rows, self.group, self._pad = config, num_rows, group, special.pad
        batch_size = _batch_size(config, num_rows, devices)
        self.steps_per_epoch = -(-num_rows // config.batch_size)
        steps = self.steps_per_epoch * config.epochs
        self.settings = config.training(steps, batch_size=batch_size, steps_per_epoch=self.steps_per_epoch)
        super().__init__(
            make_objective(
                objective, model, config, num_classes=num_classes, vocab_size=vocab_size, special=special, devices=devices
            ),
            self.settings,
            config.hardware,
            sequence_length=config.max_length,
            token_dtype=jnp.int32,
            devices=devices,
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


def make_objective(
    kind: Callable[..., Classification],
    model: ModelConfig,
    config: FinetuneConfig,
    *,
    num_classes: int | None,
    vocab_size: int,
    special: SpecialTokens,
    devices: Sequence[Any],
) -> Classification:
    """The objective of `kind` for this config and these devices."""
    assert config.max_length is not None
    if config.dropout is not None:
        of_weights = {} if model.architecture == "modernbert" else {"attention_dropout": config.dropout}
        model = model.model_copy(update={"dropout": config.dropout, **of_weights})
    pooled: dict[str, Any] = {} if config.pooling is None else {"pooling": config.pooling}
    return kind(
        **pooled,
        model=model,
        execution=execution_on(devices, config.hardware, config.compute_dtype),
        sequence_length=config.max_length,
        vocab_size=vocab_size,
        special=special,
        num_classes=num_classes,
    )


BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch
_IN_FLIGHT = 4  # batches the host may be ahead of the devices


class Forward:
    """Computes the outputs of rows without dropout, in batches on all devices of the mesh; the same on every host."""

    def __init__(self, objective: Classification, mesh: Mesh, lengths: Sequence[int]):
        shards = mesh.shape["data"] * mesh.shape["fsdp"]
        self._batch_size = -(-BATCH_SIZE // shards) * shards
        self._objective, self._mesh, self._lengths = objective, mesh, tuple(lengths)
        self._compiled: dict[int, Callable[[Any, jax.Array], jax.Array]] = {}
        self._params = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=sharding),
            objective.spec,
            parameter_shardings(objective.spec, mesh),
            is_leaf=is_spec,
        )

    def compile(self, rows: Rows) -> None:
        """What these rows need, ahead."""
        for batch in ordered_batches(rows.lengths, self._lengths, batch_size=self._batch_size):
            self._at(batch.length)

    def __call__(self, params: Any, rows: Rows, *, advance: Callable[[float], None] = lambda rows: None) -> np.ndarray:
        """The outputs in row order, float32 [N, *output_shape]; `params` are on the mesh."""
        result = np.zeros((len(rows), *self._objective.output_shape), np.float32)
        waiting: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()

        def collect() -> None:
            indices, outputs = waiting.popleft()
            result[indices, : outputs.shape[1]] = np.asarray(outputs)[: len(indices)]
            advance(len(indices))
            check_alone()

        for batch in ordered_batches(rows.lengths, self._lengths, batch_size=self._batch_size):
            tokens = rows.padded(batch.indices, rows=self._batch_size, length=batch.length, pad=self._objective.special.pad)
            placed = to_global_array(tokens, batch_sharding(self._mesh))
            waiting.append((batch.indices, self._at(batch.length)(params, placed)))
            if len(waiting) > _IN_FLIGHT:
                collect()
        while waiting:
            collect()
        return result

    def _at(self, length: int) -> Callable[[Any, jax.Array], jax.Array]:
        if length not in self._compiled:
            tokens = jax.ShapeDtypeStruct((self._batch_size, length), jnp.int32, sharding=batch_sharding(self._mesh))
            jitted = jax.jit(self._objective.outputs, out_shardings=replicated(self._mesh))
            self._compiled[length] = jitted.lower(self._params, tokens).compile()
        return self._compiled[length]
