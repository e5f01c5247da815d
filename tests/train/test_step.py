"""Identity laws of the step: the layout on devices and the accumulation do not change what is computed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import toy

import compiled
from devices import Device
from tpulm.config import HardwareConfig
from tpulm.nn.params import shapes
from tpulm.train.checkpoint import checksums
from tpulm.train.program import execution_on, reproducible
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


@pytest.fixture(scope="module", params=toy.EACH)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def reference(kind: str) -> list[float]:
    return losses(kind, {"data": 1}, 1)


LAYOUTS = [("replaced", {"fsdp": 2, "microbatch_size": 4})]
LAYOUTS += [(kind, {"tensor": 2, "microbatch_size": 2}) for kind in ("modern", "causal")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "hardware"), LAYOUTS, indirect=["kind"])
def test_layout_does_not_change_the_losses(kind: str, reference: list[float], hardware: dict[str, int]) -> None:
    """Dropout is on; 20 steps within 1e-4. All axes at once are below."""
    np.testing.assert_allclose(losses(kind, hardware, 2), reference, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["masked"], indirect=True)
def test_all_axes_at_once_do_not_change_the_losses(kind: str, reference: list[float]) -> None:
    """On eight devices, in a process of its own, and accumulated."""
    hardware = {"data": 2, "fsdp": 2, "tensor": 2, "microbatch_size": 1}
    code = f"import test_step; print(test_step.losses({kind!r}, {hardware}, 8))"
    environment = os.environ | {"XLA_FLAGS": compiled.flags(8), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), reference, atol=1e-4)


@pytest.fixture(scope="module")
def program() -> Any:
    return toy.program(toy.config())


def test_a_row_has_one_key_whatever_the_batch(program: Any) -> None:
    def keys(cursor: int, rows: int) -> list[list[int]]:
        words = jax.numpy.asarray(divmod(cursor, 2**32), "uint32")
        return jax.random.key_data(row_keys(3, words, rows)).tolist()

    assert keys(0, 32) == [*keys(0, 8), *keys(8, 24)]
    over = keys(2**32 - 2, 4)  # a run may visit more rows than a word counts
    assert over[2:] == keys(2**32, 2)
    assert len({*map(tuple, [*keys(0, 32), *over, *keys(2**33, 8)])}) == 44
    assert program.cursor(2**32 + 5).tolist() == [1, 5]


def test_checksums_see_a_swap_and_a_single_bit() -> None:
    x = np.arange(6, dtype=np.float32)
    swapped, flipped = x[[0, 2, 1, 3, 4, 5]], x.copy()
    flipped.view(np.uint32)[4] ^= 1
    found = [checksums({"x": jax.numpy.asarray(value)})["['x']"] for value in (x, swapped, flipped)]
    assert len(set(found)) == 3


def test_the_seed_decides_the_initial_state(program: Any) -> None:
    other = toy.program(toy.config(train={"seed": 1}))
    assert checksums(program.initial_state().params) != checksums(other.initial_state().params)


def test_how_a_step_is_computed_follows_the_platform() -> None:
    """By the run's steps in all, so that a resumed run computes as it began."""
    for platform, steps, hardware, *expected in (
        ("cpu", 10, {}, True, "float32", "none"),
        ("tpu", 49_999, {"remat": "full"}, False, "bfloat16", "full"),
        ("tpu", 50_000, {}, True, "bfloat16", "dots"),
        ("tpu", 50_000, {"unroll": False}, False, "bfloat16", "dots"),
        ("gpu", 50_000, {}, False, "bfloat16", "none"),
    ):
        device = Device(0, platform=platform, device_kind="TPU v3", compute_capability="7.5")
        found = execution_on([device], HardwareConfig.model_validate(hardware), "auto", steps=steps)
        assert [found.unroll, found.dtype, found.remat, found.kernels] == [*expected, None], (platform, steps)


@pytest.mark.parametrize(("attached", "kernels"), [({}, True), ({"flash_attention": False}, False), ({"tensor": 2}, False)])
def test_gpus_have_kernels_for_bfloat16(attached: dict[str, Any], kernels: bool) -> None:
    devices = [Device(number, platform="gpu") for number in range(2)]
    hardware = HardwareConfig(**attached)
    assert (execution_on(devices, hardware, "auto").kernels is not None) is kernels
    assert execution_on(devices, hardware, "float32").kernels is None


@pytest.mark.parametrize(("memory_bytes", "remat"), [(None, "none"), (300, "none"), (299, "dots"), (199, "full"), (1, "full")])
def test_less_is_kept_until_a_step_fits(monkeypatch: pytest.MonkeyPatch, memory_bytes: int | None, remat: str) -> None:
    """The step is a stub, which takes the less memory, the less it saves for the backward pass."""
    program: Any = toy.program(toy.config())

    def lower_step(length: int) -> Any:
        temporary = {"none": 200, "dots": 100, "full": 0}[program.objective.execution.remat]
        whole = {f"{kind}_size_in_bytes": 100 for kind in ("argument", "output", "alias")}
        sizes = SimpleNamespace(**whole, temp_size_in_bytes=temporary)
        return SimpleNamespace(compile=lambda: SimpleNamespace(memory_analysis=lambda: sizes))

    program.memory_bytes = memory_bytes
    monkeypatch.setattr(program, "lower_step", lower_step)
    _ = program.step
    assert program.objective.execution.remat == remat


def test_products_are_of_bfloat16_and_summed_in_float32(kind: str) -> None:
    """Forward and backward, as lowered for all platforms: the vocabulary head's, too. A row of ones sums a bias' gradient."""
    objective = toy.program(toy.config(kind, train={"compute_dtype": "bfloat16"})).objective

    def loss(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        inputs = objective.make_inputs(batch, row_keys(0, jax.numpy.zeros((2,), "uint32"), toy.BATCH))
        key = jax.random.key(0, impl="rbg")
        return objective.loss(params, inputs, objective.totals(inputs), dropout_key=key).loss

    batch = {"tokens": jax.ShapeDtypeStruct((toy.BATCH, toy.LENGTH), "uint16")}
    traced = jax.jit(jax.grad(loss)).trace(shapes(objective.spec), batch)
    text = traced.lower(lowering_platforms=("cpu", "cuda", "tpu")).as_text()
    products = re.findall(r"dot_general.*: \(tensor<(.*)>, tensor<(.*)>\) -> tensor<(.*)>", text)
    kinds = {tuple(one.rpartition("x")[2] for one in product) for product in products if not product[0].startswith("1x")}
    assert kinds == {("bf16", "bf16", "f32")}
    heads = [product for product in products if f"x{toy.VOCAB_SIZE // 128 * 128 + 128}x" in "x".join(product)]
    assert len(heads) >= 3, "the head's"


def test_programs_for_gpus_leave_out_what_depends_on_the_order_of_threads(program: Any) -> None:
    """The option is one that XLA has: an unknown one is an error."""
    gpu: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu")]))
    options = reproducible(gpu)
    assert options and jax.jit(lambda x: x + 1, compiler_options=options)(np.float32(1)) == 2
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        jax.jit(lambda x: x + 2, compiler_options={"xla_gpu_exclude_nondeterministic_op": True})(np.float32(1))
    assert reproducible(program.mesh) is None
