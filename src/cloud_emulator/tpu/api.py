"""The methods of the Cloud TPU API v2, below /v2.

JSON is converted to google-cloud-tpu's own types and back, so that the format cannot drift from its client's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import proto
from google.cloud.tpu_v2 import types
from google.protobuf import json_format
from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.catalogue import CONFIG_TYPES, Accelerator, region_of
from cloud_emulator.errors import ApiError, as_rpc_error, rpc_error
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.tpu.control import Tpu
from cloud_emulator.tpu.nodes import TpuSlice
from cloud_emulator.tpu.queue import Queued
from cloud_emulator.tpu.state import Table, raw, resource_refusal

Kind = TypeVar("Kind", bound=proto.Message)

SERVICE = "tpu.googleapis.com"
LOCATIONS = "/projects/{project}/locations"
PLACE = LOCATIONS + "/{zone}"
NODES = PLACE + "/nodes"
QUEUE = PLACE + "/queuedResources"
OPERATIONS = PLACE + "/operations"
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z0-9]+")
LOCATIONS_ON_A_PAGE = 5  # unless asked for more; Google does not say how many
UNBILLED = ("get", "list", "delete", "stop", "cancel")


class TpuApi:
    def __init__(self, tpu: Tpu):
        self._tpu = tpu
        self._catalogue = tpu.projects.catalogue

    def routes(self) -> list[BaseRoute]:
        """Answers get the call and the full name of its resource, projects/P/locations/Z/nodes/N, or of the collection."""
        nodes, queue, operations = self._tpu.node_table, self._tpu.queue, self._tpu.state.operations
        kinds, versions, operation = PLACE + "/acceleratorTypes", PLACE + "/runtimeVersions", "tpu.operations."
        table: list[tuple[str, str, str, str, Callable[[Call, str], Any]]] = [
            ("LIST nodes", "GET", NODES, "tpu.nodes.list", _listed("nodes", nodes)),
            ("CREATE node", "POST", NODES, "tpu.nodes.create", self.create_node),
            ("STOP node", "POST", NODES + "/{id}:stop", "tpu.nodes.stop", _named(nodes.stop)),
            ("START node", "POST", NODES + "/{id}:start", "tpu.nodes.start", _named(nodes.start)),
            ("GET guest attributes", "POST", NODES + "/{id}:getGuestAttributes", "tpu.nodes.get", self.guest_attributes),
            ("GET node", "GET", NODES + "/{id}", "tpu.nodes.get", _named(nodes.find)),
            ("UPDATE node", "PATCH", NODES + "/{id}", "tpu.nodes.update", self.update_node),
            ("DELETE node", "DELETE", NODES + "/{id}", "tpu.nodes.delete", _named(nodes.delete)),
            ("LIST queued", "GET", QUEUE, "tpu.nodes.list", _listed("queuedResources", queue)),
            ("CREATE queued", "POST", QUEUE, "tpu.nodes.create", self.create_queued),
            ("RESET queued", "POST", QUEUE + "/{id}:reset", "tpu.nodes.reset", _named(queue.reset)),
            ("GET queued", "GET", QUEUE + "/{id}", "tpu.nodes.get", _named(queue.find)),
            ("DELETE queued", "DELETE", QUEUE + "/{id}", "tpu.nodes.delete", self.delete_queued),
            ("LIST operations", "GET", OPERATIONS, operation + "list", _listed("operations", operations)),
            ("CANCEL operation", "POST", OPERATIONS + "/{id}:cancel", operation + "cancel", _named(nodes.cancel)),
            ("GET operation", "GET", OPERATIONS + "/{id}", operation + "get", _named(operations.find)),
            ("LIST types", "GET", kinds, "tpu.acceleratortypes.list", self.list_offered),
            ("GET type", "GET", kinds + "/{id}", "tpu.acceleratortypes.get", self.get_offered),
            ("LIST versions", "GET", versions, "tpu.runtimeversions.list", self.list_offered),
            ("GET version", "GET", versions + "/{id}", "tpu.runtimeversions.get", self.get_offered),
            ("LIST locations", "GET", LOCATIONS, "tpu.locations.list", self.list_locations),
            ("GET location", "GET", PLACE, "tpu.locations.get", _named(_location)),
        ]
        return [
            Endpoint(kind, method, path, permission, self._guarded(kind, path, permission, do), api="tpu")
            for kind, method, path, permission, do in table
        ]

    def _guarded(self, request: str, path: str, permission: str, do: Callable[[Call, str], Any]) -> Callable[..., Any]:
        """Wrap `do`: give ordered answers first, then check project, service, permission and zone."""
        collection = path.removeprefix(PLACE).partition("/")[2].partition("/")[0].partition(":")[0]

        def guarded(call: Call, project: str, zone: str | None = None, id: str = "") -> dict[str, Any]:
            projects, owner = self._tpu.projects, self._tpu.projects.find(project)
            query, kind = call.query_params, re.search(rb'"acceleratorType":\s*"([^"]*)"', call.data)
            resource = id or query.get("nodeId") or query.get("queuedResourceId")
            arguments = {
                "project": project if owner is None else owner.name,
                "number": None if owner is None else owner.number,
                "zone": zone,
                "region": None if zone is None else region_of(zone),
                "permission": permission,
                "node": id if collection == "nodes" and id else None,
                "resource": f"{collection}/{resource}" if resource else None,
                "type": None if kind is None else kind[1].decode(errors="replace"),
            }
            values = {name: value for name, value in arguments.items() if value is not None}
            try:
                with self._tpu.clock.lock:
                    if (ordered := self._tpu.state.orders.take("http", request, zone)) is not None:
                        raise recorded.refusal(ordered, **values)
                    owner = projects.permitted(project, SERVICE, billed=permission.rpartition(".")[2] not in UNBILLED)
                    if permission and not owner.is_granted(permission):
                        raise recorded.refusal("iam" if "node" in values else "iam-in-detail", **values)
                    if zone is not None and zone not in self._catalogue.zones:
                        name = "zone-without-tpus" if ZONE.fullmatch(zone) else "location-policy"
                        raise recorded.refusal(name, **values)
                    parts = ("projects", owner.name, "locations", zone, collection, id)
                    return as_dict(do(call, "/".join(filter(None, parts))), call)
            except ApiError as error:
                where = f"projects/{project}" + (f"/locations/{zone}" if zone else "")
                raise as_rpc_error(error, permission, where) from None

        return guarded

    def create_node(self, call: Call, name: str) -> Any:
        return self._tpu.node_table.create(f"{name}/{call.query_params.get('nodeId', '')}", parsed(types.Node, call.content()))

    def update_node(self, call: Call, name: str) -> Any:
        mask = call.query_params.get("updateMask", "")
        return self._tpu.node_table.change(name, parsed(types.Node, call.content()), mask.split(","))

    def guest_attributes(self, call: Call, name: str) -> Any:
        """By worker, in order: those of a namespace, or of one key in it, or all."""
        request = parsed(types.GetGuestAttributesRequest, call.content())
        machines = self._tpu.node_table.find(name).machines
        workers = [int(worker) for worker in request.worker_ids if worker.isdecimal()] or range(len(machines))
        if any(worker >= len(machines) for worker in workers):
            raise rpc_error(400, f"{name} has {len(machines)} workers.")
        namespace, _, key = request.query_path.strip("/").partition("/")
        answers = []
        for worker in workers:
            tree = machines[worker].metadata.get("instance/guest-attributes")
            items = [
                {"namespace": space, "key": name, "value": value}
                for space, pairs in (tree if isinstance(tree, dict) else {}).items()
                for name, value in pairs.items()
                if namespace in ("", space) and key in ("", name)
            ]
            answers.append({"queryPath": request.query_path, "queryValue": {"items": items} if items else {}})
        return {"guestAttributes": answers}

    def create_queued(self, call: Call, name: str) -> Any:
        queued, content = call.query_params.get("queuedResourceId", ""), call.content()
        tpu = content.get("tpu")
        if isinstance(tpu, dict) and isinstance(tpu.get("nodeSpec"), dict):  # as SkyPilot sends it: its pull request 8481
            tpu["nodeSpec"] = [tpu["nodeSpec"]]
        return self._tpu.queue.create(f"{name}/{queued}", parsed(types.QueuedResource, content))

    def delete_queued(self, call: Call, name: str) -> Any:
        return self._tpu.queue.delete(name, call.flag("force"))

    # What is offered where

    def _offered(self, collection: str) -> list[dict[str, Any]]:
        """The accelerator types or the runtime versions of a zone."""
        *_, zone, kind = collection.split("/")
        if kind == "acceleratorTypes":
            return [_type(f"{collection}/{accelerator.name}", accelerator) for accelerator in self._catalogue.zones[zone]]
        versions = self._catalogue.runtime_versions(zone)
        return [{"name": f"{collection}/{version}", "version": version} for version in versions]

    def list_offered(self, call: Call, name: str) -> Any:
        return page(name.rpartition("/")[2], self._offered(name), call)

    def get_offered(self, call: Call, name: str) -> Any:
        for item in self._offered(name.rpartition("/")[0]):
            if item["name"] == name:
                return item
        raise resource_refusal("not-found", name)

    def list_locations(self, call: Call, name: str) -> Any:
        return page("locations", [_location(f"{name}/{zone}") for zone in self._catalogue.zones], call, LOCATIONS_ON_A_PAGE)


def parsed(kind: type[Kind], content: dict[str, Any]) -> Kind:
    """Raises ApiError for fields that the type does not have."""
    message = kind()
    try:
        json_format.ParseDict(content, raw(message))
    except json_format.ParseError as error:
        raise rpc_error(400, f"Invalid JSON payload received. {error}") from None
    return message


def as_dict(item: Any, call: Call) -> dict[str, Any]:
    """JSON of a message, or of a node or a queued resource."""
    if isinstance(item, dict):
        return item
    message = item.node if isinstance(item, TpuSlice) else item.resource if isinstance(item, Queued) else item
    numbers = "enum-encoding=int" in call.query_params.get("$alt", "")
    pure = raw(message) if isinstance(message, proto.Message) else message
    fields = json_format.MessageToDict(pure, use_integers_for_enums=numbers)
    if "@type" not in fields.get("metadata", ()):
        return fields
    # Fields that are false are sent, too: recorded/tpu.json, "operation". google-cloud-tpu has a type of its own.
    usual = recorded.load("tpu")["operation"]["running"]
    return usual | fields | {"metadata": usual["metadata"] | fields["metadata"] | {"@type": usual["metadata"]["@type"]}}


def page(key: str, entries: list[Any], call: Call, usual: int = 500) -> dict[str, Any]:
    items, token = call.page(entries, call.integer("pageSize") or usual)
    return ({key: [as_dict(item, call) for item in items]} if items else {}) | ({"nextPageToken": token} if token else {})


def _named(do: Callable[[str], Any]) -> Callable[[Call, str], Any]:
    return lambda call, name: do(name)


def _listed(key: str, table: Table[Any]) -> Callable[[Call, str], Any]:
    return lambda call, name: page(key, table.within(name), call)


def _type(name: str, accelerator: Accelerator) -> dict[str, Any]:
    config = {"type": CONFIG_TYPES[accelerator.generation], "topology": accelerator.topology}
    return {"name": name, "type": accelerator.name, "acceleratorConfigs": [config]}


def _location(name: str) -> dict[str, Any]:
    zone = name.rpartition("/")[2]
    return {"name": name, "locationId": zone, "labels": {"cloud.googleapis.com/region": region_of(zone)}}
