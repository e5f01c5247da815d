"""From a run and the settings of where to run to a job in the bucket, and what a supervisor needs to carry it out."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud import bundle
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy
from tpulm.cloud.job import Job, Node, reopened
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, WORKDIR, Provider, Request
from tpulm.cloud.settings import CloudSettings
from tpulm.cloud.supervise import Supervisor
from tpulm.cloud.tpu_api import TpuApi
from tpulm.config import RunConfig, canonical_json
from tpulm.config.validation import validated
from tpulm.errors import CloudRefused, ConfigError
from tpulm.progress import SILENT, Progress

_VALID_UNTIL = "tpulm-valid-until"  # a VM's own end, if nobody deletes it before
_LONGEST_SECONDS = 30 * 86_400.0  # of one attempt, where no deadline says less


def launch(
    config: RunConfig,
    workdir: PurePath,
    settings: CloudSettings,
    *,
    dollars_per_hour: float,
    python: str | None = None,
    progress: Progress = SILENT,
) -> Job:
    """Stage what the workers need and record the job, or open the one that is there again. Nothing is created yet.

    The work folder's tokenizer and dataset should be there: workers prepare what is missing, on a TPU that is paid for.
    `python`: an interpreter on the VM's image that has this tpulm. Raises ConfigError for a folder that is not in a bucket.
    """
    if not storage.is_remote(workdir):
        raise ConfigError(f"--workdir {workdir} is on this machine; the workers need one in a bucket: gs://bucket/path")
    control = Control(workdir)
    offline = not settings.external_addresses
    staged = bundle.stage(control.folder / "bundles", python=python, offline=offline and python is None, progress=progress)
    storage.write_atomic(control.run_file, canonical_json(config))
    storage.write_json(control.settings_file, {**settings.model_dump(mode="json"), "bundle": str(staged)})
    where = {
        "accelerator": settings.kind.name,
        "spot": settings.spot,
        "zones": settings.zones,
        "dollars_per_hour": dollars_per_hour,
    }
    job = Job.model_validate({"run": label_value(config.name, workdir), "created_at": time.time(), **where})
    if control.create(job):
        return job
    return control.change(lambda job: reopened(job if job.node else job.model_copy(update={**where, "next_zone": 0})))


def supervisor(
    workdir: PurePath,
    settings: CloudSettings,
    provider: Provider,
    *,
    newest_step: Callable[[], int],
    tell: Callable[[str], None],
    policy: Policy | None = None,
    pause_seconds: float = 10.0,
) -> Supervisor:
    """For the job in a work folder, launched from here or from elsewhere."""
    control = Control(workdir)
    job = control.job()
    staged = storage.read_json(control.settings_file)["bundle"]

    def request(job: Job, node: Node) -> Request:
        return request_for(job, node, settings, workdir=workdir, bundle_path=staged)

    return Supervisor(
        control,
        provider,
        policy or policy_of(settings, job),
        request,
        newest_step=newest_step,
        complete=control.is_complete,
        tell=tell,
        pause_seconds=pause_seconds,
    )


def settings_of(workdir: PurePath) -> CloudSettings:
    """Those that the run in a work folder was launched with."""
    path = Control(workdir).settings_file
    if storage.info(path) is None:
        raise ConfigError(f"{workdir} has no run in the cloud; 'tpulm cloud launch' begins one")
    values = storage.read_given_object(path)
    return validated(CloudSettings, {name: value for name, value in values.items() if name != "bundle"}, str(path))


def policy_of(settings: CloudSettings, job: Job) -> Policy:
    deadline = None if settings.deadline_hours is None else job.created_at + settings.deadline_hours * 3600
    return Policy(budget=settings.budget, deadline=deadline)


def request_for(job: Job, node: Node, settings: CloudSettings, *, workdir: PurePath, bundle_path: str) -> Request:
    """The node of an attempt. Its metadata and labels hold no secrets, only where they are."""
    valid_until = node.intended_at + _LONGEST_SECONDS
    if settings.deadline_hours is not None:
        valid_until = min(valid_until, job.created_at + settings.deadline_hours * 3600)
    if settings.budget is not None and job.dollars_per_hour:
        left = max(0.0, settings.budget - job.dollars(node.intended_at))
        valid_until = min(valid_until, node.intended_at + left / job.dollars_per_hour * 3600)
    secrets = {
        variable: source if source.startswith("gs://") else f"projects/{settings.project}/secrets/{source}/versions/latest"
        for variable, source in settings.secrets.items()
    }
    return Request(
        name=node.name,
        zone=node.zone,
        accelerator=job.accelerator,
        runtime_version=settings.kind.runtime_version,
        spot=job.spot,
        queued=settings.queued,
        valid_seconds=Policy().create,
        service_account=settings.service_account or None,
        labels={LABEL: job.run, UNTIL_LABEL: str(round(valid_until))},
        metadata={
            "startup-script": bundle.boot_script(),
            "tpulm-bundle": bundle_path,
            WORKDIR: str(workdir),
            "tpulm-node": node.name,
            "tpulm-attempt": str(node.attempt),
            "tpulm-secrets": json.dumps(secrets, sort_keys=True),
            _VALID_UNTIL: str(round(valid_until)),
        },
        network=settings.network,
        external_addresses=settings.external_addresses,
    )


def label_value(name: str, workdir: PurePath) -> str:
    """What a run goes by: its name and what tells its work folder from others. As Google Cloud takes it, in names of nodes too:
    small letters, digits, hyphens, a letter first."""
    value = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    value = (value if value[:1].isalpha() else f"run-{value}")[:40].rstrip("-")
    return f"{value}-{hashlib.sha256(str(workdir).encode()).hexdigest()[:6]}"


def staged(config: RunConfig, folder: PurePath) -> RunConfig:
    """The run with what it names on this machine, a vocabulary or a model to start from, copied into a folder of the bucket."""
    changes: dict[str, Any] = {}
    if (path := config.tokenizer.path) is not None and not storage.is_remote(path):
        target = folder / "tokenizer" / PurePath(path).name
        storage.write_atomic(target, storage.read_bytes(path))
        changes["tokenizer"] = config.tokenizer.model_copy(update={"path": str(target)})
    if (start := config.train.start_from) is not None and not storage.is_remote(start):
        storage.copy_files(start, folder / "start")
        changes["train"] = config.train.model_copy(update={"start_from": str(folder / "start")})
    return config.model_copy(update=changes)


def offered(settings: CloudSettings, api: TpuApi) -> CloudSettings:
    """With the zones alone that offer the accelerator. Raises CloudRefused where none does."""
    named = settings.expanded(api.zones())
    zones = tuple(zone for zone in named.zones if named.kind.name in api.types(zone))
    if not zones:
        raise CloudRefused(
            f"{named.kind.name} is not offered to {settings.project} in {', '.join(named.zones)}; name other zones with "
            "--zone, or another type with --accelerator; 'tpulm cloud doctor' says which zones have it"
        )
    return named.model_copy(update={"zones": zones})
