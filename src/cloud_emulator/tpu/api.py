"""Calls of the Cloud TPU API v2, below /v2.

JSON becomes google-cloud-tpu's own types and back, so that what is spoken cannot drift from what its client speaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import proto
from google.cloud.tpu_v2 import types
from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.catalogue import CONFIG_TYPES, Accelerator, region_of
from cloud_emulator.errors import ApiError, as_rpc_error, rpc_error
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.tpu.control import Tpu
from cloud_emulator.tpu.state import raw, resource_refusal

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
        self._nodes, self._queue, self._operations = tpu.node_table, tpu.queue, tpu.state.operations
        self._catalogue = tpu.projects.catalogue

    def routes(self) -> list[BaseRoute]:
        operation = "tpu.operations."
        table = [
            ("LIST nodes", "GET", NODES, "tpu.nodes.list", self.list_nodes),
            ("CREATE node", "POST", NODES, "tpu.nodes.create", self.create_node),
            ("STOP node", "POST", NODES + "/{node}:stop", "tpu.nodes.stop", self.stop_node),
            ("START node", "POST", NODES + "/{node}:start", "tpu.nodes.start", self.start_node),
            ("GET guest attributes", "POST", NODES + "/{node}:getGuestAttributes", "tpu.nodes.get", self.guest_attributes),
            ("GET node", "GET", NODES + "/{node}", "tpu.nodes.get", self.get_node),
            ("DELETE node", "DELETE", NODES + "/{node}", "tpu.nodes.delete", self.delete_node),
            ("PATCH node", "PATCH", NODES + "/{node}", "tpu.nodes.update", self.patch_node),
            ("LIST queued", "GET", QUEUE, "tpu.nodes.list", self.list_queued),
            ("CREATE queued", "POST", QUEUE, "tpu.nodes.create", self.create_queued),
            ("RESET queued", "POST", QUEUE + "/{queued}:reset", "tpu.nodes.reset", self.reset_queued),
            ("GET queued", "GET", QUEUE + "/{queued}", "tpu.nodes.get", self.get_queued),
            ("DELETE queued", "DELETE", QUEUE + "/{queued}", "tpu.nodes.delete", self.delete_queued),
            ("LIST operations", "GET", OPERATIONS, operation + "list", self.list_operations),
            ("CANCEL operation", "POST", OPERATIONS + "/{operation}:cancel", operation + "get", self.cancel_operation),
            ("GET operation", "GET", OPERATIONS + "/{operation}", operation + "get", self.get_operation),
            ("DELETE operation", "DELETE", OPERATIONS + "/{operation}", operation + "delete", self.delete_operation),
            ("LIST types", "GET", PLACE + "/acceleratorTypes", "tpu.acceleratortypes.list", self.list_types),
            ("GET type", "GET", PLACE + "/acceleratorTypes/{kind}", "tpu.acceleratortypes.get", self.get_type),
            ("LIST versions", "GET", PLACE + "/runtimeVersions", "tpu.runtimeversions.list", self.list_versions),
            ("GET version", "GET", PLACE + "/runtimeVersions/{version}", "tpu.runtimeversions.get", self.get_version),
            ("GET identity", "POST", PLACE + ":generateServiceIdentity", "", self.identity),
            ("LIST locations", "GET", LOCATIONS, "tpu.locations.list", self.list_locations),
            ("GET location", "GET", PLACE, "tpu.locations.get", self.get_location),
        ]
        return [
            Endpoint(name, method, path, permission, self._guarded(name, permission, do), api="tpu")
            for name, method, path, permission, do in table
        ]

    def _guarded(self, request: str, permission: str, do: Callable[..., Any]) -> Callable[..., Any]:
        """What was ordered is answered first; then project, service, permission and zone are looked at."""

        def guarded(call: Call, project: str, zone: str | None = None, **parameters: str) -> dict[str, Any]:
            tpu, values = self._tpu, self._values(call, project, zone, permission, parameters)
            where = f"projects/{project}" + (f"/locations/{zone}" if zone else "")
            try:
                with tpu.clock.lock:
                    if (ordered := tpu.state.refusal(request, zone, values)) is not None:
                        raise ordered
                    billed = permission.rpartition(".")[2] not in UNBILLED
                    found = tpu.projects.permitted(project, SERVICE, billed=billed)
                    if permission and not found.is_granted(permission):
                        raise recorded.refusal("iam" if "node" in parameters else "iam-in-detail", **values)
                    if zone is not None and zone not in self._catalogue.zones:
                        name = "zone-without-tpus" if ZONE.fullmatch(zone) else "location-policy"
                        raise recorded.refusal(name, **values)
                    location = f"projects/{found.name}/locations"
                    answer = do(call, location if zone is None else f"{location}/{zone}", **parameters)
                    return answer if isinstance(answer, dict) else as_dict(answer, call)
            except ApiError as error:
                raise as_rpc_error(error, permission, where) from None

        return guarded

    def _values(
        self, call: Call, project: str, zone: str | None, permission: str, parameters: dict[str, str]
    ) -> dict[str, object]:
        """What recorded answers to this request are filled with."""
        found = self._tpu.projects.find(project)
        kind = re.search(rb'"acceleratorType":\s*"([^"]*)"', call.data)
        collection, resource = [*call.scope["path"].partition("/locations/")[2].split("/")[1:3], "", ""][:2]
        query = call.query_params
        resource = resource.partition(":")[0] or query.get("nodeId") or query.get("queuedResourceId") or ""
        values = {
            "project": project if found is None else found.name,
            "number": None if found is None else found.number,
            "zone": zone,
            "region": None if zone is None else region_of(zone),
            "permission": permission,
            "node": parameters.get("node"),
            "resource": f"{collection}/{resource}" if resource else None,
            "type": None if kind is None else kind[1].decode(errors="replace"),
        }
        return {name: value for name, value in values.items() if value is not None}

    # Nodes

    def list_nodes(self, call: Call, place: str) -> Any:
        return page("nodes", self._nodes.list(place), call)

    def get_node(self, call: Call, place: str, node: str) -> Any:
        return self._nodes.get(f"{place}/nodes/{node}").node

    def create_node(self, call: Call, place: str) -> Any:
        return self._nodes.create(f"{place}/nodes/{call.query_params.get('nodeId', '')}", parsed(types.Node, call))

    def delete_node(self, call: Call, place: str, node: str) -> Any:
        return self._nodes.delete(f"{place}/nodes/{node}")

    def stop_node(self, call: Call, place: str, node: str) -> Any:
        return self._nodes.stop(f"{place}/nodes/{node}")

    def start_node(self, call: Call, place: str, node: str) -> Any:
        return self._nodes.start(f"{place}/nodes/{node}")

    def patch_node(self, call: Call, place: str, node: str) -> Any:
        mask = [_snake(path) for path in call.query_params.get("updateMask", "").split(",") if path]
        if not mask:
            raise rpc_error(400, "The update mask is required.")
        return self._nodes.patch(f"{place}/nodes/{node}", parsed(types.Node, call), mask)

    def guest_attributes(self, call: Call, place: str, node: str) -> Any:
        """By worker, in order: those of a namespace, or of one key in it, or all."""
        wanted = parsed(types.GetGuestAttributesRequest, call)
        machines = self._nodes.get(f"{place}/nodes/{node}").machines
        workers = [int(worker) for worker in wanted.worker_ids if worker.isdecimal()] or range(len(machines))
        if any(worker >= len(machines) for worker in workers):
            raise rpc_error(400, f"{place}/nodes/{node} has {len(machines)} workers.")
        namespace, _, key = wanted.query_path.strip("/").partition("/")
        answers = []
        for worker in workers:
            tree = machines[worker].metadata.get("instance/guest-attributes")
            items = [
                {"namespace": space, "key": name, "value": value}
                for space, pairs in (tree if isinstance(tree, dict) else {}).items()
                for name, value in pairs.items()
                if namespace in ("", space) and key in ("", name)
            ]
            answers.append({"queryPath": wanted.query_path, "queryValue": {"items": items} if items else {}})
        return {"guestAttributes": answers}

    # Queued resources

    def list_queued(self, call: Call, place: str) -> Any:
        return page("queuedResources", self._queue.list(place), call)

    def get_queued(self, call: Call, place: str, queued: str) -> Any:
        return self._queue.get(f"{place}/queuedResources/{queued}").resource

    def create_queued(self, call: Call, place: str) -> Any:
        name = f"{place}/queuedResources/{call.query_params.get('queuedResourceId', '')}"
        return self._queue.create(name, parsed(types.QueuedResource, call))

    def delete_queued(self, call: Call, place: str, queued: str) -> Any:
        return self._queue.delete(f"{place}/queuedResources/{queued}", call.flag("force"))

    def reset_queued(self, call: Call, place: str, queued: str) -> Any:
        return self._queue.reset(f"{place}/queuedResources/{queued}")

    # Operations

    def list_operations(self, call: Call, place: str) -> Any:
        return page("operations", self._operations.list(place), call)

    def get_operation(self, call: Call, place: str, operation: str) -> Any:
        return self._operations.get(f"{place}/operations/{operation}")

    def delete_operation(self, call: Call, place: str, operation: str) -> Any:
        self._operations.forget(f"{place}/operations/{operation}")
        return {}

    def cancel_operation(self, call: Call, place: str, operation: str) -> Any:
        """The service tries its best, which for TPUs is nothing."""
        self._operations.get(f"{place}/operations/{operation}")
        return {}

    # What there is where

    def list_types(self, call: Call, place: str) -> Any:
        offered = self._catalogue.zones[place.rpartition("/")[2]]
        return page("acceleratorTypes", [_type(place, found) for found in offered], call)

    def get_type(self, call: Call, place: str, kind: str) -> Any:
        for found in self._catalogue.zones[place.rpartition("/")[2]]:
            if found.name == kind:
                return _type(place, found)
        raise resource_refusal("not-found", f"{place}/acceleratorTypes/{kind}")

    def list_versions(self, call: Call, place: str) -> Any:
        versions = self._catalogue.runtime_versions(place.rpartition("/")[2])
        return page("runtimeVersions", [_version(place, version) for version in versions], call)

    def get_version(self, call: Call, place: str, version: str) -> Any:
        if version not in self._catalogue.runtime_versions(place.rpartition("/")[2]):
            raise resource_refusal("not-found", f"{place}/runtimeVersions/{version}")
        return _version(place, version)

    def list_locations(self, call: Call, place: str) -> Any:
        return page("locations", [_location(f"{place}/{zone}") for zone in self._catalogue.zones], call, LOCATIONS_ON_A_PAGE)

    def get_location(self, call: Call, place: str) -> Any:
        return _location(place)

    def identity(self, call: Call, place: str) -> Any:
        number = self._tpu.projects.known(place.split("/")[1]).number
        return {"identity": {"email": f"service-{number}@cloud-tpu.iam.gserviceaccount.com"}}


def parsed(kind: type[Kind], call: Call) -> Kind:
    """Raises ApiError for what the type does not have."""
    message = kind()
    try:
        json_format.ParseDict(call.content(), raw(message))
    except json_format.ParseError as error:
        raise rpc_error(400, f"Invalid JSON payload received. {error}") from None
    return message


def as_dict(message: proto.Message | Message, call: Call) -> dict[str, Any]:
    numbers = "enum-encoding=int" in call.query_params.get("$alt", "")
    pure = raw(message) if isinstance(message, proto.Message) else message
    found = json_format.MessageToDict(pure, use_integers_for_enums=numbers)
    kind = "type.googleapis.com/google.cloud.common.OperationMetadata"  # google-cloud-tpu has a type of its own for it
    return found | {"metadata": {**found["metadata"], "@type": kind}} if "@type" in found.get("metadata", ()) else found


def page(key: str, found: list[Any], call: Call, usual: int = 500) -> dict[str, Any]:
    """One page of a listing of messages or dictionaries."""
    items, token = call.page(found, call.integer("pageSize") or usual)
    shown = [item if isinstance(item, dict) else as_dict(item, call) for item in items]
    return ({key: shown} if shown else {}) | ({"nextPageToken": token} if token else {})


def _type(place: str, found: Accelerator) -> dict[str, Any]:
    config = {"type": CONFIG_TYPES[found.generation], "topology": found.topology}
    return {"name": f"{place}/acceleratorTypes/{found.name}", "type": found.name, "acceleratorConfigs": [config]}


def _version(place: str, version: str) -> dict[str, Any]:
    return {"name": f"{place}/runtimeVersions/{version}", "version": version}


def _location(name: str) -> dict[str, Any]:
    zone = name.rpartition("/")[2]
    return {"name": name, "locationId": zone, "labels": {"cloud.googleapis.com/region": region_of(zone)}}


def _snake(path: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in path.strip())
