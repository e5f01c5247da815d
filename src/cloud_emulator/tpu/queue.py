"""The life of queued resources and the nodes that they create."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from google.cloud.tpu_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.rpc.status_pb2 import Status

from cloud_emulator import recorded
from cloud_emulator.errors import ApiError
from cloud_emulator.projects import Demand
from cloud_emulator.tpu.nodes import Nodes, NodeState, TpuSlice, check_identifier
from cloud_emulator.tpu.state import Failure, State as Shared, Table, raw, refused, resource_refusal, timestamp

State = types.QueuedResourceState.State
Initiator = types.QueuedResourceState.StateInitiator
WAITING = (State.CREATING, State.ACCEPTED, State.WAITING_FOR_RESOURCES)
DELETABLE = (State.ACCEPTED, State.WAITING_FOR_RESOURCES, State.SUSPENDED, State.FAILED)
IN_BETWEEN = (State.PROVISIONING, State.SUSPENDING)
LOST = (NodeState.PREEMPTED, NodeState.TERMINATED)


@dataclass(eq=False)
class Queued:
    resource: types.QueuedResource
    slices: list[TpuSlice] = field(default_factory=list)
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
        return [node.demand for queued in self.values() for node in queued.slices if node.project == project]

    def create(self, name: str, resource: types.QueuedResource) -> Operation:
        check_identifier("queued resource", name.rpartition("/")[2])
        if name in self:
            raise resource_refusal("name-taken", name)
        queued = Queued(types.QueuedResource(resource))
        queued.resource.name = name
        project = self._shared.projects.known(name.split("/")[1])
        queued.slices = self._slices_of(name, resource)
        self._shared.check_quota(name.split("/")[1], [node.demand for node in queued.slices])
        operation = self._shared.operations.begin(name, "create")
        failure = self._shared.orders.failure("operation", "CREATE queued", **queued.slices[0].described)
        if failure is not None:
            create_seconds = self._shared.behaviour.create_seconds
            self._shared.clock.after(create_seconds, lambda: self._shared.operations.end(operation, failure))
            return operation
        now = self._shared.clock.now()
        queued.resource.create_time = timestamp(now)
        for spec in queued.resource.tpu.node_spec:
            spec.parent = project.numbered(spec.parent)
            spec.node.queued_resource = project.numbered(name)
        self[name] = queued
        self._shared.record("queued", name, queued.slices[0].accelerator.name)
        self._enter(queued, State.CREATING)
        until = _valid_until(queued.resource, now)
        if until is not None:
            expired = Failure.recorded("failed-expired")
            self._shared.clock.at(until, lambda: self._fail_while(queued, WAITING, expired))
        self._wait(queued)
        self._shared.operations.end(operation, queued.resource)
        return operation

    def _slices_of(self, name: str, resource: types.QueuedResource) -> list[TpuSlice]:
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

    def _enter(self, queued: Queued, state: State, initiator: Initiator = Initiator.STATE_INITIATOR_UNSPECIFIED) -> None:
        new_state = types.QueuedResourceState(state=state, state_initiator=initiator)
        data = f"{state.name.lower()}_data"
        if state not in (State.WAITING_FOR_RESOURCES, State.FAILED):
            getattr(raw(new_state), data).SetInParent()
        queued.resource.state = new_state
        self._shared.record(state.name.lower(), queued.name)

    def _wait(self, queued: Queued) -> None:
        self._enter(queued, State.ACCEPTED)
        self._enter(queued, State.WAITING_FOR_RESOURCES)
        queue_seconds = self._shared.behaviour.queue_seconds
        queued.not_before = self._shared.clock.now() + queue_seconds
        self._shared.clock.after(queue_seconds, lambda: self.retry(queued))

    def retry(self, queued: Queued) -> None:
        """Provision `queued`, if it waits and nothing holds it back."""
        zone = queued.slices[0].zone
        here = self.get(queued.name) is queued and queued.state == State.WAITING_FOR_RESOURCES
        if not here or queued.held or self._shared.clock.now() < queued.not_before or self._shared.orders.is_out_of_stock(zone):
            return None
        self._enter(queued, State.PROVISIONING)
        try:
            for index, node in enumerate(queued.slices):
                bare = types.Node(node.node)
                raw(bare).ClearField("accelerator_config")
                queued.slices[index] = self._all_nodes.prepared(node.name, bare, spot=node.spot, queued=queued.name)
        except ApiError as error:  # such as a name that was taken meanwhile
            return self.fail(queued, Failure(9, str(error)))
        failure = self._shared.orders.failure("failed_data", "CREATE queued", **queued.slices[0].described)
        failure = failure or self._all_nodes.lacks_addresses(queued.slices)
        for node in queued.slices:
            self._all_nodes.begin(node, None, will_fail=failure is not None)
        if failure is not None:
            seconds = self._shared.behaviour.create_seconds
            self._shared.clock.after(seconds, lambda: self._fail_while(queued, [State.PROVISIONING], failure))
        return None

    def _fail_while(self, queued: Queued, states: Collection[State], failure: Failure) -> None:
        if self.get(queued.name) is queued and queued.state in states:
            self.fail(queued, failure)

    def fail(self, queued: Queued, failure: Failure) -> None:
        """If `queued` has nodes, they are deleted first, while it is SUSPENDING."""
        if queued.state in (State.PROVISIONING, State.ACTIVE):
            self._suspend(queued, Initiator.SERVICE, lambda: self._failed(queued, failure))
        else:
            self._failed(queued, failure)

    def _failed(self, queued: Queued, failure: Failure) -> None:
        self._enter(queued, State.FAILED, Initiator.SERVICE)
        raw(queued.resource).state.failed_data.error.CopyFrom(Status(code=failure.code, message=failure.message))

    def suspend(self, queued: Queued, initiator: Initiator = Initiator.SERVICE) -> None:
        """Delete the nodes of `queued`, which keeps its name and its quota, and is never served again."""
        self._suspend(queued, initiator, lambda: self._enter(queued, State.SUSPENDED, initiator))

    def _suspend(self, queued: Queued, initiator: Initiator, then: Callable[[], None]) -> None:
        self._enter(queued, State.SUSPENDING, initiator)
        for node in self._nodes(queued):
            if node.node.state != NodeState.DELETING:
                self._all_nodes.set_state(node, NodeState.DELETING, "deleting", "its queued resource is being suspended")

        def end() -> None:
            if self.get(queued.name) is queued and queued.state == State.SUSPENDING:
                self._forget_nodes(queued, "suspended")
                then()

        self._shared.clock.after(self._shared.behaviour.delete_seconds, end)

    def _nodes(self, queued: Queued) -> list[TpuSlice]:
        return [node for node in self._all_nodes.values() if node.queued == queued.name]

    def _forget_nodes(self, queued: Queued, what: str) -> None:
        for node in self._nodes(queued):
            self._all_nodes.forget(node, "deleted", f"its queued resource was {what}")

    def _node_changed(self, node: TpuSlice) -> None:
        """A node entered another state, or is gone."""
        queued = self.get(node.queued)
        if queued is None:
            return
        nodes = self._nodes(queued)
        ready = [each for each in nodes if each.node.state == NodeState.READY]
        if queued.state == State.PROVISIONING and len(ready) == len(queued.slices):
            self._enter(queued, State.ACTIVE)
        gone, deleted = len(nodes) < len(queued.slices), node.node.state == NodeState.DELETING
        if queued.state in (State.PROVISIONING, State.ACTIVE) and (gone or deleted or node.node.state in LOST):
            self.suspend(queued, Initiator.USER if deleted else Initiator.SERVICE)

    def delete(self, name: str, force: bool) -> Operation:
        queued = self.find(name)
        nodes = self._nodes(queued)
        by_force = (State.ACTIVE, *IN_BETWEEN) if self._shared.behaviour.force_in_provisioning else (State.ACTIVE,)
        if queued.state not in DELETABLE and not (force and queued.state in by_force):
            raise recorded.refusal("delete-refused", state=queued.state.name)
        operation = self._shared.operations.begin(name, "delete")
        self._enter(queued, State.DELETING)
        for node in nodes:
            if node.node.state != NodeState.DELETING:
                self._all_nodes.delete(node.name)

        def end() -> None:
            self._forget_nodes(queued, "deleted")
            del self[name]
            self._shared.record("deleted", name, "asked for")
            self._shared.operations.end(operation)

        self._shared.clock.after(self._shared.behaviour.delete_seconds, end)
        return operation

    def reset(self, name: str) -> Operation:
        queued = self.find(name)
        if queued.state != State.ACTIVE:
            raise refused("not-active", queued=name, state=queued.state.name)
        operation = self._shared.operations.begin(name, "reset")
        self._enter(queued, State.ACCEPTED)
        self._forget_nodes(queued, "reset")
        self._wait(queued)
        self._shared.operations.end(operation, queued.resource)
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
