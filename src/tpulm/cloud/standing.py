"""How a run in the cloud stands: from the bucket, and from the API as far as that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud.control import Beat, Control
from tpulm.cloud.job import Job
from tpulm.cloud.prices import Price, saved
from tpulm.cloud.provider import Provider, Sight
from tpulm.errors import TpulmError


@dataclass(frozen=True)
class Standing:
    job: Job
    supervisor: str | None  # the process that holds the lease; None: nobody
    sight: Sight | None  # of the node; None: there is none to look for, or `unseen` says why not
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


def total_steps(workdir: PurePath) -> int | None:
    """What the run file of the workers says."""
    try:
        return int(storage.parse_json(storage.read_bytes(Control(workdir).run_file))["train"]["steps"])
    except (TpulmError, ValueError, KeyError, TypeError, OverflowError):
        return None


def standing(workdir: PurePath, provider: Provider | None, *, newest_step: Callable[[], int]) -> Standing:
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
    return Standing(
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
