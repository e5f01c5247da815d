"""A program of the tests that saves checkpoints: `checkpoint_writer.py FOLDER STEPS [COORDINATOR PROCESSES INDEX]`."""

from __future__ import annotations

import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath


def state(step: int) -> dict[str, jax.Array]:
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    values = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) + step
    return {"kernel": jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])}


def open_checkpoints(folder: str) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    return ocp.CheckpointManager(epath.Path(folder), options=options)


def save(checkpoints: ocp.CheckpointManager, step: int) -> None:
    checkpoints.save(step, args=ocp.args.StandardSave(state(step)))  # type: ignore[call-arg]


def restore(checkpoints: ocp.CheckpointManager, step: int) -> dict[str, jax.Array]:
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))
    return checkpoints.restore(step, args=ocp.args.StandardRestore(like))  # type: ignore[call-arg]


def main(folder: str, steps: int, coordinator: str = "", processes: str = "1", index: str = "0") -> None:
    if coordinator:
        jax.distributed.initialize(coordinator, int(processes), int(index))
    with open_checkpoints(folder) as checkpoints:
        for step in range(1, steps + 1):
            save(checkpoints, step)
            checkpoints.wait_until_finished()
            print(f"saved {step}", flush=True)
        restored = restore(checkpoints, steps)["kernel"]
        expected = state(steps)["kernel"]
        same = [
            np.array_equal(a.data, b.data)
            for a, b in zip(restored.addressable_shards, expected.addressable_shards, strict=True)
        ]
        print(f"restored {sum(same)} of {len(same)} shards of {jax.device_count()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
