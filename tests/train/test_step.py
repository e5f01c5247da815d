"""Identity laws of the step: the layout on devices and the accumulation do not change what is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import toy

from tpulm.config import HardwareConfig
from tpulm.train.checkpoint import checksums
from tpulm.train.program import execution_on
from tpulm.train.step import row_keys

STEPS = 20


def losses(kind: str, hardware: dict[str, int], devices: int) -> list[float]:
    settings = toy.config(kind, train={"steps": STEPS}, hardware=hardware)
    made = toy.program(settings, devices)
    state, found = made.initial_state(), []
    with jax.transfer_guard("disallow"):  # nothing moves between host and devices unasked
        for cursor in range(0, STEPS * toy.BATCH, toy.BATCH):
            state, loss = made.step(state, made.to_devices(toy.Rows().batch(cursor)), made.cursor(cursor))
            found.append(loss)
    return [float(loss) for loss in jax.device_get(found)]


@pytest.fixture(scope="module", params=list(toy.KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def reference(kind: str) -> list[float]:
    return losses(kind, {"data": 1}, 1)


@pytest.mark.parametrize(
    ("hardware", "devices"),
    [
        ({"data": 2, "fsdp": 2, "tensor": 2}, 8),
        ({"data": 1, "microbatch_size": 2}, 1),
        ({"data": 2, "fsdp": 2, "microbatch_size": 1}, 4),
    ],
    ids=["data x fsdp x tensor", "accumulated", "spread and accumulated"],
)
def test_layout_does_not_change_the_losses(kind: str, reference: list[float], hardware: dict[str, int], devices: int) -> None:
    """Dropout is on; 20 steps within 1e-4."""
    np.testing.assert_allclose(losses(kind, hardware, devices), reference, atol=1e-4)


def test_the_loss_falls(reference: list[float]) -> None:
    assert np.mean(reference[-5:]) < np.mean(reference[:5]) - 0.05


def test_a_row_has_one_key_whatever_the_batch() -> None:
    def keys(cursor: int, rows: int) -> list[list[int]]:
        words = jax.numpy.asarray(divmod(cursor, 2**32), "uint32")
        return jax.random.key_data(row_keys(3, words, rows)).tolist()

    assert keys(0, 32) == [*keys(0, 8), *keys(8, 24)]
    over = keys(2**32 - 2, 4)  # a run may visit more rows than a word counts
    assert over[2:] == keys(2**32, 2)
    assert len({*map(tuple, [*keys(0, 32), *over, *keys(2**33, 8)])}) == 44
    assert toy.program(toy.config()).cursor(2**32 + 5).tolist() == [1, 5]


def test_checksums_see_a_swap_and_a_single_bit() -> None:
    x = np.arange(6, dtype=np.float32)
    swapped, flipped = x[[0, 2, 1, 3, 4, 5]], x.copy()
    flipped.view(np.uint32)[4] ^= 1
    found = [checksums({"x": jax.numpy.asarray(value)})["['x']"] for value in (x, swapped, flipped)]
    assert len(set(found)) == 3


def test_the_seed_decides_the_initial_state() -> None:
    first, other = (checksums(toy.program(toy.config(train={"seed": seed})).initial_state().params) for seed in (0, 1))
    assert first != other


@pytest.mark.parametrize(
    ("platform", "steps", "hardware", "unrolled"),
    [
        ("cpu", 10, {}, True),
        ("tpu", 49_999, {}, False),
        ("tpu", 50_000, {}, True),
        ("tpu", 50_000, {"unroll": False}, False),
        ("gpu", 50_000, {}, False),
    ],
)
def test_layers_are_written_out_where_that_pays(platform: str, steps: int, hardware: dict[str, Any], unrolled: bool) -> None:
    """By the run's steps in all, so that a resumed run computes as it began."""
    device = SimpleNamespace(platform=platform, device_kind="TPU v3", process_index=0, id=0)
    assert execution_on([device], HardwareConfig(**hardware), "auto", steps=steps).unroll is unrolled
