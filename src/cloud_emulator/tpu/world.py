"""All of the TPU API's state in one place, and Compute Engine's, which has the same clock and machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cloud_emulator.compute import Compute
from cloud_emulator.faults import Faults
from cloud_emulator.machines.machine import MachineSettings
from cloud_emulator.projects import Projects
from cloud_emulator.tpu.ground import Ground
from cloud_emulator.tpu.nodes import Nodes
from cloud_emulator.tpu.queue import Queue


class World(Ground):
    """Whoever touches it holds the clock's lock."""

    def __init__(
        self, projects: Projects, faults: Faults, settings: MachineSettings, environment: Callable[[], Mapping[str, str]]
    ):
        super().__init__(projects, faults, settings, environment)
        self.nodes = Nodes(self)
        self.queue = Queue(self, self.nodes)
        self.compute = Compute(self)

    def close(self) -> None:
        """No process of any node is left when this returns."""
        self.clock.close()
        with self.clock.lock:
            for found in self.nodes.all():
                self.machines.remove(found)
            self.compute.close()
        self.machines.close()
