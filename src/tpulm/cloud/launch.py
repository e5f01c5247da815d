"""Turns a run and the cloud settings into a job in the bucket, and makes its supervisor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud import bundle
from tpulm.cloud.control import Control, read_object
from tpulm.cloud.decide import Policy
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.job import Job, Node, reopened
from tpulm.cloud.prices import check_known
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, WORKDIR, Provider, Request
from tpulm.cloud.settings import FILE, CloudSettings, near
from tpulm.cloud.supervise import Supervisor
from tpulm.cloud.tpu_api import TpuApi
from tpulm.config import Change, RunConfig, canonical_json, differences, from_json, listed
from tpulm.config.resolve import OPTIMIZER_FILE
from tpulm.config.validation import validated
from tpulm.errors import CloudRefused, ConfigError, MissingExtra, installing, suggest
from tpulm.progress import SILENT, Progress
from tpulm.readable import dollars
from tpulm.storage.paths import bucket_and_name
from tpulm.workfolder import read_result

_OF_TRACKERS = {"wandb": "WANDB_API_KEY", "mlflow": "MLFLOW_TRACKING_URI"}  # each tracker's key or address
_OF_ANALYSERS = {"mecab": "ja", "kiwi": "ko"}  # each morphological analyser's extra
_PACKAGES = {"ja": "fugashi", "ko": "kiwipiepy", "languages": "py3langid"}  # an extra's package, where it has another name
# What tokenization reads in the folder of a vocabulary; the manifest says that it is one of ours.
_BESIDE_TOKENIZERS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json", "config.json", "manifest.json")
_LONGEST_SECONDS = 30 * 86_400.0  # for which an attempt's node runs, without a shorter deadline


def launch(
    config: RunConfig,
    workdir: PurePath,
    settings: CloudSettings,
    *,
    prices: Mapping[str, float],
    python: str | None = None,
    progress: Progress = SILENT,
) -> Job:
    """Stage what the workers need and record the job, or reopen the existing one. Nothing is created yet.

    `prices`: dollars per hour of the whole slice, by zone; without a budget some may be missing. The work folder should have
    the tokenizer and the dataset: workers prepare what is missing, on a billed TPU. `python`: an interpreter on the VM's image
    that has this tpulm. Raises ConfigError for a folder that is not in a bucket, a run with a node (see `reattach`), and a
    budget without a price; InUse if the run is supervised. Nothing is changed then.
    """
    check_folder(workdir)
    check_extras(config, settings)
    check_known(settings, settings.zones, prices)
    control = Control(workdir)
    where = {
        "accelerator": settings.kind.name,
        "spot": settings.spot,
        "queued": settings.queued,
        "zones": settings.zones,
        "prices": {zone: prices[zone] for zone in settings.zones if zone in prices},
        "budget": settings.budget,
        "project": settings.project,
    }
    with storage.held(control.folder, note=progress.note):
        if (job := control.find()) is not None and job.nodes:
            raise ConfigError(f"{job.nodes[0].name} of this run was recorded meanwhile; 'tpulm cloud supervise' continues it")
        offline = not settings.external_addresses and python is None
        extras, bundles = extras_of(config), control.folder / "bundles"
        staged = bundle.stage(bundles, python=python, offline=offline, extras=extras, progress=progress)
        storage.write_atomic(control.run_file, canonical_json(config))
        storage.write_json(control.settings_file, {**settings.model_dump(mode="json"), "bundle": str(staged)})
        fresh = {"run": label_value(config.name, workdir), "created_at": time.time(), "attempt": control.newest_attempt()}
        job = Job.model_validate({**fresh, **where})
        if control.create(job):
            return job
        return control.change(lambda job: reopened(job.model_copy(update={**where, "next_zone": 0})))


def reattach(config: RunConfig, workdir: PurePath, settings: CloudSettings) -> Job:
    """Continue a run that has a node, as it was launched. Raises ConfigError if the settings differ."""
    control = Control(workdir)
    job, then = control.job(), settings_of(workdir)
    changes: list[object] = [*_changed(config, control)]
    for name in CloudSettings.model_fields:
        of_choice = name in ("bucket", "far_bucket")  # of the folder, and of zones
        if (before := getattr(then, name)) != (now := getattr(settings, name)) and not of_choice:
            changes.append(f"{name}: {before} -> {now}")
    if changes:
        raise ConfigError(
            f"{workdir} was launched with other settings (there -> now):\n{listed(changes)}\n'tpulm cloud supervise' continues "
            "with those; 'tpulm cloud stop' ends its TPU, and launching then takes these"
        )
    return job if job.wanted == "running" else control.change(reopened)


def is_done(config: RunConfig, workdir: PurePath) -> bool:
    """Whether this very run was launched in the folder and is complete, and its model lies there as it was exported."""
    result = read_result(workdir, "export")
    if result is None or _changed(config, Control(workdir)):
        return False
    return not any(storage.differences(workdir / "export", result.get("files", {})))


def _changed(config: RunConfig, control: Control) -> list[Change]:
    """The settings in which the run that was launched differs from `config`."""
    begun = from_json(storage.read_bytes(control.run_file), str(control.run_file))
    return differences(begun, staged(config, control.folder / "inputs", copy=False))


def check_folder(workdir: PurePath) -> None:
    """Raises ConfigError for a folder that cannot be the work folder of a run in the cloud."""
    if not storage.is_remote(workdir) or not bucket_and_name(workdir)[1]:
        where = "is a whole bucket" if storage.is_remote(workdir) else "is on this machine"
        raise ConfigError(f"--workdir {workdir} {where}; the workers need a folder in a bucket: gs://bucket/path")


def extras_of(config: RunConfig) -> tuple[str, ...]:
    """tpulm's extras that the run needs on its VMs, besides those of every run."""
    analysers = {config.tokenizer.morphemes, config.data.word_boundaries}
    if path := config.tokenizer.path:
        beside = storage.as_path(path).with_name("tokenizer_config.json")
        analysers |= {read_object(beside).get("word_tokenizer_type")} if storage.exists(beside) else set()
    extras = [extra for name, extra in _OF_ANALYSERS.items() if name in analysers]
    return (*config.track.to, *extras, *(["languages"] if config.corpus.cleaning.languages else []))


def check_extras(config: RunConfig, settings: CloudSettings) -> None:
    """Raises ConfigError for a tracker that VMs cannot report to, MissingExtra for an extra that is not installed here."""
    for name in config.track.to:
        if (variable := _OF_TRACKERS.get(name)) is None:
            raise ConfigError(
                f"{name} keeps a run on the VM's own disk, which goes with the VM; take track.to = wandb or mlflow"
            )
        if variable not in settings.secrets:
            raise ConfigError(
                f"track.to = '{name}' needs {variable} on the VMs: make a secret of it, and name that in {FILE}: "
                f'[secrets] {variable} = "…"'
            )
    for extra in extras_of(config):
        if find_spec(name := _PACKAGES.get(extra, extra)) is None:
            raise MissingExtra(f"VMs get the version of {name} that is installed here, and none is: {installing(extra)}")


def check_budget(settings: CloudSettings, prices: Mapping[str, float], *, spent: float) -> None:
    """Raises CloudRefused for a budget that would end the run immediately, ConfigError for one without a price."""
    if settings.budget is None:
        return
    check_known(settings, settings.zones, prices)
    least = spent + Policy().margin / 3600 * max(prices[zone] for zone in settings.zones)
    if settings.budget <= least:
        was = f"{dollars(spent)} of it are spent, and " if spent else ""
        raise CloudRefused(
            f"a budget of {dollars(settings.budget)} ends the run immediately: {was}{Policy().margin / 60:.0f} minutes "
            f"({dollars(least - spent)}) are kept for saving and deleting; raise it with --budget"
        )


def supervisor(
    workdir: PurePath,
    settings: CloudSettings,
    provider: Provider,
    *,
    log: Callable[[str], None],
    policy: Policy | None = None,
    pause_seconds: float = 10.0,
) -> Supervisor:
    """The supervisor of the job in a work folder, wherever it was launched."""
    control = Control(workdir)
    job = control.job()
    if job.project != settings.project:
        raise ConfigError(f"{workdir} runs in the project {job.project}, not in {settings.project}")
    request = partial(request_for, settings=settings, workdir=workdir, bundle_path=_launched_with(control)["bundle"])
    return Supervisor(control, provider, policy or policy_of(settings, job), request, log=log, pause_seconds=pause_seconds)


def settings_of(workdir: PurePath) -> CloudSettings:
    """The settings that the run in a work folder was launched with."""
    control = Control(workdir)
    values = {name: value for name, value in _launched_with(control).items() if name != "bundle"}
    return validated(CloudSettings, values, str(control.settings_file))


def _launched_with(control: Control) -> dict[str, Any]:
    """The settings of the launch and the bundle's path. Raises ConfigError if they are not recorded."""
    values = control.launched_with()
    if isinstance(values.get("bundle"), str):
        return values
    if not storage.exists(control.settings_file):
        raise control.no_run()
    raise ConfigError(
        f"{control.settings_file} is damaged: it does not say where the run was launched; 'tpulm cloud launch' writes it "
        "again, and 'tpulm cloud down --project' ends what there is"
    )


def policy_of(settings: CloudSettings, job: Job) -> Policy:
    deadline = None if settings.deadline_hours is None else job.created_at + settings.deadline_hours * 3600
    return Policy(
        budget=settings.budget,
        deadline=deadline,
        queue=settings.queue_hours * 3600,
        quota_patience=settings.quota_patience_hours * 3600,
        login_patience=settings.login_patience_hours * 3600,
    )


def request_for(job: Job, node: Node, settings: CloudSettings, *, workdir: PurePath, bundle_path: str) -> Request:
    """An attempt's node. Its metadata and labels hold no secrets, only their names."""
    queue_seconds = settings.queue_hours * 3600 if settings.queued else 0.0
    life_seconds = _LONGEST_SECONDS
    if settings.budget is not None and (price := job.price(node.zone)):
        paid_seconds = (settings.budget - job.dollars(node.intended_at)) / price * 3600
        life_seconds = min(life_seconds, max(0.0, paid_seconds - Policy().save))  # its trainer saves after that
    valid_until = node.intended_at + queue_seconds + life_seconds
    if settings.deadline_hours is not None:
        valid_until = min(valid_until, job.created_at + settings.deadline_hours * 3600)
    secrets = {
        variable: source if source.startswith("gs://") else f"projects/{settings.project}/secrets/{source}/versions/latest"
        for variable, source in settings.secrets.items()
    }
    return vm_request(
        settings,
        node.name,
        node.zone,
        run=job.run,
        workdir=workdir,
        bundle_path=bundle_path,
        until=valid_until,
        queue_seconds=queue_seconds if settings.queued else None,
        metadata={
            "tpulm-attempt": str(node.attempt),
            "tpulm-secrets": json.dumps(secrets, sort_keys=True),
            "tpulm-hang-seconds": "" if settings.hang_minutes is None else str(round(settings.hang_minutes * 60)),
        },
    )


def vm_request(
    settings: CloudSettings,
    name: str,
    zone: str,
    *,
    run: str,
    workdir: PurePath,
    bundle_path: str,
    until: float,
    queue_seconds: float | None = None,
    metadata: Mapping[str, str],
) -> Request:
    """A node that boots the bundle and deletes itself by `until`. `queue_seconds` None: it is not queued."""
    return Request(
        name=name,
        zone=zone,
        accelerator=settings.kind.name,
        runtime_version=settings.kind.runtime_version,
        spot=settings.spot,
        queued=queue_seconds is not None,
        valid_seconds=queue_seconds or 0.0,
        service_account=settings.service_account or None,
        labels={LABEL: run, UNTIL_LABEL: str(round(until))},
        metadata={
            "startup-script": bundle.boot_script(),
            "shutdown-script": bundle.boot_script("shutdown.sh"),
            "tpulm-bundle": bundle.object_of(bundle_path),
            WORKDIR: str(workdir),
            "tpulm-project": settings.project,
            "tpulm-zone": zone,
            "tpulm-node": name,
            "tpulm-valid-until": str(round(until)),  # when the VM deletes itself, if nobody has done so before
            **metadata,
        },
        network=settings.network,
        subnetwork=settings.subnetwork,
        external_addresses=settings.external_addresses,
    )


def label_value(name: str, workdir: PurePath) -> str:
    """The run's name and a hash of its work folder, valid in labels and node names of Google Cloud: lowercase letters, digits
    and hyphens, starting with a letter."""
    value = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    value = (value if value[:1].isalpha() else f"run-{value}")[:40].rstrip("-")
    return f"{value}-{hashlib.sha256(str(workdir).encode()).hexdigest()[:6]}"


def staged(config: RunConfig, folder: PurePath, *, copy: bool = True) -> RunConfig:
    """The run with its local vocabulary and starting model copied into a folder of the bucket, where they stay if this machine
    has them no longer."""
    changes: dict[str, Any] = {}
    if config.tokenizer.path is not None and not storage.is_remote(config.tokenizer.path):
        path, target = storage.as_path(config.tokenizer.path), folder / "tokenizer"
        if copy and storage.exists(path):
            _mirror(path.parent, [path.name, *_BESIDE_TOKENIZERS], target)
        changes["tokenizer"] = config.tokenizer.model_copy(update={"path": str(target / path.name)})
    if (start := config.train.start_from) is not None and not storage.is_remote(start):
        if copy and storage.exists(start):
            _mirror(storage.as_path(start), _model_files(storage.as_path(start)), folder / "start")
        changes["train"] = config.train.model_copy(update={"start_from": str(folder / "start")})
    return config.model_copy(update=changes)


def _model_files(source: PurePath) -> list[str]:
    """What a run reads of a starting model, both halves of an ELECTRA and the optimizer's moments too; of a work folder its
    export."""
    model = "export/" if storage.exists(source / "run.json") else ""
    files = rf"{model}((generator|discriminator)/)?[^/]+\.(json|txt|safetensors)"
    read = re.compile(rf"{files}|run\.json|results/export\.json|{re.escape(OPTIMIZER_FILE)}")
    return [name for name in storage.walk(source) if read.fullmatch(name)]


def _mirror(source: PurePath, names: Sequence[str], target: PurePath) -> None:
    """Have a folder of the bucket hold those of these files that exist, and no others. What is there already is not sent."""
    files = storage.listing(source, names)
    storage.copy_files(source, target, names=[name for name, _ in storage.differences(target, files)])
    storage.remove_files(target, [name for name in storage.walk(target) if name not in files])


def near_bucket(settings: CloudSettings, rest: GoogleRest, *, note: Callable[[str], None] = lambda line: None) -> CloudSettings:
    """The settings without those of the type's own zones that are far from the bucket."""
    if not settings.bucket or settings.far_bucket or not settings.has_default_zones:
        return settings
    location = ""
    with contextlib.suppress(GoogleError):  # the doctor says why it cannot be looked at
        location = (rest.find("storage", f"storage/v1/b/{settings.bucket}") or {}).get("location", "")
    zones = near(location, settings.zones) if location else []
    if not zones or len(zones) == len(settings.zones):
        return settings
    far = ", ".join(zone for zone in settings.zones if zone not in zones)
    note(f"{far}: left out, far from gs://{settings.bucket} in {location}; far_bucket = true in cloud.toml takes them")
    return settings.model_copy(update={"zones": tuple(zones)})


def offered(settings: CloudSettings, api: TpuApi, *, note: Callable[[str], None] = lambda line: None) -> CloudSettings:
    """The settings with only the zones that offer the accelerator, beside the bucket. Raises CloudRefused if none does."""
    settings = near_bucket(settings, api.rest, note=note)
    known = api.zones()
    named = settings.expanded(known)
    if unknown := [zone for zone in named.zones if zone not in known]:
        raise CloudRefused(f"no zone with TPUs is named {unknown[0]}.{suggest(unknown[0], known)}")
    zones = tuple(zone for zone in named.zones if named.kind.name in api.types(zone))
    if not zones:
        raise CloudRefused(
            f"{named.kind.name} is not offered to {settings.project} in {', '.join(named.zones)}; name other zones with "
            "--zone, or another type with --accelerator; 'tpulm cloud doctor' says which zones have it"
        )
    return named.model_copy(update={"zones": zones})
