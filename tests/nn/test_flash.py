"""The kernels for TPUs and GPUs give what the plain attention gives: values, gradients and dropout masks; and are lowered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from kernels import check_flash, on_devices, trace_gradients

from compiled import needs_libtpu
from tpulm import accelerators
from tpulm.config import HardwareConfig
from tpulm.nn import flash, flash_gpu
from tpulm.nn.attention import CAUSAL, EVERYTHING, AttentionWindow, has_kernels, kernels_agree
from tpulm.plan.analysis import devices_of, examine
from tpulm.train.mesh import batch_sharding, make_mesh

Kernel = Callable[[AttentionWindow], Callable[..., jax.Array]]
NEAR = AttentionWindow(64, 64)
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")


def for_tpu(window: AttentionWindow) -> Callable[..., jax.Array]:
    return partial(flash.flash_attention, causal=window == CAUSAL)


def for_gpu(window: AttentionWindow) -> Callable[..., jax.Array]:
    return partial(flash_gpu.flash_attention, before=window.before, after=window.after)


@pytest.mark.parametrize(
    ("kernel", "length", "window", "rate", "devices"),
    [
        (for_tpu, 1024, EVERYTHING, 0.1, 2),
        (for_tpu, 1024, CAUSAL, 0.0, 1),
        (for_gpu, 384, EVERYTHING, 0.1, 2),
        (for_gpu, 384, CAUSAL, 0.0, 1),
        (for_gpu, 384, NEAR, 0.0, 1),
    ],
)
def test_values_and_gradients_are_those_of_plain_attention(
    kernel: Kernel, length: int, window: AttentionWindow, rate: float, devices: int
) -> None:
    check_flash(partial(kernel(window), rows=on_devices(devices)), (2, 2, length, 16), window, rate)


def test_a_device_is_asked_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    assert kernels_agree(device, "tpu") and kernels_agree(device, "gpu")
    masks = flash_gpu.mix
    monkeypatch.setattr(flash, "flash_attention", lambda *x, **settings: 1.2 * x[0])
    monkeypatch.setattr(flash_gpu, "mix", lambda x, between: masks(x, between + jnp.uint32(1)))
    assert not kernels_agree(device, "tpu")
    assert not kernels_agree(device, "gpu"), "other dropout masks are seen"


def test_devices_and_rows_that_they_are_for() -> None:
    for platform, kind, runs in (("tpu", "TPU v3", False), ("tpu", "TPU v6 lite", True), ("cpu", "cpu", False)):
        assert has_kernels(SimpleNamespace(platform=platform, device_kind=kind)) is runs
    assert [length for length in (128, 384, 512, 576, 2048, 4096) if flash.is_faster(length, 64)] == [512, 2048]
    for capability, has in (("7.5", False), ("8.0", True), ("9.0", True), ("10.0", True), ("gfx942", False)):
        assert has_kernels(SimpleNamespace(platform="gpu", device_kind="any", compute_capability=capability)) is has
    assert [length for length in (64, 128, 192, 512, 4096) if flash_gpu.is_faster(length, 64)] == [128, 512, 4096]
    assert [size for size in (8, 32, 64, 96, 128, 256) if flash_gpu.is_faster(512, size)] == [32, 64, 128]


@needs_libtpu
@pytest.mark.parametrize("name", ["v4-8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("v5litepod-8", "v6e-8"))])
def test_it_compiles_for_a_tpu_and_its_cost_is_counted(name: str) -> None:
    rows = batch_sharding(make_mesh(HardwareConfig(), devices_of(accelerators.find(name))))
    count = rows.mesh.size
    found = examine(trace_gradients(partial(for_tpu(CAUSAL), rows=rows), count, rows).lower().compile(), count, 0.0)
    assert (found.kernels, found.opaque, found.flops) == (2, {}, 7 * 2 * 2 * 512 * 512 * 64)
    assert found.cycles > 2 * 2 * 512 * 512 * 0.0114


@pytest.mark.parametrize("window", [EVERYTHING, NEAR])
def test_it_is_lowered_for_a_gpu(window: AttentionWindow) -> None:
    """Without one: types and shapes that Triton's language has not are refused here."""
    traced = trace_gradients(partial(for_gpu(window), rows=on_devices(1)), 2)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("custom_call @__gpu$xla.gpu.triton") == 3
