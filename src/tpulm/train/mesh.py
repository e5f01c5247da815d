"""The device mesh and its three axes, and the shardings of batch and parameters on it.

    data     shards the batch; every member holds all parameters
    fsdp     shards the batch and, along "embed", the parameters and the optimizer state
    tensor   shards heads, feed-forward units and the vocabulary within a layer

The compiler adds the communication (GSPMD): the program is written for one device, and losses are means over the global batch
whatever the mesh.
"""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tpulm.config import HardwareConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import ParamSpec, is_spec

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Logical axis of a parameter -> mesh axis, defined only here.
RULES: dict[str | None, str | None] = {
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "head_size": None,
    "feed_forward": "tensor",
    "positions": None,
    "types": None,
    None: None,
}


def make_mesh(hardware: HardwareConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """All devices (or the given ones) as data x fsdp x tensor. Raises ConfigError if the product is not their number."""
    devices = list(devices if devices is not None else jax.devices())
    devices.sort(key=lambda device: (device.process_index, device.id))  # a host's share of a batch is one slice
    inner = hardware.fsdp * hardware.tensor
    data = len(devices) // inner if hardware.data == "auto" else hardware.data
    if data * inner != len(devices):
        raise ConfigError(
            f"hardware.data {hardware.data} x fsdp {hardware.fsdp} x tensor {hardware.tensor} does not make the "
            f"{len(devices)} device(s) there are; data = 'auto' takes what the other two leave"
        )
    grid = np.asarray(devices).reshape(data, hardware.fsdp, hardware.tensor)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def parameter_shardings(spec: Any, mesh: Mesh) -> Any:
    """The tree of NamedSharding for a tree of ParamSpec."""
    return jax.tree.map(lambda leaf: _parameter_sharding(leaf, mesh), spec, is_leaf=is_spec)


def _parameter_sharding(leaf: ParamSpec, mesh: Mesh) -> NamedSharding:
    axes = [RULES[name] for name in leaf.axes]
    used = [axis for axis in axes if axis is not None]
    if len(used) != len(set(used)):
        raise ConfigError(f"a parameter with axes {leaf.axes} would use one mesh axis twice: {axes}")
    for name, axis, size in zip(leaf.axes, axes, leaf.shape, strict=True):
        if axis is not None and size % mesh.shape[axis]:
            raise ConfigError(
                f"the model's '{name}' axis of size {size} cannot be split over hardware.{axis} = {mesh.shape[axis]}; "
                f"choose a divisor of {size}"
            )
    return NamedSharding(mesh, PartitionSpec(*axes))


def check_hosts(mesh: Mesh) -> None:
    """Raise ConfigError unless each host holds whole slices of the batch."""
    hosts = {device.process_index for device in mesh.devices.flat}
    shards, local = mesh.shape["data"] * mesh.shape["fsdp"], mesh.devices.size // len(hosts)
    if len(hosts) > 1 and (local % mesh.shape["tensor"] or shards % len(hosts)):
        raise ConfigError(
            f"hardware.tensor {mesh.shape['tensor']} does not divide the {local} devices of a host: rows would be split "
            f"between hosts; choose a divisor of {local}, and split over hosts with fsdp"
        )


def to_global_array(value: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """The global array of a value that every host holds completely."""
    if sharding.is_fully_addressable:
        return jax.device_put(value, sharding)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


class BatchLayout(NamedTuple):
    """How the global batch is split: each of `shards` device groups computes `accumulation` times `microbatch_size` rows."""

    batch_size: int
    shards: int
    microbatch_size: int
    accumulation: int

    def __str__(self) -> str:
        text = f"{self.batch_size} rows = {self.shards} x {self.microbatch_size}"
        return text + (f" x {self.accumulation} accumulated" if self.accumulation > 1 else "")


def layout_batch(batch_size: int, mesh: Mesh, microbatch_size: int | None = None) -> BatchLayout:
    """The batch's layout on the mesh. Raises ConfigError, with the nearest sizes that work, if it does not divide."""
    shards = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % shards:
        lower = batch_size // shards * shards
        near = " or ".join(str(size) for size in (lower, lower + shards) if size)
        raise ConfigError(
            f"batch_size {batch_size} does not divide over {shards} devices "
            f"(data {mesh.shape['data']} x fsdp {mesh.shape['fsdp']}); use {near}"
        )
    share = batch_size // shards
    size = min(microbatch_size or share, share)
    if share % size:
        raise ConfigError(
            f"hardware.microbatch_size {size} does not divide a device's share of {share} rows "
            f"({batch_size} rows over {shards} devices)"
        )
    return BatchLayout(batch_size, shards, size, share // size)
