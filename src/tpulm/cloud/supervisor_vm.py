"""A supervisor that outlives the laptop: `tpulm cloud attach` on a very small VM, kept running by vm/supervise.py.

W/cloud/supervisor/vm.json     which VM, written before it is requested
W/cloud/supervisor/beat.json   its newest heartbeat: {"time", "state", "process"}
W/cloud/supervisor/log.txt     what it has printed

The VM is deleted in three ways: by itself when the run is over, by `stop`, `down` and `audit`, and by Compute Engine after its
maxRunDuration, even if all else fails. As everywhere, the lease on W/cloud excludes a second supervisor.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any

from tpulm import storage
from tpulm.cloud import bundle, doctor, policies, prices
from tpulm.cloud.compute import MACHINE_TYPE, ComputeApi, small_vm
from tpulm.cloud.control import Control, read_object
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.job import Job
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, WORKDIR, Refused
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.cloud.status import Tail
from tpulm.config import listed
from tpulm.errors import CloudRefused, StorageError, TpulmError, Unavailable
from tpulm.runtime import interrupt
from tpulm.storage.lease import LEASE

_LONGEST_SECONDS = 30 * 86_400  # without a deadline; Compute Engine allows 120 days
_AFTER_DEADLINE_SECONDS = 3600  # for deleting what is left
_BEGINS_SECONDS = 900.0  # from a VM's creation until it supervises, at most
_LOOK_SECONDS = 30.0
INSERTING = ("compute.instances.create", "compute.instances.get", "compute.instances.list", "compute.instances.delete")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Vm:
    """A supervisor's VM as recorded in the bucket."""

    name: str
    zone: str
    project: str
    machine_type: str
    created_at: float  # seconds since 1970
    ended_at: float | None = None  # when it was deleted from elsewhere

    def __str__(self) -> str:
        return f"the VM {self.name} in {self.zone}"


@dataclass(frozen=True)
class Watch:
    """What a run's VM does. `state` None: it is gone, or `unseen` says why that is not known."""

    vm: Vm
    state: str | None
    unseen: str
    does: str  # "installing", "supervising", "over"; "" if it was not heard
    heard_at: float | None
    holds_lease: bool
    lease_age: float | None  # seconds since the lease was renewed, whoever holds it

    @property
    def is_beginning(self) -> bool:
        return self.state is not None and not self.holds_lease and time.time() - self.vm.created_at < _BEGINS_SECONDS

    @property
    def hours(self) -> float:
        """Billed hours: until it was deleted, or last heard if it is gone."""
        ended = self.vm.ended_at
        if ended is None and (self.does == "over" or (self.state is None and not self.unseen)):
            ended = self.heard_at or self.vm.created_at
        return max(0.0, (ended or time.time()) - self.vm.created_at) / 3600

    @property
    def price(self) -> prices.Price | None:
        return prices.of_vm(self.vm.machine_type, self.vm.zone)

    @property
    def dollars(self) -> float | None:
        """None: not known."""
        return None if self.price is None else self.hours * self.price.dollars_per_hour


def check(settings: CloudSettings, rest: GoogleRest | None = None) -> None:
    """Raises CloudRefused, before anything is created, if a VM could not be created or could not do its work."""
    rest = rest or GoogleRest(settings.project, patience_seconds=20.0)
    email = settings.supervisor_account
    remedy = "'tpulm cloud setup --supervise cloud' makes and grants what is missing; --supervise here needs none of it"
    wanted = ((policies.project(rest), INSERTING), (policies.account(rest, email), (doctor.ACT_AS,)))
    try:
        if rest.find("iam", policies.account_path(email)) is None:
            raise CloudRefused(f"--supervise cloud: there is no account {email}; {remedy}")
    except GoogleError as error:
        if not error.refused:
            raise CloudRefused(f"--supervise cloud: {error}") from error
    for place, permissions in wanted:
        try:
            lacking = [each for each in permissions if each not in place.tested(permissions)]
        except GoogleError as error:
            if error.refused:  # the insertion itself will show it
                continue
            raise CloudRefused(f"--supervise cloud: {error}") from error
        if lacking:
            raise CloudRefused(
                f"--supervise cloud: you lack {', '.join(lacking)} on {place.name}; have roles/compute.instanceAdmin.v1 and "
                "roles/iam.serviceAccountUser granted to you, or leave --supervise out"
            )


def start(workdir: PurePath, settings: CloudSettings, *, compute: ComputeApi, tell: Tell = lambda line: None) -> Vm:
    """Create a VM that supervises the job of a work folder, in one of the run's zones, else in their regions.

    A VM that already does so is kept. Raises CloudRefused if none is available; none is left behind then.
    """
    control = Control(workdir)
    job = control.job()
    path = str(storage.parse_json(storage.read_bytes(control.settings_file))["bundle"])
    mine = compute.instances(job.run)
    if (found := watch(control, compute)) is not None and found.holds_lease and found.state is not None:
        return found.vm
    for old in mine:
        tell(f"deleting the VM {old.name} in {old.zone} of an earlier launch")
        compute.delete(old.name, old.zone)
    refusals: list[str] = []
    regions = dict.fromkeys(region_of(zone) for zone in job.zones)
    for zone in dict.fromkeys([*job.zones, *(zone for region in regions for zone in compute.zones(region))]):
        vm = Vm(f"supervisor-{job.run}", zone, settings.project, MACHINE_TYPE, time.time())
        storage.write_json(_file(control, "vm.json"), asdict(vm))
        tell(f"creating the {MACHINE_TYPE} {vm.name} in {zone}, which supervises the run")
        try:
            made = compute.insert(zone, body(vm, job, settings, workdir, path))
        except Unavailable as error:
            raise Unavailable(f"{error}; {vm} may be there: launch the run again, or 'tpulm cloud down' deletes it") from error
        except Refused as refused:
            refusals.append(f"{zone}: {refused}")
            if refused.kind in ("denied", "invalid"):
                break
            continue
        there = None if made else compute.find(vm.name, zone)
        ours = job.run, bundle.object_of(path)
        if made or (there is not None and (there.labels.get(LABEL), there.metadata.get("tpulm-bundle")) == ours):
            return vm
        refusals.append(f"{zone}: an instance {vm.name} is there that is not of this run")
        break
    storage.remove(_file(control, "vm.json"))
    bills = f"{job.node.name} in {job.node.zone} bills" if job.node else "The run is recorded, and nothing of it bills"
    raise CloudRefused(
        f"no VM can be had for the supervisor:\n{listed(refusals)}\n{bills}. 'tpulm cloud attach --workdir {workdir}' "
        "supervises it from this machine, as long as that is up"
    )


def body(vm: Vm, job: Job, settings: CloudSettings, workdir: PurePath, bundle_path: str) -> dict[str, Any]:
    """The body of instances.insert. Its metadata holds no secrets."""
    seconds = _LONGEST_SECONDS
    if settings.deadline_hours is not None:
        left = job.created_at + settings.deadline_hours * 3600 + _AFTER_DEADLINE_SECONDS - vm.created_at
        seconds = round(min(_LONGEST_SECONDS, max(_AFTER_DEADLINE_SECONDS, left)))
    metadata = {
        "startup-script": bundle.boot_script(),
        "enable-guest-attributes": "TRUE",
        "tpulm-program": "supervise",
        "tpulm-bundle": bundle.object_of(bundle_path),
        WORKDIR: str(workdir),
    }
    return small_vm(vm.name, vm.zone, settings, seconds=seconds, machine_type=vm.machine_type) | {
        "description": "supervises a run of tpulm, and deletes itself when that is over",
        "labels": {LABEL: job.run, UNTIL_LABEL: str(round(vm.created_at) + seconds)},
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "serviceAccounts": [
            {"email": settings.supervisor_account, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
    }


def watch(control: Control, compute: ComputeApi | None) -> Watch | None:
    """What is known of a run's VM; None if it never had one. `unseen` says why the cloud does not answer."""
    if (vm := recorded(control)) is None:
        return None
    state, unseen = None, ""
    try:
        found = None if compute is None else compute.find(vm.name, vm.zone)
        state = found.state if found is not None and found.is_alive else None
        unseen = "the project is not known" if compute is None else ""
    except TpulmError as error:
        unseen = str(error)
    beat = _read(control, "beat.json")
    heard = beat.get("time")
    heard = float(heard) if isinstance(heard, int | float) and heard >= vm.created_at else None
    does = str(beat.get("state", "")) if heard is not None else ""
    holder = storage.holder(control.folder)
    process = beat.get("process") if heard is not None else None
    holds = holder is not None and process is not None and holder.startswith(f"process {process} on ")
    lease = storage.info(control.folder / LEASE)
    age = None if lease is None or holder is None else max(0.0, time.time() - lease.modified_ns / 1e9)
    return Watch(vm, state, unseen, does, heard, holds, age)


def follow(
    control: Control, compute: ComputeApi, *, write: Callable[[bytes], None], tell: Tell, pause_seconds: float = 3.0
) -> Job | None:
    """Print the log of a run's VM until the run is over; None once no VM supervises it any more. Raises Stopped."""
    tail = Tail(log_path(control))
    looked_at, shown = -_LOOK_SECONDS, ""
    while not (job := control.job()).is_over:
        if time.monotonic() - looked_at >= _LOOK_SECONDS or not shown:
            looked_at, found = time.monotonic(), watch(control, compute)
            if found is None or (found.state is None and not found.holds_lease):
                return None
            line = in_words(found)
            if line.partition(";")[0] != shown:
                shown = line.partition(";")[0]
                tell(line)
        write(tail.more()[0])
        interrupt.check("the run and its supervisor go on in the cloud")
        interrupt.sleep(pause_seconds)
    if shown:
        write(tail.more()[0])
    return job


def end(control: Control, compute: ComputeApi, *, tell: Tell = lambda line: None) -> None:
    """Delete the VM, if there is one. A refusal is only reported, since the VM of a run that is over deletes itself."""
    if (vm := recorded(control)) is None or vm.ended_at is not None:
        return
    try:
        compute.delete(vm.name, vm.zone)
    except TpulmError as error:
        tell(f"{vm} was not deleted from here ({error}); it deletes itself, and 'tpulm cloud audit' shows it until then")
        return
    with contextlib.suppress(StorageError):
        storage.write_json(_file(control, "vm.json"), asdict(replace(vm, ended_at=time.time())))


def in_words(found: Watch) -> str:
    """ "the VM supervisor-run in us-central1-a (RUNNING) supervises; its lease was renewed 9 s ago"."""
    state = found.unseen or found.state or "gone"
    if found.holds_lease:
        age = "" if found.lease_age is None else f"; its lease was renewed {found.lease_age:.0f} s ago"
        return f"{found.vm} ({state}) supervises{age}"
    if found.is_beginning:
        return f"{found.vm} ({state}) is to supervise, and is {found.does or 'starting'}"
    return f"{found.vm} ({state}) does not supervise"


def recorded(control: Control) -> Vm | None:
    found = _read(control, "vm.json")
    with contextlib.suppress(TypeError):
        return Vm(**found)
    return None


def log_path(control: Control) -> PurePath:
    return _file(control, "log.txt")


def _file(control: Control, name: str) -> PurePath:
    return control.folder / "supervisor" / name


def _read(control: Control, name: str) -> dict[str, Any]:
    path = _file(control, name)
    return read_object(path) if storage.exists(path) else {}
