"""How a run in the cloud stands and what it costs: from the bucket, and from the API as far as that answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud.control import Beat, Control
from tpulm.cloud.job import Job
from tpulm.cloud.prices import Price, saved, table
from tpulm.cloud.provider import NodeStatus, Provider
from tpulm.cloud.settings import default_project, region_of
from tpulm.errors import ConfigError, StorageError, TpulmError


@dataclass(frozen=True)
class RunStatus:
    job: Job
    supervisor: str | None  # the process that holds the lease; None: nobody
    sight: NodeStatus | None  # of the node; None: there is none to look for, or `unseen` says why not
    unseen: str
    beats: tuple[Beat, ...]  # of the newest attempt
    newest_step: int  # of a committed checkpoint
    steps: int | None  # in all; None: not known
    budget: float | None  # dollars
    prices: dict[str, Price] | None  # of the launch, by zone; None: not written down

    @property
    def needs_supervisor(self) -> bool:
        return self.supervisor is None and not self.job.is_over


def launched_with(control: Control) -> dict[str, Any]:
    """Where it was launched to run, as it was written then; empty where that cannot be read."""
    try:
        found = storage.parse_json(storage.read_bytes(control.settings_file))
    except (TpulmError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def project_of(workdir: PurePath, project: str | None) -> str:
    """That of the launch, else the one named, else the environment's; "" where nobody knows.

    Raises ConfigError where the one named is another than that of the launch: what is there would not be seen.
    """
    control, recorded = Control(workdir), ""
    with contextlib.suppress(StorageError):  # of a job that is damaged
        found = control.read()
        recorded = found[0].project if found else ""
    recorded = recorded or str(launched_with(control).get("project") or "")
    if project and recorded and project != recorded:
        raise ConfigError(f"{workdir} was launched in the project {recorded}, not in {project}; leave --project out")
    return recorded or project or default_project()


def total_steps(workdir: PurePath) -> int | None:
    """What the run file of the workers says."""
    try:
        return int(storage.parse_json(storage.read_bytes(Control(workdir).run_file))["train"]["steps"])
    except (TpulmError, ValueError, KeyError, TypeError, OverflowError):
        return None


def read_status(workdir: PurePath, provider: Provider | None, *, newest_step: Callable[[], int]) -> RunStatus:
    """Raises StorageError where the work folder has no job. A cloud that does not answer is told in `unseen`."""
    control = Control(workdir)
    job = control.job()
    sight, unseen = None, ""
    if job.node is not None and provider is None:
        unseen = "the project is not known; name it with --project"
    elif job.node is not None and provider is not None:
        try:
            sight = provider.look(job.node.name, job.node.zone)
        except TpulmError as error:
            unseen = str(error)
    return RunStatus(
        job=job,
        supervisor=storage.holder(control.folder),
        sight=sight,
        unseen=unseen,
        beats=tuple(control.beats(job.node.attempt)) if job.node else (),
        newest_step=max(newest_step(), job.newest_step),
        steps=total_steps(workdir),
        prices=saved(control.folder),
        budget=budget if isinstance(budget := launched_with(control).get("budget"), int | float) else None,
    )


@dataclass(frozen=True)
class Spent:
    """On one attempt, until it ended or until now."""

    attempt: int
    node: str
    zone: str
    ending: str  # "" while it runs
    hours: float  # that are billed
    steps: int
    dollars: float | None  # None: no price is known in that zone


@dataclass(frozen=True)
class Stored:
    """Of a work folder."""

    objects: int
    bytes: int
    region: str
    dollars_per_month: float | None  # None: no price is known in that region
    prices_as_of: str
    prices_source: str


@dataclass(frozen=True)
class Cost:
    dollars: float  # so far, of TPUs; at least, where some price is not known
    at_least: bool
    hours: float  # that were billed
    dollars_per_hour: float | None  # while a node runs; None: not known
    prices: tuple[Price, ...]  # by which it was launched, those of the zones that it was in
    runs: bool  # one does now
    attempts: tuple[Spent, ...]
    stored: Stored
    hours_left: float | None  # of TPU, to the last step; None: not known
    dollars_at_end: float | None


def spent(job: Job, *, now: float, newest_step: int, prices: Mapping[str, Price] | None = None) -> tuple[Spent, ...]:
    """On each attempt, the one that runs being last."""
    unknown = _unknown(job, prices)
    done = []
    for item in job.attempts:
        hours = _hours(item.ready_at, item.ended_at)
        dollars = None if hours and item.zone in unknown else item.dollars
        steps = item.last_step - item.first_step
        done.append(Spent(item.number, item.node, item.zone, item.ending, hours, steps, dollars))
    if (node := job.node) is not None:
        hours = _hours(node.ready_at, now)
        dollars = None if hours and node.zone in unknown else hours * job.price(node.zone)
        done.append(Spent(node.attempt, node.name, node.zone, "", hours, max(0, newest_step - job.newest_step), dollars))
    return tuple(done)


def _hours(ready_at: float | None, end: float) -> float:
    return 0.0 if ready_at is None else max(0.0, end - ready_at) / 3600


def cost(
    job: Job,
    workdir: PurePath,
    *,
    now: float,
    newest_step: int,
    seconds_left: float | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Cost:
    """`seconds_left`: of training to the last step; None: not known. `prices`: of the launch; None: not written down."""
    attempts = spent(job, now=now, newest_step=newest_step, prices=prices)
    so_far = sum(item.dollars for item in attempts if item.dollars is not None)
    at_least = any(item.dollars is None for item in attempts)
    hours_left = 0.0 if job.status == "done" else None if seconds_left is None else seconds_left / 3600
    zone = job.zones[0] if job.node is None else job.node.zone
    per_hour = None if zone in _unknown(job, prices) else job.price(zone)
    left = None if hours_left is None else 0.0 if not hours_left else None if per_hour is None else hours_left * per_hour
    return Cost(
        dollars=so_far,
        at_least=at_least,
        hours=sum(item.hours for item in attempts),
        dollars_per_hour=per_hour,
        prices=tuple((prices or {})[zone] for zone in dict.fromkeys(item.zone for item in attempts) if zone in (prices or {})),
        runs=job.node is not None and job.node.ready_at is not None,
        attempts=attempts,
        stored=stored(workdir, region_of(job.zones[0])),
        hours_left=hours_left,
        dollars_at_end=None if left is None or at_least else so_far + left,
    )


def _unknown(job: Job, prices: Mapping[str, Price] | None) -> set[str]:
    """Zones of the launch without a price."""
    return set() if prices is None else set(job.zones) - set(prices)


def stored(workdir: PurePath, region: str) -> Stored:
    """What lies in a work folder, in a bucket of this region."""
    files = storage.walk(workdir)
    size = sum(file.size for file in files.values())
    prices = table()["storage"]
    per_gib = prices["dollars_per_gib_month"].get(region)
    return Stored(
        len(files), size, region, None if per_gib is None else size / 2**30 * per_gib, prices["as_of"], prices["source"]
    )
