"""Phases divide the steps of a run and change what they say they change."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from tpulm.config import RunConfig, phase_at, phases_of


def run(*phases: dict[str, Any], steps: int = 1000) -> RunConfig:
    return RunConfig.model_validate({"train": {"steps": steps}, "phases": phases})


def test_long_rows_at_the_end():
    changes = {"sequence_length": 512, "batch_size": 64, "mask_fraction": 0.3}
    first, second = phases_of(run({"share": 0.9, "objective": "clm"}, {"share": 0.1, **changes}))
    assert (first.first_step, first.last_step, second.first_step, second.last_step) == (0, 900, 900, 1000)
    assert (first.config.data.sequence_length, second.config.data.sequence_length) == (128, 512)
    assert (first.config.train.batch_size, second.config.train.batch_size) == (256, 64)
    assert (first.config.train.steps, second.config.train.steps) == (1000, 1000)  # one schedule over both
    objectives = [phase.config.train.objective for phase in (first, second)]
    assert [(one.name, one.mask_fraction) for one in objectives] == [("clm", 0.15), (None, 0.3)]
    assert (first.folder, second.folder) == (".", "phase-2")


def test_a_dataset_goes_on_where_its_last_phase_ended():
    shares = [{"share": 0.25}, {"share": 0.25, "sequence_length": 512, "batch_size": 64}, {"share": 0.5, "batch_size": 128}]
    first, second, third = phases_of(run(*shares))
    assert first.folder == third.folder != second.folder
    assert (first.first_cursor, second.first_cursor, third.first_cursor) == (0, 250 * 256, 250 * 64)


def test_the_steps_are_divided_without_a_gap_and_none_is_empty():
    """Also where shares add up to almost one."""
    almost = [[0.1666666] * 6, [0.1] * 10, [0.5, 0.4999995]]
    for shares, steps in [
        *(([0.15, 0.25, 0.6], steps) for steps in (1, 2, 3, 7, 1000)),
        *((some, 2_000_000) for some in almost),
    ]:
        phases = phases_of(run(*({"share": share} for share in shares), steps=steps))
        edges = [phase.first_step for phase in phases] + [phases[-1].last_step]
        assert edges[0] == 0 and edges[-1] == steps and [phase.last_step for phase in phases] == edges[1:]
        assert all(a < b for a, b in itertools.pairwise(edges)) and (len(phases) == len(shares) or steps < 7)


def test_which_phase_goes_on_after_a_step():
    phases = phases_of(run({"share": 0.9}, {"share": 0.1, "sequence_length": 256}))
    assert [phase_at(phases, step).number for step in (0, 899, 900, 999, 1000)] == [1, 1, 2, 2, 2]


def test_next_sentences_need_an_objective_with_that_head():
    for settings in (
        {"model": {"architecture": "electra"}},
        {"train": {"objective": {"name": "clm"}}},
        {"phases": [{"share": 0.5, "objective": "clm"}, {"share": 0.5}]},
    ):
        with pytest.raises(ValidationError, match=r"data\.next_sentence.*: set it to false"):
            RunConfig.model_validate({"data": {"next_sentence": True}, **settings})
        RunConfig.model_validate(settings)


def test_what_does_not_add_up_is_refused():
    for phases, message in (
        ([{"share": 0.9}], r"0\.9"),
        ([{"share": 1.0, "sequence_length": 1024}], "phase 1 .*1024.*512"),
        ([{"share": 0.0}, {"share": 1.0}], r"phases\.0\.share"),
        ([{"objective": "rtd"}], "phase 1 .*'rtd'.*'bert'"),
    ):
        with pytest.raises(ValidationError, match=message):
            run(*phases)


def test_a_mean_of_checkpoints_is_of_one_objective():
    def averaged(objective: str, every_steps: int) -> RunConfig:
        checkpoint = {"every_steps": every_steps, "average_last": 4}
        phases = [{"share": 0.25, "objective": objective}, {"share": 0.75}]
        return RunConfig.model_validate({"phases": phases, "train": {"steps": 100, "checkpoint": checkpoint}})

    assert averaged("clm", 20).train.checkpoint.averaged_steps(100)[0] == 40
    assert averaged("mlm", 25)  # as the other phase, which does not name it
    with pytest.raises(ValidationError, match="from step 25 on"):
        averaged("clm", 25)


def test_a_moving_average_forgets_another_objective():
    """Of 1,000 steps, the shares of weights from before the last 100 and 500 are 0.39 and 0.002."""

    def averaged(objective: str, last: float) -> RunConfig:
        phases = [{"share": 1 - last, "objective": objective}, {"share": last}]
        train = {"steps": 1_000, "optimizer": {"average_decay": 0.999}}
        return RunConfig.model_validate({"phases": phases, "train": train})

    assert averaged("clm", 0.5) and averaged("mlm", 0.1)
    with pytest.raises(ValidationError, match="leaves 39% of the average to weights from before step 900"):
        averaged("clm", 0.1)
