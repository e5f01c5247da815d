"""What is sent between devices when parameters are split over them: parameters, not activations."""

from __future__ import annotations

from devices import first
from tpulm import config
from tpulm.plan import costs, hlo
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import PretrainingProgram

DEVICES = 2
SIZES = {"model.num_layers": 2, "model.hidden_size": 64, "model.num_heads": 8, "model.intermediate_size": 128}
SIZES |= {"data.sequence_length": 64, "train.batch_size": 256, "hardware.unroll": False, "hardware.fsdp": DEVICES}


def test_splitting_parameters_sends_parameters():
    run = config.load("bert-tiny", SIZES)
    program = PretrainingProgram(run, vocab_size=256, special=SpecialTokens(0, 1, 2, 3, 4), devices=first(DEVICES))
    counted = costs.count(hlo.parse(program.lowered_step.compile().as_text() or ""), DEVICES)
    sent = sum(one.bytes * one.times for one in counted.collectives)
    parameters = 4 * program.num_parameters
    activations = run.train.batch_size * run.data.sequence_length * run.model.hidden_size * 4  # of one place in one layer
    assert activations > 10 * parameters / run.model.num_layers
    assert sent < 8 * parameters
