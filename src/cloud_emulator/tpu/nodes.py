"""The life of nodes and their machines."""

from __future__ import annotations

import random
import re
import signal
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.cloud.tpu_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.protobuf.field_mask_pb2 import FieldMask

from cloud_emulator import recorded
from cloud_emulator.catalogue import CONFIG_TYPES, Accelerator, region_of
from cloud_emulator.errors import EmulatorError
from cloud_emulator.machines import Machine
from cloud_emulator.metadata import Tree, instance_tree, put
from cloud_emulator.projects import Demand
from cloud_emulator.tpu.state import Failure, State, Table, raw, refused, resource_refusal, timestamp

NodeState = types.Node.State
OVER = (NodeState.DELETING, NodeState.PREEMPTED, NodeState.TERMINATED)
TPU_PORT = 8470
NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
METADATA_BYTES = 256 * 1024
ATTRIBUTES = "instance/attributes/"
# By the discovery document of tpu v2, nodes.patch; data_disks as `gcloud compute tpus tpu-vm attach-disk` and dstack send it.
UPDATABLE = ("description", "tags", "labels", "metadata", "network_config.enable_external_ips", "data_disks")
LOOK_SECONDS = 0.1  # between looks at a machine that shuts down

# Of nodes that name none, from k8s-config-connector's golden log of a TPU VM.
SCOPES = [
    f"https://www.googleapis.com/auth/{name}"
    for name in ("devstorage.read_write", "logging.write", "service.management", "servicecontrol", "cloud-platform", "pubsub")
]


@dataclass(eq=False)
class TpuSlice:
    """A node with its machines, the workers in order; there are none before the first boot."""

    node: types.Node
    accelerator: Accelerator
    spot: bool
    queued: str = ""  # the queued resource that created it
    machines: list[Machine] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def zone(self) -> str:
        return self.name.split("/")[3]

    @property
    def project(self) -> str:
        return self.name.split("/")[1]

    @property
    def demand(self) -> Demand:
        return Demand(self.accelerator, self.spot, self.zone)

    @property
    def described(self) -> dict[str, str]:
        """What recorded answers say of it."""
        return {"zone": self.zone, "region": region_of(self.zone), "project": self.project, "type": self.accelerator.name}


class Nodes(Table[TpuSlice]):
    """Nodes by full name; callers hold the clock's lock. `watchers` are called on every change of a node's state."""

    def __init__(self, state: State):
        self._state = state
        self.watchers: list[Callable[[TpuSlice], None]] = []
        state.holders.append(self.demands)

    def demands(self, project: str) -> list[Demand]:
        """Without nodes of queued resources, which are counted with those."""
        return [node.demand for node in self.values() if node.project == project and not node.queued]

    # Creation

    def prepared(self, name: str, requested: types.Node, *, spot: bool = False, queued: str = "") -> TpuSlice:
        """The node that a request asks for; nothing is created. Raises ApiError if it is invalid."""
        _, project_name, _, zone, _, node_id = name.split("/")
        check_identifier("node", node_id)
        accelerator = self._checked(requested, zone)
        if name in self:
            raise resource_refusal("name-taken", name)
        project, email = self._state.projects.known(project_name), requested.service_account.email
        if not project.has_account(email) or not project.is_granted("iam.serviceAccounts.actAs"):
            raise refused("account", account=email or project.default_account)
        spot = spot or requested.scheduling_config.spot or requested.scheduling_config.preemptible
        return TpuSlice(self._filled(name, requested, accelerator, spot, queued), accelerator, spot, queued)

    def _checked(self, requested: types.Node, zone: str) -> Accelerator:
        """The accelerator of a valid request. Raises ApiError."""
        catalogue, config, name = self._state.projects.catalogue, requested.accelerator_config, requested.accelerator_type
        if name and config.topology:
            raise refused("type-and-topology")
        by_topology = catalogue.with_topology(config.type_.name, config.topology) if config.topology else None
        accelerator = by_topology or catalogue.find(name)
        if accelerator is None:
            raise refused("type", type=name or config.topology)
        if zone not in accelerator.zones:
            raise recorded.refusal("type-not-in-zone", type=accelerator.name, zone=zone)
        if requested.runtime_version not in catalogue.runtime_versions():
            raise refused("runtime-version", version=requested.runtime_version)
        check_labels(dict(requested.labels))
        for key, value in requested.metadata.items():
            if len(value.encode()) > METADATA_BYTES:
                raise refused("large-metadata", key=key)
        if requested.scheduling_config.preemptible and requested.scheduling_config.spot:
            raise refused("preemptible-and-spot")
        return accelerator

    def _filled(self, name: str, requested: types.Node, accelerator: Accelerator, spot: bool, queued: str) -> types.Node:
        project = self._state.projects.known(name.split("/")[1])
        node = types.Node(requested)
        node.name = name
        node.state = NodeState.CREATING
        node.accelerator_type = accelerator.name
        kind = types.AcceleratorConfig.Type[CONFIG_TYPES[accelerator.generation]]
        node.accelerator_config = types.AcceleratorConfig(type_=kind, topology=accelerator.topology)
        node.create_time = timestamp(self._state.clock.now())
        node.id = random.randrange(10**18, 9 * 10**18)
        node.api_version = types.Node.ApiVersion.V2
        node.queued_resource = project.numbered(queued)
        node.shielded_instance_config = node.shielded_instance_config or types.ShieldedInstanceConfig()
        node.scheduling_config.spot = spot and not node.scheduling_config.preemptible
        if not node.service_account.email:
            node.service_account = types.ServiceAccount(email=project.default_account, scope=SCOPES)
        network, home = node.network_config, f"projects/{project.name}"
        if "/" not in network.network:
            network.network = f"{home}/global/networks/{network.network or 'default'}"
        if "/" not in network.subnetwork:
            region, name_of_it = region_of(name.split("/")[3]), network.subnetwork or network.network.rpartition("/")[2]
            network.subnetwork = f"{home}/regions/{region}/subnetworks/{name_of_it}"
        node.cidr_block = node.cidr_block or "10.20.30.0/24"
        return node

    def create(self, name: str, requested: types.Node) -> Operation:
        node = self.prepared(name, requested)
        self._state.check_quota(node.project, [node.demand])
        operation = self._state.operations.begin(name, "create")
        failure = self._state.orders.failure("operation", "CREATE node", **node.described) or self.lacks_addresses([node])
        if failure is None:
            self.begin(node, operation)
            return operation
        self[node.name] = node  # CREATING until the operation fails, then gone

        def fail() -> None:
            if self.get(node.name) is node:
                self.forget(node, "failed", failure.message)
            self._state.operations.end(operation, failure)

        self._state.clock.after(self._state.behaviour.create_seconds, fail)
        return operation

    def lacks_addresses(self, requested: list[TpuSlice]) -> Failure | None:
        """The failure if hosts with external addresses, including those of `requested`, exceed a region's quota."""
        limit, first = self._state.behaviour.addresses, requested[0]
        region = region_of(first.zone)
        held = [
            node.accelerator.hosts
            for node in {*self.values(), *requested}
            if node.project == first.project
            and region_of(node.zone) == region
            and node.node.network_config.enable_external_ips
            and (node in requested or node.node.state not in (*OVER, NodeState.STOPPED))
        ]
        asks = any(node.node.network_config.enable_external_ips for node in requested)
        lacks = limit is not None and asks and sum(held) > limit
        return Failure.recorded("failed-addresses", limit=limit, region=region) if lacks else None

    def begin(self, node: TpuSlice, operation: Operation | None, will_fail: bool = False) -> None:
        """Start to create a prepared node; `operation` ends when it is READY. `will_fail`: it stays CREATING."""
        self[node.name] = node
        self._state.record("created", node.name, node.accelerator.name + (" spot" if node.spot else ""))
        behaviour, clock = self._state.behaviour, self._state.clock
        if will_fail:
            return

        def boot() -> None:
            if self._is(node, NodeState.CREATING):
                self.boot(node)

        def ready() -> None:
            boot()
            if self._is(node, NodeState.CREATING):
                self.set_state(node, NodeState.READY, "ready")
            if operation is not None:
                whole = self._is(node, NodeState.READY)
                self._state.operations.end(operation, node.node if whole else Failure.recorded("cancelled"))

        if behaviour.boot_seconds is not None and behaviour.boot_seconds < behaviour.create_seconds:
            clock.after(behaviour.boot_seconds, boot)
        clock.after(behaviour.create_seconds, ready)

    def _is(self, node: TpuSlice, state: NodeState) -> bool:
        return self.get(node.name) is node and node.node.state == state

    def cancel(self, name: str) -> dict[str, Any]:
        """Cancel an operation, as far as possible: a creation ends and its node is gone; any other one is carried out."""
        operation = self._state.operations.find(name)
        if not operation.done:
            metadata = self._state.operations.note(operation, cancel_requested=True)
            node = self.get(metadata.target)
            if metadata.verb == "create" and node is not None:
                self.forget(node, "failed", "its creation was cancelled")
                self._state.operations.end(operation, Failure.recorded("cancelled"))
        return {}

    # What is done to nodes

    def set_state(self, node: TpuSlice, state: NodeState, what: str, reason: str = "") -> None:
        node.node.state = state
        node.node.health = types.Node.Health.HEALTHY if state == NodeState.READY else types.Node.Health.HEALTH_UNSPECIFIED
        self._changed(node, what, reason)

    def _changed(self, node: TpuSlice, what: str, reason: str) -> None:
        self._state.record(what, node.name, reason)
        for watcher in self.watchers:
            watcher(node)

    def forget(self, node: TpuSlice, what: str, reason: str) -> None:
        """Remove a node with its machines; only the history keeps it."""
        del self[node.name]
        self.remove_machines(node)
        self._changed(node, what, reason)

    def change(self, name: str, requested: types.Node, mask: list[str]) -> Operation:
        """Replace the fields that `mask` names, in camel or snake case."""
        node = self.find(name)
        paths = [re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", path) for path in mask]
        if not set(paths) <= set(UPDATABLE):
            raise refused("update-mask", mask=",".join(mask), known=", ".join(UPDATABLE))
        if node.node.state not in (NodeState.READY, NodeState.STOPPED):
            raise refused("not-updatable", state=node.node.state.name)
        check_labels(dict(requested.labels))
        FieldMask(paths=paths).MergeMessage(raw(requested), raw(node.node), True, True)
        for machine in node.machines:
            for key, value in node.node.metadata.items():
                machine.metadata.set(ATTRIBUTES + key, value)
        operation = self._state.operations.begin(name, "update")
        self._state.clock.after(self._state.behaviour.stop_seconds, lambda: self._state.operations.end(operation, node.node))
        return operation

    def delete(self, name: str) -> Operation:
        """Begin to delete a node. If a queued resource owns it, that is suspended."""
        node = self.find(name)
        if node.node.state == NodeState.DELETING:
            raise refused("being-deleted")
        operation = self._state.operations.begin(name, "delete")
        self.set_state(node, NodeState.DELETING, "deleting")
        seconds = self._state.behaviour.delete_seconds

        def end() -> None:
            if self.get(name) is node:
                self.forget(node, "deleted", "asked for")
            self._state.operations.end(operation)

        if seconds:
            self._state.clock.after(seconds / 2, lambda: signal_all(node, signal.SIGTERM))
        self._state.clock.after(seconds, end)
        return operation

    def _pass_through(self, node: TpuSlice, verb: str, state: NodeState, then: Callable[[], None]) -> Operation:
        """Put a node into `state` for a while; then, if it is still in it, call `then`."""
        operation = self._state.operations.begin(node.name, verb)
        self.set_state(node, state, state.name.lower())

        def end() -> None:
            if self._is(node, state):
                then()
            self._state.operations.end(operation, node.node)

        self._state.clock.after(self._state.behaviour.stop_seconds, end)
        return operation

    def stop(self, name: str) -> Operation:
        node = self.find(name)
        if node.accelerator.hosts > 1 or node.spot or node.node.state != NodeState.READY:
            raise refused("not-stoppable", node=name, state=node.node.state.name)

        def stopped() -> None:
            power_off(node)
            self.set_state(node, NodeState.STOPPED, "stopped")

        return self._pass_through(node, "stop", NodeState.STOPPING, stopped)

    def start(self, name: str) -> Operation:
        node = self.find(name)
        if node.node.state != NodeState.STOPPED:
            raise refused("not-stopped", node=name, state=node.node.state.name)

        def started() -> None:
            self.boot(node)
            self.set_state(node, NodeState.READY, "ready", "started again")

        return self._pass_through(node, "start", NodeState.STARTING, started)

    # Preemption, loss and maintenance

    def preempt(self, node: TpuSlice, grace_seconds: float) -> None:
        """Notify the machines and run their shutdown scripts; then, or after 5/6 of `grace_seconds`, send SIGTERM. The node is
        PREEMPTED once all processes ended, or after all of it.

        A startup script and its children hear nothing before: compute-image-packages PR 207, taskcluster issue 6802.
        """
        clock = self._state.clock
        for machine in node.machines:
            machine.metadata.set("instance/preempted", "TRUE")
        self._state.record("notified", node.name, f"preemption, {grace_seconds:g} s of grace")
        for machine in node.machines:
            machine.shut_down(node.node.metadata.get("shutdown-script", ""))
        until, signalled = clock.now() + grace_seconds, False

        def look() -> None:
            nonlocal signalled
            if self.get(node.name) is not node or node.node.state in OVER:
                return
            if not signalled and (
                clock.now() >= until - grace_seconds / 6 or not any(machine.is_shutting_down for machine in node.machines)
            ):
                signalled = True
                signal_all(node, signal.SIGTERM)
            if clock.now() >= until or not any(machine.processes() for machine in node.machines):
                self.lose(node, "preempted")
            else:
                clock.after(LOOK_SECONDS, look)

        clock.after(min(LOOK_SECONDS, grace_seconds), look)

    def lose(self, node: TpuSlice, reason: str) -> None:
        """End all processes at once. The node keeps its name and its quota until it is deleted."""
        power_off(node)
        state = NodeState.PREEMPTED if node.spot else NodeState.TERMINATED
        self.set_state(node, state, state.name.lower(), reason)

    # Machines

    def boot(self, node: TpuSlice) -> None:
        """Run the startup script on every worker that is off."""
        if not node.machines:
            node_id, hosts = node.name.rpartition("/")[2], node.accelerator.hosts
            create = self._state.machines.create
            node.machines = create(node_id, hosts, lambda worker, addresses: self._metadata(node, worker, addresses))
            ends, outside = node.node.network_endpoints, node.node.network_config.enable_external_ips
            for number, machine in enumerate(node.machines):
                access = types.AccessConfig(external_ip=f"203.0.113.{number % 256}" if outside else "")
                ends.append(types.NetworkEndpoint(ip_address=machine.address, port=TPU_PORT, access_config=access))
        behaviour, script = self._state.behaviour, node.node.metadata.get("startup-script", "")
        for number, machine in enumerate(node.machines):
            late = behaviour.late_seconds if behaviour.late_worker in (None, number) else 0.0

            def begin(machine: Machine = machine) -> None:
                if self.get(node.name) is node and node.node.state not in (*OVER, NodeState.STOPPED):
                    machine.boot(script)

            if late:
                self._state.clock.after(late, begin)
            else:
                machine.boot(script)

    def remove_machines(self, node: TpuSlice) -> None:
        for machine in node.machines:
            machine.remove()

    def _metadata(self, of_node: TpuSlice, worker: int, addresses: list[str]) -> Tree:
        """A worker's metadata: a Compute Engine VM's, but in Google's project and by another name, as recorded."""
        node, accelerator = of_node.node, of_node.accelerator
        project = self._state.projects.known(of_node.project)
        home, number = project.name, project.number
        if self._state.behaviour.tenant_project:
            home = f"g{zlib.crc32(home.encode()) << 32 | number & 0xFFFFFFFF:016x}-tp"  # a letter, 16 hexadecimal digits, "-tp"
            number = zlib.crc32(home.encode())
        sides = [*map(int, accelerator.topology.split("x")), 1][:3]
        of_host = sides if accelerator.hosts == 1 else [2, 2, 1]
        values = {
            "tenant": home,
            "project": project.name,
            "number": project.number,
            "node": node.name.rpartition("/")[2],
            "short": f"{zlib.crc32(node.name.encode()):08x}",
            "worker": worker,
            "zone": of_node.zone,
            "type": node.accelerator_type,
            "generation": CONFIG_TYPES[accelerator.generation],
            "topology": accelerator.topology,
            "chips_per_host_bounds": ",".join(map(str, of_host)),
            "host_bounds": ",".join(str(whole // part) for whole, part in zip(sides, of_host, strict=True)),
            "wrap": ",".join("true" if side > 1 and side % 4 == 0 else "false" for side in sides),
            "ici_resiliency": "true" if accelerator.dimensions == 3 and accelerator.chips >= 64 else "false",
            "preemptible": "true" if of_node.spot else "false",
            "PREEMPTIBLE": "TRUE" if of_node.spot else "FALSE",
            "uid": node.id,
        }
        entries = {path: entry["value"] for path, entry in recorded.load("metadata")["keys"].items()}
        own: dict[str, Any] = recorded.filled(entries, **values)
        ends = ATTRIBUTES + "worker-network-endpoints"
        own[ends] = ",".join(recorded.filled(entries[ends], address=address) for address in addresses)
        scheduling = {"automatic-restart": "FALSE" if of_node.spot else "TRUE", "on-host-maintenance": "TERMINATE"}
        values |= {"name": own["instance/name"], "home": home, "home_number": number, "address": addresses[worker]}
        values |= {"id": 10**18 + zlib.crc32(f"{node.name}/{node.id}/{worker}".encode()), "machine": "n1-standard-96"}
        email = node.service_account.email or project.default_account
        tree = instance_tree(email, list(node.tags), values, attributes=dict(node.metadata), scheduling=scheduling)
        for path, value in own.items():
            put(tree, path, value)
        return tree


def check_identifier(kind: str, name: str) -> None:
    if not NODE_ID.fullmatch(name):
        raise refused("bad-id", kind=kind, id=name)


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise refused("many-labels", count=len(labels))
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            raise refused("label-key", key=key)
        if not LABEL_VALUE.fullmatch(value):
            raise refused("label-value", value=value)


def state_named(name: str) -> NodeState:
    if name not in NodeState.__members__:
        raise EmulatorError(f"there is no state '{name}' of nodes; known: {', '.join(NodeState.__members__)}")
    return NodeState[name]


def signal_all(node: TpuSlice, number: signal.Signals) -> None:
    for machine in node.machines:
        machine.signal(number)


def power_off(node: TpuSlice) -> None:
    for machine in node.machines:
        machine.power_off()
