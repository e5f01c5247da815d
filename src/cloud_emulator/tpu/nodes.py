"""Nodes from CREATING to gone."""

from __future__ import annotations

import random
import signal

from google.longrunning.operations_pb2 import Operation

from cloud_emulator import places
from cloud_emulator.catalogue import Accelerator
from cloud_emulator.quotas import Demand
from cloud_emulator.rpc import RpcError, exists, failed_precondition, not_found
from cloud_emulator.tpu import checks
from cloud_emulator.tpu.behaviour import Failure
from cloud_emulator.tpu.ground import Ground
from cloud_emulator.tpu.messages import timestamp, types
from cloud_emulator.tpu.slices import Slice, State
from cloud_emulator.tpu.vm import SCOPES, attributes

OVER = (State.DELETING, State.PREEMPTED, State.TERMINATED)
UNPAID = (State.CREATING, State.PREEMPTED, State.TERMINATED, State.STOPPED)
CHANGEABLE = ("description", "labels", "metadata", "tags", "data_disks")


class Nodes:
    """Everything happens under the clock's lock, which callers hold."""

    def __init__(self, ground: Ground):
        self._ground = ground
        self._slices: dict[str, Slice] = {}
        ground.holders.append(self.demands)

    def demands(self, project: str) -> list[Demand]:
        """Nodes born of a queued resource are counted with it."""
        return [found.demand for found in self._slices.values() if found.project == project and not found.queued]

    def get(self, name: str) -> Slice:
        if name not in self._slices:
            raise not_found(name)
        return self._slices[name]

    def all(self) -> list[Slice]:
        return list(self._slices.values())

    def list(self, location: str) -> list[types.Node]:
        return [found.node for name, found in sorted(self._slices.items()) if name.startswith(f"{location}/nodes/")]

    def prepared(self, name: str, wanted: types.Node, *, spot: bool = False, queued: str = "") -> Slice:
        """A node as it will be, or an RpcError for what is wrong with it. Nothing is begun."""
        *_, zone, _, node_id = name.split("/")
        checks.identifier("node", node_id)
        accelerator = checks.node(wanted, zone)
        if name in self._slices:
            raise exists(name)
        self._check_account(name.split("/")[1], wanted.service_account.email)
        spot = spot or wanted.scheduling_config.spot or wanted.scheduling_config.preemptible
        return Slice(self._filled(name, wanted, accelerator, spot, queued), accelerator, spot, queued)

    def _check_account(self, project_name: str, email: str) -> None:
        """Whoever creates a node must be allowed to act as its service account, and that must exist."""
        project = self._ground.projects.known(project_name)
        missing = email.endswith(f"@{project.name}.iam.gserviceaccount.com") and email not in project.accounts
        if missing or not project.is_granted("iam.serviceAccounts.actAs"):
            raise RpcError(
                403,
                f"The user does not have access to service account '{email or project.default_account}'. Ask a project owner "
                "to grant you the iam.serviceAccountUser role on the service account.",
            )

    def _filled(self, name: str, wanted: types.Node, accelerator: Accelerator, spot: bool, queued: str) -> types.Node:
        node = types.Node(wanted)
        node.name = name
        node.state = State.CREATING
        node.accelerator_type = accelerator.name
        node.accelerator_config = types.AcceleratorConfig(
            type_=types.AcceleratorConfig.Type[places.CONFIG_TYPES[accelerator.generation]],
            topology=places.topology(accelerator),
        )
        node.create_time = timestamp(self._ground.clock.now())
        node.id = random.randrange(10**18, 9 * 10**18)
        node.api_version = types.Node.ApiVersion.V2
        project = self._ground.projects.known(name.split("/")[1])
        node.queued_resource = project.numbered(queued)
        node.shielded_instance_config = node.shielded_instance_config or types.ShieldedInstanceConfig()
        node.scheduling_config.spot = spot and not node.scheduling_config.preemptible
        if not node.service_account.email:
            node.service_account = types.ServiceAccount(email=project.default_account, scope=SCOPES)
        network, home = node.network_config, f"projects/{project.name}"
        if "/" not in network.network:
            network.network = f"{home}/global/networks/{network.network or 'default'}"
        if "/" not in network.subnetwork:
            region, name_of_it = places.region_of(name.split("/")[3]), network.subnetwork or network.network.rpartition("/")[2]
            network.subnetwork = f"{home}/regions/{region}/subnetworks/{name_of_it}"
        node.cidr_block = node.cidr_block or "10.20.30.0/24"
        return node

    def create(self, name: str, wanted: types.Node) -> Operation:
        made = self.prepared(name, wanted)
        self._ground.check_quota(made.project, [made.demand])
        operation = self._ground.operations.begin(name, "create")
        values = {"type": made.accelerator.name, "project": made.project}
        failure = self._ground.orders.failure("operation", "CREATE node", made.zone, **values)
        failure = failure or self.lacks_addresses([made])
        if failure is not None:
            self._fail(made, operation, failure)
        else:
            self.begin(made, operation)
        return operation

    def _fail(self, made: Slice, operation: Operation, failure: Failure) -> None:
        """The node is seen CREATING until the operation fails, and is then no more."""
        self._slices[made.name] = made

        def end() -> None:
            if self._slices.get(made.name) is made:
                self.forget(made, "failed", failure.message)
            self._ground.operations.fail(operation, failure)

        self._ground.clock.after(self._ground.behaviour.create_seconds, end)

    def lacks_addresses(self, wanted: list[Slice]) -> Failure | None:
        """Where hosts with external addresses, those of `wanted` included, are more than a region's quota."""
        limit, first = self._ground.behaviour.addresses, wanted[0]
        if limit is None or "addresses" in self._ground.projects.as_it_was:
            return None
        region = places.region_of(first.zone)
        held = [
            found.accelerator.hosts
            for found in {*self._slices.values(), *wanted}
            if found.project == first.project
            and places.region_of(found.zone) == region
            and found.node.network_config.enable_external_ips
            and (found in wanted or found.node.state not in (*OVER, State.STOPPED))
        ]
        asks = any(found.node.network_config.enable_external_ips for found in wanted)
        return Failure.recorded("failed-addresses", limit=limit, region=region) if asks and sum(held) > limit else None

    def begin(self, made: Slice, operation: Operation | None, doomed: bool = False) -> None:
        """What was prepared is being created, and `operation` ends when it is READY; `doomed`: it stays CREATING."""
        self._slices[made.name] = made
        self._ground.history.add("created", made.name, made.accelerator.name + (" spot" if made.spot else ""))
        behaviour = self._ground.behaviour
        if doomed:
            return

        def boot() -> None:
            if self._slices.get(made.name) is made and made.node.state == State.CREATING:
                self._ground.machines.boot(made)

        def ready() -> None:
            if self._slices.get(made.name) is not made or made.node.state != State.CREATING:
                if operation is not None:
                    self._ground.operations.fail(operation, Failure(1, "The operation was cancelled."))
                return
            self._ground.machines.boot(made)
            self.set_state(made, State.READY, "ready")
            if operation is not None:
                self._ground.operations.succeed(operation, made.node)

        if behaviour.boot_seconds is not None and behaviour.boot_seconds < behaviour.create_seconds:
            self._ground.clock.after(behaviour.boot_seconds, boot)
        self._ground.clock.after(behaviour.create_seconds, ready)

    def set_state(self, found: Slice, state: State, what: str, reason: str = "") -> None:
        found.node.state = state
        found.node.health = types.Node.Health.HEALTHY if state == State.READY else types.Node.Health.HEALTH_UNSPECIFIED
        if state == State.READY:
            self._ground.history.begin_charging(found.name)
        elif state in UNPAID:
            self._ground.history.end_charging(found.name)
        self._ground.history.add(what, found.name, reason)
        self._ground.changed(found)

    def delete(self, name: str, *, by_queue: bool = False) -> Operation:
        found = self.get(name)
        if found.queued and not by_queue:
            raise failed_precondition(
                f"Cloud TPU received an invalid operation. Node {name} belongs to queued resource {found.queued}; "
                "delete the queued resource instead. [EID: 0x5b8c2d7e9f1a3640]"
            )
        if found.node.state == State.DELETING:
            raise failed_precondition(
                "Cloud TPU received an invalid operation. The TPU node is in state DELETING and cannot be deleted. "
                "[EID: 0x3e6f8a1b5c7d9240]"
            )
        operation = self._ground.operations.begin(name, "delete")
        self.set_state(found, State.DELETING, "deleting")
        seconds = self._ground.behaviour.delete_seconds

        def end() -> None:
            if self._slices.get(name) is found:
                self.forget(found, "deleted", "asked for")
            self._ground.operations.succeed(operation)

        if seconds:
            self._ground.clock.after(seconds / 2, lambda: self._ground.machines.signal(found, signal.SIGTERM))
        self._ground.clock.after(seconds, end)
        return operation

    def forget(self, found: Slice, what: str, reason: str) -> None:
        """It is gone, with its machines; only the history knows it."""
        del self._slices[found.name]
        self._ground.machines.remove(found)
        self._ground.history.end_charging(found.name)
        self._ground.history.add(what, found.name, reason)
        self._ground.changed(found)

    def stop(self, name: str) -> Operation:
        found = self.get(name)
        if found.accelerator.hosts > 1 or found.spot or found.node.state != State.READY:
            raise failed_precondition(
                "Cloud TPU received an invalid operation. Only a READY node that is neither spot nor a pod slice can be "
                f"stopped; {name} is {found.node.state.name}. [EID: 0x9a4b6c8d2e1f5370]"
            )
        operation = self._ground.operations.begin(name, "stop")
        self.set_state(found, State.STOPPING, "stopping")

        def end() -> None:
            if self._slices.get(name) is found and found.node.state == State.STOPPING:
                self._ground.machines.power_off(found)
                self.set_state(found, State.STOPPED, "stopped")
            self._ground.operations.succeed(operation, found.node)

        self._ground.clock.after(self._ground.behaviour.stop_seconds, end)
        return operation

    def start(self, name: str) -> Operation:
        found = self.get(name)
        if found.node.state != State.STOPPED:
            raise failed_precondition(
                f"Cloud TPU received an invalid operation. Only a STOPPED node can be started; {name} is "
                f"{found.node.state.name}. [EID: 0x1d7e3f9a5b2c8460]"
            )
        operation = self._ground.operations.begin(name, "start")
        self.set_state(found, State.STARTING, "starting")

        def end() -> None:
            if self._slices.get(name) is found and found.node.state == State.STARTING:
                self._ground.machines.boot(found)
                self.set_state(found, State.READY, "ready", "started again")
            self._ground.operations.succeed(operation, found.node)

        self._ground.clock.after(self._ground.behaviour.stop_seconds, end)
        return operation

    def patch(self, name: str, changes: types.Node, mask: list[str]) -> Operation:
        found = self.get(name)
        for path in mask:
            if path not in CHANGEABLE:
                raise RpcError(400, f"Invalid update mask: the field '{path}' cannot be changed; {', '.join(CHANGEABLE)} can.")
        checks.labels(dict(changes.labels))
        for path in mask:
            setattr(found.node, path, getattr(changes, path))
        for worker, machine in enumerate(found.machines):
            project = self._ground.projects.known(found.project)
            machine.metadata.set("instance/attributes", attributes(found, project, worker))
        operation = self._ground.operations.begin(name, "update")
        self._ground.operations.succeed(operation, found.node)
        return operation
