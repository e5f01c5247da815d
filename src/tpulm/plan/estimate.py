"""From the compiler's analysis of a step to seconds, hours and dollars.

Two figures bound the truth. The *lower bound* is what the slowest of three would take if the other two cost nothing: the
operations at peak speed, the bytes at full memory bandwidth, the collectives over all links. The *estimate* adds up the
compiler's own cost model, instruction by instruction, and the rest: instructions without an estimate at memory bandwidth, and
collectives as rings over the links of the slice. Copies between memories that overlap other work are in the bound only. Neither
includes late input, evaluation, checkpoints, compilation, preemptions, or the overlap of other instructions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpulm.accelerators import Accelerator
from tpulm.config import HardwareConfig, RunConfig, phases_of
from tpulm.errors import ConfigError
from tpulm.plan.analysis import Analysis, Buffer, DoesNotFit, analyse, program_for
from tpulm.plan.costs import Collective
from tpulm.progress import SILENT, Progress
from tpulm.train.mesh import BatchLayout

# Row slots assumed to hold text; `tpulm run` reports the real fraction. Measured at 128 tokens: segments 0.91 with petitions
# of 730 tokens, 0.71 and 0.48 with paragraphs, 0.22 with reviews of one sentence; packed 0.97 to 1.
TEXT_FRACTION = {"segments": 0.9, "packed": 1.0, "causal": 1.0}


@dataclass(frozen=True)
class PhasePlan:
    """One phase of a run on a slice."""

    number: int  # from 1
    steps: int
    layout: BatchLayout
    sequence_length: int
    model_flops: float  # of a step, over all devices: the model's matrix products, nothing recomputed
    analysis: Analysis
    seconds: float  # of a step, estimated
    seconds_at_least: float
    parts: dict[str, float]  # seconds of "compute", "memory" and "communication": the estimate is their sum, or the bound
    text_fraction: float  # fraction of row slots assumed to hold text

    @property
    def tokens(self) -> float:
        """Tokens of text in a step."""
        return self.layout.batch_size * self.sequence_length * self.text_fraction


@dataclass(frozen=True)
class Plan:
    """A run that fits on a slice, with its estimates."""

    accelerator: Accelerator
    phases: tuple[PhasePlan, ...]
    parameters: int

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def seconds(self) -> float:
        return sum(phase.steps * phase.seconds for phase in self.phases)

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def tokens(self) -> float:
        """Tokens of text."""
        return sum(phase.steps * phase.tokens for phase in self.phases)

    @property
    def heaviest(self) -> PhasePlan:
        """The phase that needs the most memory."""
        return max(self.phases, key=lambda phase: phase.analysis.memory.total)

    def dollars(self, per_hour: float | None) -> float | None:
        return None if per_hour is None else self.hours * per_hour

    def mfu(self, seconds: float) -> float:
        """MFU of the whole run, if its steps took `seconds` in all; computation on padding does not count."""
        flops = sum(phase.steps * phase.model_flops * phase.text_fraction for phase in self.phases)
        return flops / (seconds * self.accelerator.peak_flops)

    def values(self) -> dict[str, Any]:
        """For `--json`. Steps are averaged over phases; memory is that of the phase that needs most, for one device."""
        accelerator, heaviest, steps = self.accelerator, self.heaviest, self.steps
        at_least = sum(phase.steps * phase.seconds_at_least for phase in self.phases)
        on_demand, spot = self.dollars(accelerator.dollars_per_hour), self.dollars(accelerator.spot_dollars_per_hour)
        return {
            "accelerator": accelerator.name,
            "devices": accelerator.devices,
            "hosts": accelerator.hosts,
            "fits": True,
            "hbm_bytes": accelerator.hbm_bytes_per_device,
            "used_bytes": heaviest.analysis.memory.total,
            "memory": heaviest.analysis.memory._asdict(),
            "parameters": self.parameters,
            "steps": steps,
            "model_flops_per_step": sum(p.steps * p.model_flops for p in self.phases) / steps,
            "compiled_flops_per_step": sum(p.steps * p.analysis.flops for p in self.phases) / steps * accelerator.devices,
            "hbm_bytes_per_step": sum(p.steps * p.analysis.bytes for p in self.phases) / steps * accelerator.devices,
            "step_seconds_estimate": self.seconds / steps,
            "step_seconds_lower_bound": at_least / steps,
            "mfu_estimate": self.mfu(self.seconds),
            "mfu_at_most": self.mfu(at_least),
            "tokens_per_second": self.tokens / self.seconds,
            "text_fraction_assumed": heaviest.text_fraction,
            "hours": self.hours,
            "cost_on_demand_usd": on_demand,
            "cost_spot_usd": spot,
            "cost_per_billion_tokens_usd": None if on_demand is None else on_demand / (self.tokens / 1e9),
            "prices_as_of": accelerator.prices_as_of,
            "prices_source": accelerator.prices_source,
            "compiler": heaviest.analysis.compiler,
            "phases": [_phase_values(phase) for phase in self.phases],
        }


def _phase_values(phase: PhasePlan) -> dict[str, Any]:
    analysis = phase.analysis
    return {
        "steps": phase.steps,
        "batch_size": phase.layout.batch_size,
        "microbatch_size": phase.layout.microbatch_size,
        "sequence_length": phase.sequence_length,
        "used_bytes": analysis.memory.total,
        "step_seconds_estimate": phase.seconds,
        "step_seconds_lower_bound": phase.seconds_at_least,
        "seconds_by_part": phase.parts,
        "collectives": collectives_by_kind(analysis.collectives),
        "unknown_loops": analysis.unknown_loops,
        "uncounted_kernels": analysis.opaque,
        "own_kernels": analysis.kernels,
        "compile_seconds": analysis.compile_seconds,
    }


def plan(config: RunConfig, accelerator: Accelerator, *, progress: Progress = SILENT) -> Plan:
    """Compile every phase for the slice. Raises `DoesNotFit`, with `phase` set, if one does not fit, and ConfigError."""
    phases, bandwidth = phases_of(config), accelerator.hbm_bytes_per_second / accelerator.devices
    plans: list[PhasePlan] = []
    parameters = 0
    for phase in phases:
        of = f" phase {phase.number} of {len(phases)}" if len(phases) > 1 else ""
        progress.start(f"Compiling{of} for {accelerator.name}")
        try:
            program, analysis = analyse(phase.config, accelerator)
        except DoesNotFit as error:
            error.phase = phase
            raise
        parameters = program.num_parameters
        communication = _communication_seconds(analysis.collectives, accelerator)
        parts = {
            "compute": analysis.cycles / accelerator.clock_hertz,
            "memory": analysis.unestimated_bytes / bandwidth,
            "communication": communication,
        }
        at_least = max(analysis.flops / accelerator.peak_flops_per_device, analysis.bytes / bandwidth, communication)
        plans.append(
            PhasePlan(
                number=phase.number,
                steps=phase.last_step - phase.first_step,
                layout=program.layout,
                sequence_length=phase.config.data.sequence_length,
                model_flops=program.objective.flops_per_row * phase.config.train.batch_size,
                analysis=analysis,
                seconds=max(sum(parts.values()), at_least),
                seconds_at_least=at_least,
                parts=parts,
                text_fraction=TEXT_FRACTION[phase.config.data.rows],
            )
        )
    return Plan(accelerator, tuple(plans), parameters)


def _communication_seconds(collectives: Sequence[Collective], accelerator: Accelerator) -> float:
    """For sending around rings of chips; the cores of one chip share its memory. A chip sends over one link per axis of the
    slice, or two if the axis is closed to a ring."""
    links = sum(0 if size == 1 else 2 if size >= accelerator.ring_from else 1 for size in accelerator.shape)
    if not links:
        return 0.0
    sent = 0.0
    for one in collectives:
        chips = max(1.0, one.group / (accelerator.devices / accelerator.chips))
        sent += one.times * (2 if one.kind == "all-reduce" else 1) * one.bytes * (chips - 1) / chips
    return sent / (min(links, accelerator.ici_links) * accelerator.ici_bytes_per_second)


def collectives_by_kind(collectives: Sequence[Collective]) -> list[dict[str, Any]]:
    """For one step and one device: the number of each kind, and the bytes of their results."""
    by_kind: dict[tuple[str, int], list[int]] = {}
    for one in collectives:
        entry = by_kind.setdefault((one.kind, one.group), [0, 0])
        entry[0] += one.times
        entry[1] += one.times * one.bytes
    return [
        {"kind": kind, "devices": group, "count": count, "bytes": size}
        for (kind, group), (count, size) in sorted(by_kind.items())
    ]


# The compiler says how much memory it would need, so the next attempt is a guess, not a bisection: each costs a compilation.

_FILLS_THE_UNIT = 8  # rows a device should have at once: fewer leave its vector units' sublanes empty
_STATE_SHARE = 0.75  # of HBM that parameters, moments and gradients may take; the rest is for activations


@dataclass(frozen=True)
class Fitting:
    """Settings that fit, and what was tried before."""

    config: RunConfig
    plan: Plan
    changes: dict[str, Any]  # dotted names of the run file -> values
    tried: tuple[str, ...]

    def toml(self) -> str:
        """As lines of the run file."""
        return "[hardware]\n" + "".join(
            f"{name.removeprefix('hardware.')} = {json.dumps(value)}\n" for name, value in self.changes.items()
        )


def fit(config: RunConfig, accelerator: Accelerator, *, progress: Progress = SILENT) -> Fitting:
    """The first of these that fits: smaller micro-batches, rematerialization in the backward pass, state sharded further.

    The batch size, and so the result, stays the same. Raises ConfigError if nothing fits, and what `plan` raises for settings
    that do not divide.
    """
    tried: list[str] = []
    parameters = program_for(config, accelerator).num_parameters
    for hardware in _candidates(config, accelerator):
        # float32 parameters, two moments and the gradient
        if (state := 16 * parameters // (hardware.fsdp * hardware.tensor)) > _STATE_SHARE * accelerator.hbm_bytes_per_device:
            tried.append(f"fsdp {hardware.fsdp}: {state / 2**30:.1f} GiB of parameters, moments and gradients on each device")
            continue
        rows: int | None = hardware.microbatch_size or _share(config, accelerator)
        while rows:
            attempt = config.model_copy(update={"hardware": hardware.model_copy(update={"microbatch_size": rows})})
            changed = changes(config, attempt, accelerator)
            edits = ", ".join(f"{name.split('.')[1]} {value}" for name, value in changed.items())
            progress.note(f"Trying {edits or 'the settings as they are'}")
            try:
                fitting = plan(attempt, accelerator, progress=progress)
            except DoesNotFit as error:
                tried.append(f"{edits or 'as it is'}: {error}")
                rows = _fewer(rows, error.needed, accelerator)
                if rows and rows < _FILLS_THE_UNIT and hardware.remat != "full":
                    break  # recomputing costs less than so few rows
                continue
            return Fitting(attempt, fitting, changed, tuple(tried))
    listed = "\n".join(f"  {line}" for line in tried)
    raise ConfigError(
        f"no settings of microbatch_size, remat and fsdp fit {accelerator.name}; tried:\n{listed}\n"
        "Take a larger slice, a smaller model, or shorter rows."
    )


def dominating(accelerator: Accelerator, error: DoesNotFit) -> list[Buffer]:
    """What takes the memory in a run that does not fit: the arrays of the same step with fewer rows, scaled to all rows.

    Empty if even few rows do not fit, that is, if the state alone does not.
    """
    assert error.phase is not None
    own = error.phase.config
    share = _share(own, accelerator)
    did_not_fit = rows = own.hardware.microbatch_size or share
    needed = error.needed
    while (rows := _fewer(rows, needed, accelerator)) is not None:
        smaller = own.model_copy(
            update={
                "train": own.train.model_copy(update={"batch_size": own.train.batch_size // share * rows}),
                # in a loop, where what is kept for the backward pass is one array for all layers
                "hardware": own.hardware.model_copy(update={"microbatch_size": None, "unroll": False}),
            }
        )
        try:
            planned = plan(smaller, accelerator)
        except DoesNotFit as again:
            needed = again.needed
            continue
        scale = did_not_fit / rows
        return [
            buffer._replace(bytes=round(buffer.bytes * scale)) for buffer in planned.heaviest.analysis.largest if buffer.stacked
        ]
    return []


def changes(before: RunConfig, after: RunConfig, accelerator: Accelerator) -> dict[str, Any]:
    """What differs in [hardware]."""
    changed = {}
    for name in ("fsdp", "microbatch_size", "remat"):
        old, new = getattr(before.hardware, name), getattr(after.hardware, name)
        same = (name, old) == ("remat", "auto") and new == "dots"
        same = same or (name == "microbatch_size" and old is None and new == _share(after, accelerator))
        if old != new and not same:
            changed[f"hardware.{name}"] = new
    return changed


def _candidates(config: RunConfig, accelerator: Accelerator) -> Iterator[HardwareConfig]:
    """Nearest first: for each possible sharding of the state, each way of keeping less for the backward pass."""
    hardware = config.hardware
    strategies = ("none", "dots", "full")
    first = strategies.index("dots" if hardware.remat == "auto" else hardware.remat)
    fsdp = hardware.fsdp
    while fsdp <= accelerator.devices:
        if accelerator.devices % (fsdp * hardware.tensor) == 0 and config.model.hidden_size % fsdp == 0:
            for remat in strategies[first:]:
                yield hardware.model_copy(update={"fsdp": fsdp, "remat": remat, "data": "auto"})
        fsdp *= 2


def _share(config: RunConfig, accelerator: Accelerator) -> int:
    """Rows per device, in the phase with most."""
    shards = accelerator.devices // config.hardware.tensor
    batch = max([config.train.batch_size, *(phase.batch_size or 0 for phase in config.phases)])
    return batch // shards


def _fewer(rows: int, needed: int | None, accelerator: Accelerator) -> int | None:
    """The next smaller number of rows to try; None if there is none."""
    share = 0.5 if needed is None else min(0.5, accelerator.hbm_bytes_per_device / needed)
    target = int(rows * share)
    return next((size for size in range(target, 0, -1) if rows % size == 0), None)
