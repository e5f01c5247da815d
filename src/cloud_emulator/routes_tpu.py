"""Calls of the Cloud TPU API v2."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cloud_emulator import places
from cloud_emulator.answers import Answer, ApiError, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.projects import Projects
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError, bad_argument, in_these_words, not_found, recorded_refusal

if TYPE_CHECKING:
    from cloud_emulator.tpu.world import World

PREFIX = "v2"
SERVICE = "tpu.googleapis.com"
LOCATIONS = "v2/projects/{project}/locations"
PLACE = LOCATIONS + "/{zone}"
NODES = PLACE + "/nodes"
QUEUE = PLACE + "/queuedResources"
OPERATIONS = PLACE + "/operations"
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z0-9]+")
LOCATIONS_ON_A_PAGE = 5  # unless asked for more; Google does not say how many
OF_PLACES = ("location-policy", "location-unauthorized", "type-not-in-zone", "type-not-permitted", "zone-without-tpus")
UNBILLED = ("get", "list", "delete", "stop", "cancel")


class TpuRoutes:
    """`world` is made when it is first asked for."""

    def __init__(self, projects: Projects, world: Callable[[], World]):
        self._projects = projects
        self._world = world

    def routes(self) -> list[Route]:
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
            ("LIST operations", "GET", OPERATIONS, "tpu.operations.list", self.list_operations),
            ("CANCEL operation", "POST", OPERATIONS + "/{operation}:cancel", "tpu.operations.get", self.cancel_operation),
            ("GET operation", "GET", OPERATIONS + "/{operation}", "tpu.operations.get", self.get_operation),
            ("DELETE operation", "DELETE", OPERATIONS + "/{operation}", "tpu.operations.delete", self.delete_operation),
            ("LIST types", "GET", PLACE + "/acceleratorTypes", "tpu.acceleratortypes.list", self.list_types),
            ("GET type", "GET", PLACE + "/acceleratorTypes/{kind}", "tpu.acceleratortypes.get", self.get_type),
            ("LIST versions", "GET", PLACE + "/runtimeVersions", "tpu.runtimeversions.list", self.list_versions),
            ("GET version", "GET", PLACE + "/runtimeVersions/{version}", "tpu.runtimeversions.get", self.get_version),
            ("GET identity", "POST", LOCATIONS + "/{zone}:generateServiceIdentity", "", self.identity),
            ("LIST locations", "GET", LOCATIONS, "tpu.locations.list", self.list_locations),
            ("GET location", "GET", PLACE, "tpu.locations.get", self.get_location),
        ]
        return [
            Route(kind, method, path, permission, self._guarded(kind, permission, do))
            for kind, method, path, permission, do in table
        ]

    def _guarded(self, kind: str, permission: str, do: Callable[..., Answer]) -> Callable[..., Answer]:
        """What was ordered is answered first; then project, service, permission and zone are looked at."""

        def guarded(call: Call, project: str, zone: str | None = None, **parameters: str) -> Answer:
            where = f"projects/{project}/locations/{zone}" if zone else f"projects/{project}"
            values = self._values(call, project, zone, permission, parameters)
            world = self._world()
            try:
                with world.clock.lock:
                    if (ordered := world.orders.http(kind, zone, values)) is not None:
                        raise ordered
                    billed = permission.rpartition(".")[2] not in UNBILLED
                    found = self._projects.permitted(project, SERVICE, billed=billed)
                    if permission and not found.is_granted(permission):
                        raise recorded_refusal("iam" if "node" in parameters else "iam-in-detail", **values)
                    if zone is not None and zone not in self._zones():
                        raise recorded_refusal("zone-without-tpus" if ZONE.fullmatch(zone) else "location-policy", **values)
                    location = f"projects/{found.name}/locations"
                    answer = do(call, world, location if zone is None else f"{location}/{zone}", **parameters)
            except ApiError as error:
                if self._was("refusals") and isinstance(error, RpcError) and error.recorded in OF_PLACES:
                    raise RpcError(404, f"Location {zone} is not found or access is unauthorized.") from None
                raise in_these_words(error, permission, where) from None
            if isinstance(answer.body, bytes) and not self._was("operations"):
                answer.body = answer.body.replace(b"google.cloud.tpu.v2.Op", b"google.cloud.common.Op")  # type of metadata
            return answer

        return guarded

    def _zones(self) -> list[str]:
        return [zone for zone in places.offered() if zone not in places.AI_ZONES or not self._was("zones")]

    def _was(self, old: str) -> bool:
        return old in self._projects.as_it_was

    def _values(
        self, call: Call, project: str, zone: str | None, permission: str, parameters: dict[str, str]
    ) -> dict[str, object]:
        """What recorded answers to this request are filled with."""
        found = self._projects.find(project)
        kind = re.search(rb'"acceleratorType":\s*"([^"]*)"', call.body)
        collection, resource = [*call.segments[5:7], "", ""][:2]
        resource = resource.partition(":")[0] or call.query.get("nodeId") or call.query.get("queuedResourceId") or ""
        values = {
            "project": project if found is None else found.name,
            "number": None if found is None else found.number,
            "zone": zone,
            "region": None if zone is None else places.region_of(zone),
            "permission": permission,
            "node": parameters.get("node"),
            "resource": f"{collection}/{resource}" if resource else None,
            "type": None if kind is None else kind[1].decode(errors="replace"),
        }
        return {name: value for name, value in values.items() if value is not None}

    # Nodes

    def list_nodes(self, call: Call, world: World, place: str) -> Answer:
        return _messages().page("nodes", world.nodes.list(place), call)

    def get_node(self, call: Call, world: World, place: str, node: str) -> Answer:
        return _messages().answer(world.nodes.get(f"{place}/nodes/{node}").node, call)

    def create_node(self, call: Call, world: World, place: str) -> Answer:
        messages = _messages()
        wanted = messages.parsed(messages.types.Node, call.json())
        return messages.answer(world.nodes.create(f"{place}/nodes/{call.query.get('nodeId', '')}", wanted), call)

    def delete_node(self, call: Call, world: World, place: str, node: str) -> Answer:
        return _messages().answer(world.nodes.delete(f"{place}/nodes/{node}"), call)

    def stop_node(self, call: Call, world: World, place: str, node: str) -> Answer:
        return _messages().answer(world.nodes.stop(f"{place}/nodes/{node}"), call)

    def start_node(self, call: Call, world: World, place: str, node: str) -> Answer:
        return _messages().answer(world.nodes.start(f"{place}/nodes/{node}"), call)

    def patch_node(self, call: Call, world: World, place: str, node: str) -> Answer:
        messages = _messages()
        mask = [_snake(path) for path in call.query.get("updateMask", "").split(",") if path]
        if not mask:
            raise bad_argument("The update mask is required.")
        changes = messages.parsed(messages.types.Node, call.json())
        return messages.answer(world.nodes.patch(f"{place}/nodes/{node}", changes, mask), call)

    def guest_attributes(self, call: Call, world: World, place: str, node: str) -> Answer:
        """By worker, in order: those of a namespace, or of one key in it, or all."""
        messages = _messages()
        wanted = messages.parsed(messages.types.GetGuestAttributesRequest, call.json())
        machines = world.nodes.get(f"{place}/nodes/{node}").machines
        if self._was("guest-attributes"):
            raise RpcError(405, "The API has no guest attributes.")
        workers = [int(worker) for worker in wanted.worker_ids if worker.isdecimal()] or range(len(machines))
        if any(worker >= len(machines) for worker in workers):
            raise bad_argument(f"{place}/nodes/{node} has {len(machines)} workers.")
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
        return json_answer({"guestAttributes": answers})

    # Queued resources

    def list_queued(self, call: Call, world: World, place: str) -> Answer:
        return _messages().page("queuedResources", world.queue.list(place), call)

    def get_queued(self, call: Call, world: World, place: str, queued: str) -> Answer:
        return _messages().answer(world.queue.get(f"{place}/queuedResources/{queued}").resource, call)

    def create_queued(self, call: Call, world: World, place: str) -> Answer:
        messages = _messages()
        resource = messages.parsed(messages.types.QueuedResource, call.json())
        name = f"{place}/queuedResources/{call.query.get('queuedResourceId', '')}"
        return messages.answer(world.queue.create(name, resource), call)

    def delete_queued(self, call: Call, world: World, place: str, queued: str) -> Answer:
        return _messages().answer(world.queue.delete(f"{place}/queuedResources/{queued}", call.flag("force")), call)

    def reset_queued(self, call: Call, world: World, place: str, queued: str) -> Answer:
        return _messages().answer(world.queue.reset(f"{place}/queuedResources/{queued}"), call)

    # Operations

    def list_operations(self, call: Call, world: World, place: str) -> Answer:
        messages = _messages()
        return messages.page("operations", [messages.as_dict(found, call) for found in world.operations.list(place)], call)

    def get_operation(self, call: Call, world: World, place: str, operation: str) -> Answer:
        return _messages().answer(world.operations.get(f"{place}/operations/{operation}"), call)

    def delete_operation(self, call: Call, world: World, place: str, operation: str) -> Answer:
        world.operations.forget(f"{place}/operations/{operation}")
        return json_answer({})

    def cancel_operation(self, call: Call, world: World, place: str, operation: str) -> Answer:
        """The service tries its best, which for TPUs is nothing."""
        world.operations.get(f"{place}/operations/{operation}")
        return json_answer({})

    # What there is where

    def list_types(self, call: Call, world: World, place: str) -> Answer:
        offered = places.offered()[place.rpartition("/")[2]]
        return _messages().page("acceleratorTypes", [_type(place, found) for found in offered], call)

    def get_type(self, call: Call, world: World, place: str, kind: str) -> Answer:
        for found in places.offered()[place.rpartition("/")[2]]:
            if found.name == kind:
                return json_answer(_type(place, found))
        raise not_found(f"{place}/acceleratorTypes/{kind}")

    def list_versions(self, call: Call, world: World, place: str) -> Answer:
        versions = places.runtime_versions(place.rpartition("/")[2])
        return _messages().page("runtimeVersions", [_version(place, version) for version in versions], call)

    def get_version(self, call: Call, world: World, place: str, version: str) -> Answer:
        if version not in places.runtime_versions(place.rpartition("/")[2]):
            raise not_found(f"{place}/runtimeVersions/{version}")
        return json_answer(_version(place, version))

    def list_locations(self, call: Call, world: World, place: str) -> Answer:
        found = [_location(f"{place}/{zone}") for zone in self._zones()]
        return _messages().page("locations", found, call, len(found) if self._was("paging") else LOCATIONS_ON_A_PAGE)

    def get_location(self, call: Call, world: World, place: str) -> Answer:
        return json_answer(_location(place))

    def identity(self, call: Call, world: World, place: str) -> Answer:
        project = self._projects.known(place.split("/")[1])
        return json_answer({"identity": {"email": f"service-{project.number}@cloud-tpu.iam.gserviceaccount.com"}})


def _messages() -> Any:
    from cloud_emulator.tpu import messages

    return messages


def _type(place: str, found: Any) -> dict[str, Any]:
    config = {"type": places.CONFIG_TYPES[found.generation], "topology": places.topology(found)}
    return {"name": f"{place}/acceleratorTypes/{found.name}", "type": found.name, "acceleratorConfigs": [config]}


def _version(place: str, version: str) -> dict[str, Any]:
    return {"name": f"{place}/runtimeVersions/{version}", "version": version}


def _location(name: str) -> dict[str, Any]:
    zone = name.rpartition("/")[2]
    return {"name": name, "locationId": zone, "labels": {"cloud.googleapis.com/region": places.region_of(zone)}}


def _snake(path: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in path.strip())
