"""A plan counts text, and settings that fit are found; the compiler is a stand-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpulm import accelerators, config
from tpulm.config import RunConfig
from tpulm.errors import ConfigError
from tpulm.plan.analysis import Buffer, DoesNotFit
from tpulm.plan.estimate import TEXT_FRACTION, PhasePlan, Plan, dominating, fit
from tpulm.train.mesh import BatchLayout

GIB = 2**30
V3 = accelerators.find("v3-8")


class Compiler:
    """Needs so many bytes for each row that is computed at once, by how much is kept; and the state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, per_row: dict[str, float], state: float = 0.0, parameters: int = 0):
        self.per_row, self.state, self.tried = per_row, state, []
        monkeypatch.setattr("tpulm.plan.estimate.plan", self.plan)
        monkeypatch.setattr("tpulm.plan.estimate.program_for", lambda *_, **__: SimpleNamespace(num_parameters=parameters))

    def plan(self, run: RunConfig, accelerator: Any, **_: Any) -> str:
        hardware = run.hardware
        self.tried.append((hardware.fsdp, hardware.remat, hardware.microbatch_size))
        needed = self.state / hardware.fsdp + self.per_row[hardware.remat] * (hardware.microbatch_size or 0)
        if needed > accelerator.hbm_bytes_per_device:
            raise DoesNotFit("too much", round(needed))
        return "a plan"


def run_of(*changes: str) -> RunConfig:
    return config.load("bert-base", ["train.batch_size=1024", *changes])  # 128 rows a device


def test_a_smaller_micro_batch_comes_first(monkeypatch: pytest.MonkeyPatch):
    compiler = Compiler(monkeypatch, per_row={"dots": 0.5 * GIB})
    found = fit(run_of(), V3)
    assert found.changes == {"hardware.microbatch_size": 32}
    assert found.config.train.batch_size == 1024
    assert compiler.tried == [(1, "dots", 128), (1, "dots", 32)]  # what is needed tells how few rows to try
    assert found.toml() == "[hardware]\nmicrobatch_size = 32\n"


def test_before_fewer_than_eight_rows_more_is_computed_again(monkeypatch: pytest.MonkeyPatch):
    Compiler(monkeypatch, per_row={"dots": 4 * GIB, "full": 0.5 * GIB})
    assert fit(run_of(), V3).changes == {"hardware.remat": "full", "hardware.microbatch_size": 32}


def test_state_that_does_not_fit_is_split(monkeypatch: pytest.MonkeyPatch):
    compiler = Compiler(monkeypatch, per_row={"dots": 0.01 * GIB}, parameters=2_000_000_000)
    found = fit(run_of(), V3)
    assert found.changes == {"hardware.fsdp": 4}  # 32 GB of parameters, moments and gradients: 8 on each of four
    assert compiler.tried == [(4, "dots", 128)]  # nothing is compiled that cannot fit
    assert "29.8 GiB of parameters" in found.tried[0]


def test_what_fits_nowhere_is_told_with_all_that_was_tried(monkeypatch: pytest.MonkeyPatch):
    Compiler(monkeypatch, per_row={"dots": 100 * GIB, "full": 100 * GIB})
    with pytest.raises(ConfigError, match=r"v3-8(.|\n)*remat full"):
        fit(run_of(), V3)


def test_what_takes_the_memory_is_seen_with_fewer_rows_than_did_not_fit(monkeypatch: pytest.MonkeyPatch):
    def plan(smaller: RunConfig, *_: Any, **__: Any) -> Any:
        batches.append(smaller.train.batch_size)
        stack = Buffer("f32[12,4,768]", 100, "attention", stacked=True)
        return SimpleNamespace(heaviest=SimpleNamespace(analysis=SimpleNamespace(largest=(stack,))))

    batches: list[int] = []
    monkeypatch.setattr("tpulm.plan.estimate.plan", plan)
    error = DoesNotFit("too much", 2 * V3.hbm_bytes_per_device)
    error.phase = cast("Any", SimpleNamespace(config=run_of("hardware.microbatch_size=8")))
    assert [buffer.bytes for buffer in dominating(V3, error)] == [200]  # as with 8 rows
    assert batches == [8 * 4]  # four rows on each of eight devices


@pytest.mark.parametrize(("rows", "fraction"), [("segments", 0.9), ("packed", 1.0)])
def test_tokens_and_mfu_are_of_text_not_of_slots(rows: str, fraction: float):
    layout = BatchLayout(batch_size=256, shards=8, microbatch_size=32, accumulation=1)
    flops = V3.peak_flops / 2  # of a step of one second
    phase = PhasePlan(1, 1_000, layout, 128, flops, cast("Any", None), 1.0, 0.5, {}, TEXT_FRACTION[rows])
    made = Plan(V3, (phase,), parameters=1)
    assert made.tokens == pytest.approx(1_000 * 256 * 128 * fraction)
    assert made.mfu(made.seconds) == pytest.approx(0.5 * fraction)
