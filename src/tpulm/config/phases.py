"""The phases of a run: stretches of its steps with rows of their own, from `[[phases]]` of a run file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tpulm.config.schema import PhaseConfig, RunConfig


class Phase(NamedTuple):
    """Steps `first_step` + 1 to `last_step`; `config` is the run's with the phase's own data and batch.

    `config.train.steps` stays the whole run's: learning-rate schedules go over all phases. `folder` is where its dataset lies
    under the work folder; phases with the same data settings share one, and each goes on where the one before it ended.
    """

    number: int  # from 1
    first_step: int
    last_step: int
    config: RunConfig
    folder: str
    first_cursor: int  # rows of other datasets that the run has visited before; the rest of the cursor counts this one's


def phases_of(config: RunConfig) -> tuple[Phase, ...]:
    """Those that have a step at least, in order: one in a run that names none."""
    steps = config.train.steps
    phases: list[Phase] = []
    rows: dict[str, int] = {}  # visited, by dataset
    reached, share = 0, 0.0
    for settings in config.phases or (PhaseConfig(share=1.0),):
        share += settings.share
        begins, reached = reached, min(steps, round(share * steps))
        if reached > begins:
            own = _with(config, settings)
            number = len(phases) + 1
            same = next((phase.folder for phase in phases if phase.config.data == own.data), None)
            folder = same or ("." if number == 1 else f"phase-{number}")
            others = sum(count for name, count in rows.items() if name != folder)
            phases.append(Phase(number, begins, reached, own, folder, others))
            rows[folder] = rows.get(folder, 0) + (reached - begins) * own.train.batch_size
    return tuple(phases)


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    """The one that goes on after `step` steps, or the last one when all are done."""
    return next((phase for phase in phases if step < phase.last_step), phases[-1])


def _with(config: RunConfig, settings: PhaseConfig) -> RunConfig:
    data, train = config.data, config.train
    if settings.sequence_length is not None:
        data = data.model_copy(update={"sequence_length": settings.sequence_length})
    if settings.batch_size is not None:
        train = train.model_copy(update={"batch_size": settings.batch_size})
    if settings.max_predictions is not None:
        objective = train.objective.model_copy(update={"max_predictions": settings.max_predictions})
        train = train.model_copy(update={"objective": objective})
    return config.model_copy(update={"data": data, "train": train, "phases": ()})
