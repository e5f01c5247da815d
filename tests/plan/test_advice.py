"""The advice follows from sizes, and is against a TPU where one is not worth it."""

from __future__ import annotations

import pytest

from tpulm import accelerators, config
from tpulm.plan import advice
from tpulm.plan.advice import Advice, advise

HERE = 150e9  # FLOP/s of a laptop's two cores


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(advice, "rows_per_second", lambda *_: 1e6)


def advice_for(recipe: str, *changes: str, here: float | None = HERE, accelerator: str = "v3-8") -> Advice:
    run = config.load(recipe, ("phases=[]", "tokenizer.vocab_size=1000", *changes))
    return advise(run, accelerators.find(accelerator), here=here)


def good(found: Advice) -> dict[str, bool]:
    return {finding.what: finding.good for finding in found.findings}


def test_a_large_model_wants_a_tpu():
    found = advice_for("bert-base")
    assert found.use_tpu
    assert good(found) == {"products": True, "widths": True, "batch": True, "input": True}
    assert found.hours_here is not None and found.hours_here > 100 * found.hours_there
    unknown, as_fast = (advice_for("bert-base", here=here) for here in (None, 400e12))
    assert unknown.hours_here is None and unknown.use_tpu and "would hardly help" in as_fast.verdict


def test_a_toy_odd_widths_and_a_small_batch_do_not():
    found = advice_for("quickstart")
    assert not found.use_tpu and found.verdict.startswith("no TPU is needed")
    odd = ("model.hidden_size=192", "model.num_heads=3", "model.intermediate_size=130", "train.batch_size=32")
    found = advice_for("bert-base", *odd)
    assert not good(found)["widths"] and not good(found)["batch"] and "better products, widths" in found.verdict


def test_units_are_larger_from_v6e_on():
    changes = ("model.hidden_size=384", "model.num_heads=6", "model.intermediate_size=1536")
    for name, fills, filled in (("v5litepod-8", True, "100% of the 128 x 128"), ("v6e-8", False, "69% of the 256 x 256")):
        findings = {finding.what: finding for finding in advice_for("bert-base", *changes, accelerator=name).findings}
        assert findings["widths"].good is fills
        assert f"fill {filled}" in findings["widths"].message  # (4 x 0.75² + 8 x 0.75) / 12


def test_rows_are_read_from_a_made_up_dataset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert advice.rows_per_second(64, 32, seconds=0.1) > 100
