"""What the commands about a run in the cloud share: in which project it is, how far and how fast, and how that is written."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING

from tpulm.errors import ConfigError, StorageError, TpulmError
from tpulm.readable import dollars

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpulm.cloud.job import Job
    from tpulm.cloud.status import Spent
    from tpulm.cloud.tpu_api import TpuApi

_RECENT = 50  # records of training from which the speed is told


@dataclass(frozen=True)
class Pace:
    step: int  # of the newest record of training
    at: float  # its time, seconds since 1970
    seconds_per_step: float
    tokens_per_second: float | None


def project_of(workdir: PurePath, project: str | None) -> str:
    """That of the launch, else the one named, else the environment's; "" where nobody knows.

    Raises ConfigError where the one named is another than that of the launch: what is there would not be seen.
    """
    from tpulm.cloud.control import Control
    from tpulm.cloud.settings import default_project
    from tpulm.cloud.status import launched_with

    control, recorded = Control(workdir), ""
    with contextlib.suppress(StorageError):  # of a job that is damaged
        found = control.read()
        recorded = found[0].project if found else ""
    recorded = recorded or str(launched_with(control).get("project") or "")
    if project and recorded and project != recorded:
        raise ConfigError(f"{workdir} was launched in the project {recorded}, not in {project}; leave --project out")
    return recorded or project or default_project()


def api_of(workdir: PurePath, project: str | None) -> TpuApi | None:
    from tpulm.cloud.tpu_api import TpuApi

    named = project_of(workdir, project)
    return TpuApi(named) if named else None


def newest_step(workdir: PurePath) -> int:
    """Of a committed checkpoint; 0: there is none."""
    from tpulm import storage

    return max(storage.committed_steps(workdir / "checkpoints"), default=0)


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
    if not times:
        return None
    tokens = [record.values["tokens_per_second"] for record in records if "tokens_per_second" in record.values]
    newest = records[-1]
    return Pace(newest.step, newest.values["time"], median(times), median(tokens) if tokens else None)


def step_of(job: Job, speed: Pace | None, newest: int) -> int:
    """Where training is: at the newest record of the attempt that runs, else at the checkpoint from which it goes on."""
    runs = job.node is not None and speed is not None and speed.at > job.node.intended_at
    return max(newest, speed.step) if runs and speed is not None else newest


def seconds_left(job: Job, speed: Pace | None, steps: int | None, newest: int) -> float | None:
    """Of training."""
    if speed is None or steps is None:
        return None
    return max(0, steps - step_of(job, speed, newest)) * speed.seconds_per_step


def total(attempts: Sequence[Spent]) -> str:
    """What they have cost together; "at least" that where a price is not known."""
    known = [item.dollars for item in attempts if item.dollars is not None]
    return "at least " * (len(known) < len(attempts)) + dollars(sum(known))


def moment(at: float | None, *, after: float | None = None) -> str:
    """In local time; without the day where that is the day of `after`."""
    if at is None:
        return "-"
    local = time.localtime(at)
    same_day = after is not None and time.localtime(after)[:3] == local[:3]
    return time.strftime("%H:%M" if same_day else "%m-%d %H:%M", local)
