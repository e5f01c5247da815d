from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpulm.config import HardwareConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import param, zeros
from tpulm.train.mesh import BATCH_AXES, check_hosts, layout_batch, make_mesh, parameter_shardings, to_global_array


@dataclass(frozen=True)
class Device:
    """As much of one as a mesh needs: where it is."""

    process_index: int
    id: int
    platform: str = "cpu"


def mesh_of(hosts: int, devices: int, **sizes: int) -> Mesh:
    """So many hosts of so many devices each."""
    places: Any = [Device(host, host * devices + i) for host in range(hosts) for i in range(devices)]
    return make_mesh(HardwareConfig.model_validate(sizes), places)


def shardings(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> Any:
    return parameter_shardings({"w": param(shape, axes, zeros)}, mesh)


def test_auto_takes_what_the_others_leave() -> None:
    assert dict(mesh_of(1, 8, fsdp=2, tensor=2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: mesh_of(1, 8, data=3), r"data 3 .* 8 device"),
        (lambda: layout_batch(20, mesh_of(1, 8)), r"batch_size 20 .*16 or 24"),
        (lambda: layout_batch(16, mesh_of(1, 2), 3), "microbatch_size 3"),
        (lambda: shardings((12, 4), ("heads", None), mesh_of(1, 8, tensor=8)), "'heads'"),
        (lambda: shardings((4, 4), ("heads", "feed_forward"), mesh_of(1, 1)), "'heads', 'feed_forward'"),
    ],
)
def test_what_cannot_be_divided_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refused()


@pytest.mark.parametrize(("microbatch", "expected"), [(None, (8, 1)), (4, (4, 2)), (64, (8, 1))])
def test_accumulation_follows_from_the_microbatch(microbatch: int | None, expected: tuple[int, int]) -> None:
    layout = layout_batch(16, make_mesh(HardwareConfig(), jax.devices()[:2]), microbatch)
    assert (layout.microbatch_size, layout.accumulation) == expected


@pytest.mark.parametrize(
    ("hosts", "devices", "sizes"),
    [(1, 8, {"tensor": 8}), (2, 4, {}), (2, 4, {"tensor": 4}), (2, 4, {"tensor": 2, "fsdp": 4}), (4, 4, {"fsdp": 16})],
)
def test_whole_slices_of_the_batch_lie_on_each_host(hosts: int, devices: int, sizes: dict[str, int]) -> None:
    mesh = mesh_of(hosts, devices, **sizes)
    check_hosts(mesh)
    rows = mesh.devices.reshape(-1, mesh.shape["tensor"])
    assert all(len({device.process_index for device in row}) == 1 for row in rows)
    assert [row[0].process_index for row in rows] == sorted(row[0].process_index for row in rows), "one slice a host"


@pytest.mark.parametrize(("hosts", "devices", "tensor"), [(2, 4, 8), (2, 1, 2), (2, 3, 2), (3, 4, 6)])
def test_rows_split_between_hosts_are_refused(hosts: int, devices: int, tensor: int) -> None:
    with pytest.raises(ConfigError, match=f"tensor {tensor}.* {devices}"):
        check_hosts(mesh_of(hosts, devices, tensor=tensor))


@pytest.mark.parametrize("spec", [(), (BATCH_AXES,), ("fsdp", "tensor")])
def test_a_value_that_all_have_is_placed_as_asked(spec: tuple[object, ...]) -> None:
    mesh = make_mesh(HardwareConfig(fsdp=2), jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    value = np.arange(64, dtype=np.uint16).reshape(8, 8)
    placed = to_global_array(value, sharding)
    assert placed.sharding == sharding and placed.dtype == value.dtype and np.array_equal(placed, value)


def test_a_host_places_its_own_share_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where other devices cannot be reached: each shard is cut from the value by its index."""
    mesh = make_mesh(HardwareConfig(), jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", property(lambda self: False))
    placed = to_global_array(np.arange(4, dtype=np.int32), sharding)
    monkeypatch.undo()
    assert placed.sharding == sharding
    assert [np.asarray(shard.data).tolist() for shard in placed.addressable_shards] == [[2 * i, 2 * i + 1] for i in range(2)]
