"""What the supervisor needs of a cloud with TPUs, independent of its API; and how refusals are classified.

A refusal is classified by status, reason and message, since one status has several meanings. The messages are those of the
emulator's recorded answers, which cite their sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Refusal = Literal[
    "stock-out",
    "quota",
    "zone",  # closed to the project, or to this type; other zones may be open
    "denied",
    "invalid",
    "taken",
    "preempted",
    "cloud",  # an internal error of the cloud
]

# google.rpc.Code
_INVALID_ARGUMENT, _DEADLINE_EXCEEDED, _NOT_FOUND, _PERMISSION_DENIED, _EXHAUSTED, _PRECONDITION = 3, 4, 5, 7, 8, 9

_OF_A_ZONE = re.compile(
    r"permission to submit requests"
    r"|permission denied on 'locations/"
    r"|not found or access is unauthorized"
    r"|could not be found in the zonal accelerator configurations"
    r"|was not found in zone"
    r"|requested zone .* is not supported"
    r"|is not supported for accelerator type .* in location",
    re.IGNORECASE,
)
_RATE = ("per minute", "per_minute", "perminute", "rate_limit", "rate limit")
ADDRESSES = "IN_USE_ADDRESSES"
_RESERVED = "Insufficient reserved capacity"  # also said where no reservation was asked for: a stock-out
_NO_NETWORK = re.compile(r"no network named \"([^\"]+)\"|networks/([^/']+)' was not found")
# A part of a message -> the fix that Google does not name.
_ADVICE = {
    ADDRESSES: "every host takes an external address: set external_addresses = false (with Private Google Access in the "
    "subnetwork, and Cloud NAT for whatever else it is to reach), or ask for more of that quota",
    "compute.vmExternalIpAccess": "a policy of the organization forbids external addresses: set external_addresses = false, "
    "with Private Google Access in the subnetwork",
}


def refusal_of_http(status: int, reason: str, message: str) -> Refusal:
    """Classify the error answer to a create request. `reason` is that of its ErrorInfo, or its status as text."""
    if status == 429:
        return _exhausted(message)
    if (kind := _of_the_project(message)) is not None:
        return kind
    if reason == "LOCATION_POLICY_VIOLATED" or (status in (400, 403) and _OF_A_ZONE.search(message)):
        return "zone"
    if status in (401, 403):
        return "denied"
    if status == 404:  # no such zone, or type in it
        return "zone"
    return "invalid" if status == 400 and reason != "FAILED_PRECONDITION" else "cloud"


def refusal_of_code(code: int, message: str) -> Refusal:
    """Classify the error of an operation, or of a failed queued resource."""
    if code == _EXHAUSTED or ADDRESSES in message or _RESERVED in message:
        return _exhausted(message)
    if (kind := _of_the_project(message)) is not None:
        return kind
    if code == _INVALID_ARGUMENT and "state PREEMPTED" in message:
        return "preempted"
    if code == _DEADLINE_EXCEEDED:  # it waited until it expired
        return "stock-out"
    if code == _PERMISSION_DENIED:
        return "denied" if message.startswith("Permission '") else "zone"
    if code == _NOT_FOUND or (code in (_INVALID_ARGUMENT, _PRECONDITION) and _OF_A_ZONE.search(message)):
        return "zone"
    return "cloud"


def is_rate_limit(message: str) -> bool:
    """Whether an exceeded quota limits requests, which is transient; quotas of chips or cores last."""
    return any(sign in message.lower() for sign in _RATE)


def with_advice(message: str) -> str:
    """The message, with the fix if Google does not name it."""
    advice = next((advice for part, advice in _ADVICE.items() if part in message), "")
    if missing := _NO_NETWORK.search(message):
        advice = f"{making_network(missing[1] or missing[2])} makes it, or name another as network in cloud.toml"
    return f"{message.rstrip('.')}; {advice}" if advice else message


def making_network(name: str) -> str:
    return f"'gcloud compute networks create {name} --subnet-mode=auto'"


def _exhausted(message: str) -> Refusal:
    return "quota" if "quota" in message.lower() or ADDRESSES in message else "stock-out"


def _of_the_project(message: str) -> Refusal | None:
    """The refusal if it is every zone's: a policy of the organization, or a network that does not exist."""
    if "constraints/" in message:
        return "denied"
    return "invalid" if _NO_NETWORK.search(message) else None


LABEL = "tpulm-run"  # on every resource of a run; its value is the run's name
UNTIL_LABEL = "tpulm-until"  # when the resource must be gone, in seconds since 1970
WORKDIR = "tpulm-workdir"  # in a node's metadata: the run's work folder


class Refused(Exception):
    """The cloud refused to create something."""

    def __init__(self, kind: Refusal, message: str):
        super().__init__(message)
        self.kind: Refusal = kind


@dataclass(frozen=True)
class Request:
    """A node to create."""

    name: str
    zone: str
    accelerator: str  # "v3-8"
    runtime_version: str
    spot: bool
    queued: bool  # through a queued resource, which waits for capacity
    valid_seconds: float  # how long a queued resource may wait
    service_account: str | None  # None: the project's default account
    labels: Mapping[str, str]
    metadata: Mapping[str, str]  # includes "startup-script"
    network: str | None = None
    subnetwork: str | None = None
    external_addresses: bool = True


@dataclass(frozen=True)
class NodeStatus:
    """What exists under a name."""

    state: str | None  # of the node, or of its queued resource while there is no node; None: neither exists
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    refused: Refused | None = None  # why its queued resource failed, if known
    created_at: float | None = None  # of the node, in seconds since 1970; billing begins later, with READY


@dataclass(frozen=True)
class Creation:
    pending: bool = False
    refused: Refused | None = None  # why it failed


@dataclass(frozen=True)
class Resource:
    """Something that may be billed."""

    kind: str  # "node" or "queued resource"
    name: str
    zone: str
    state: str
    labels: Mapping[str, str]
    accelerator: str
    workdir: str = ""  # of its run, if known
    spot: bool = False
    created_at: float | None = None  # seconds since 1970


def deletion_command(name: str, zone: str, project: str, *, queued: bool) -> str:
    """A gcloud command, for people without tpulm."""
    kind, force = ("queued-resources", " --force") if queued else ("tpu-vm", "")
    return f"gcloud compute tpus {kind} delete {name} --zone={zone} --project={project}{force} --quiet"


class Provider(Protocol):
    def create(self, request: Request) -> str:
        """Request a node; returns the operation's name, or "" if the node already exists. Raises Refused."""
        ...

    def progress(self, operation: str) -> Creation:
        """The progress of an operation that `create` began."""
        ...

    def node_status(self, name: str, zone: str) -> NodeStatus: ...

    def delete(self, name: str, zone: str) -> str:
        """Request the deletion of a node and its queued resource; returns why it is impossible now, or ""."""
        ...

    def boot_progress(self, name: str, zone: str) -> str:
        """How far a node has booted, as it reports itself; "" if unknown."""
        ...
