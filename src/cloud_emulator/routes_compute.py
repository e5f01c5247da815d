"""Calls of the Compute Engine API."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloud_emulator import compute, places
from cloud_emulator.answers import Answer, invalid, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.projects import Project, Projects
from cloud_emulator.router import Route

if TYPE_CHECKING:
    from cloud_emulator.compute import Compute, Instance

PROJECT = "_compute/compute/v1/projects/{project}"
ZONE, REGION = PROJECT + "/zones/{zone}", PROJECT + "/regions/{region}"
USER = "emulated-account@tpulm-emulator.iam.gserviceaccount.com"


class ComputeRoutes:
    def __init__(self, projects: Projects, service: Callable[[], Compute]):
        self._projects = projects
        self._service = service

    def routes(self) -> list[Route]:
        table = [
            ("LIST all instances", "GET", PROJECT + "/aggregated/instances", "list", self.list_all),
            ("LIST instances", "GET", ZONE + "/instances", "list", self.list_zone),
            ("INSERT instance", "POST", ZONE + "/instances", "create", self.insert),
            ("GET instance", "GET", ZONE + "/instances/{instance}", "get", self.get),
            ("DELETE instance", "DELETE", ZONE + "/instances/{instance}", "delete", self.delete),
            ("GET zone operation", "GET", ZONE + "/operations/{operation}", "get", self.operation),
            ("WAIT for zone operation", "POST", ZONE + "/operations/{operation}/wait", "get", self.wait),
            ("GET region", "GET", REGION, "get", self.region),
            ("GET network", "GET", PROJECT + "/global/networks/{network}", "get", self.network),
            ("GET subnetwork", "GET", REGION + "/subnetworks/{subnetwork}", "get", self.subnetwork),
        ]
        return [Route(kind, method, path, f"compute.{verb}", answer) for kind, method, path, verb, answer in table]

    def _permitted(self, name: str, permission: str, resource: str) -> Project:
        """Raises ApiError in this API's words."""
        project = self._projects.find(name)
        if project is None:
            raise compute.Refusal("not-found", resource=f"projects/{name}")
        if compute.SERVICE not in project.services:
            raise compute.Refusal("api-off", number=project.number)
        if not project.is_granted(permission):
            where = f"projects/{project.name}" + (f"/{resource}" if resource else "")
            raise compute.Refusal("permission", permission=permission, resource=where)
        return project

    def insert(self, call: Call, project: str, zone: str) -> Answer:
        body = call.json()
        found = self._permitted(project, "compute.instances.create", f"zones/{zone}/instances/{body.get('name', '')}")
        _known_zone(found, zone)
        if not found.is_granted("iam.serviceAccounts.actAs"):
            accounts = body.get("serviceAccounts") or [{"email": found.default_account}]
            raise compute.Refusal("account-denied", account=accounts[0]["email"], user=USER)
        return json_answer(self._service().insert(found, zone, body, USER))

    def get(self, call: Call, project: str, zone: str, instance: str) -> Answer:
        found = self._permitted(project, "compute.instances.get", f"zones/{zone}/instances/{instance}")
        service = self._service()
        with service.clock.lock:
            return json_answer(compute.resource(service.find(found, zone, instance)))

    def delete(self, call: Call, project: str, zone: str, instance: str) -> Answer:
        found = self._permitted(project, "compute.instances.delete", f"zones/{zone}/instances/{instance}")
        return json_answer(self._service().delete(found, zone, instance, USER))

    def list_zone(self, call: Call, project: str, zone: str) -> Answer:
        found = self._permitted(project, "compute.instances.list", f"zones/{zone}")
        _known_zone(found, zone)
        service = self._service()
        with service.clock.lock:
            page, more = _page([each for each in service.of(found, zone) if _fits(call, each)], call)
            items = [compute.resource(each) for each in page]
        return json_answer({"kind": "compute#instanceList", **({"items": items} if items else {}), **more})

    def list_all(self, call: Call, project: str) -> Answer:
        """Zones without any have a warning in place of instances, as Google's answer has."""
        found = self._permitted(project, "compute.instances.list", "")
        service = self._service()
        with service.clock.lock:
            page, more = _page([each for each in service.of(found) if _fits(call, each)], call)
            items: dict[str, Any] = {}
            for zone in places.offered():
                mine = [compute.resource(each) for each in page if each.zone == zone]
                warning = {
                    "code": "NO_RESULTS_ON_PAGE",
                    "message": f"There are no results for scope 'zones/{zone}' on this page.",
                }
                items[f"zones/{zone}"] = {"instances": mine} if mine else {"warning": warning}
        return json_answer({"kind": "compute#instanceAggregatedList", "items": items, **more})

    def operation(self, call: Call, project: str, zone: str, operation: str) -> Answer:
        found = self._permitted(project, "compute.zoneOperations.get", f"zones/{zone}/operations/{operation}")
        return json_answer(self._service().operation(found, zone, operation))

    def wait(self, call: Call, project: str, zone: str, operation: str) -> Answer:
        found = self._permitted(project, "compute.zoneOperations.get", f"zones/{zone}/operations/{operation}")
        return json_answer(self._service().wait(found, zone, operation))

    def region(self, call: Call, project: str, region: str) -> Answer:
        found = self._permitted(project, "compute.regions.get", f"regions/{region}")
        if region not in places.regions():
            raise compute.Refusal("not-found", resource=f"projects/{found.name}/regions/{region}")
        service = self._service()
        with service.clock.lock:
            quotas = service.quotas(found, region)
        where = f"{compute.URL}/projects/{found.name}/zones"
        zones = [f"{where}/{zone}" for zone in places.offered() if places.region_of(zone) == region]
        return json_answer({"kind": "compute#region", "name": region, "status": "UP", "zones": zones, "quotas": quotas})

    def network(self, call: Call, project: str, network: str) -> Answer:
        found = self._permitted(project, "compute.networks.get", f"global/networks/{network}")
        networks = self._service().networks
        if network not in networks:
            raise compute.Refusal("not-found", resource=f"projects/{found.name}/global/networks/{network}")
        return json_answer(compute.network(found, network, networks[network]))

    def subnetwork(self, call: Call, project: str, region: str, subnetwork: str) -> Answer:
        found = self._permitted(project, "compute.subnetworks.get", f"regions/{region}/subnetworks/{subnetwork}")
        return json_answer(compute.subnetwork(found, region, subnetwork, self._service().networks))


def _known_zone(project: Project, zone: str) -> None:
    if zone not in places.offered():
        raise compute.Refusal("not-found", resource=f"projects/{project.name}/zones/{zone}")


def _fits(call: Call, found: Instance) -> bool:
    """By "labels.KEY:*" or "labels.KEY=VALUE"; other filters are refused, not ignored."""
    text = call.query.get("filter", "")
    if not text:
        return True
    key, sign, value = text.partition(":*") if text.endswith(":*") else text.partition("=")
    if not sign or not key.startswith("labels."):
        raise invalid(f"Invalid value for field 'filter': '{text}'. The emulator knows labels.KEY:* and labels.KEY=VALUE.")
    labels = found.asked.get("labels", {})
    key = key.removeprefix("labels.")
    return key in labels if sign == ":*" else labels.get(key) == value


def _page(found: list[Instance], call: Call) -> tuple[list[Instance], dict[str, str]]:
    size, start = call.whole_number("maxResults") or 500, int(call.query.get("pageToken") or 0)
    more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
    return found[start : start + size], more
