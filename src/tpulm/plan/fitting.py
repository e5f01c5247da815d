"""When a run does not fit: what takes the room, and the nearest settings that fit.

The compiler says how much it would need, so that the next attempt is a guess and not a bisection: an attempt costs a compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpulm.accelerators import Accelerator
from tpulm.config import HardwareConfig, RunConfig
from tpulm.errors import ConfigError
from tpulm.plan.analysis import Buffer, DoesNotFit, program_for
from tpulm.plan.estimate import Plan, plan
from tpulm.progress import SILENT, Progress
from tpulm.special_tokens import SpecialTokens

_FILLS_THE_UNIT = 8  # rows a device should have at least at once: fewer leave its vector units' sublanes empty
_STATE_SHARE = 0.75  # of HBM that parameters, moments and gradients may take; the rest is for activations


@dataclass(frozen=True)
class Fitting:
    """Settings that fit, and what was tried before."""

    config: RunConfig
    plan: Plan
    changes: dict[str, Any]  # dotted names of the run file -> values
    tried: tuple[str, ...]

    def toml(self) -> str:
        """For the run file."""
        return "[hardware]\n" + "".join(
            f"{name.removeprefix('hardware.')} = {_toml(value)}\n" for name, value in self.changes.items()
        )


def fit(
    config: RunConfig, accelerator: Accelerator, *, vocab_size: int, special: SpecialTokens, progress: Progress = SILENT
) -> Fitting:
    """The first of these that fits: smaller micro-batches, recomputing in the backward pass, state split over more devices.

    The batch stays as it is: what is computed does not change. Raises ConfigError when nothing fits, and what `plan` raises for
    settings that do not divide.
    """
    tried: list[str] = []
    parameters = program_for(config, accelerator, vocab_size=vocab_size, special=special).num_parameters
    for hardware in _candidates(config, accelerator):
        if (state := state_bytes(parameters, hardware)) > _STATE_SHARE * accelerator.hbm_bytes_per_device:
            tried.append(f"fsdp {hardware.fsdp}: {state / 2**30:.1f} GiB of parameters, moments and gradients on each device")
            continue
        rows: int | None = hardware.microbatch_size or _share(config, accelerator)
        while rows:
            attempt = config.model_copy(update={"hardware": hardware.model_copy(update={"microbatch_size": rows})})
            words = ", ".join(f"{name.split('.')[1]} {value}" for name, value in changes(config, attempt, accelerator).items())
            progress.note(f"Trying {words or 'the settings as they are'}")
            try:
                found = plan(attempt, accelerator, vocab_size=vocab_size, special=special, progress=progress)
            except DoesNotFit as error:
                tried.append(f"{words or 'as it is'}: {error}")
                rows = _fewer(rows, error.needed, accelerator)
                if rows and rows < _FILLS_THE_UNIT and hardware.remat != "full":
                    break  # computing again costs less than rows so few
                continue
            return Fitting(attempt, found, changes(config, attempt, accelerator), tuple(tried))
    listed = "\n".join(f"  {line}" for line in tried)
    raise ConfigError(
        f"no settings of microbatch_size, remat and fsdp fit {accelerator.name}; tried:\n{listed}\n"
        "Take a larger slice, a smaller model, or shorter rows."
    )


def dominating(
    config: RunConfig, accelerator: Accelerator, error: DoesNotFit, *, vocab_size: int, special: SpecialTokens
) -> list[Buffer]:
    """What takes the room in a run that does not fit: the arrays of the same step over fewer rows, scaled to all of them.

    Empty where even few rows do not fit, that is, where the state alone does not.
    """
    assert error.phase is not None
    own = error.phase.config
    share = rows = _share(own, accelerator)
    needed = error.needed
    while (rows := _fewer(rows, needed, accelerator)) is not None:
        smaller = own.model_copy(
            update={
                "train": own.train.model_copy(update={"batch_size": own.train.batch_size // share * rows}),
                "hardware": own.hardware.model_copy(update={"microbatch_size": None}),
            }
        )
        try:
            found = plan(smaller, accelerator, vocab_size=vocab_size, special=special)
        except DoesNotFit as again:
            needed = again.needed
            continue
        scale = (own.hardware.microbatch_size or share) / rows
        return [
            buffer._replace(bytes=round(buffer.bytes * scale)) for buffer in found.heaviest.analysis.largest if buffer.stacked
        ]
    return []


def state_bytes(parameters: int, hardware: HardwareConfig) -> int:
    """Of one device: float32 parameters, two moments and the gradient."""
    return 16 * parameters // (hardware.fsdp * hardware.tensor)


def changes(before: RunConfig, after: RunConfig, accelerator: Accelerator) -> dict[str, Any]:
    """What differs in [hardware]."""
    found = {}
    for name in ("fsdp", "microbatch_size", "remat"):
        old, new = getattr(before.hardware, name), getattr(after.hardware, name)
        same = (name, old) == ("remat", "auto") and new == "dots"
        same = same or (name == "microbatch_size" and old is None and new == _share(after, accelerator))
        if old != new and not same:
            found[f"hardware.{name}"] = new
    return found


def _candidates(config: RunConfig, accelerator: Accelerator) -> Iterator[HardwareConfig]:
    """Nearest first: for each splitting of the state that may do, each way of keeping less for the backward pass."""
    given = config.hardware
    stages = ("dots", "full") if given.remat == "auto" else ("none", "dots", "full")
    kept = stages[0] if given.remat == "auto" else given.remat
    fsdp = given.fsdp
    while fsdp <= accelerator.devices:
        if accelerator.devices % (fsdp * given.tensor) == 0 and config.model.hidden_size % fsdp == 0:
            for remat in stages[stages.index(kept) :]:
                yield given.model_copy(update={"fsdp": fsdp, "remat": remat, "data": "auto"})
        fsdp *= 2


def _share(config: RunConfig, accelerator: Accelerator) -> int:
    """Rows of a device, of the phase with most."""
    shards = accelerator.devices // config.hardware.tensor
    batch = max([config.train.batch_size, *(phase.batch_size or 0 for phase in config.phases)])
    return batch // shards


def _fewer(rows: int, needed: int | None, accelerator: Accelerator) -> int | None:
    """The next smaller number of rows to try; None when there is none."""
    share = 0.5 if needed is None else min(0.5, accelerator.hbm_bytes_per_device / needed)
    wanted = int(rows * share)
    return next((size for size in range(wanted, 0, -1) if rows % size == 0), None)


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
