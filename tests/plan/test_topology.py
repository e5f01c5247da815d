"""Slices of every type: their shapes, and their devices as the TPU's own library describes them."""

from __future__ import annotations

import importlib.util

import pytest

from tpulm import accelerators
from tpulm.plan import analysis

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'jax[tpu]'"
)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("v2-8", "2x2"), ("v3-32", "4x4"), ("v3-64", "4x8"), ("v4-8", "2x2x1"), ("v4-16", "2x2x2"), ("v4-32", "2x2x4"),
        ("v4-128", "4x4x4"), ("v5litepod-1", "1x1"), ("v5litepod-8", "2x4"), ("v5litepod-256", "16x16"), ("v5p-64", "2x4x4"),
        ("v6e-32", "4x8"), ("tpu7x-8", "2x2x1"),
    ],
)  # fmt: skip
def test_the_shape_of_a_slice(name: str, shape: str):
    assert accelerators.find(name).topology == shape


@needs_compiler
@pytest.mark.parametrize("name", ["v2-8", "v3-32", "v4-8", "v4-16", "v5litepod-1", "v5litepod-8", "v5p-8", "v6e-8", "tpu7x-8"])
def test_the_devices_are_those_of_the_catalogue(name: str):
    accelerator = accelerators.find(name)
    devices = analysis.devices_of(accelerator)
    assert len(devices) == accelerator.devices
    assert len({device.process_index for device in devices}) == accelerator.hosts
    assert accelerators.from_device_kind(devices[0].device_kind) == pytest.approx(accelerator.peak_flops_per_device)
