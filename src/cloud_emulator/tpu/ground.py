"""What nodes and queued resources stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cloud_emulator.clock import Clock
from cloud_emulator.faults import Faults
from cloud_emulator.machines.machine import MachineSettings
from cloud_emulator.projects import Projects
from cloud_emulator.quotas import Demand
from cloud_emulator.tpu.behaviour import Behaviour, Orders
from cloud_emulator.tpu.history import History
from cloud_emulator.tpu.hosting import Machines
from cloud_emulator.tpu.operations import Operations
from cloud_emulator.tpu.slices import Slice


class Ground:
    """`watchers` hear of every node that enters another state or is gone; `holders` tell what a project holds."""

    def __init__(
        self, projects: Projects, faults: Faults, settings: MachineSettings, environment: Callable[[], Mapping[str, str]]
    ):
        self.clock = Clock()
        self.projects = projects
        self.faults = faults
        self.behaviour = Behaviour(
            tenant_project="metadata" not in projects.as_it_was, force_in_provisioning="deletion" in projects.as_it_was
        )
        self.orders = Orders()
        self.history = History(self.clock)
        self.operations = Operations(self.clock)
        self.machines = Machines(projects, settings, environment, lambda: self.behaviour)
        self.watchers: list[Callable[[Slice], None]] = []
        self.holders: list[Callable[[str], list[Demand]]] = []

    def changed(self, found: Slice) -> None:
        for watcher in self.watchers:
            watcher(found)

    def check_quota(self, project: str, wanted: list[Demand]) -> None:
        """Raises RpcError (429). Preempted nodes count, and suspended queued resources."""
        found = self.projects.known(project)
        held = [demand for holder in self.holders for demand in holder(project)]
        for demand in wanted:
            found.quotas.check(demand, held, found.number)
            held.append(demand)
