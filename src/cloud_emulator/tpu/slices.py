"""A node with what it stands for: an accelerator, addresses, machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from cloud_emulator.catalogue import Accelerator
from cloud_emulator.machines.machine import Machine
from cloud_emulator.quotas import Demand
from cloud_emulator.tpu.messages import types

State = types.Node.State


@dataclass(eq=False)
class Slice:
    """`addresses` and `machines` are those of its workers, in order; none before it is booted for the first time."""

    node: types.Node
    accelerator: Accelerator
    spot: bool
    queued: str = ""  # the queued resource it was born of
    addresses: list[str] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def zone(self) -> str:
        return self.node.name.split("/")[3]

    @property
    def project(self) -> str:
        return self.node.name.split("/")[1]

    @property
    def demand(self) -> Demand:
        return Demand(self.accelerator, self.spot, self.zone)
