"""The outputs of a fine-tuned model for rows: compiled once for each of a few lengths."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tpulm.labelled.rows import Rows, ordered_batches
from tpulm.nn.params import is_spec
from tpulm.objectives.classification import Classification
from tpulm.train.mesh import batch_sharding, parameter_shardings, replicated

BATCH_SIZE = 64  # rows, or the next multiple of the devices that share a batch
_IN_FLIGHT = 4  # batches the host may be ahead of the devices


class Forward:
    """Outputs of rows, in their order, batch by batch on all devices of the mesh."""

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

    def __call__(self, params: Any, rows: Rows, *, advance: Callable[[float], None] = lambda rows: None) -> np.ndarray:
        """float32 [N, *output_shape]; `params` lie on the mesh."""
        found = np.zeros((len(rows), *self._objective.output_shape), np.float32)
        waiting: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()

        def collect() -> None:
            indices, outputs = waiting.popleft()
            found[indices, : outputs.shape[1]] = np.asarray(outputs)[: len(indices)]
            advance(len(indices))

        for batch in ordered_batches(rows.lengths, self._lengths, batch_size=self._batch_size):
            tokens = rows.padded(batch.indices, rows=self._batch_size, length=batch.length, pad=self._objective.special.pad)
            placed = jax.make_array_from_process_local_data(batch_sharding(self._mesh), tokens)
            waiting.append((batch.indices, self._at(batch.length)(params, placed)))
            if len(waiting) > _IN_FLIGHT:
                collect()
        while waiting:
            collect()
        return found

    def _at(self, length: int) -> Callable[[Any, jax.Array], jax.Array]:
        if length not in self._compiled:
            tokens = jax.ShapeDtypeStruct((self._batch_size, length), jnp.int32, sharding=batch_sharding(self._mesh))
            jitted = jax.jit(self._objective.outputs, out_shardings=replicated(self._mesh))
            self._compiled[length] = jitted.lower(self._params, tokens).compile()
        return self._compiled[length]
