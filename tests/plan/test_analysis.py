"""The devices of a slice, what is kept of a step compiled for them, and what is said of one for which there is no room."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from programs import LOOP

from compiled import needs_libtpu
from tpulm import accelerators
from tpulm.plan import analysis
from tpulm.plan.analysis import DoesNotFit

V3 = accelerators.find("v3-8")
EXHAUSTED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 118.25G of 15.75G hbm. "
    "Exceeded hbm capacity by 102.50G.\n\nTotal hbm usage >= 118.50G:\n    reserved        258.00M"
)


class Lowered:
    """A step that counts how often it is compiled; `error` is what its compiler raises."""

    def __init__(self, width: int = 8, error: Exception | None = None):
        self._lowered = jax.jit(lambda x: x @ x).lower(jnp.ones((width, width), jnp.float32))
        self._error = error
        self.compiled = 0

    def as_text(self) -> str:
        return self._lowered.as_text()

    def compile(self) -> Any:
        self.compiled += 1
        if self._error is not None:
            raise self._error
        return self._lowered.compile()


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what is kept, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(analysis, "compiler", lambda: "libtpu 0.0, jax 0.0")
    return tmp_path / "tpulm" / "plans"


def of(step: Lowered, accelerator: accelerators.Accelerator = V3) -> analysis.Analysis:
    return analysis.analysis_of(step, accelerator, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("donated", "outputs"), [((), 8 * 8 * 4), ((0,), 0)])
def test_outputs_in_the_place_of_arguments_take_no_memory(donated: tuple[int, ...], outputs: int):
    """A training step's state is donated: it is not in memory twice."""
    x = jnp.ones((8, 8), jnp.float32)
    compiled = jax.jit(lambda x: x @ x, donate_argnums=donated).lower(x).compile()
    assert analysis.examine(compiled, 1, 0.0).memory.outputs == outputs


def test_a_program_is_compiled_once(kept: Path):
    step = Lowered()
    first, second = of(step), of(step)
    assert (step.compiled, first) == (1, second)
    assert first.memory.arguments == 8 * 8 * 4 and first.flops == 2 * 8**3
    assert list(first.cycles_by_part) == list(second.cycles_by_part)
    assert len(list(kept.iterdir())) == 1


def test_another_program_accelerator_compiler_or_option_is_another(monkeypatch: pytest.MonkeyPatch, kept: Path):
    step = Lowered()
    of(step)
    of(Lowered(width=16))
    of(step, accelerators.find("v2-8"))
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_something=true")
    of(step)
    monkeypatch.setattr(analysis, "compiler", lambda: "libtpu 0.1, jax 0.0")
    of(step)
    assert (step.compiled, len(list(kept.iterdir()))) == (4, 5)


def test_a_damaged_file_is_made_again(kept: Path):
    step = Lowered()
    of(step)
    (path,) = kept.iterdir()
    for times, damage in enumerate(("", "{", "[]", "{}", '{"memory": 1}'), start=2):
        path.write_text(damage, encoding="utf-8")
        of(step)
        assert step.compiled == times, damage


def test_what_does_not_fit_is_kept_too():
    step = Lowered(error=jax.errors.JaxRuntimeError(EXHAUSTED))
    for _ in range(2):
        with pytest.raises(DoesNotFit, match=r"Used 118.25G of 15.75G hbm") as raised:
            of(step)
        assert raised.value.needed == pytest.approx(118.25 * 2**30)
        assert "\n" not in str(raised.value)
    assert step.compiled == 1


def test_any_other_error_of_the_compiler_is_raised_and_not_kept(kept: Path):
    step = Lowered(error=jax.errors.JaxRuntimeError("INTERNAL: something else"))
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
            of(step)
    assert step.compiled == 2 and not kept.exists()


def test_an_analysis_that_cannot_be_kept_is_given_all_the_same(kept: Path):
    kept.parent.mkdir(parents=True)
    kept.write_text("a file where the folder should be", encoding="utf-8")
    assert of(Lowered()).flops == 2 * 8**3


@pytest.mark.parametrize(("name", "write"), [("v3-8", 300), ("v6e-8", 161)])
def test_cycles_of_no_cost_model_are_bounded_by_bytes_on_newer_generations(name: str, write: int):
    """161 cycles are those of 131,076 bytes, of which 0.87 x 937 go in one; what has a cost model keeps its own."""
    text = LOOP
    for cycles, kind in ((1000, "CLASSIC"), (300, "INVALID")):
        text = text.replace(f'"{cycles}"}}', f'"{cycles}","cost_model_type":"COST_MODEL_TYPE_{kind}"}}')
    sizes = ("argument", "output", "alias", "temp", "generated_code")
    stats = SimpleNamespace(**{f"{size}_size_in_bytes": 0 for size in sizes})
    compiled = SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: stats)
    step: Any = SimpleNamespace(as_text=lambda: "", compile=lambda: compiled)
    assert of(step, accelerators.find(name)).cycles == 12 * (1000 + write)


def test_the_shape_of_a_slice():
    shapes = {"v2-8": "2x2", "v3-32": "4x4", "v3-64": "4x8", "v4-8": "2x2x1", "v4-16": "2x2x2", "v4-32": "2x2x4"}
    shapes |= {"v4-128": "4x4x4", "v5litepod-1": "1x1", "v5litepod-8": "2x4", "v5litepod-256": "16x16"}
    shapes |= {"v5p-64": "2x4x4", "v6e-32": "4x8", "tpu7x-8": "2x2x1"}
    assert {name: accelerators.find(name).topology for name in shapes} == shapes


@needs_libtpu
@pytest.mark.parametrize("name", ["v2-8", "v3-32", "v4-8", "v4-16", "v5litepod-1", "v5litepod-8", "v5p-8", "v6e-8", "tpu7x-8"])
def test_the_devices_are_those_of_the_catalogue(name: str):
    accelerator = accelerators.find(name)
    devices = analysis.devices_of(accelerator)
    assert len(devices) == accelerator.devices
    assert len({device.process_index for device in devices}) == accelerator.hosts
    assert accelerators.from_device_kind(devices[0].device_kind) == pytest.approx(accelerator.peak_flops_per_device)
