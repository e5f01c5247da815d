"""What a run has cost, costs, and will cost: TPUs by the price it was launched with, and the storage of its work folder."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud.job import Job
from tpulm.cloud.settings import region_of


@dataclass(frozen=True)
class Spent:
    """On one attempt, until it ended or until now."""

    attempt: int
    node: str
    zone: str
    ending: str  # "" while it runs
    hours: float  # that are billed
    steps: int
    dollars: float


@dataclass(frozen=True)
class Stored:
    """Of a work folder."""

    objects: int
    bytes: int
    region: str
    dollars_per_month: float
    prices_as_of: str


@dataclass(frozen=True)
class Cost:
    dollars: float  # so far, of TPUs
    hours: float  # that were billed
    dollars_per_hour: float  # while a node runs
    runs: bool  # one does now
    attempts: tuple[Spent, ...]
    stored: Stored
    hours_left: float | None  # of TPU, to the last step; None: not known
    dollars_at_end: float | None


def spent(job: Job, *, now: float, newest_step: int) -> tuple[Spent, ...]:
    """On each attempt, the one that runs being last."""
    done = [
        Spent(
            item.number,
            item.node,
            item.zone,
            item.ending,
            0.0 if item.ready_at is None else max(0.0, item.ended_at - item.ready_at) / 3600,
            item.last_step - item.first_step,
            item.dollars,
        )
        for item in job.attempts
    ]
    if (node := job.node) is not None:
        hours = 0.0 if node.ready_at is None else max(0.0, now - node.ready_at) / 3600
        steps = max(0, newest_step - job.newest_step)
        done.append(Spent(node.attempt, node.name, node.zone, "", hours, steps, hours * job.dollars_per_hour))
    return tuple(done)


def cost(job: Job, workdir: PurePath, *, now: float, newest_step: int, seconds_left: float | None = None) -> Cost:
    """`seconds_left`: of training to the last step; None: not known."""
    attempts = spent(job, now=now, newest_step=newest_step)
    so_far = job.dollars(now)
    hours_left = 0.0 if job.status == "done" else None if seconds_left is None else seconds_left / 3600
    return Cost(
        dollars=so_far,
        hours=sum(item.hours for item in attempts),
        dollars_per_hour=job.dollars_per_hour,
        runs=job.node is not None and job.node.ready_at is not None,
        attempts=attempts,
        stored=stored(workdir, region_of(job.zones[0])),
        hours_left=hours_left,
        dollars_at_end=None if hours_left is None else so_far + hours_left * job.dollars_per_hour,
    )


def stored(workdir: PurePath, region: str) -> Stored:
    """What lies in a work folder, in a bucket of this region."""
    files = storage.walk(workdir)
    size = sum(file.size for file in files.values())
    prices = _prices()["storage"]
    per_gib = prices["regions"].get(region, prices["dollars_per_gib_month"])
    return Stored(len(files), size, region, size / 2**30 * per_gib, prices["as_of"])


@functools.cache
def _prices() -> dict[str, Any]:
    return tomllib.loads((resources.files("tpulm.cloud") / "prices.toml").read_text(encoding="utf-8"))
