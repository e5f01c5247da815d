"""What befalls nodes: preemption, loss, maintenance, frozen and dead workers."""

from __future__ import annotations

import signal

from cloud_emulator.errors import EmulatorError
from cloud_emulator.tpu.messages import types
from cloud_emulator.tpu.nodes import OVER
from cloud_emulator.tpu.slices import Slice, State
from cloud_emulator.tpu.world import World

LOOK_SECONDS = 0.1  # how often a machine that shuts down is looked at


def preempt(world: World, found: Slice, grace_seconds: float) -> None:
    """The machines are told, and get SIGTERM; once all of their processes ended, or after the grace, the node is PREEMPTED."""
    for machine in found.machines:
        machine.metadata.set("instance/preempted", "TRUE")
    world.history.add("notified", found.name, f"preemption, {grace_seconds:g} s of grace")
    world.machines.signal(found, signal.SIGTERM)
    until = world.clock.now() + grace_seconds

    def look() -> None:
        if not _is_there(world, found):
            return
        if world.clock.now() >= until or not any(machine.processes() for machine in found.machines):
            lose(world, found, "preempted")
        else:
            world.clock.after(LOOK_SECONDS, look)

    world.clock.after(min(LOOK_SECONDS, grace_seconds), look)


def lose(world: World, found: Slice, reason: str) -> None:
    """All processes end at once. The node keeps its name and its quota until it is deleted."""
    world.machines.power_off(found)
    if found.spot:
        world.nodes.set_state(found, State.PREEMPTED, "preempted", reason)
    else:
        world.nodes.set_state(found, State.TERMINATED, "terminated", reason)


def vanish(world: World, found: Slice) -> None:
    world.nodes.forget(found, "vanished", "lost without a trace")


def reboot(world: World, found: Slice, state: State, seconds: float, reason: str) -> None:
    """`state` for so long, its processes gone; then READY, the startup script run again with the same folders."""
    world.machines.power_off(found)
    world.nodes.set_state(found, state, state.name.lower(), reason)

    def end() -> None:
        if _is_there(world, found) and found.node.state == state:
            for machine in found.machines:
                machine.metadata.set("instance/maintenance-event", "NONE")
            world.machines.boot(found)
            world.nodes.set_state(found, State.READY, "ready", "rebooted")

    world.clock.after(seconds, end)


def maintenance(world: World, found: Slice, event: str) -> None:
    """`event` is what the metadata says: NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE."""
    for machine in found.machines:
        machine.metadata.set("instance/maintenance-event", event)
    unhealthy = types.Node.Health.UNHEALTHY_MAINTENANCE
    found.node.health = types.Node.Health.HEALTHY if event == "NONE" else unhealthy
    world.history.add("maintenance", found.name, event)


def state_named(name: str) -> State:
    if name not in State.__members__:
        raise EmulatorError(f"there is no state '{name}' of nodes; known: {', '.join(State.__members__)}")
    return State[name]


def _is_there(world: World, found: Slice) -> bool:
    return found in world.nodes.all() and found.node.state not in OVER
