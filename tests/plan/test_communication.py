"""What is sent between devices when parameters are split over them: parameters, not activations."""

from __future__ import annotations

import pytest

from devices import first
from tpulm import config
from tpulm.plan import costs, hlo
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import Program

DEVICES = 8
SIZES = {
    "model.num_layers": 2,
    "model.hidden_size": 64,
    "model.num_heads": 8,
    "model.intermediate_size": 128,
    "data.sequence_length": 64,
    "train.batch_size": 256,
    "hardware.unroll": False,
}


@pytest.mark.devices
@pytest.mark.parametrize("split", [{"hardware.fsdp": 8}, {"hardware.fsdp": 4}])
def test_splitting_parameters_sends_parameters(split: dict[str, int]):
    run = config.load("bert-tiny", {**SIZES, **split})
    program = Program(run, vocab_size=256, special=SpecialTokens(0, 1, 2, 3, 4), devices=first(DEVICES))
    counted = costs.count(hlo.parse(program.lowered_step.compile().as_text() or ""), DEVICES)
    sent = sum(one.bytes * one.times for one in counted.collectives)
    parameters = 4 * program.num_parameters
    activations = run.train.batch_size * run.data.sequence_length * run.model.hidden_size * 4  # of one place in one layer
    assert activations > 10 * parameters / run.model.num_layers
    assert sent < 8 * parameters
