"""All of the TPU API's state in one place, and Compute Engine's, which has the same clock and machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tpulm.emulator.compute import Compute
from tpulm.emulator.faults import Faults
from tpulm.emulator.machines.machine import MachineSettings
from tpulm.emulator.projects import Projects
from tpulm.emulator.tpu.ground import Ground
from tpulm.emulator.tpu.nodes import Nodes
from tpulm.emulator.tpu.queue import Queue


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
