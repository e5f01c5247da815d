"""What a plan counts: tokens of text, not slots."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tpulm import accelerators
from tpulm.plan.estimate import TEXT_FRACTION, PhasePlan, Plan
from tpulm.train.mesh import BatchLayout


@pytest.mark.parametrize(("rows", "fraction"), [("segments", 0.9), ("packed", 1.0)])
def test_tokens_and_mfu_are_of_text(rows: str, fraction: float):
    accelerator = accelerators.find("v3-8")
    layout = BatchLayout(batch_size=256, shards=8, microbatch_size=32, accumulation=1)
    flops = accelerator.peak_flops / 2  # of a step of one second
    phase = PhasePlan(1, 1_000, layout, 128, flops, cast("Any", None), 1.0, 0.5, {}, TEXT_FRACTION[rows])
    made = Plan(accelerator, (phase,), parameters=1)
    assert made.tokens == pytest.approx(1_000 * 256 * 128 * fraction)
    assert made.mfu(made.seconds) == pytest.approx(0.5 * fraction)
