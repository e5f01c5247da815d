"""The end of a run in the cloud, and of what it left: first what bills by the hour, then what is stored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import NoReturn

from tpulm import storage
from tpulm.cloud import supervisor_vm
from tpulm.cloud.audit import Zones, listed
from tpulm.cloud.compute import AllResources, ComputeApi
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.job import Job, Node
from tpulm.cloud.provider import LABEL, Provider, Resource
from tpulm.cloud.supervise import Supervisor
from tpulm.errors import CloudRefused, ConfigError, InUse, StorageError, TpulmError, some_of
from tpulm.progress import SILENT, Progress
from tpulm.runtime import interrupt
from tpulm.storage.lease import LEASE
from tpulm.storage.paths import bucket_and_name

DATA = ("corpus", "dataset")  # of a work folder: made from the text, and made anew from it when they are missing


def stopped(job: Job) -> Job:
    return job if job.is_over else job.model_copy(update={"wanted": "stopped"})


def stop(
    workdir: PurePath,
    provider: Provider,
    *,
    tell: Callable[[str], None] = lambda line: None,
    seconds: float = 1800.0,
    pause_seconds: float = 2.0,
    wait: Callable[[float], None] = time.sleep,
) -> Job:
    """Ask the run to stop and see it through: by its supervisor, or where there is none, as one.

    Raises StorageError where there is no job, and TpulmError when another supervisor has not ended it after `seconds`, or for
    what cannot be deleted, with the command that does so; it stays recorded.
    """
    control, said = Control(workdir), set[str]()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            tell(line)

    supervisor = Supervisor(control, provider, Policy(), _never, tell=say, pause_seconds=pause_seconds)
    give_up_at = time.monotonic() + seconds
    while not (job := control.change(stopped)).is_over:
        try:
            return supervisor.run()
        except InUse as error:
            say(f"the run is supervised by {error.owner}, which now ends it")
            if time.monotonic() > give_up_at:
                minutes = f"{seconds / 60:.0f} minutes"
                raise TpulmError(
                    f"{error.owner} has not ended the run in {minutes}; stop that process, and run this again"
                ) from error
        interrupt.check("the run was asked to stop, and whoever supervises it goes on with that")
        wait(pause_seconds)
    return job


def _never(job: Job, node: Node) -> NoReturn:
    raise TpulmError("somebody has launched the run again meanwhile; nothing was deleted")


@dataclass(frozen=True)
class Left:
    """In the project, of one run."""

    resources: tuple[Resource, ...]
    zones: int  # that were looked at
    silent: tuple[str, ...]  # zones that could not be


def left(api: Zones, workdir: PurePath, run: str | None, *, progress: Progress = SILENT) -> Left:
    """What there is of the run in all zones, by its work folder, or by its label where it does not say which it is of."""
    seen = listed(api, progress=progress)
    mine = [
        resource
        for resource in seen.resources
        if LABEL in resource.labels
        and (resource.workdir == str(workdir) if resource.workdir else run is not None and resource.labels[LABEL] == run)
    ]
    return Left(tuple(mine), seen.zones, tuple(seen.silent))


def end(
    workdir: PurePath,
    project: str,
    *,
    run: str | None,
    tell: Callable[[str], None] = lambda line: None,
    progress: Progress = SILENT,
) -> int:
    """Stop the run, delete its supervisor's VM, and look through all zones, so many; raises TpulmError unless nothing bills."""
    compute = ComputeApi(project)
    api = AllResources(project, compute)
    if run is not None:
        with interrupt.handled():
            job = stop(workdir, api, tell=tell)
        tell(f"{job.run} is over: {job.message or job.status}")
    supervisor_vm.end(Control(workdir), compute, tell=tell)
    seen = left(api, workdir, run, progress=progress)
    if seen.resources:
        names = some_of([f"{item.name} in {item.zone} ({item.state})" for item in seen.resources])
        raise TpulmError(f"of {workdir} there still is {names}; 'tpulm cloud audit --delete' ends it")
    if seen.silent:
        raise TpulmError(f"{some_of(seen.silent)} could not be looked at, so something of {workdir} may be left there")
    return seen.zones


@dataclass(frozen=True)
class Files:
    """What is to be deleted of a work folder."""

    folder: PurePath
    names: tuple[str, ...]  # in the order in which they go
    bytes: int

    @property
    def summary(self) -> str:
        return f"{len(self.names):,} objects, {self.bytes / 1e9:,.2f} GB"


def work_files(workdir: PurePath) -> Files:
    """All of a work folder; the job last, so that what was begun can be gone on with."""
    found = storage.walk(workdir)
    found.pop(f"cloud/{LEASE}", None)  # see `unused`
    names = sorted(found, key=lambda name: (name.startswith("cloud/"), name == "cloud/job.json", name))
    return Files(workdir, tuple(names), sum(file.size for file in found.values()))


def data_files(workdir: PurePath) -> Files:
    """What was prepared of the text."""
    found = {name: file for name, file in storage.walk(workdir).items() if name.partition("/")[0] in DATA}
    return Files(workdir, tuple(found), sum(file.size for file in found.values()))


def bucket_of(workdir: PurePath) -> str:
    return bucket_and_name(workdir)[0]


def strangers(workdir: PurePath, *, deleted: bool) -> list[str]:
    """What is in the bucket besides the work folder, or with it, unless that is deleted, too."""
    bucket, folder = bucket_and_name(workdir)
    names = storage.walk(storage.as_path(f"gs://{bucket}"))
    return [name for name in names if not deleted or (folder and not name.startswith(f"{folder}/"))]


@contextlib.contextmanager
def unused(workdir: PurePath) -> Iterator[None]:
    """Nobody can launch the run while the block deletes its files; the lease that says so goes last.

    Raises InUse and ConfigError while a process works in the folder: it would write what was deleted again.
    """
    control = Control(workdir)
    with storage.held(control.folder):
        with contextlib.suppress(StorageError):  # a job that is damaged was looked for in all zones
            if (found := control.read()) is not None and not found[0].is_over:
                raise ConfigError(f"{workdir} was launched again meanwhile; nothing was deleted")
        if holder := storage.holder(workdir):
            raise ConfigError(f"{workdir} is in use by {holder}; stop it first, nothing was deleted")
        yield
    if control.newest_attempt() == 0 and not storage.exists(control.path):  # all else is gone
        storage.remove(control.folder)


def delete_files(files: Files, *, progress: Progress = SILENT) -> int:
    """How many were deleted."""
    progress.start(f"deleting {files.folder}", total=len(files.names), unit="object")
    last = [name for name in files.names if name == "cloud/job.json"]
    for names in ([name for name in files.names if name not in last], last):
        storage.remove_files(files.folder, names, done=lambda name: progress.advance(1))
    return len(files.names)


def delete_bucket(project: str, bucket: str, *, rest: GoogleRest | None = None) -> None:
    """An empty one. Raises CloudRefused, and StorageError for one that is not."""
    try:
        (rest or GoogleRest(project)).request("DELETE", "storage", f"storage/v1/b/{bucket}")
    except GoogleError as error:
        if error.missing:
            return
        if error.refused:
            raise CloudRefused(f"gs://{bucket} was not deleted: {error}") from error
        raise StorageError(f"gs://{bucket} was not deleted: {error}") from error
