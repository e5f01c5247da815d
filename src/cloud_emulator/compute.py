"""Compute Engine, as far as the VM of a supervisor needs it: instances, their operations, and networks to look at.

The shapes are those of https://cloud.google.com/compute/docs/reference/rest/v1; refusals are recorded/compute.json's.
"""

from __future__ import annotations

import re
import time
import uuid
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloud_emulator import places, recorded
from cloud_emulator.answers import Answer, ApiError, invalid, json_answer
from cloud_emulator.clock import Clock
from cloud_emulator.errors import EmulatorError, suggest

if TYPE_CHECKING:
    from cloud_emulator.machines.machine import Machine
    from cloud_emulator.projects import Project
    from cloud_emulator.tpu.ground import Ground

URL = "https://www.googleapis.com/compute/v1"
SERVICE = "compute.googleapis.com"
MACHINE_TYPES = {"e2-micro": 2, "e2-small": 2, "e2-medium": 2}  # vCPUs, as quota counts them
CPUS, ADDRESSES = "CPUS", "IN_USE_ADDRESSES"
LIMITS = {CPUS: 24.0, ADDRESSES: 64.0}  # in each region; a project that has asked for more than Google's first 8 addresses
SHORTEST_SECONDS, LONGEST_SECONDS = 30, 120 * 86_400  # of maxRunDuration
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


class Refusal(ApiError):
    """A recorded answer."""

    def __init__(self, name: str, **values: object):
        self.body = recorded.answer(name, "compute", **values)["http"]["body"]
        error = self.body["error"]
        super().__init__(error["code"], error["message"], error["errors"][0]["reason"])

    def answer(self, as_text: bool = False) -> Answer:
        return json_answer(self.body, self.status)


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
class _Order:
    name: str
    zone: str | None
    left: int


@dataclass
class Network:
    auto: bool = True  # a subnetwork of its name in every region
    private_access: bool = False
    subnetworks: dict[str, str] = field(default_factory=dict)  # region -> name, in custom mode


class Compute:
    """Its methods may be called from any thread."""

    def __init__(self, ground: Ground):
        self._ground = ground
        self._instances: dict[str, Instance] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._orders: list[_Order] = []
        self.networks = {"default": Network()}
        self.insert_seconds = 0.1
        self.delete_seconds = 0.05

    @property
    def clock(self) -> Clock:
        return self._ground.clock

    # What rehearsals and tests do

    def answer_next(self, name: str, zone: str | None = None, count: int = 1) -> None:
        """The next insertions, in a zone or anywhere, end in that recorded answer."""
        recorded.answer(name, "compute")
        with self.clock.lock:
            self._orders.append(_Order(name, zone, count))

    def vanish(self, name: str) -> None:
        """Gone at once, as if somebody had deleted it."""
        with self.clock.lock:
            self._remove(self._known(name))

    def instances(self) -> dict[str, str]:
        """Status by name."""
        with self.clock.lock:
            return {found.name: found.status for found in self._instances.values()}

    def machine(self, name: str) -> Machine:
        """Its `folder`, `processes()`, `console()` and `metadata`."""
        with self.clock.lock:
            found = self._known(name).machine
        if found is None:
            raise EmulatorError(f"the instance {name} does not run yet")
        return found

    def _known(self, name: str) -> Instance:
        for found in self._instances.values():
            if found.name == name:
                return found
        names = [found.name for found in self._instances.values()]
        raise EmulatorError(f"there is no instance '{name}'.{suggest(name, names)} Known: {', '.join(names) or 'none'}")

    # What the API does

    def insert(self, project: Project, zone: str, body: dict[str, Any], user: str) -> dict[str, Any]:
        """The operation. Raises ApiError."""
        with self.clock.lock:
            made = Instance(project, zone, _name(body), body, self.clock.now(), str(uuid.uuid4().int % 10**19))
            _check(made)
            if made.path in self._instances:
                raise Refusal("name-taken", resource=made.path)
            if (order := self._taken("http", zone)) is not None:
                raise Refusal(order, **self._values(made))
            if (short := self._short(made)) is not None:
                raise Refusal("quota", **{**self._values(made), **short})
            self._instances[made.path] = made
            operation = self._begin("insert", made, user)
            failure = self._taken("operation", zone) or self._without_account(made)
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
        self._ground.history.add("vm running", made.path)
        scheduling = made.asked.get("scheduling", {})
        if seconds := int(scheduling.get("maxRunDuration", {}).get("seconds", 0)):
            made.terminates = self.clock.now() + seconds
            self.clock.at(made.terminates, lambda: self._expire(made))
        items = {item["key"]: item["value"] for item in made.asked.get("metadata", {}).get("items", ())}
        made.machine = self._ground.machines.start(
            made.name, lambda address: _metadata(made, items, address), items.get("startup-script", "")
        )
        self._end(operation)

    def _expire(self, made: Instance) -> None:
        if self._instances.get(made.path) is not made:
            return
        if made.asked["scheduling"].get("instanceTerminationAction") == "DELETE":
            self._remove(made)
        elif made.machine is not None:
            made.machine.power_off()
            made.status, made.terminates = "TERMINATED", None

    def delete(self, project: Project, zone: str, name: str, user: str) -> dict[str, Any]:
        with self.clock.lock:
            found = self.find(project, zone, name)
            found.status = "STOPPING"
            operation = self._begin("delete", found, user)

            def gone() -> None:
                self._remove(found)
                self._end(operation)

            self.clock.after(self.delete_seconds, gone)
            return operation

    def _remove(self, found: Instance) -> None:
        if self._instances.get(found.path) is found:
            del self._instances[found.path]
            self._ground.history.add("vm deleted", found.path)
        if found.machine is not None:
            self._ground.machines.end(found.machine)
            found.machine = None

    def find(self, project: Project, zone: str, name: str) -> Instance:
        path = f"projects/{project.name}/zones/{zone}/instances/{name}"
        if path not in self._instances:
            raise Refusal("not-found", resource=path)
        return self._instances[path]

    def of(self, project: Project, zone: str | None = None) -> list[Instance]:
        return [found for found in self._instances.values() if found.project is project and zone in (None, found.zone)]

    def quotas(self, project: Project, region: str) -> list[dict[str, Any]]:
        mine = [found for found in self.of(project) if places.region_of(found.zone) == region]
        addresses = self._ground.behaviour.addresses
        limits = LIMITS if addresses is None else {**LIMITS, ADDRESSES: float(addresses)}
        usage = {
            CPUS: float(sum(MACHINE_TYPES[found.machine_type] for found in mine)),
            ADDRESSES: float(sum(found.has_address for found in mine)),
        }
        return [{"metric": metric, "limit": limit, "usage": usage[metric]} for metric, limit in limits.items()]

    def _short(self, made: Instance) -> dict[str, Any] | None:
        """The quota that does not suffice."""
        wanted = {CPUS: MACHINE_TYPES[made.machine_type], ADDRESSES: int(made.has_address)}
        for quota in self.quotas(made.project, places.region_of(made.zone)):
            if quota["usage"] + wanted[quota["metric"]] > quota["limit"]:
                return quota
        return None

    def _without_account(self, made: Instance) -> str | None:
        email = _account_of(made)
        known = email in made.project.accounts or email == made.project.default_account
        return None if known or not email.endswith(f"@{made.project.name}.iam.gserviceaccount.com") else "no-account"

    def _taken(self, form: str, zone: str) -> str | None:
        for order in self._orders:
            if order.zone in (None, zone) and form in recorded.answer(order.name, "compute"):
                order.left -= 1
                if order.left <= 0:
                    self._orders.remove(order)
                return order.name
        return None

    def _values(self, made: Instance) -> dict[str, object]:
        return {
            "project": made.project.name,
            "number": made.project.number,
            "zone": made.zone,
            "region": places.region_of(made.zone),
            "resource": made.path,
            "machine": made.machine_type,
            "metric": CPUS,
            "limit": LIMITS[CPUS],
            "account": _account_of(made),
            "user": "emulated-account@tpulm-emulator.iam.gserviceaccount.com",
            "permission": "compute.instances.create",
        }

    # Operations

    def _begin(self, kind: str, target: Instance, user: str) -> dict[str, Any]:
        now = _moment(self.clock.now())
        name = f"operation-{round(self.clock.now() * 1000)}-{uuid.uuid4().hex[:13]}"
        where = f"{URL}/projects/{target.project.name}/zones/{target.zone}"
        made = self._operations[f"{target.project.name}/{target.zone}/{name}"] = {
            "kind": "compute#operation",
            "id": str(uuid.uuid4().int % 10**19),
            "name": name,
            "zone": where,
            "operationType": kind,
            "targetLink": f"{URL}/{target.path}",
            "targetId": target.number,
            "status": "RUNNING",
            "user": user,
            "progress": 0,
            "insertTime": now,
            "startTime": now,
            "selfLink": f"{where}/operations/{name}",
        }
        return made

    def _end(self, operation: dict[str, Any], failure: dict[str, Any] | None = None) -> None:
        operation.update(status="DONE", progress=100, endTime=_moment(self.clock.now()), **(failure or {}))

    def operation(self, project: Project, zone: str, name: str) -> dict[str, Any]:
        with self.clock.lock:
            key = f"{project.name}/{zone}/{name}"
            if key not in self._operations:
                raise Refusal("not-found", resource=f"projects/{project.name}/zones/{zone}/operations/{name}")
            return dict(self._operations[key])

    def wait(self, project: Project, zone: str, name: str) -> dict[str, Any]:
        """Until it is done, or for some seconds: Google's answers after two minutes at the latest."""
        until = time.monotonic() + 5
        while (found := self.operation(project, zone, name))["status"] != "DONE" and time.monotonic() < until:
            time.sleep(0.01)
        return found

    def close(self) -> None:
        """No process of an instance is left when this returns."""
        for found in list(self._instances.values()):
            self._remove(found)


def resource(found: Instance) -> dict[str, Any]:
    """An instance as it is read: whole numbers of 64 bits are texts."""
    asked = found.asked
    scheduling = {"onHostMaintenance": "MIGRATE", "automaticRestart": True, "preemptible": False, **asked.get("scheduling", {})}
    if "maxRunDuration" in scheduling:
        scheduling["maxRunDuration"] = {"seconds": str(scheduling["maxRunDuration"]["seconds"])}
    ends = {} if found.terminates is None else {"terminationTimestamp": _moment(found.terminates)}
    zone = f"{URL}/projects/{found.project.name}/zones/{found.zone}"
    return {
        "kind": "compute#instance",
        "id": found.number,
        "creationTimestamp": _moment(found.created),
        "name": found.name,
        "zone": zone,
        "status": found.status,
        "machineType": f"{zone}/machineTypes/{found.machine_type}",
        "labels": asked.get("labels", {}),
        "metadata": {"kind": "compute#metadata", **asked.get("metadata", {})},
        "serviceAccounts": asked.get("serviceAccounts", []),
        "scheduling": {"provisioningModel": "STANDARD", **scheduling},
        "resourceStatus": {"scheduling": ends},
        "networkInterfaces": asked.get("networkInterfaces", []),
        "disks": asked.get("disks", []),
        "selfLink": f"{URL}/{found.path}",
    }


def network(project: Project, name: str, found: Network) -> dict[str, Any]:
    where = f"{URL}/projects/{project.name}"
    there = dict.fromkeys(places.regions(), name) if found.auto else found.subnetworks
    return {
        "kind": "compute#network",
        "id": str(zlib.crc32(name.encode())),
        "name": name,
        "selfLink": f"{where}/global/networks/{name}",
        "autoCreateSubnetworks": found.auto,
        "subnetworks": [f"{where}/regions/{region}/subnetworks/{each}" for region, each in there.items()],
        "routingConfig": {"routingMode": "REGIONAL"},
    }


def subnetwork(project: Project, region: str, name: str, networks: dict[str, Network]) -> dict[str, Any]:
    """Raises Refusal (404)."""
    where = f"{URL}/projects/{project.name}"
    for of, found in networks.items():
        if name == (of if found.auto and region in places.regions() else found.subnetworks.get(region)):
            return {
                "kind": "compute#subnetwork",
                "name": name,
                "network": f"{where}/global/networks/{of}",
                "ipCidrRange": "10.128.0.0/20",
                "region": f"{where}/regions/{region}",
                "selfLink": f"{where}/regions/{region}/subnetworks/{name}",
                "privateIpGoogleAccess": found.private_access,
                "purpose": "PRIVATE",
                "stackType": "IPV4_ONLY",
            }
    raise Refusal("not-found", resource=f"projects/{project.name}/regions/{region}/subnetworks/{name}")


def _name(body: dict[str, Any]) -> str:
    name = str(body.get("name", ""))
    if not _NAME.fullmatch(name):
        raise invalid(f"Invalid value for field 'resource.name': '{name}'. Must be a match of regex '{_NAME.pattern}'")
    return name


def _check(made: Instance) -> None:
    """Raises ApiError (400) for a body that Google would not take."""
    body = made.asked
    if made.machine_type not in MACHINE_TYPES:
        raise invalid(
            f"Invalid value for field 'resource.machineType': '{body['machineType']}'. Machine type with name "
            f"'{made.machine_type}' does not exist in zone '{made.zone}'."
        )
    if not any(disk.get("boot") and disk.get("initializeParams", {}).get("sourceImage") for disk in body.get("disks", ())):
        raise invalid("Invalid value for field 'resource.disks': ''. No boot disk specified.")
    if not body.get("networkInterfaces"):
        raise invalid("Invalid value for field 'resource.networkInterfaces': ''. At least one network interface is required.")
    scheduling = body.get("scheduling", {})
    if duration := scheduling.get("maxRunDuration"):
        if not SHORTEST_SECONDS <= int(duration.get("seconds", 0)) <= LONGEST_SECONDS:
            raise invalid("Invalid value for field 'resource.scheduling.maxRunDuration': it is from 30 seconds to 120 days.")
        if not scheduling.get("instanceTerminationAction"):
            raise invalid("Invalid value for field 'resource.scheduling': maxRunDuration needs an instanceTerminationAction.")


def _account_of(made: Instance) -> str:
    return next((str(account["email"]) for account in made.asked.get("serviceAccounts", ())), made.project.default_account)


def _metadata(made: Instance, items: dict[str, str], address: str) -> dict[str, Any]:
    """What the metadata server says: unlike a TPU VM's, with the user's own project and the instance's own name."""
    from cloud_emulator.tpu.vm import service_account

    number = made.project.number
    account = service_account(_account_of(made))
    return {
        "instance": {
            "attributes": items,
            "hostname": f"{made.name}.{made.zone}.c.{made.project.name}.internal",
            "id": made.number,
            "image": "projects/debian-cloud/global/images/emulated",
            "machine-type": f"projects/{number}/machineTypes/{made.machine_type}",
            "maintenance-event": "NONE",
            "name": made.name,
            "network-interfaces": {"0": {"ip": address, "network": f"projects/{number}/networks/default"}},
            "preempted": "FALSE",
            "scheduling": {"automatic-restart": "TRUE", "on-host-maintenance": "MIGRATE", "preemptible": "FALSE"},
            "service-accounts": {"default": account, _account_of(made): account},
            "tags": "[]",
            "zone": f"projects/{number}/zones/{made.zone}",
        },
        "project": {"attributes": {}, "numeric-project-id": str(number), "project-id": made.project.name},
        "universe": {"universe-domain": "googleapis.com", "universe_domain": "googleapis.com"},
    }


def _moment(at: float) -> str:
    """As "2026-11-23T04:05:06.789-00:00"."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}-00:00"
