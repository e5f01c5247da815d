"""The VMs of Compute Engine that carry our label: earlier versions had runs supervised by one, which bills until it is deleted.

Requests and fields: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpulm.cloud.google_rest import GoogleError, GoogleRest, explained, last_part, moment
from tpulm.cloud.provider import LABEL, WORKDIR, NodeStatus, Resource
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, TpulmError, Unavailable

KIND = "VM"  # the `kind` of a `Resource`
_UNLISTED = "Compute Engine"  # in place of a zone, if its instances cannot be listed


class AllResources(TpuApi):
    """The TPUs and the labelled VMs of all zones: everything of tpulm's that may be billed."""

    def __init__(self, project: str, rest: GoogleRest | None = None):
        super().__init__(project, rest)
        self._vms: dict[tuple[str, str], Resource] = {}
        self._unlisted: TpulmError | None = None
        self._tpu_zones: list[str] = []

    def zones(self) -> list[str]:
        self._unlisted = None
        try:
            self._vms = {(vm.name, vm.zone): vm for vm in self._instances()}
        except (CloudRefused, Unavailable) as error:
            self._unlisted = error
        self._tpu_zones = super().zones()
        listed = {*self._tpu_zones, *(zone for _, zone in self._vms)}
        return [*sorted(listed), *([_UNLISTED] if self._unlisted else [])]

    def resources(self, zone: str) -> Iterator[Resource]:
        if zone == _UNLISTED and self._unlisted is not None:
            raise self._unlisted
        if zone in self._tpu_zones:
            yield from super().resources(zone)
        yield from (vm for vm in self._vms.values() if vm.zone == zone)

    def node_status(self, name: str, zone: str) -> NodeStatus:
        if (name, zone) not in self._vms:
            return super().node_status(name, zone)
        with explained(_UNLISTED):
            instance = self.rest.find("compute", self._path(name, zone))
        return NodeStatus(None) if instance is None else NodeStatus(_resource(instance).state)

    def delete(self, name: str, zone: str) -> str:
        if (name, zone) not in self._vms:
            return super().delete(name, zone)
        with explained(_UNLISTED):
            try:
                self.rest.request("DELETE", "compute", self._path(name, zone))
            except GoogleError as error:
                if not error.missing:
                    raise
        return ""

    def _instances(self) -> list[Resource]:
        """In all zones; none if Compute Engine's API is disabled."""
        path, resources = f"compute/v1/projects/{self.project}/aggregated/instances", list[Resource]()
        with explained(_UNLISTED):
            try:
                for page in self.rest.pages("compute", path, filter=f"labels.{LABEL}:*", returnPartialSuccess="true"):
                    zones = page.get("items", {})
                    silent = [zone for zone in zones if zones[zone].get("warning", {}).get("code") == "UNREACHABLE"]
                    if silent := [*silent, *page.get("unreachables", ())]:
                        raise Unavailable(f"Compute Engine cannot list {', '.join(map(last_part, silent))}")
                    resources += [_resource(item) for scope in zones.values() for item in scope.get("instances", ())]
            except GoogleError as error:
                if not error.is_off:
                    raise
        return resources

    def _path(self, name: str, zone: str) -> str:
        return f"compute/v1/projects/{self.project}/zones/{zone}/instances/{name}"


def _resource(instance: Mapping[str, Any]) -> Resource:
    state = str(instance.get("status", ""))
    metadata = {item["key"]: item.get("value", "") for item in instance.get("metadata", {}).get("items", ())}
    return Resource(
        KIND,
        instance["name"],
        last_part(instance["zone"]),
        "DELETING" if state == "STOPPING" else state,
        dict(instance.get("labels", {})),
        last_part(instance.get("machineType", "")),
        metadata.get(WORKDIR, ""),
        created_at=moment(instance.get("creationTimestamp")),
    )
