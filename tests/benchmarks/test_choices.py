"""Each variant of benchmarks/choices.py still takes the place of what it stands in for."""

from __future__ import annotations

import importlib
from pathlib import Path

import jax
import pytest

from tpulm.train.program import PretrainingProgram


@pytest.mark.slow
def test_every_variant_makes_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    choices, train_step = importlib.import_module("choices"), importlib.import_module("train_step")
    without_effect = {name for name, targets in choices.VARIANTS.items() if targets}
    for case in ("bert-mini", "causal", "electra-small"):
        config = train_step.configured(train_step.CASES[case])
        config = config.model_copy(update={"model": config.model.model_copy(update={"num_layers": 1})})
        own = None
        for name in ("as it is", *(name for name, targets in choices.VARIANTS.items() if targets)):
            jax.clear_caches()
            with choices.patched(*choices.VARIANTS[name]):
                program = PretrainingProgram(config, vocab_size=2_000, special=train_step.SPECIAL, devices=jax.devices()[:1])
                step = program.lower_step(config.data.sequence_length).as_text()
            own = own or step
            without_effect -= {name} if step != own else set()
    assert not without_effect
