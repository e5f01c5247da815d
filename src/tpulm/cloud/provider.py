"""What the supervisor needs of a cloud that has TPUs, in terms of no particular API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tpulm.cloud.refusals import Refusal

LABEL = "tpulm-run"  # on everything that belongs to a run; the value is the run's name
UNTIL_LABEL = "tpulm-until"  # when it is to be gone at the latest, in seconds since 1970
WORKDIR = "tpulm-workdir"  # in a node's metadata: the run's work folder


class Refused(Exception):
    """The cloud will not create something; `kind` says what to make of it."""

    def __init__(self, kind: Refusal, message: str):
        super().__init__(message)
        self.kind: Refusal = kind


@dataclass(frozen=True)
class Request:
    """A node to be created."""

    name: str
    zone: str
    accelerator: str  # "v3-8"
    runtime_version: str
    spot: bool
    queued: bool  # through a queued resource, which waits for capacity
    valid_seconds: float  # how long such a one may wait
    service_account: str | None  # None: the project's default one
    labels: Mapping[str, str]
    metadata: Mapping[str, str]  # "startup-script" among them
    network: str | None = None
    subnetwork: str | None = None
    external_addresses: bool = True


@dataclass(frozen=True)
class Sight:
    """What there is of a name."""

    state: str | None  # of the node, or of its queued resource while there is no node; None: nothing
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    refused: Refused | None = None  # why its queued resource failed, if it says so
    created_at: float | None = None  # of the node, in seconds since 1970; it bills from READY, which is later


@dataclass(frozen=True)
class Creation:
    pending: bool = False
    refused: Refused | None = None  # how it ended, if badly


@dataclass(frozen=True)
class Resource:
    """Something that may be billing."""

    kind: str  # "node" or "queued resource"
    name: str
    zone: str
    state: str
    labels: Mapping[str, str]
    accelerator: str
    workdir: str = ""  # of its run, if it says so
    spot: bool = False
    created_at: float | None = None  # seconds since 1970


def deletion_command(name: str, zone: str, project: str, *, queued: bool) -> str:
    """For whoever has no tpulm at hand."""
    kind, force = ("queued-resources", " --force") if queued else ("tpu-vm", "")
    return f"gcloud compute tpus {kind} delete {name} --zone={zone} --project={project}{force} --quiet"


class Provider(Protocol):
    def create(self, request: Request) -> str:
        """Ask for a node; the name of the operation, or "" where one of that name is there already. Raises Refused."""
        ...

    def progress(self, operation: str) -> Creation:
        """Of what `create` began."""
        ...

    def look(self, name: str, zone: str) -> Sight: ...

    def delete(self, name: str, zone: str) -> str:
        """Ask for the end of a node and of its queued resource; why that cannot be now, "" where it can, or there is none."""
        ...

    def boot_progress(self, name: str, zone: str) -> str:
        """How far the boot of a node came, as it says itself; "" where that cannot be found out."""
        ...

    def resources(self, zone: str) -> Iterable[Resource]:
        """Every node and queued resource in a zone."""
        ...
