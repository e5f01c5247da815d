"""From what the compiler says of a step to seconds, hours and dollars.

Two figures bound the truth. The *lower bound* is what the slowest of three would take if the other two cost nothing: the
operations at the peak, the bytes at the memory's full bandwidth, the collectives over all links. The *estimate* adds up the
compiler's own cost model, instruction by instruction, with the rest: what it has no estimate for at the memory's bandwidth, and
collectives as rings over the links of the slice. What is copied between memories beside other work is in the bound alone.
Neither knows of input that comes late, evaluation, checkpoints, compiling, preemptions, or of other instructions that overlap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpulm.accelerators import Accelerator
from tpulm.config import RunConfig, phases_of
from tpulm.plan.analysis import Analysis, DoesNotFit, analyse
from tpulm.plan.costs import Collective
from tpulm.progress import SILENT, Progress
from tpulm.special_tokens import SpecialTokens
from tpulm.train.mesh import BatchLayout

# Slots of rows assumed to hold text; `tpulm run` reports the real share. Measured of 128 tokens: segments 0.91 with petitions
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
    parts: dict[str, float]  # seconds of a step by what takes them: "compute", "memory", "communication"
    text_fraction: float  # slots of the rows that are assumed to hold text

    @property
    def tokens(self) -> float:
        """Of text, in a step."""
        return self.layout.batch_size * self.sequence_length * self.text_fraction


@dataclass(frozen=True)
class Plan:
    """A run that fits, on a slice; what it is estimated to take."""

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
        """Of text."""
        return sum(phase.steps * phase.tokens for phase in self.phases)

    @property
    def heaviest(self) -> PhasePlan:
        """The phase that needs most memory."""
        return max(self.phases, key=lambda phase: phase.analysis.memory.total)

    def dollars(self, per_hour: float | None) -> float | None:
        return None if per_hour is None else self.hours * per_hour

    def mfu(self, seconds: float) -> float:
        """Of the whole run, if its steps took `seconds` in all; what is computed for padding does not count."""
        flops = sum(phase.steps * phase.model_flops * phase.text_fraction for phase in self.phases)
        return flops / (seconds * self.accelerator.peak_flops)

    def values(self) -> dict[str, Any]:
        """For `--json`. Of phases, steps are averaged; memory is that of the phase that needs most, for one device."""
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
        "compile_seconds": analysis.compile_seconds,
    }


def plan(
    config: RunConfig, accelerator: Accelerator, *, vocab_size: int, special: SpecialTokens, progress: Progress = SILENT
) -> Plan:
    """Compile every phase for the slice. Raises `DoesNotFit`, with `phase` set, where one has no room, and ConfigError."""
    phases = phases_of(config)
    made: list[PhasePlan] = []
    parameters = 0
    for phase in phases:
        of = f" phase {phase.number} of {len(phases)}" if len(phases) > 1 else ""
        progress.start(f"Compiling{of} for {accelerator.name}")
        try:
            program, analysis = analyse(phase.config, accelerator, vocab_size=vocab_size, special=special)
        except DoesNotFit as error:
            error.phase = phase
            raise
        parameters = program.num_parameters
        parts = seconds_by_part(analysis, accelerator)
        batch_size = phase.config.train.batch_size
        made.append(
            PhasePlan(
                number=phase.number,
                steps=phase.last_step - phase.first_step,
                layout=program.layout,
                sequence_length=phase.config.data.sequence_length,
                model_flops=program.objective.flops_per_row * batch_size,
                analysis=analysis,
                seconds=max(sum(parts.values()), seconds_at_least(analysis, accelerator)),
                seconds_at_least=seconds_at_least(analysis, accelerator),
                parts=parts,
                text_fraction=TEXT_FRACTION[phase.config.data.rows],
            )
        )
    return Plan(accelerator, tuple(made), parameters)


def seconds_by_part(analysis: Analysis, accelerator: Accelerator) -> dict[str, float]:
    """The estimate, in parts that add up."""
    return {
        "compute": analysis.cycles / accelerator.clock_hertz,
        "memory": analysis.unestimated_bytes / _bandwidth(accelerator),
        "communication": _communication_seconds(analysis.collectives, accelerator),
    }


def seconds_at_least(analysis: Analysis, accelerator: Accelerator) -> float:
    return max(
        analysis.flops / accelerator.peak_flops_per_device,
        analysis.bytes / _bandwidth(accelerator),
        _communication_seconds(analysis.collectives, accelerator),
    )


def _bandwidth(accelerator: Accelerator) -> float:
    return accelerator.hbm_bytes_per_second / accelerator.devices


def _communication_seconds(collectives: tuple[Collective, ...], accelerator: Accelerator) -> float:
    rate = _ring_rate(accelerator)
    return sum(one.times * _ring_bytes(one, accelerator) / rate for one in collectives) if math.isfinite(rate) else 0.0


def _ring_bytes(collective: Collective, accelerator: Accelerator) -> float:
    """What a chip sends in a ring of chips; the cores of one chip share its memory."""
    chips = max(1.0, collective.group / (accelerator.devices / accelerator.chips))
    rounds = {"all-reduce": 2.0}.get(collective.kind, 1.0)
    return rounds * collective.bytes * (chips - 1) / chips


def _ring_rate(accelerator: Accelerator) -> float:
    """Bytes a second that a chip can send around: one link for each axis of the slice, two where the axis is closed."""
    links = sum(0 if size == 1 else 2 if size >= accelerator.ring_from else 1 for size in accelerator.shape)
    return min(links, accelerator.ici_links) * accelerator.ici_bytes_per_second if links else math.inf


def collectives_by_kind(collectives: tuple[Collective, ...]) -> list[dict[str, Any]]:
    """Of one step and one device: how many of each kind, and the bytes of their results."""
    found: dict[tuple[str, int], list[int]] = {}
    for one in collectives:
        entry = found.setdefault((one.kind, one.group), [0, 0])
        entry[0] += one.times
        entry[1] += one.times * one.bytes
    return [
        {"kind": kind, "devices": group, "count": count, "bytes": size}
        for (kind, group), (count, size) in sorted(found.items())
    ]
