"""Orders to the emulated cloud, by rehearsals and tests: from Python and, by the same names, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pydantic
from google.cloud.tpu_v2 import types
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute

from cloud_emulator.errors import EmulatorError, invalid, named, shortest, storage_error, suggest
from cloud_emulator.faults import Faults, validated
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.machines import Machine, Machines
from cloud_emulator.projects import Projects
from cloud_emulator.tpu.nodes import OVER, Nodes, NodeState, TpuSlice, power_off, state_named
from cloud_emulator.tpu.queue import Queue, Queued
from cloud_emulator.tpu.state import STOCK_OUT, Behaviour, Event, Failure, State

MOST_SECONDS = 10**9
# Events after which a node costs nothing.
UNPAID = ("creating", "preempted", "terminated", "stopped", "deleted", "failed", "vanished")
UNLOCKED = ("close", "routes")
Class = TypeVar("Class", bound=type)


def locked(cls: Class) -> Class:
    """Public methods run under the clock's lock."""

    def under_lock(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def run(self: Tpu, *arguments: Any, **named: Any) -> Any:
            with self.clock.lock:
                return method(self, *arguments, **named)

        return run

    for name, method in list(vars(cls).items()):
        if callable(method) and not name.startswith("_") and name not in UNLOCKED:
            setattr(cls, name, under_lock(method))
    return cls


@locked
class Tpu:
    """Nodes and queued resources go by their ids, or by full names where several have the same id.

    Seconds are those of the emulator's clock. Raises EmulatorError for what does not exist.
    """

    def __init__(self, projects: Projects, machines: Machines, faults: Faults):
        self.state = State(projects, machines)
        self.node_table = Nodes(self.state)
        self.queue = Queue(self.state, self.node_table)
        self.clock = self.state.clock
        self.projects = projects
        self.faults = faults  # of the TPU API itself; `match` is searched for in names of resources

    def close(self) -> None:
        """No process of any machine is left when this returns."""
        self.clock.close()
        with self.clock.lock:
            for node in list(self.node_table.values()):
                self.node_table.remove_machines(node)
        self.state.machines.close()

    def set(self, **settings: bool | int | float | None) -> None:
        """Change the behaviour of the service from now on; the names are those of `Behaviour`."""
        self.state.behaviour = validated(Behaviour, {**self.state.behaviour.model_dump(), **settings})

    def advance(self, seconds: float) -> None:
        """Skip time: everything due in it has happened when this returns."""
        if not 0 <= seconds <= MOST_SECONDS:
            raise EmulatorError(f"time goes on, not back, and by at most {MOST_SECONDS} s; found {seconds} seconds")
        self.clock.advance(seconds)

    # Faults of nodes

    def preempt(self, node: str, grace_seconds: float = 2.0) -> None:
        """Preempt with notice: `instance/preempted` is TRUE and processes get SIGTERM; PREEMPTED when they ended or time is up.

        A node that is not spot is TERMINATED instead, here and in `kill`.
        """
        self.node_table.preempt(self._living(node), grace_seconds)

    def kill(self, node: str) -> None:
        """Preempt a node without notice."""
        self.node_table.lose(self._living(node), "without notice")

    def vanish(self, node: str) -> None:
        """Remove a node at once, with its machines and its name."""
        self.node_table.forget(self._node(node), "vanished", "lost without a trace")

    def kill_worker(self, node: str, worker: int = 0) -> None:
        """End all processes of one worker; the node stays READY."""
        self.machine(node, worker).kill_processes()
        self._note("worker killed", node, worker)

    def freeze(self, node: str, worker: int = 0) -> None:
        """Stop one worker's processes without ending them."""
        self.machine(node, worker).freeze()
        self._note("frozen", node, worker)

    def thaw(self, node: str, worker: int = 0) -> None:
        self.machine(node, worker).thaw()
        self._note("thawed", node, worker)

    def _note(self, what: str, node: str, worker: int) -> None:
        self.state.record(what, self._node(node).name, f"worker {worker}")

    def maintenance(self, node: str, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Set `instance/maintenance-event` from now on; "NONE" ends the maintenance."""
        tpu_slice, health = self._node(node), types.Node.Health
        for machine in tpu_slice.machines:
            machine.metadata.set("instance/maintenance-event", event)
        tpu_slice.node.health = health.HEALTHY if event == "NONE" else health.UNHEALTHY_MAINTENANCE
        self.state.record("maintenance", tpu_slice.name, event)

    def repair(self, node: str, seconds: float = 1.0, state: str = "REPAIRING") -> None:
        """REPAIRING (or RESTARTING, …) for `seconds`, then READY: the startup script runs again with the same folders."""
        tpu_slice, target = self._living(node), state_named(state)
        power_off(tpu_slice)
        self.node_table.set_state(tpu_slice, target, state.lower(), "maintenance")

        def end() -> None:
            if self.node_table.get(tpu_slice.name) is tpu_slice and tpu_slice.node.state == target:
                for machine in tpu_slice.machines:
                    machine.metadata.set("instance/maintenance-event", "NONE")
                self.node_table.boot(tpu_slice)
                self.node_table.set_state(tpu_slice, NodeState.READY, "ready", "rebooted")

        self.clock.after(seconds, end)

    def set_state(self, node: str, state: str) -> None:
        """Set what the API reports from now on, such as UNKNOWN; the machines keep running."""
        self.node_table.set_state(self._node(node), state_named(state), state.lower(), "by order")

    def fail_metadata(self, node: str, worker: int = 0, count: int = 1, path: str = "") -> None:
        """The next `count` requests to a worker's metadata server for what begins with `path` fail as recorded, 503 or 500."""
        self.machine(node, worker).metadata.fail(count, path)

    # Faults of requests

    def answer_next(self, name: str, zone: str | None = None, count: int | None = 1, requests: str | None = None) -> None:
        """Give a recorded answer (`cloud_emulator.recorded`) to the next `count` requests that match; None: to all of them.

        Requests that create something match, unless the entry says otherwise, or those whose kind begins with `requests`, such
        as "GET node", "" for any. An operation's error comes in the operation of a creation. `zone` None: in any.
        """
        known = self.projects.catalogue.zones
        if zone is not None and zone not in known:
            raise EmulatorError(f"'{zone}' is no zone with TPUs.{suggest(zone, known)}")
        self.state.orders.add(name, zone, count, requests)

    def take_back(self, name: str | None = None, zone: str | None = None) -> None:
        """Cancel answers that were ordered and not given yet; None: any."""
        self.state.orders.take_back(name, zone)
        for queued in list(self.queue.values()):
            self.queue.retry(queued)

    def stock_out(self, zone: str, count: int | None = None) -> None:
        """Have no capacity for `count` creations, or until `restock`: creations fail with code 8, queued resources wait."""
        self.answer_next(STOCK_OUT, zone, count)

    def restock(self, zone: str | None = None) -> None:
        self.take_back(STOCK_OUT, zone)

    def hold(self, queued: str) -> None:
        """Keep a queued resource waiting, until `release` or its valid_until."""
        self._queued(queued).held = True

    def release(self, queued: str) -> None:
        resource = self._queued(queued)
        resource.held = False
        self.queue.retry(resource)

    def suspend(self, queued: str) -> None:
        self.queue.suspend(self._queued(queued))

    def fail_queued(self, queued: str, name: str = "failed-internal") -> None:
        """Fail one with the `failedData` of a recorded answer; it is SUSPENDING first, if it was PROVISIONING or ACTIVE."""
        resource = self._queued(queued)
        self.queue.fail(resource, Failure.recorded(name, **resource.slices[0].described))

    # Projects: None is the one that the emulator started with

    def set_quota(
        self, accelerator: str, limit: int, location: str | None = None, spot: bool | None = None, project: str | None = None
    ) -> None:
        """Set a limit, in chips or cores as in the type's name. `accelerator` is a type, or "v5litepod" for all of them.

        `location` is a region or a zone, None every region; `spot` True is the preemptible quota, False the other, None both.
        """
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
        """Add a version of a secret to Secret Manager."""
        self.projects.known(project).secrets.setdefault(name, []).append(value.encode())

    def add_project(self, project: str) -> None:
        self.projects.add(project)

    # What there is

    def nodes(self) -> dict[str, str]:
        """State by id (by full name if two nodes have the same id)."""
        states = {each.name: each.node.state.name for each in list(self.node_table.values())}
        return {shortest(name, states): state for name, state in states.items()}

    def queued_resources(self) -> dict[str, str]:
        """State by id."""
        states = {each.name: each.state.name for each in list(self.queue.values())}
        return {shortest(name, states): state for name, state in states.items()}

    def machine(self, node: str, worker: int = 0) -> Machine:
        """One worker: its `folder`, `home`, `console()`, `processes()` and `metadata`."""
        machines = self._node(node).machines
        if not 0 <= worker < len(machines):
            raise EmulatorError(f"node '{node}' has {len(machines)} running workers; there is no worker {worker}")
        return machines[worker]

    def console(self, node: str, worker: int = 0) -> str:
        """What the startup script printed on that worker."""
        return self.machine(node, worker).console()

    def history(self) -> list[Event]:
        return list(self.state.events)

    def node_seconds(self) -> dict[str, float]:
        """Seconds for which each node was billed, by its full name, over all nodes of that name: from READY until it was
        stopped, preempted or deleted, or up to now."""
        spent: dict[str, float] = {}
        since: dict[str, float] = {}
        for event in self.state.events:
            if event.what == "ready":
                since.setdefault(event.name, event.at)
            elif event.what in UNPAID and event.name in since:
                spent[event.name] = spent.get(event.name, 0.0) + event.at - since.pop(event.name)
        now = self.clock.now()
        return {name: spent.get(name, 0.0) + now - since.get(name, now) for name in {**spent, **since}}

    def status(self) -> dict[str, Any]:
        return {
            "now": self.clock.now(),
            "project": self.projects.default,
            "nodes": self.nodes(),
            "queued_resources": self.queued_resources(),
            "orders": self.state.orders.ordered(),
            "node_seconds": self.node_seconds(),
            "injected": self.faults.injected,
        }

    def _node(self, name: str) -> TpuSlice:
        return named("node", name, self.node_table)

    def _living(self, name: str) -> TpuSlice:
        node = self._node(name)
        if node.node.state in OVER:
            raise EmulatorError(f"node '{name}' is {node.node.state.name} already")
        return node

    def _queued(self, name: str) -> Queued:
        return named("queued resource", name, self.queue)

    # Over HTTP

    def routes(self) -> list[BaseRoute]:
        """Below /_control/tpu: POST ACTION with its arguments as JSON."""
        table: list[tuple[str, str, Callable[..., Any]]] = [
            ("GET", "/status", lambda call: self.status()),
            ("GET", "/history", lambda call: [each._asdict() for each in self.history()]),
            ("GET", "/console/{node}/{worker}", lambda call, node, worker: PlainTextResponse(self.console(node, int(worker)))),
            ("POST", "/faults", self._set_faults),
            ("DELETE", "/faults", self._set_faults),
            ("POST", "/{action}", self._act),
        ]
        return [Endpoint("", method, path, "", answer) for method, path, answer in table]

    def _set_faults(self, call: Call) -> dict[str, Any]:
        self.faults.set(**call.content())
        return self.status()

    def _act(self, call: Call, action: str) -> dict[str, Any]:
        public = {name: each for name, each in vars(Tpu).items() if not name.startswith("_") and name != "close"}
        orders = {name for name, each in public.items() if getattr(each, "__annotations__", {}).get("return") == "None"}
        if action not in orders:
            raise storage_error(404, f"there is no '{action}' to do.{suggest(action, orders)}", "notFound")
        try:
            pydantic.validate_call(getattr(self, action))(**call.content())
        except pydantic.ValidationError as error:
            wrong = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise invalid("; ".join(wrong)) from None
        return self.status()
