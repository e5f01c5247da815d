"""The life of queued resources and the nodes that they create."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from google.cloud.tpu_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.rpc.status_pb2 import Status

from cloud_emulator import recorded
from cloud_emulator.catalogue import region_of
from cloud_emulator.errors import ApiError
from cloud_emulator.projects import Demand
from cloud_emulator.tpu.nodes import Nodes, NodeState, Slice, check_identifier
from cloud_emulator.tpu.state import Failure, Table, raw, refused, resource_refusal, timestamp
from cloud_emulator.tpu.state import State as Shared

State = types.QueuedResourceState.State
Initiator = types.QueuedResourceState.StateInitiator
WAITING = (State.CREATING, State.ACCEPTED, State.WAITING_FOR_RESOURCES)
DELETABLE = (State.ACCEPTED, State.WAITING_FOR_RESOURCES, State.SUSPENDED, State.FAILED)
IN_BETWEEN = (State.PROVISIONING, State.SUSPENDING)
LOST = (NodeState.PREEMPTED, NodeState.TERMINATED)


@dataclass(eq=False)
class Queued:
    resource: types.QueuedResource
    wanted: list[Slice] = field(default_factory=list)
    held: bool = False  # by an order to the emulator, until it is released
    not_before: float = 0.0  # seconds since 1970 by the emulator's clock

    @property
    def name(self) -> str:
        return self.resource.name

    @property
    def state(self) -> State:
        return self.resource.state.state


class Queue(Table[Queued]):
    """Queued resources by full name; callers hold the clock's lock."""

    def __init__(self, shared: Shared, nodes: Nodes):
        self._shared = shared
        self._all_nodes = nodes
        shared.holders.append(self.demands)
        nodes.watchers.append(self._node_changed)

    def demands(self, project: str) -> list[Demand]:
        """A queued resource counts until it is deleted, in any state."""
        return [wanted.demand for found in self.values() for wanted in found.wanted if wanted.project == project]

    def create(self, name: str, resource: types.QueuedResource) -> Operation:
        check_identifier("queued resource", name.rpartition("/")[2])
        if name in self:
            raise resource_refusal("name-taken", name)
        made = Queued(types.QueuedResource(resource))
        made.resource.name = name
        project = self._shared.projects.known(name.split("/")[1])
        made.wanted = self._wanted(name, resource)
        self._shared.check_quota(name.split("/")[1], [wanted.demand for wanted in made.wanted])
        operation = self._shared.operations.begin(name, "create")
        values = {"type": made.wanted[0].accelerator.name, "project": made.wanted[0].project}
        failure = self._shared.orders.failure("operation", "CREATE queued", made.wanted[0].zone, **values)
        if failure is not None:
            create_seconds = self._shared.behaviour.create_seconds
            self._shared.clock.after(create_seconds, lambda: self._shared.operations.end(operation, failure))
            return operation
        now = self._shared.clock.now()
        made.resource.create_time = timestamp(now)
        for spec in made.resource.tpu.node_spec:
            spec.parent = project.numbered(spec.parent)
            spec.node.queued_resource = project.numbered(name)
        self[name] = made
        self._shared.record("queued", name, made.wanted[0].accelerator.name)
        self._enter(made, State.CREATING)
        until = _valid_until(made.resource, now)
        if until is not None:
            self._shared.clock.at(until, lambda: self._expire(made))
        self._wait(made)
        self._shared.operations.end(operation, made.resource)
        return operation

    def _wanted(self, name: str, resource: types.QueuedResource) -> list[Slice]:
        location = name.rpartition("/queuedResources/")[0]
        specs = list(resource.tpu.node_spec)
        if len(specs) != 1:
            raise refused("node-specs", count=len(specs))
        spec = specs[0]
        if spec.parent.rpartition("/")[2] != location.rpartition("/")[2]:
            raise refused("node-parent", parent=spec.parent, location=location)
        count = spec.multislice_params.node_count
        if not spec.node_id and count < 2:
            raise refused("node-id")
        prefix = spec.multislice_params.node_id_prefix or name.rpartition("/")[2]
        ids = [spec.node_id] if spec.node_id else [f"{prefix}-{index}" for index in range(count)]
        spot = "spot" in resource
        return [self._all_nodes.prepared(f"{location}/nodes/{node}", spec.node, spot=spot, queued=name) for node in ids]

    def _enter(self, found: Queued, state: State, initiator: Initiator = Initiator.STATE_INITIATOR_UNSPECIFIED) -> None:
        made = types.QueuedResourceState(state=state, state_initiator=initiator)
        data = f"{state.name.lower()}_data"
        if state not in (State.WAITING_FOR_RESOURCES, State.FAILED):
            getattr(raw(made), data).SetInParent()
        found.resource.state = made
        self._shared.record(state.name.lower(), found.name)

    def _wait(self, found: Queued) -> None:
        self._enter(found, State.ACCEPTED)
        self._enter(found, State.WAITING_FOR_RESOURCES)
        queue_seconds = self._shared.behaviour.queue_seconds
        found.not_before = self._shared.clock.now() + queue_seconds
        self._shared.clock.after(queue_seconds, lambda: self.retry(found))

    def retry(self, found: Queued) -> None:
        """Provision `found`, if it waits and nothing holds it back."""
        zone = found.wanted[0].zone
        here = self.get(found.name) is found and found.state == State.WAITING_FOR_RESOURCES
        if not here or found.held or self._shared.clock.now() < found.not_before or self._shared.orders.is_out_of_stock(zone):
            return None
        self._enter(found, State.PROVISIONING)
        try:
            for index, wanted in enumerate(found.wanted):
                bare = types.Node(wanted.node)
                raw(bare).ClearField("accelerator_config")
                found.wanted[index] = self._all_nodes.prepared(wanted.name, bare, spot=wanted.spot, queued=found.name)
        except ApiError as error:  # such as a name that was taken meanwhile
            return self.fail(found, Failure(9, str(error)))
        first, region = found.wanted[0], region_of(zone)
        values = {"type": first.accelerator.name, "project": first.project, "region": region}
        failure = self._shared.orders.failure("failed_data", "CREATE queued", zone, **values)
        failure = failure or self._all_nodes.lacks_addresses(found.wanted)
        for made in found.wanted:
            self._all_nodes.begin(made, None, will_fail=failure is not None)
        if failure is not None:
            self._shared.clock.after(self._shared.behaviour.create_seconds, lambda: self._fail_if(found, failure))
        return None

    def _fail_if(self, found: Queued, failure: Failure) -> None:
        if self.get(found.name) is found and found.state == State.PROVISIONING:
            self.fail(found, failure)

    def _expire(self, found: Queued) -> None:
        if self.get(found.name) is found and found.state in WAITING:
            self.fail(found, Failure.recorded("failed-expired"))

    def fail(self, found: Queued, failure: Failure) -> None:
        """If `found` has nodes, they are deleted first, while it is SUSPENDING."""
        if found.state in (State.PROVISIONING, State.ACTIVE):
            self._suspend(found, Initiator.SERVICE, lambda: self._failed(found, failure))
        else:
            self._failed(found, failure)

    def _failed(self, found: Queued, failure: Failure) -> None:
        self._enter(found, State.FAILED, Initiator.SERVICE)
        raw(found.resource).state.failed_data.error.CopyFrom(Status(code=failure.code, message=failure.message))

    def suspend(self, found: Queued, initiator: Initiator = Initiator.SERVICE) -> None:
        """Delete the nodes of `found`, which keeps its name and its quota, and is never served again."""
        self._suspend(found, initiator, lambda: self._enter(found, State.SUSPENDED, initiator))

    def _suspend(self, found: Queued, initiator: Initiator, then: Callable[[], None]) -> None:
        self._enter(found, State.SUSPENDING, initiator)
        for node in self._nodes(found):
            if node.node.state != NodeState.DELETING:
                self._all_nodes.set_state(node, NodeState.DELETING, "deleting", "its queued resource is being suspended")

        def end() -> None:
            if self.get(found.name) is found and found.state == State.SUSPENDING:
                self._forget_nodes(found, "suspended")
                then()

        self._shared.clock.after(self._shared.behaviour.delete_seconds, end)

    def _nodes(self, found: Queued) -> list[Slice]:
        return [node for node in self._all_nodes.values() if node.queued == found.name]

    def _forget_nodes(self, found: Queued, what: str) -> None:
        for node in self._nodes(found):
            self._all_nodes.forget(node, "deleted", f"its queued resource was {what}")

    def _node_changed(self, node: Slice) -> None:
        """A node entered another state, or is gone."""
        found = self.get(node.queued)
        if found is None:
            return
        nodes = self._nodes(found)
        ready = [each for each in nodes if each.node.state == NodeState.READY]
        if found.state == State.PROVISIONING and len(ready) == len(found.wanted):
            self._enter(found, State.ACTIVE)
        gone = len(nodes) < len(found.wanted)
        if found.state in (State.PROVISIONING, State.ACTIVE) and (gone or node.node.state in LOST):
            self.suspend(found)

    def delete(self, name: str, force: bool) -> Operation:
        found = self.find(name)
        nodes = self._nodes(found)
        by_force = (State.ACTIVE, *IN_BETWEEN) if self._shared.behaviour.force_in_provisioning else (State.ACTIVE,)
        if found.state not in DELETABLE and not (force and found.state in by_force):
            raise recorded.refusal("delete-refused", state=found.state.name)
        operation = self._shared.operations.begin(name, "delete")
        self._enter(found, State.DELETING)
        for node in nodes:
            if node.node.state != NodeState.DELETING:
                self._all_nodes.delete(node.name, by_queue=True)

        def end() -> None:
            self._forget_nodes(found, "deleted")
            del self[name]
            self._shared.record("deleted", name, "asked for")
            self._shared.operations.end(operation)

        self._shared.clock.after(self._shared.behaviour.delete_seconds, end)
        return operation

    def reset(self, name: str) -> Operation:
        found = self.find(name)
        if found.state != State.ACTIVE:
            raise refused("not-active", queued=name, state=found.state.name)
        operation = self._shared.operations.begin(name, "reset")
        self._enter(found, State.ACCEPTED)
        self._forget_nodes(found, "reset")
        self._wait(found)
        self._shared.operations.end(operation, found.resource)
        return operation


def _valid_until(resource: types.QueuedResource, now: float) -> float | None:
    """When it expires, in seconds since 1970; None: never."""
    policy = raw(resource).queueing_policy
    match policy.WhichOneof("start_timing_constraints"):
        case "valid_until_duration":
            return now + policy.valid_until_duration.ToTimedelta().total_seconds()
        case "valid_until_time":
            return policy.valid_until_time.ToNanoseconds() / 1e9
        case "valid_interval":
            return policy.valid_interval.end_time.ToNanoseconds() / 1e9
        case _:
            return None
