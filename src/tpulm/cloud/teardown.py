"""Finds and deletes billed resources that no run needs, and ends runs: first what is billed by the hour, then stored files.

An orphan is a resource with our label that belongs to no live run. Resources are listed before jobs are read, and a job records
its node before the node is created, so a run that begins meanwhile never looks like an orphan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal, NoReturn

from tpulm import accelerators, storage
from tpulm.cloud import prices
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.job import Job, Node
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, Provider, Resource
from tpulm.cloud.supervise import Supervisor
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError, InUse, StorageError, TpulmError, Unavailable, some_of
from tpulm.progress import SILENT, Progress
from tpulm.readable import duration
from tpulm.runtime import interrupt
from tpulm.storage.lease import LEASE
from tpulm.storage.paths import bucket_and_name

Verdict = Literal[
    "live",  # a node of an active run, or queued for one
    "going",  # being deleted
    "orphan",
    "unknown",  # its run cannot be read
]
_LISTED_AT_ONCE = 8
_GOING = frozenset(["DELETING", "HIDING", "HIDDEN"])
_FREE = frozenset(["PREEMPTED", "TERMINATED", "STOPPED", "SUSPENDED", "FAILED"])  # takes quota and a name, but is not billed
DATA = ("corpus", "dataset")  # folders prepared from the text, and prepared again if missing


@dataclass(frozen=True)
class Finding:
    resource: Resource
    verdict: Verdict
    why: str  # for people
    price: prices.Price | None = None  # None: not known

    @property
    def dollars_per_hour(self) -> float | None:
        """None: not known."""
        if not self.bills:
            return 0.0
        return None if self.price is None else self.price.dollars_per_hour

    @property
    def bills(self) -> bool:
        """A queued resource is not billed: its node is listed separately."""
        return self.resource.kind == "node" and self.resource.state not in _FREE

    def age(self, now: float) -> float | None:
        """Seconds since its creation; None: not known."""
        return None if self.resource.created_at is None else max(0.0, now - self.resource.created_at)


@dataclass(frozen=True)
class Audit:
    findings: tuple[Finding, ...]  # about resources with our label, by zone and name
    silent: Mapping[str, str]  # zone that could not be listed -> why
    zones: int  # that were listed
    others: int  # resources without our label

    def of(self, *verdicts: Verdict) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict in verdicts]


@dataclass(frozen=True)
class Listing:
    resources: tuple[Resource, ...]
    silent: Mapping[str, str]
    zones: int


def listed(api: TpuApi, *, progress: Progress = SILENT) -> Listing:
    """The resources of all zones. A zone that cannot be listed hides no other; raises CloudRefused if all refuse."""
    zones = api.zones()
    progress.start("looking", total=len(zones), unit="zone")
    resources: list[Resource] = []
    silent: dict[str, TpulmError] = {}

    def list_zone(zone: str) -> list[Resource] | TpulmError:
        try:
            return list(api.resources(zone))
        except TpulmError as error:
            return error

    with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
        for zone, answer in zip(zones, pool.map(list_zone, zones), strict=True):
            progress.advance(1)
            if isinstance(answer, TpulmError):
                silent[zone] = answer
            else:
                resources += answer
    if zones and len(silent) == len(zones):
        raise next((error for error in silent.values() if isinstance(error, CloudRefused)), silent[zones[0]])
    reasons = {zone: str(error) for zone, error in silent.items()}
    return Listing(tuple(resources), reasons, len(zones) - len(silent))


def audit(api: TpuApi, *, rest: GoogleRest | None = None, progress: Progress = SILENT) -> Audit:
    """Judge our resources, with prices if `rest` is given. Raises CloudRefused if nothing can be listed."""
    listing = listed(api, progress=progress)
    labelled = [resource for resource in listing.resources if LABEL in resource.labels]
    findings = judged(labelled, now=time.time())
    if rest is not None:
        findings = list(_priced(findings, rest, progress))
    return Audit(tuple(findings), listing.silent, listing.zones, len(listing.resources) - len(labelled))


def _priced(findings: Sequence[Finding], rest: GoogleRest, progress: Progress) -> Iterator[Finding]:
    by_type: dict[tuple[str, bool], dict[str, prices.Price]] = {}
    for finding in findings:
        resource = finding.resource
        key = (resource.accelerator, resource.spot)
        if finding.bills and key not in by_type:
            zones = [item.resource.zone for item in findings]
            with contextlib.suppress(ConfigError):  # an unknown type
                kind = accelerators.find(resource.accelerator)
                by_type[key] = prices.of_type(kind, zones, spot=resource.spot, rest=rest, note=progress.note)
        yield replace(finding, price=by_type.get(key, {}).get(resource.zone))


def judged(resources: Iterable[Resource], *, now: float) -> list[Finding]:
    """Judge resources by the jobs of their work folders, each read once."""
    jobs: dict[str, Job | str | None] = {}
    findings = []
    for resource in sorted(resources, key=lambda item: (item.zone, item.name, item.kind)):
        if resource.workdir not in jobs:
            jobs[resource.workdir] = _job(resource.workdir)
        verdict, why = _verdict(resource, jobs[resource.workdir], now)
        findings.append(Finding(resource, verdict, why))
    return findings


def _job(workdir: str) -> Job | str | None:
    """The job of a work folder; None if there is none; if it cannot be read, a text that says why."""
    if not storage.is_remote(workdir):
        return f"its work folder {workdir} is on another machine" if workdir else "it does not say which work folder it is of"
    try:
        return Control(workdir).find()
    except TpulmError as error:
        return str(error)


def _verdict(resource: Resource, job: Job | str | None, now: float) -> tuple[Verdict, str]:
    if resource.state in _GOING:
        return "going", "it is being deleted"
    if isinstance(job, str):
        return "unknown", job
    if job is None:
        return "orphan", f"{resource.workdir} has no run in the cloud"
    if job.status != "active":
        return "orphan", f"the run in {resource.workdir} is over ({job.status})"
    node = next((node for node in job.nodes if (node.name, node.zone) == (resource.name, resource.zone)), None)
    if node is None:
        now_at = f"is at {job.node.name} in {job.node.zone}" if job.node else "has no node now"
        return "orphan", f"the run in {resource.workdir} {now_at}"
    if node.ending is not None:
        return "orphan", f"the run in {resource.workdir} has given it up ({node.ending})"
    until = resource.labels.get(UNTIL_LABEL, "")
    if until.isdecimal() and int(until) < now:
        return "orphan", f"it was to be gone {duration(now - int(until))} ago"
    return "live", resource.workdir


@dataclass(frozen=True)
class Deleted:
    gone: tuple[Resource, ...]
    left: tuple[Resource, ...]  # still there


def delete(
    api: TpuApi,
    findings: Sequence[Finding],
    *,
    seconds: float = 900.0,
    pause_seconds: float = 2.0,
    progress: Progress = SILENT,
    wait: Callable[[float], None] = time.sleep,
) -> Deleted:
    """Delete resources, and wait until they are gone, for `seconds` at most.

    Their jobs are read again first: a resource that now belongs to a live run is left alone. One whose zone does not answer
    hides no other: CloudRefused or Unavailable is raised for it in the end.
    """
    again = judged([finding.resource for finding in findings], now=time.time())
    targets = [now.resource for now in again if now.verdict != "live"]
    remaining = list(dict.fromkeys((target.name, target.zone) for target in targets))  # a queued resource and its node are one
    progress.start("deleting", total=len(remaining), unit="TPU")
    failed: dict[tuple[str, str], TpulmError] = {}
    give_up_at, requested = time.monotonic() + seconds, False
    while remaining:
        progress.status(", ".join(name for name, _ in remaining[:3]))
        for name, zone in list(remaining):
            try:
                state = api.node_status(name, zone).state if requested else "listed"
                is_over = state is None
                if state is not None and state not in _GOING:
                    api.delete(name, zone)  # again, where it was still being created, or its queued resource left it behind
            except (CloudRefused, Unavailable) as error:
                failed[name, zone], is_over = error, True
            if is_over:
                remaining.remove((name, zone))
                progress.advance(1)
        requested = True
        if remaining and time.monotonic() > give_up_at:
            break
        if remaining:
            wait(pause_seconds)
    if failed:
        error = next(iter(failed.values()))
        raise type(error)(f"{some_of([f'{name} in {zone}' for name, zone in failed])} may be left: {error}")
    not_deleted = [target for target in targets if (target.name, target.zone) in remaining]
    return Deleted(tuple(target for target in targets if target not in not_deleted), tuple(not_deleted))


# -- the end of one run -------------------------------------------------------------------------------------------------


def stop(
    workdir: PurePath,
    provider: Provider,
    *,
    log: Callable[[str], None] = lambda line: None,
    seconds: float = 1800.0,
    pause_seconds: float = 2.0,
) -> Job:
    """Ask the run to stop, and wait until its supervisor has ended it; without a supervisor, act as one.

    Raises ConfigError if there is no job; TpulmError if another supervisor has not ended it after `seconds`, or if a node
    cannot be deleted, with the command that deletes it. Such a node stays recorded.
    """
    control, shown = Control(workdir), set[str]()

    def stopped(job: Job) -> Job:
        return job if job.is_over else job.model_copy(update={"wanted": "stopped"})

    def never(job: Job, node: Node) -> NoReturn:
        raise TpulmError("somebody launched the run again meanwhile; nothing was deleted")

    def log_once(line: str) -> None:
        if line not in shown:
            shown.add(line)
            log(line)

    supervisor = Supervisor(control, provider, Policy(), never, log=log_once, pause_seconds=pause_seconds)
    give_up_at = time.monotonic() + seconds
    while not (job := control.change(stopped)).is_over:
        try:
            return supervisor.run()
        except InUse as error:
            log_once(f"the run is supervised by {error.owner}, which now ends it")
            if time.monotonic() > give_up_at:
                minutes = f"{seconds / 60:.0f} minutes"
                raise TpulmError(
                    f"{error.owner} has not ended the run in {minutes}; stop that process, and run this again"
                ) from error
        interrupt.check("the run was asked to stop, and its supervisor continues with that")
        time.sleep(pause_seconds)
    return job


def list_remaining(api: TpuApi, workdir: PurePath, run: str | None, *, progress: Progress = SILENT) -> Listing:
    """The run's resources in all zones: those with its work folder, and those with its label that name no folder."""
    listing = listed(api, progress=progress)
    mine = [
        resource
        for resource in listing.resources
        if LABEL in resource.labels
        and (resource.workdir == str(workdir) if resource.workdir else run is not None and resource.labels[LABEL] == run)
    ]
    return replace(listing, resources=tuple(mine))


def end(
    workdir: PurePath,
    project: str,
    *,
    run: str | None,
    log: Callable[[str], None] = lambda line: None,
    progress: Progress = SILENT,
) -> int:
    """Stop the run, and check all zones; returns their number. Raises TpulmError if anything of it is left."""
    api = TpuApi(project)
    if run is not None:
        with interrupt.handled():
            job = stop(workdir, api, log=log)
        log(f"{job.run} is over: {job.message or job.status}")
    listing = list_remaining(api, workdir, run, progress=progress)
    if listing.resources:
        names = some_of([f"{item.name} in {item.zone} ({item.state})" for item in listing.resources])
        raise TpulmError(f"of {workdir} there still is {names}; 'tpulm cloud audit --delete' ends it")
    if listing.silent:
        raise TpulmError(f"{some_of(list(listing.silent))} could not be listed, so something of {workdir} may be left there")
    return listing.zones


@dataclass(frozen=True)
class Files:
    """Files of a work folder to delete."""

    folder: PurePath
    names: tuple[str, ...]  # in the order of deletion
    bytes: int

    @property
    def summary(self) -> str:
        return f"{len(self.names):,} objects, {self.bytes / 1e9:,.2f} GB"


def files_of(workdir: PurePath, *, data_only: bool = False) -> Files:
    """The whole work folder, the job last, so that an interrupted deletion can be continued; or what was prepared from the
    text."""
    files = {
        name: file
        for name, file in storage.walk(workdir).items()
        if (name.partition("/")[0] in DATA if data_only else name != f"cloud/{LEASE}")  # see `unused`
    }
    names = sorted(files, key=lambda name: (name.startswith("cloud/"), name == "cloud/job.json", name))
    return Files(workdir, tuple(names), sum(file.size for file in files.values()))


def foreign_objects(workdir: PurePath, *, deleted: bool) -> list[str]:
    """The names of the bucket's objects, except those in the work folder if that is deleted, too."""
    bucket, folder = bucket_and_name(workdir)
    names = storage.walk(storage.as_path(f"gs://{bucket}"), markers=True)
    return [name for name in names if not deleted or (folder and not name.startswith(f"{folder}/"))]


@contextlib.contextmanager
def locked_for_deletion(workdir: PurePath) -> Iterator[None]:
    """Keep the run from being launched while the block deletes its files; the lease is deleted last.

    Raises InUse and ConfigError while a process works in the folder, since it would write deleted files again.
    """
    control = Control(workdir)
    with storage.held(control.folder):
        with contextlib.suppress(StorageError):  # a damaged job; all zones were looked through
            if (job := control.find()) is not None and not job.is_over:
                raise ConfigError(f"{workdir} was launched again meanwhile; nothing was deleted")
        if holder := storage.holder(workdir, by_bucket=True):
            raise ConfigError(f"{workdir} is in use by {holder}; stop it first, nothing was deleted")
        yield
    if control.newest_attempt() == 0 and not storage.exists(control.path):  # everything else is gone
        storage.remove(control.folder)
        if not storage.walk(workdir):
            storage.remove(workdir)  # the empty objects that the console made for folders


def delete_files(files: Files, *, progress: Progress = SILENT) -> int:
    """Delete the files; returns how many."""
    progress.start(f"deleting {files.folder}", total=len(files.names), unit="object")
    for is_job in (False, True):
        names = [name for name in files.names if (name == "cloud/job.json") is is_job]
        storage.remove_files(files.folder, names, done=lambda name: progress.advance(1))
    return len(files.names)


def delete_bucket(project: str, bucket: str) -> None:
    """Delete a bucket. Raises CloudRefused, and StorageError if it is not empty."""
    try:
        GoogleRest(project).request("DELETE", "storage", f"storage/v1/b/{bucket}")
    except GoogleError as error:
        if error.missing:
            return
        if error.refused:
            raise CloudRefused(f"gs://{bucket} was not deleted: {error}") from error
        raise StorageError(f"gs://{bucket} was not deleted: {error}") from error
