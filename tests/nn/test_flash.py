"""The kernel for long rows gives what the plain attention gives: values, gradients and dropout masks."""

from __future__ import annotations

import importlib.util
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from kernels import check_flash, on_devices

from tpulm import accelerators
from tpulm.config import HardwareConfig
from tpulm.nn import flash
from tpulm.nn.attention import CAUSAL, EVERYTHING, has_kernels, kernels_agree
from tpulm.nn.dropout import DropoutSeeds
from tpulm.plan.analysis import devices_of, examine
from tpulm.train.mesh import batch_sharding, make_mesh

B, H, L, K = 2, 2, 1024, 16


@pytest.mark.parametrize(("causal", "rate", "devices"), [(False, 0.1, 2), (True, 0.0, 1)])
def test_values_and_gradients_are_those_of_plain_attention(causal: bool, rate: float, devices: int) -> None:
    kernel = partial(flash.flash_attention, causal=causal, rows=on_devices(devices))
    check_flash(kernel, (B, H, L, K), CAUSAL if causal else EVERYTHING, rate)


def test_a_device_is_asked_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    assert kernels_agree(device, "tpu")
    monkeypatch.setattr(flash, "flash_attention", lambda *x, **settings: 1.2 * x[0])
    assert not kernels_agree(device, "tpu")


def test_devices_and_lengths_that_it_is_for() -> None:
    for platform, kind, runs in (("tpu", "TPU v3", False), ("tpu", "TPU v6 lite", True), ("cpu", "cpu", False)):
        assert has_kernels(SimpleNamespace(platform=platform, device_kind=kind)) is runs
    assert [length for length in (128, 384, 512, 576, 2048, 4096) if flash.is_faster(length, 64)] == [512, 2048]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'jax[tpu]'")
@pytest.mark.parametrize("name", ["v4-8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("v5litepod-8", "v6e-8"))])
def test_it_compiles_and_its_cost_is_counted(name: str) -> None:
    rows = batch_sharding(make_mesh(HardwareConfig(), devices_of(accelerators.find(name))))
    count = rows.mesh.size
    arrays = [jax.ShapeDtypeStruct((count, H, 512, 64), jnp.bfloat16, sharding=rows)] * 4
    seeds: Any = jax.ShapeDtypeStruct((count, 1, 512, 1), jnp.uint32, sharding=rows)
    segments = jax.ShapeDtypeStruct((count, 512), jnp.int32, sharding=rows)

    def gradients(g: jax.Array, arrays: list[jax.Array], segments: jax.Array, seeds: DropoutSeeds) -> Any:
        def kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            return flash.flash_attention(*(query, key, value, segments), seeds=seeds, dropout_rate=0.1, causal=True, rows=rows)

        return jax.vjp(kernel, *arrays)[1](g)

    lowered = jax.jit(gradients).lower(arrays[0], arrays[1:], segments, DropoutSeeds(seeds, seeds))
    found = examine(lowered.compile(), count, 0.0)
    assert (found.kernels, found.opaque, found.flops) == (2, {}, 7 * 2 * H * 512 * 512 * 64)
    assert found.cycles > 2 * H * 512 * 512 * 0.0114
