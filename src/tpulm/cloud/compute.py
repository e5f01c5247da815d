"""Compute Engine's instances, as far as a supervisor's VM needs them: insert, get, list and delete.

Uses `GoogleRest`: google-cloud-compute 1.57 is 910 files and 34 MB for five plain requests, and its errors would still have to
be interpreted. Requests and fields: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpulm.cloud.decide import Refusal
from tpulm.cloud.google_rest import GoogleError, GoogleRest, explained, last_part, moment
from tpulm.cloud.provider import LABEL, WORKDIR, NodeStatus, Refused, Resource
from tpulm.cloud.settings import CloudSettings, region_of
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, TpulmError, Unavailable

KIND = "supervisor VM"  # the `kind` of a `Resource`
ALIVE = frozenset(["PROVISIONING", "STAGING", "RUNNING", "REPAIRING"])
MACHINE_TYPE = "e2-micro"  # 1 GB of memory; a supervisor takes 0.1 GB
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"  # Google's own, with curl and Python 3.11
_DISK_GB = "10"  # that image's minimum
_OFFLINE_DISK_GB = "20"  # a supervisor's bundle holds all packages
_OPERATION_SECONDS = 600.0
_POLL_SECONDS = 1.0
_QUOTA = frozenset(["quotaExceeded", "QUOTA_EXCEEDED", "limitExceeded", "LIMIT_EXCEEDED"])
_BUSY = ("ZONE_RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED", "RESOURCE_NOT_READY", "UNSUPPORTED_OPERATION")


@dataclass(frozen=True)
class Instance:
    name: str
    zone: str
    state: str  # "RUNNING"
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    machine_type: str
    created_at: float | None  # seconds since 1970
    ends_at: float | None  # when Compute Engine deletes it

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE


class ComputeApi:
    """Raises CloudRefused for a refusal, Unavailable if there is no answer; `insert` raises `Refused`."""

    def __init__(self, project: str, rest: GoogleRest | None = None, *, poll_seconds: float = _POLL_SECONDS):
        self.project = project
        self.rest = rest or GoogleRest(project)
        self._poll_seconds = poll_seconds

    def insert(self, zone: str, body: Mapping[str, Any]) -> bool:
        """Create an instance and wait until it runs; False if the name is taken. Raises Refused."""
        with explained("Compute Engine"):
            try:
                operation = self.rest.post("compute", f"{self._zone(zone)}/instances", body)
            except GoogleError as error:
                if error.status == 409:
                    return False
                if error.is_final and error.status != 401:
                    raise Refused(_kind(error), str(error)) from error
                raise
            self._settled(zone, operation)
            return True

    def find(self, name: str, zone: str) -> Instance | None:
        with explained("Compute Engine"):
            found = self.rest.find("compute", f"{self._zone(zone)}/instances/{name}")
            return None if found is None else _instance(found)

    def delete(self, name: str, zone: str) -> None:
        """Delete an instance and wait until it is gone."""
        with explained("Compute Engine"):
            try:
                operation = self.rest.request("DELETE", "compute", f"{self._zone(zone)}/instances/{name}")
                with contextlib.suppress(Refused):
                    self._settled(zone, operation)
            except GoogleError as error:
                if not error.missing:
                    raise

    def instances(self, run: str | None = None) -> list[Instance]:
        """The instances of all runs, or of one, in all zones; none if Compute Engine's API is disabled."""
        found: list[Instance] = []
        query = {"filter": f"labels.{LABEL}:*" if run is None else f"labels.{LABEL}={run}", "returnPartialSuccess": "true"}
        with explained("Compute Engine"):
            try:
                for page in self.rest.pages("compute", f"{self._project}/aggregated/instances", **query):
                    zones = page.get("items", {})
                    silent = [zone for zone in zones if zones[zone].get("warning", {}).get("code") == "UNREACHABLE"]
                    if silent := [*silent, *page.get("unreachables", ())]:
                        raise Unavailable(f"Compute Engine cannot list {', '.join(map(last_part, silent))}")
                    found += [_instance(item) for scope in zones.values() for item in scope.get("instances", ())]
            except GoogleError as error:
                if not error.is_off:
                    raise
                return []
        return found

    def zones(self, region: str) -> list[str]:
        """The zones of a region; none if the project has no such region."""
        with explained("Compute Engine"):
            found = self.rest.find("compute", f"{self._project}/regions/{region}") or {}
        return sorted(map(last_part, found.get("zones", ())))

    def _settled(self, zone: str, operation: dict[str, Any]) -> None:
        """Wait until the operation is done. Raises Refused with its error."""
        give_up_at = time.monotonic() + _OPERATION_SECONDS
        while operation.get("status") != "DONE":
            if time.monotonic() > give_up_at:
                raise Unavailable(f"{operation['name']} of Compute Engine took over {_OPERATION_SECONDS / 60:.0f} minutes")
            time.sleep(self._poll_seconds)
            operation = self.rest.get("compute", f"{self._zone(zone)}/operations/{operation['name']}")
        for error in operation.get("error", {}).get("errors", ()):
            code = str(error.get("code", ""))
            kind: Refusal = "stock-out" if code.startswith(_BUSY) else "quota" if code in _QUOTA else "cloud"
            if kind == "cloud" and 400 <= operation.get("httpErrorStatusCode", 0) < 500:
                kind = "invalid"
            raise Refused(kind, str(error.get("message") or code))

    @property
    def _project(self) -> str:
        return f"compute/v1/projects/{self.project}"

    def _zone(self, zone: str) -> str:
        return f"{self._project}/zones/{zone}"


def small_vm(
    name: str, zone: str, settings: CloudSettings, *, seconds: int, machine_type: str = MACHINE_TYPE
) -> dict[str, Any]:
    """The body of `insert`. Compute Engine itself deletes the instance after `seconds`."""
    interface: dict[str, Any] = {"network": _named(settings.network or "default", "global/networks")}
    if settings.subnetwork is not None:
        interface["subnetwork"] = _named(settings.subnetwork, f"regions/{region_of(zone)}/subnetworks")
    if settings.external_addresses:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    disk = {"sourceImage": _IMAGE, "diskSizeGb": _DISK_GB if settings.external_addresses else _OFFLINE_DISK_GB}
    return {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine_type}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [interface],
        "scheduling": {"maxRunDuration": {"seconds": str(seconds)}, "instanceTerminationAction": "DELETE"},
    }


def _named(text: str, folder: str) -> str:
    return text if "/" in text else f"{folder}/{text}"


class AllResources(TpuApi):
    """The TPUs of all zones and the supervisors' VMs: everything of ours that may be billed."""

    def __init__(self, project: str, compute: ComputeApi | None = None):
        super().__init__(project)
        self._compute = compute or ComputeApi(project)
        self._vms: dict[tuple[str, str], Instance] = {}
        self._unseen: TpulmError | None = None

    def zones(self) -> list[str]:
        try:
            self._vms = {(item.name, item.zone): item for item in self._compute.instances()}
        except (CloudRefused, Unavailable) as error:
            self._unseen = error
        found = {*super().zones(), *(zone for _, zone in self._vms)}
        return [*sorted(found), *(["Compute Engine"] if self._unseen else [])]

    def resources(self, zone: str) -> Iterator[Resource]:
        if zone == "Compute Engine" and self._unseen is not None:
            raise self._unseen
        yield from super().resources(zone)
        yield from (_resource(item) for item in self._vms.values() if item.zone == zone)

    def look(self, name: str, zone: str) -> NodeStatus:
        if (name, zone) not in self._vms:
            return super().look(name, zone)
        found = self._compute.find(name, zone)
        return NodeStatus(None) if found is None else NodeStatus(found.state, found.labels)

    def delete(self, name: str, zone: str) -> str:
        if (name, zone) not in self._vms:
            return super().delete(name, zone)
        self._compute.delete(name, zone)
        return ""


def _resource(found: Instance) -> Resource:
    state = "DELETING" if found.state == "STOPPING" else found.state
    workdir = found.metadata.get(WORKDIR, "")
    return Resource(KIND, found.name, found.zone, state, found.labels, found.machine_type, workdir, created_at=found.created_at)


def _instance(found: Mapping[str, Any]) -> Instance:
    ends = found.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
    return Instance(
        found["name"],
        last_part(found["zone"]),
        str(found.get("status", "")),
        dict(found.get("labels", {})),
        {item["key"]: item.get("value", "") for item in found.get("metadata", {}).get("items", ())},
        last_part(found.get("machineType", "")),
        moment(found.get("creationTimestamp")),
        moment(ends),
    )


def _kind(error: GoogleError) -> Refusal:
    """Classify the error of an insertion. If the zone or the machine type in it does not exist, another zone may do."""
    if error.reason in _QUOTA:
        return "quota"
    if error.missing or "does not exist in zone" in error.message:
        return "stock-out"
    denied = error.refused or "does not have access to service account" in error.message
    return "denied" if denied else "invalid"
