"""What rehearsals and tests do to the emulated TPU service, from Python."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from cloud_emulator import places
from cloud_emulator.clock import Clock
from cloud_emulator.errors import EmulatorError, suggest
from cloud_emulator.faults import Faults
from cloud_emulator.machines.machine import Machine
from cloud_emulator.projects import Projects
from cloud_emulator.tpu import mishaps
from cloud_emulator.tpu.behaviour import STOCK_OUT, Behaviour, Failure
from cloud_emulator.tpu.history import Event
from cloud_emulator.tpu.queue import Queued
from cloud_emulator.tpu.slices import Slice
from cloud_emulator.tpu.world import World

Found = TypeVar("Found")


class Tpu:
    """Nodes and queued resources go by their ids, or by full names where several have the same id.

    Seconds are those of the emulator's clock. Raises EmulatorError for what does not exist.
    """

    def __init__(self, world: World):
        self._world = world

    @property
    def clock(self) -> Clock:
        return self._world.clock

    @property
    def faults(self) -> Faults:
        """Refusals, lost answers and latency of the TPU API itself; `match` is looked for in names of resources."""
        return self._world.faults

    @property
    def projects(self) -> Projects:
        return self._world.projects

    @property
    def behaviour(self) -> Behaviour:
        return self._world.behaviour

    def set(self, **settings: bool | float | None) -> None:
        """Change how long things take and how they go from now on; the names are those of `Behaviour`."""
        with self.clock.lock:
            self._world.behaviour = self._world.behaviour.changed(**settings)

    def advance(self, seconds: float) -> None:
        """Skip time: what falls into it has happened when this returns."""
        if seconds < 0:
            raise EmulatorError(f"time goes on, not back; found {seconds} seconds")
        self.clock.advance(seconds)

    # What befalls nodes

    def preempt(self, node: str, grace_seconds: float = 2.0) -> None:
        """With a notice: `instance/preempted` is TRUE and processes get SIGTERM; PREEMPTED when they ended or time is up.

        A node that is not spot is TERMINATED instead, here and in `kill`.
        """
        with self.clock.lock:
            mishaps.preempt(self._world, self._living(node), grace_seconds)

    def kill(self, node: str) -> None:
        """Preempted without a notice."""
        with self.clock.lock:
            mishaps.lose(self._world, self._living(node), "without notice")

    def vanish(self, node: str) -> None:
        """Gone at once, with its machines and its name."""
        with self.clock.lock:
            mishaps.vanish(self._world, self._node(node))

    def kill_worker(self, node: str, worker: int = 0) -> None:
        """All processes of one worker end; the node stays READY."""
        with self.clock.lock:
            self.machine(node, worker).kill_processes()
            self._world.history.add("worker killed", self._node(node).name, f"worker {worker}")

    def freeze(self, node: str, worker: int = 0) -> None:
        """One worker's processes stop without ending."""
        with self.clock.lock:
            self.machine(node, worker).freeze()
            self._world.history.add("frozen", self._node(node).name, f"worker {worker}")

    def thaw(self, node: str, worker: int = 0) -> None:
        with self.clock.lock:
            self.machine(node, worker).thaw()
            self._world.history.add("thawed", self._node(node).name, f"worker {worker}")

    def maintenance(self, node: str, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """What `instance/maintenance-event` says from now on; "NONE" when it is over."""
        with self.clock.lock:
            mishaps.maintenance(self._world, self._node(node), event)

    def repair(self, node: str, seconds: float = 1.0, state: str = "REPAIRING") -> None:
        """REPAIRING (or RESTARTING, …) for so long, then READY: the startup script runs again with the same folders."""
        with self.clock.lock:
            mishaps.reboot(self._world, self._living(node), mishaps.state_named(state), seconds, "maintenance")

    def set_state(self, node: str, state: str) -> None:
        """What the API says of a node from now on, such as UNKNOWN; its machines go on."""
        with self.clock.lock:
            self._world.nodes.set_state(self._node(node), mishaps.state_named(state), state.lower(), "by order")

    def fail_metadata(self, node: str, worker: int = 0, count: int = 1, path: str = "") -> None:
        """The next `count` requests to a worker's metadata server for what begins with `path` fail as recorded, 503 or 500."""
        with self.clock.lock:
            self.machine(node, worker).metadata.fail(count, path)

    # What befalls requests

    def answer_next(self, name: str, zone: str | None = None, count: int | None = 1, requests: str | None = None) -> None:
        """Give a recorded answer (`cloud_emulator.recorded`) to the next `count` requests that it is for; None: to all of them.

        It is for what creates something, unless its entry says otherwise, or for requests whose kind begins with `requests`,
        such as "GET node", "" for any. An operation's error comes in the operation of a creation. `zone` None: in any.
        """
        self._known_zone(zone)
        with self.clock.lock:
            self._world.orders.add(name, zone, count, requests)

    def take_back(self, name: str | None = None, zone: str | None = None) -> None:
        """Answers that were ordered and not given yet; None: any."""
        with self.clock.lock:
            self._world.orders.take_back(name, zone)
            for found in self._world.queue.all():
                self._world.queue.retry(found)

    def stock_out(self, zone: str, count: int | None = None) -> None:
        """No capacity: creations fail with code 8, queued resources wait. `count` creations, or until `restock`."""
        self.answer_next(STOCK_OUT, zone, count)

    def restock(self, zone: str | None = None) -> None:
        self.take_back(STOCK_OUT, zone)

    def _known_zone(self, zone: str | None) -> None:
        if zone is not None and zone not in places.offered():
            raise EmulatorError(f"'{zone}' is no zone with TPUs.{suggest(zone, list(places.offered()))}")

    def hold(self, queued: str) -> None:
        """A queued resource goes on waiting, until `release` or its valid_until."""
        with self.clock.lock:
            self._queued(queued).held = True

    def release(self, queued: str) -> None:
        with self.clock.lock:
            found = self._queued(queued)
            found.held = False
            self._world.queue.retry(found)

    def suspend(self, queued: str) -> None:
        with self.clock.lock:
            self._world.queue.suspend(self._queued(queued))

    def fail_queued(self, queued: str, name: str = "failed-internal") -> None:
        """FAILED with the `failedData` of a recorded answer; first SUSPENDING, where it is being provisioned or ACTIVE."""
        with self.clock.lock:
            found = self._queued(queued)
            slice_ = found.wanted[0]
            values = {"zone": slice_.zone, "region": places.region_of(slice_.zone), "project": slice_.project}
            self._world.queue.fail(found, Failure.recorded(name, type=slice_.accelerator.name, **values))

    # Projects: None is the one that the emulator began with

    def set_quota(
        self,
        accelerator: str,
        limit: int,
        location: str | None = None,
        spot: bool | None = None,
        project: str | None = None,
    ) -> None:
        """`limit` counts chips or cores as the type's name does. `accelerator` is a type, or "v5litepod" for all of them.

        `location` is a region or a zone, None every region; `spot` True is the preemptible quota, False the other, None both.
        """
        with self.clock.lock:
            self.projects.known(project).quotas.set(accelerator, limit, location, spot)

    def disable_service(self, service: str, project: str | None = None) -> None:
        self.projects.known(project).services.discard(service)

    def enable_service(self, service: str, project: str | None = None) -> None:
        self.projects.known(project).services.add(service)

    def set_billing(self, enabled: bool, project: str | None = None) -> None:
        self.projects.known(project).billing = enabled

    def deny(self, permission: str, project: str | None = None) -> None:
        """Nobody has that permission ("tpu.nodes.create", or "tpu.*") from now on."""
        self.projects.known(project).denied.add(permission)

    def allow(self, permission: str | None = None, project: str | None = None) -> None:
        """Take `deny` back; None: all of them."""
        denied = self.projects.known(project).denied
        denied.clear() if permission is None else denied.discard(permission)

    def add_secret(self, name: str, value: str, project: str | None = None) -> None:
        """A new version of a secret of Secret Manager."""
        self.projects.known(project).secrets.setdefault(name, []).append(value.encode())

    def add_project(self, project: str) -> None:
        self.projects.add(project)

    # What there is

    def nodes(self) -> dict[str, str]:
        """State by id (by full name where two nodes have the same id)."""
        with self.clock.lock:
            found = self._world.nodes.all()
            return {_shortest(node.name, [other.name for other in found]): node.node.state.name for node in found}

    def queued_resources(self) -> dict[str, str]:
        """State by id."""
        with self.clock.lock:
            found = self._world.queue.all()
            return {_shortest(each.name, [other.name for other in found]): each.state.name for each in found}

    def machine(self, node: str, worker: int = 0) -> Machine:
        """One worker: its `folder`, `home`, `console()`, `processes()` and `metadata`."""
        with self.clock.lock:
            machines = self._node(node).machines
            if not 0 <= worker < len(machines):
                raise EmulatorError(f"node '{node}' has {len(machines)} running workers; there is no worker {worker}")
            return machines[worker]

    def console(self, node: str, worker: int = 0) -> str:
        """What the startup script said on that worker."""
        return self.machine(node, worker).console()

    def history(self) -> list[Event]:
        with self.clock.lock:
            return self._world.history.events()

    def node_seconds(self) -> dict[str, float]:
        """How long each node ran, by its full name: from READY until it was stopped, preempted or deleted."""
        with self.clock.lock:
            return self._world.history.node_seconds()

    def status(self) -> dict[str, Any]:
        with self.clock.lock:
            return {
                "now": self.clock.now(),
                "project": self.projects.default,
                "nodes": self.nodes(),
                "queued_resources": self.queued_resources(),
                "orders": self._world.orders.ordered(),
                "node_seconds": self.node_seconds(),
                "injected": self.faults.injected,
            }

    def _node(self, name: str) -> Slice:
        return _one("node", name, {found.name: found for found in self._world.nodes.all()})

    def _living(self, name: str) -> Slice:
        found = self._node(name)
        if found.node.state in mishaps.OVER:
            raise EmulatorError(f"node '{name}' is {found.node.state.name} already")
        return found

    def _queued(self, name: str) -> Queued:
        return _one("queued resource", name, {found.name: found for found in self._world.queue.all()})


def _one(kind: str, name: str, known: dict[str, Found]) -> Found:
    found = [key for key in known if name in (key, key.rpartition("/")[2])]
    if len(found) != 1:
        ids = [_shortest(key, known) for key in known]
        reason = f"several {kind}s are named" if found else f"there is no {kind}"
        raise EmulatorError(f"{reason} '{name}'.{suggest(name, ids)} Known: {', '.join(ids) or 'none'}")
    return known[found[0]]


def _shortest(name: str, all_names: Collection[str]) -> str:
    node_id = name.rpartition("/")[2]
    return name if sum(other.endswith(f"/{node_id}") for other in all_names) > 1 else node_id
