"""Training throughput, in tokens per second and as model FLOPs utilization (MFU)."""

from __future__ import annotations

# Types that libraries leave unknown:
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from tpulm import accelerators
from tpulm.progress import shown_speed

_MATMUL_SIZE = 1024
_MATMUL_SECONDS = 0.3


class Rate(NamedTuple):
    """Throughput, in which padding does not count."""

    per_second: float
    mfu: float | None  # model FLOP/s over peak FLOP/s; None if the peak is unknown, or surpassed
    text_fraction: float = 1.0  # of token slots, those that are not padding
    unit: str = "tokens"

    def __str__(self) -> str:
        return shown_speed(self.per_second, self.text_fraction, self.unit)


def peak_flops(mesh: Mesh, compute_dtype: accelerators.ComputeType) -> float | None:
    """Peak FLOP/s of all devices of the mesh: from the catalogue for TPU and GPU, measured for a CPU, None if unknown."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        return measured_matmul(device, compute_dtype)  # the virtual devices of one CPU share its cores
    peak = accelerators.from_device_kind(device.device_kind, compute_dtype)
    return None if peak is None else peak * mesh.devices.size


def measured_matmul(device: Any, dtype: accelerators.ComputeType = "float32", size: int = _MATMUL_SIZE) -> float:
    """FLOP/s of the fastest of several square matrix products, accumulated in float32; takes about a third of a second."""
    x = jax.device_put(jnp.ones((size, size), dtype), device)
    multiply = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
    jax.block_until_ready(multiply(x, x))
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _MATMUL_SECONDS:
        started = time.perf_counter()
        jax.block_until_ready(multiply(x, x))
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


class Meter:
    """Measures throughput; `pause` and `resume` exclude time spent on evaluation and checkpoints.

    A row has `per_row` of the `unit`, of which `text_fraction` is not padding.
    """

    def __init__(
        self,
        *,
        unit: str = "tokens",
        per_row: int = 1,
        flops_per_row: float = 0.0,
        peak: float | None = None,
        text_fraction: float = 1.0,
    ):
        self._unit, self._per_row, self._flops_per_row, self._peak = unit, per_row, flops_per_row, peak
        self._text_fraction = text_fraction
        self._window_rows = self._all_rows = 0
        self._window_seconds = self._all_seconds = 0.0
        self._since = time.perf_counter()

    def per_step(self, rows: int) -> dict[str, float]:
        """The units and FLOPs of a step of `rows` rows, without padding."""
        share = self._text_fraction * rows
        return {self._unit: share * self._per_row, "flops": share * self._flops_per_row}

    def count(self, rows: int) -> None:
        self._window_rows += rows

    def pause(self) -> None:
        self._window_seconds += time.perf_counter() - self._since

    def resume(self) -> None:
        self._since = time.perf_counter()

    def close_window(self) -> Rate:
        """The rate since the last call; starts the next window."""
        self.pause()
        rate = self._rate(self._window_rows, self._window_seconds)
        self._all_rows += self._window_rows
        self._all_seconds += self._window_seconds
        self._window_rows, self._window_seconds = 0, 0.0
        self.resume()
        return rate

    def overall(self) -> Rate:
        """The rate over all closed windows."""
        return self._rate(self._all_rows, self._all_seconds)

    def _rate(self, rows: int, seconds: float) -> Rate:
        per_second = self._text_fraction * rows / seconds if seconds > 0 else 0.0
        mfu = None if not self._peak else per_second * self._flops_per_row / self._peak
        if mfu is not None and mfu > 1:  # the peak was measured while the machine had other work
            mfu = None
        return Rate(per_second * self._per_row, mfu, self._text_fraction, self._unit)
