"""The kernels for GPUs give what the plain attention gives, and are lowered for one; where JAX's plugin is, compiled for it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from kernels import check_flash, on_devices

from tpulm.nn import flash_gpu
from tpulm.nn.attention import CAUSAL, EVERYTHING, AttentionWindow, has_kernels, kernels_agree
from tpulm.nn.dropout import DropoutSeeds

B, H, L, K = 2, 2, 384, 16
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")


@pytest.mark.parametrize(
    ("window", "rate", "devices"), [(EVERYTHING, 0.1, 2), (CAUSAL, 0.0, 1), (AttentionWindow(64, 64), 0.0, 1)]
)
def test_values_and_gradients_are_those_of_plain_attention(window: AttentionWindow, rate: float, devices: int) -> None:
    kernel = partial(flash_gpu.flash_attention, before=window.before, after=window.after, rows=on_devices(devices))
    check_flash(kernel, (B, H, L, K), window, rate)


def test_a_device_is_asked_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    device = jax.devices()[0]
    assert kernels_agree(device, "gpu")
    masks = flash_gpu.mix
    monkeypatch.setattr(flash_gpu, "mix", lambda x, between: masks(x, between + jnp.uint32(1)))
    assert not kernels_agree(device, "gpu"), "other dropout masks are seen"


def test_devices_and_rows_that_it_is_for() -> None:
    for capability, has in (("7.5", False), ("8.0", True), ("9.0", True), ("10.0", True), ("gfx942", False)):
        assert has_kernels(SimpleNamespace(platform="gpu", device_kind="any", compute_capability=capability)) is has
    assert [length for length in (64, 128, 192, 512, 4096) if flash_gpu.is_faster(length, 64)] == [128, 512, 4096]
    assert [size for size in (8, 32, 64, 96, 128, 256) if flash_gpu.is_faster(512, size)] == [32, 64, 128]


@pytest.mark.parametrize("window", [EVERYTHING, AttentionWindow(64, 64)])
def test_it_is_lowered_for_a_gpu(window: AttentionWindow) -> None:
    """Without one: types and shapes that Triton's language has not are refused here."""
    array = jax.ShapeDtypeStruct((B, H, 512, 64), jnp.bfloat16)
    seeds: Any = jax.ShapeDtypeStruct((B, 1, 512, 1), jnp.uint32)

    def gradients(g: jax.Array, arrays: list[jax.Array], segments: jax.Array, seeds: DropoutSeeds) -> Any:
        settings: dict[str, Any] = {"seeds": seeds, "dropout_rate": 0.1, "before": window.before, "after": window.after}

        def kernel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            return flash_gpu.flash_attention(query, key, value, segments, **settings, rows=on_devices(1))

        return jax.vjp(kernel, *arrays)[1](g)

    traced = jax.jit(gradients).trace(array, [array] * 3, jax.ShapeDtypeStruct((B, 512), jnp.int32), DropoutSeeds(seeds, seeds))
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("custom_call @__gpu$xla.gpu.triton") == 3
