"""What the commands about a run in the cloud share: in which project it is, how far and how fast, and how that is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING

from tpulm.errors import TpulmError

if TYPE_CHECKING:
    from tpulm.cloud.tpu_api import TpuApi

_RECENT = 50  # records of training from which the speed is told


@dataclass(frozen=True)
class Pace:
    step: int  # of the newest record of training
    seconds_per_step: float
    tokens_per_second: float | None


def project_of(workdir: PurePath, project: str | None) -> str:
    """The one named, else that of the launch, else the environment's; "" where nobody knows."""
    from tpulm.cloud.control import Control
    from tpulm.cloud.settings import default_project
    from tpulm.cloud.standing import launched_with

    return project or str(launched_with(Control(workdir)).get("project") or "") or default_project()


def api_of(workdir: PurePath, project: str | None) -> TpuApi | None:
    from tpulm.cloud.tpu_api import TpuApi

    named = project_of(workdir, project)
    return TpuApi(named) if named else None


def newest_step(workdir: PurePath) -> int:
    """Of a committed checkpoint; 0: there is none."""
    from tpulm.train.sealing import committed_steps

    return max(committed_steps(workdir / "checkpoints"), default=0)


def pace(workdir: PurePath) -> Pace | None:
    """From the newest records of training, as the middle of the times between them: pauses between attempts do not count."""
    from tpulm.train.metrics import read_metrics

    try:
        records = [record for record in read_metrics(workdir) if record.kind == "train" and "time" in record.values][-_RECENT:]
    except (TpulmError, KeyError):
        return None
    times = [
        (after.values["time"] - before.values["time"]) / (after.step - before.step)
        for before, after in pairwise(records)
        if after.step > before.step and after.values["time"] > before.values["time"]
    ]
    return Pace(records[-1].step, median(times), records[-1].values.get("tokens_per_second")) if times else None


def seconds_left(speed: Pace | None, steps: int | None, newest: int) -> float | None:
    """Of training, from the newest record, or from the newest checkpoint where that is beyond."""
    if speed is None or steps is None:
        return None
    return max(0, steps - max(newest, speed.step)) * speed.seconds_per_step


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def dollars(amount: float | None) -> str:
    return "?" if amount is None else f"${amount:,.2f}"


def moment(at: float | None, *, after: float | None = None) -> str:
    """In local time; without the day where that is the day of `after`."""
    if at is None:
        return "-"
    local = time.localtime(at)
    same_day = after is not None and time.localtime(after)[:3] == local[:3]
    return time.strftime("%H:%M" if same_day else "%m-%d %H:%M", local)
