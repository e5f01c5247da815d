from __future__ import annotations

import jax
import pytest

from tpulm.config import HardwareConfig
from tpulm.errors import ConfigError
from tpulm.nn.params import param, zeros
from tpulm.train.mesh import layout_batch, make_mesh, parameter_shardings


def test_auto_takes_what_the_others_leave() -> None:
    mesh = make_mesh(HardwareConfig(fsdp=2, tensor=2), jax.devices()[:8])
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}


def test_sizes_must_multiply_out() -> None:
    with pytest.raises(ConfigError, match=r"data 3 .* 8 device"):
        make_mesh(HardwareConfig(data=3), jax.devices()[:8])


def test_batch_that_does_not_divide_suggests_sizes() -> None:
    mesh = make_mesh(HardwareConfig(), jax.devices()[:8])
    with pytest.raises(ConfigError, match=r"batch_size 20 does not divide over 8 devices.*use 16 or 24"):
        layout_batch(20, mesh)


@pytest.mark.parametrize(("microbatch", "expected"), [(None, (8, 1)), (4, (4, 2)), (64, (8, 1))])
def test_accumulation_follows_from_the_microbatch(microbatch: int | None, expected: tuple[int, int]) -> None:
    layout = layout_batch(16, make_mesh(HardwareConfig(), jax.devices()[:2]), microbatch)
    assert (layout.microbatch_size, layout.accumulation) == expected


def test_microbatch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"microbatch_size 3 does not divide a device's share of 8"):
        layout_batch(16, make_mesh(HardwareConfig(), jax.devices()[:2]), 3)


def test_an_axis_that_cannot_be_split_names_itself() -> None:
    mesh = make_mesh(HardwareConfig(tensor=8), jax.devices()[:8])
    with pytest.raises(ConfigError, match=r"'heads' axis of size 12 .* hardware.tensor = 8"):
        parameter_shardings({"w": param((12, 4), ("heads", "head_size"), zeros)}, mesh)


def test_one_mesh_axis_twice_is_refused() -> None:
    mesh = make_mesh(HardwareConfig(), jax.devices()[:1])
    with pytest.raises(ConfigError, match="one mesh axis twice"):
        parameter_shardings({"w": param((4, 4), ("heads", "feed_forward"), zeros)}, mesh)
