"""Compute Engine, as far as a supervisor's VM needs it: instances, their operations, and read-only networks.

The shapes are those of https://cloud.google.com/compute/docs/reference/rest/v1; refusals are recorded/compute.json's.
"""

from __future__ import annotations

import re
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.catalogue import region_of
from cloud_emulator.errors import ACCOUNT, ApiError, EmulatorError, invalid, named
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.machines import Machine
from cloud_emulator.metadata import instance_tree
from cloud_emulator.projects import Project
from cloud_emulator.tpu.state import Orders, State

URL = "https://www.googleapis.com/compute/v1"
SERVICE = "compute.googleapis.com"
MACHINE_TYPES = {"e2-micro": 2, "e2-small": 2, "e2-medium": 2}  # vCPUs, as quota counts them
CPUS, ADDRESSES = "CPUS", "IN_USE_ADDRESSES"
PROJECT = "/projects/{project}"
ZONE, REGION = PROJECT + "/zones/{zone}", PROJECT + "/regions/{region}"
LIMITS = {CPUS: 24.0, ADDRESSES: 64.0}  # in each region, of a project that was granted more than Google's first 8 addresses
SHORTEST_SECONDS, LONGEST_SECONDS = 30, 120 * 86_400  # of maxRunDuration
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def refusal(name: str, **values: object) -> ApiError:
    return recorded.refusal(name, "compute", **values)


@dataclass(eq=False)
class Instance:
    project: Project
    zone: str
    name: str
    asked: dict[str, Any]  # the body of the insertion
    created: float
    number: str
    status: str = "PROVISIONING"
    terminates: float | None = None
    machine: Machine | None = None

    @property
    def path(self) -> str:
        return f"projects/{self.project.name}/zones/{self.zone}/instances/{self.name}"

    @property
    def machine_type(self) -> str:
        return str(self.asked["machineType"]).rpartition("/")[2]

    @property
    def has_address(self) -> bool:
        return any(interface.get("accessConfigs") for interface in self.asked.get("networkInterfaces", ()))


@dataclass
class Network:
    auto: bool = True  # with a subnetwork of its name in every region
    private_access: bool = False
    subnetworks: dict[str, str] = field(default_factory=dict)  # region -> name, in custom mode


class Compute:
    """The API, below /_compute/compute/v1, and orders to it by rehearsals and tests, from any thread."""

    def __init__(self, state: State):
        self._state, self._catalogue = state, state.projects.catalogue
        self._instances: dict[str, Instance] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._orders = Orders("compute")
        self.networks = {"default": Network()}
        self.clock = state.clock
        self.insert_seconds = 0.1
        self.delete_seconds = 0.05

    # What rehearsals and tests do

    def answer_next(self, name: str, zone: str | None = None, count: int = 1) -> None:
        """Give a recorded answer to the next `count` insertions, in a zone or anywhere."""
        with self.clock.lock:
            self._orders.add(name, zone, count, "")

    def vanish(self, name: str) -> None:
        """Remove an instance at once, as if somebody had deleted it."""
        with self.clock.lock:
            self._remove(named("instance", name, self._instances))

    def instances(self) -> dict[str, str]:
        """Status by name."""
        with self.clock.lock:
            return {found.name: found.status for found in self._instances.values()}

    def machine(self, name: str) -> Machine:
        """An instance's machine: its `folder`, `processes()`, `console()` and `metadata`."""
        with self.clock.lock:
            found = named("instance", name, self._instances).machine
        if found is None:
            raise EmulatorError(f"the instance {name} does not run yet")
        return found

    # What the API does, under the clock's lock

    def insert(self, call: Call, project: Project, zone: str) -> dict[str, Any]:
        """Returns the operation. Raises ApiError."""
        body = call.content()
        if not project.is_granted("iam.serviceAccounts.actAs"):
            accounts = body.get("serviceAccounts") or [{"email": project.default_account}]
            raise refusal("account-denied", account=accounts[0]["email"], user=ACCOUNT)
        made = Instance(project, zone, str(body.get("name", "")), body, self.clock.now(), str(uuid.uuid4().int % 10**19))
        _check(made)
        if made.path in self._instances:
            raise refusal("name-taken", resource=made.path)
        if (order := self._orders.take("http", "", zone)) is not None:
            raise refusal(order, **self._values(made))
        wanted = {CPUS: MACHINE_TYPES[made.machine_type], ADDRESSES: int(made.has_address)}
        for quota in self.quotas(project, region_of(zone)):
            if quota["usage"] + wanted[quota["metric"]] > quota["limit"]:
                raise refusal("quota", **{**self._values(made), **quota})
        self._instances[made.path] = made
        operation = self._begin("insert", made)
        no_account = None if project.has_account(_account_of(made)) else "no-account"
        failure = self._orders.take("operation", "", zone) or no_account
        self.clock.after(self.insert_seconds, lambda: self._inserted(made, operation, failure))
        return operation

    def _inserted(self, made: Instance, operation: dict[str, Any], failure: str | None) -> None:
        if failure is not None:
            self._instances.pop(made.path, None)
            self._end(operation, recorded.answer(failure, "compute", **self._values(made))["operation"])
            return
        if self._instances.get(made.path) is not made:  # deleted meanwhile
            self._end(operation)
            return
        made.status = "RUNNING"
        self._state.record("vm running", made.path)
        scheduling = made.asked.get("scheduling", {})
        if seconds := int(scheduling.get("maxRunDuration", {}).get("seconds", 0)):
            made.terminates = self.clock.now() + seconds
            self.clock.at(made.terminates, lambda: self._expire(made))
        items = {item["key"]: item["value"] for item in made.asked.get("metadata", {}).get("items", ())}
        (made.machine,) = self._state.machines.create(made.name, 1, lambda _, addresses: _metadata(made, items, addresses[0]))
        made.machine.boot(items.get("startup-script", ""))
        self._end(operation)

    def _expire(self, made: Instance) -> None:
        if self._instances.get(made.path) is not made:
            return
        if made.asked["scheduling"].get("instanceTerminationAction") == "DELETE":
            self._remove(made)
        elif made.machine is not None:
            made.machine.power_off()
            made.status, made.terminates = "TERMINATED", None

    def delete(self, project: Project, zone: str, name: str) -> dict[str, Any]:
        found = self.find(project, zone, name)
        found.status = "STOPPING"
        operation = self._begin("delete", found)

        def gone() -> None:
            self._remove(found)
            self._end(operation)

        self.clock.after(self.delete_seconds, gone)
        return operation

    def _remove(self, found: Instance) -> None:
        if self._instances.get(found.path) is found:
            del self._instances[found.path]
            self._state.record("vm deleted", found.path)
        if found.machine is not None:
            found.machine.remove()
            found.machine = None

    def find(self, project: Project, zone: str, name: str) -> Instance:
        path = f"projects/{project.name}/zones/{zone}/instances/{name}"
        if path not in self._instances:
            raise refusal("not-found", resource=path)
        return self._instances[path]

    def of(self, project: Project, zone: str | None = None) -> list[Instance]:
        return [found for found in self._instances.values() if found.project is project and zone in (None, found.zone)]

    def quotas(self, project: Project, region: str) -> list[dict[str, Any]]:
        mine = [found for found in self.of(project) if region_of(found.zone) == region]
        addresses = self._state.behaviour.addresses
        limits = LIMITS if addresses is None else {**LIMITS, ADDRESSES: float(addresses)}
        usage = {
            CPUS: float(sum(MACHINE_TYPES[found.machine_type] for found in mine)),
            ADDRESSES: float(sum(found.has_address for found in mine)),
        }
        return [{"metric": metric, "limit": limit, "usage": usage[metric]} for metric, limit in limits.items()]

    def _values(self, made: Instance) -> dict[str, object]:
        return {
            "project": made.project.name,
            "number": made.project.number,
            "zone": made.zone,
            "region": region_of(made.zone),
            "resource": made.path,
            "machine": made.machine_type,
            "metric": CPUS,
            "limit": LIMITS[CPUS],
            "account": _account_of(made),
            "user": ACCOUNT,
            "permission": "compute.instances.create",
        }

    # Operations

    def _begin(self, kind: str, target: Instance) -> dict[str, Any]:
        name, made = f"operation-{round(self.clock.now() * 1000)}-{uuid.uuid4().hex[:13]}", _moment(self.clock.now())
        values = {**self._values(target), "id": uuid.uuid4().int % 10**19, "target": target.number, "now": made}
        operation = form("operation", **{**values, "name": name, "operation": kind})
        self._operations[f"{target.project.name}/{target.zone}/{name}"] = operation
        return operation

    def _end(self, operation: dict[str, Any], failure: dict[str, Any] | None = None) -> None:
        operation.update(status="DONE", progress=100, endTime=_moment(self.clock.now()), **(failure or {}))

    def operation(self, project: Project, zone: str, operation: str) -> dict[str, Any]:
        with self.clock.lock:
            key = f"{project.name}/{zone}/{operation}"
            if key not in self._operations:
                raise refusal("not-found", resource=f"projects/{project.name}/zones/{zone}/operations/{operation}")
            return dict(self._operations[key])

    def wait(self, project: Project, zone: str, operation: str) -> dict[str, Any]:
        """Wait until the operation is done, or for some seconds: Google's answers after two minutes at the latest."""
        until = time.monotonic() + 5
        while (found := self.operation(project, zone, operation))["status"] != "DONE" and time.monotonic() < until:
            time.sleep(0.01)
        return found

    def close(self) -> None:
        """No process of an instance is left when this returns."""
        for found in list(self._instances.values()):
            self._remove(found)

    # Over HTTP

    def routes(self) -> list[BaseRoute]:
        get = "compute.zoneOperations.get"
        instances, operation, networks = ZONE + "/instances", ZONE + "/operations/{operation}", PROJECT + "/global/networks"
        one = instances + "/{name}"
        table: list[tuple[str, str, str, str, Callable[..., Any]]] = [
            ("LIST all instances", "GET", PROJECT + "/aggregated/instances", "compute.instances.list", self.list_all),
            ("LIST instances", "GET", instances, "compute.instances.list", self.list_zone),
            ("INSERT instance", "POST", instances, "compute.instances.create", self.insert),
            ("GET instance", "GET", one, "compute.instances.get", lambda _, **of: resource(self.find(**of))),
            ("DELETE instance", "DELETE", one, "compute.instances.delete", lambda _, **of: self.delete(**of)),
            ("GET zone operation", "GET", operation, get, lambda _, **of: self.operation(**of)),
            ("WAIT for zone operation", "POST", operation + "/wait", get, lambda _, **of: self.wait(**of)),
            ("GET region", "GET", REGION, "compute.regions.get", self.region),
            ("GET network", "GET", networks + "/{network}", "compute.networks.get", self.network),
            ("GET subnetwork", "GET", REGION + "/subnetworks/{subnetwork}", "compute.subnetworks.get", self.subnetwork),
        ]
        return [
            Endpoint(name, method, path, permission, self._guarded(permission, do), api="compute")
            for name, method, path, permission, do in table
        ]

    def _guarded(self, permission: str, do: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `do`: first check project, service, permission and zone, and refuse in this API's words."""

        def guarded(call: Call, project: str, **parameters: str) -> Any:
            found = self._state.projects.find(project)
            if found is None:
                raise refusal("not-found", resource=f"projects/{project}")
            if SERVICE not in found.services:
                raise refusal("api-off", number=found.number)
            if not found.is_granted(permission):
                where = call.scope["path"].partition(f"/projects/{project}/")[2].removesuffix("/wait")
                where = where.removesuffix("aggregated/instances").removesuffix("/instances").rstrip("/")
                if permission == "compute.instances.create":
                    where += f"/instances/{call.content().get('name', '')}"
                raise refusal("permission", permission=permission, resource=f"projects/{found.name}/{where}".rstrip("/"))
            zone, region = parameters.get("zone"), parameters.get("region")
            if zone is not None and zone not in self._catalogue.zones:
                raise refusal("not-found", resource=f"projects/{found.name}/zones/{zone}")
            if region is not None and region not in self._catalogue.regions:
                raise refusal("not-found", resource=f"projects/{found.name}/regions/{region}")
            if call.url.path.endswith("/wait"):  # not under the lock
                return do(call, project=found, **parameters)
            with self._state.clock.lock:
                return do(call, project=found, **parameters)

        return guarded

    def _page(self, call: Call, found: list[Instance]) -> tuple[list[Instance], dict[str, str]]:
        page, token = call.page([each for each in found if _fits(call, each)], call.integer("maxResults") or 500)
        return page, {"nextPageToken": token} if token else {}

    def list_zone(self, call: Call, project: Project, zone: str) -> Any:
        page, more = self._page(call, self.of(project, zone))
        items = [resource(each) for each in page]
        return {"kind": "compute#instanceList", **({"items": items} if items else {}), **more}

    def list_all(self, call: Call, project: Project) -> Any:
        """The instances by zone; zones without any have a warning instead, as in Google's answer."""
        page, more = self._page(call, self.of(project))
        items: dict[str, Any] = {}
        for zone in self._catalogue.zones:
            mine = [resource(each) for each in page if each.zone == zone]
            message = f"There are no results for scope 'zones/{zone}' on this page."
            warning = {"code": "NO_RESULTS_ON_PAGE", "message": message}
            items[f"zones/{zone}"] = {"instances": mine} if mine else {"warning": warning}
        return {"kind": "compute#instanceAggregatedList", "items": items, **more}

    def region(self, call: Call, project: Project, region: str) -> Any:
        where = f"{URL}/projects/{project.name}/zones"
        zones = [f"{where}/{zone}" for zone in self._catalogue.zones if region_of(zone) == region]
        quotas = self.quotas(project, region)
        return {"kind": "compute#region", "name": region, "status": "UP", "zones": zones, "quotas": quotas}

    def network(self, call: Call, project: Project, network: str) -> Any:
        networks = self.networks
        if network not in networks:
            raise refusal("not-found", resource=f"projects/{project.name}/global/networks/{network}")
        found, where = networks[network], f"{URL}/projects/{project.name}/regions"
        there = dict.fromkeys(self._catalogue.regions, network) if found.auto else found.subnetworks
        links = [f"{where}/{region}/subnetworks/{each}" for region, each in there.items()]
        made = form("network", id=zlib.crc32(network.encode()), name=network, project=project.name)
        return {**made, "autoCreateSubnetworks": found.auto, "subnetworks": links}

    def subnetwork(self, call: Call, project: Project, region: str, subnetwork: str) -> Any:
        for of, found in self.networks.items():
            if subnetwork == (of if found.auto else found.subnetworks.get(region)):
                made = form("subnetwork", name=subnetwork, project=project.name, region=region, network=of)
                return {**made, "privateIpGoogleAccess": found.private_access}
        raise refusal("not-found", resource=f"projects/{project.name}/regions/{region}/subnetworks/{subnetwork}")


def form(kind: str, **values: object) -> dict[str, Any]:
    """A resource as recorded/compute.json has it."""
    return recorded.filled(recorded.load("compute")["resources"][kind], **values)


def resource(found: Instance) -> dict[str, Any]:
    """An instance as the API returns it: 64-bit integers are strings."""
    values = {"project": found.project.name, "zone": found.zone, "name": found.name, "resource": found.path}
    created, machine = _moment(found.created), found.machine_type
    made = form("instance", id=found.number, created=created, status=found.status, machine=machine, **values)
    for key in ("labels", "serviceAccounts", "networkInterfaces", "disks", "metadata", "scheduling"):
        given = found.asked.get(key)
        made[key] = {**made[key], **given} if isinstance(given, dict) else given or made[key]
    if "maxRunDuration" in made["scheduling"]:
        made["scheduling"]["maxRunDuration"] = {"seconds": str(made["scheduling"]["maxRunDuration"]["seconds"])}
    if found.terminates is not None:
        made["resourceStatus"]["scheduling"]["terminationTimestamp"] = _moment(found.terminates)
    return made


def _check(made: Instance) -> None:
    """Raises ApiError (400) for a body that Google would not take."""
    body, scheduling = made.asked, made.asked.get("scheduling", {})
    duration = scheduling.get("maxRunDuration")
    boots = any(disk.get("boot") and disk.get("initializeParams", {}).get("sourceImage") for disk in body.get("disks", ()))
    fits = duration and SHORTEST_SECONDS <= int(duration.get("seconds", 0)) <= LONGEST_SECONDS
    unknown = f"Machine type with name '{made.machine_type}' does not exist in zone '{made.zone}'."
    rules = [
        (_NAME.fullmatch(made.name), "name", made.name, f"Must be a match of regex '{_NAME.pattern}'"),
        (made.machine_type in MACHINE_TYPES, "machineType", body["machineType"], unknown),
        (boots, "disks", "", "No boot disk specified."),
        (body.get("networkInterfaces"), "networkInterfaces", "", "At least one network interface is required."),
        (not duration or fits, "scheduling.maxRunDuration", duration, "It is from 30 seconds to 120 days."),
        (not duration or scheduling.get("instanceTerminationAction"), "scheduling", "", "No instanceTerminationAction."),
    ]
    for holds, field_, value, message in rules:
        if not holds:
            raise invalid(f"Invalid value for field 'resource.{field_}': '{value}'. {message}")


def _account_of(made: Instance) -> str:
    return next((str(account["email"]) for account in made.asked.get("serviceAccounts", ())), made.project.default_account)


def _metadata(made: Instance, items: dict[str, str], address: str) -> dict[str, Any]:
    """What the metadata server says: unlike a TPU VM's, with the user's own project and the instance's own name."""
    project, name = made.project, made.name
    values = {"name": name, "zone": made.zone, "home": project.name, "home_number": project.number, "id": made.number}
    scheduling = {"automatic-restart": "TRUE", "on-host-maintenance": "MIGRATE", "preemptible": "FALSE"}
    values |= {"machine": made.machine_type, "address": address}
    return instance_tree(_account_of(made), [], values, attributes=items, scheduling=scheduling)


def _moment(at: float) -> str:
    """In the form "2026-11-23T04:05:06.789-00:00"."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}-00:00"


def _fits(call: Call, found: Instance) -> bool:
    """By "labels.KEY:*" or "labels.KEY=VALUE"; other filters are refused, not ignored."""
    text = call.query_params.get("filter", "")
    if not text:
        return True
    key, sign, value = text.partition(":*") if text.endswith(":*") else text.partition("=")
    if not sign or not key.startswith("labels."):
        raise invalid(f"Invalid value for field 'filter': '{text}'. The emulator knows labels.KEY:* and labels.KEY=VALUE.")
    labels = found.asked.get("labels", {})
    key = key.removeprefix("labels.")
    return key in labels if sign == ":*" else labels.get(key) == value
