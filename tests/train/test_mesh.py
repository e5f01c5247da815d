from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from devices import Device
from tpulm.config import HardwareConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import param, zeros
from tpulm.train.mesh import BATCH_AXES, check_hosts, layout_batch, make_mesh, parameter_shardings, to_global_array


def mesh_of(hosts: int, devices: int, **sizes: int) -> Mesh:
    """So many hosts of so many devices each."""
    places: Any = [Device(host * devices + i, process_index=host) for host in range(hosts) for i in range(devices)]
    return make_mesh(HardwareConfig.model_validate(sizes), places)


def shardings(shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh) -> Any:
    return parameter_shardings({"w": param(shape, axes, zeros)}, mesh)


def test_auto_takes_what_the_others_leave() -> None:
    assert dict(mesh_of(1, 8, fsdp=2, tensor=2).shape) == {"data": 2, "fsdp": 2, "tensor": 2}


def test_what_cannot_be_divided_is_refused() -> None:
    refused: dict[str, Callable[[], object]] = {
        r"data 3 .* 8 device": lambda: mesh_of(1, 8, data=3),
        r"batch_size 20 .*16 or 24": lambda: layout_batch(20, mesh_of(1, 8)),
        "microbatch_size 3": lambda: layout_batch(16, mesh_of(1, 2), 3),
        "'heads'": lambda: shardings((12, 4), ("heads", None), mesh_of(1, 8, tensor=8)),
        "'heads', 'feed_forward'": lambda: shardings((4, 4), ("heads", "feed_forward"), mesh_of(1, 1)),
    }
    for message, divide in refused.items():
        with pytest.raises(ConfigError, match=message):
            divide()


def test_accumulation_follows_from_the_microbatch() -> None:
    found = [layout_batch(16, mesh_of(1, 2), microbatch) for microbatch in (None, 4, 64)]
    assert [(layout.microbatch_size, layout.accumulation) for layout in found] == [(8, 1), (4, 2), (8, 1)]


def test_whole_slices_of_the_batch_lie_on_each_host() -> None:
    two = [mesh_of(2, 4, **sizes) for sizes in ({}, {"tensor": 4}, {"tensor": 2, "fsdp": 4})]
    for mesh in (mesh_of(1, 8, tensor=8), *two, mesh_of(4, 4, fsdp=16)):
        check_hosts(mesh)
        rows = mesh.devices.reshape(-1, mesh.shape["tensor"])
        assert all(len({device.process_index for device in row}) == 1 for row in rows)
        assert [row[0].process_index for row in rows] == sorted(row[0].process_index for row in rows), "one slice a host"


@pytest.mark.parametrize(("hosts", "devices", "tensor"), [(2, 4, 8), (2, 1, 2), (2, 3, 2), (3, 4, 6)])
def test_rows_split_between_hosts_are_refused(hosts: int, devices: int, tensor: int) -> None:
    with pytest.raises(ConfigError, match=f"tensor {tensor}.* {devices}"):
        check_hosts(mesh_of(hosts, devices, tensor=tensor))


def test_a_host_places_its_own_share_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where other devices cannot be reached: each shard is cut from the value by its index."""
    mesh = make_mesh(HardwareConfig(), jax.devices()[:2])
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", property(lambda self: False))
    placed = to_global_array(np.arange(4, dtype=np.int32), sharding)
    monkeypatch.undo()
    assert placed.sharding == sharding
    assert [np.asarray(shard.data).tolist() for shard in placed.addressable_shards] == [[2 * i, 2 * i + 1] for i in range(2)]
