"""The machines of nodes: an address, a metadata server and a folder for each worker."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from cloud_emulator.machines.addresses import Addresses
from cloud_emulator.machines.machine import Machine, MachineSettings
from cloud_emulator.machines.metadata import Metadata, Tree
from cloud_emulator.machines.metadata_server import MetadataServers
from cloud_emulator.projects import Projects
from cloud_emulator.tpu.behaviour import Behaviour
from cloud_emulator.tpu.messages import types
from cloud_emulator.tpu.slices import Slice
from cloud_emulator.tpu.vm import machine_name, metadata_tree

TPU_PORT = 8470


class Machines:
    """`environment` is what points clients at the emulator."""

    def __init__(
        self,
        projects: Projects,
        settings: MachineSettings,
        environment: Callable[[], Mapping[str, str]],
        behaviour: Callable[[], Behaviour],
    ):
        self._behaviour = behaviour
        self._projects = projects
        self._settings = settings
        self._environment = environment
        self._addresses = Addresses()
        self._servers = MetadataServers()
        self._closers: dict[Machine, Callable[[], None]] = {}
        self._folder: Path | None = None
        self._mark = uuid.uuid4().hex

    def boot(self, found: Slice) -> None:
        """Every worker runs the startup script; one that is on already goes on as it is."""
        if not found.machines:
            self._make(found)
        for machine in found.machines:
            machine.boot(found.node.metadata.get("startup-script", ""))

    def _make(self, found: Slice) -> None:
        project = self._projects.known(found.project)
        listeners = [self._addresses.take() for _ in range(found.accelerator.hosts)]
        found.addresses = [listener.getsockname()[0] for listener in listeners]
        outside = found.node.network_config.enable_external_ips
        found.node.network_endpoints = [
            types.NetworkEndpoint(
                ip_address=address,
                port=TPU_PORT,
                access_config=types.AccessConfig(external_ip=f"203.0.113.{number % 256}" if outside else ""),
            )
            for number, address in enumerate(found.addresses)
        ]
        folder = self._new_folder(found.name.rpartition("/")[2])
        for worker, listener in enumerate(listeners):
            tree = metadata_tree(found, project, worker, self._behaviour().tenant_project)
            machine = self._machine(folder / f"worker-{worker}", listener, tree, found.addresses, machine_name(found, worker))
            found.machines.append(machine)

    def start(self, name: str, tree_of: Callable[[str], Tree], script: str) -> Machine:
        """One machine by itself, as Compute Engine has them; `tree_of` gives the metadata of one with that address."""
        listener = self._addresses.take()
        address = listener.getsockname()[0]
        machine = self._machine(self._new_folder(name) / "worker-0", listener, tree_of(address), [address], name)
        machine.boot(script)
        return machine

    def end(self, machine: Machine) -> None:
        machine.power_off()
        if machine in self._closers:
            self._closers.pop(machine)()
        machine.remove()
        shutil.rmtree(machine.folder.parent, ignore_errors=True)

    def _new_folder(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"tpulm-{os.getpid()}-", suffix=".tmp"))
            self._lock = os.open(self._folder, os.O_RDONLY)  # named and locked as `tpulm.storage.staging` wants it, which
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # removes it should the guardians be killed as well
        return self._folder / f"{name}-{uuid.uuid4().hex[:6]}"

    def _machine(self, folder: Path, listener: socket.socket, tree: Tree, addresses: list[str], hostname: str) -> Machine:
        metadata = Metadata(tree, guest_attributes="guest-attributes" not in self._projects.as_it_was)
        address, port = listener.getsockname()
        environment = machine_environment(self._environment(), f"{address}:{port}", addresses)
        environment["HOSTNAME"] = hostname
        machine = Machine(f"{self._mark}/{folder.parent.name}/{folder.name}", folder, environment, metadata, self._settings)
        self._closers[machine] = self._servers.open(listener, metadata)
        return machine

    def signal(self, found: Slice, number: signal.Signals) -> None:
        for machine in found.machines:
            machine.signal(number)

    def power_off(self, found: Slice) -> None:
        for machine in found.machines:
            machine.power_off()

    def reboot(self, found: Slice) -> None:
        self.power_off(found)
        self.boot(found)

    def remove(self, found: Slice) -> None:
        for machine in found.machines:
            self.end(machine)

    def close(self) -> None:
        """After all were removed."""
        self._servers.close()
        if self._folder is not None:
            os.close(self._lock)
            shutil.rmtree(self._folder, ignore_errors=True)


def machine_environment(emulator: Mapping[str, str], metadata_host: str, addresses: list[str]) -> dict[str, str]:
    """The emulator's variables as a VM has them: credentials come from its metadata server, so that is to be looked for."""
    own = ("NO_GCE_CHECK", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT")
    direct = ",".join(["127.0.0.1", "localhost", "127.0.0.0/8", "metadata.google.internal", *addresses])
    return {
        **{name: value for name, value in emulator.items() if name not in own},
        "GCE_METADATA_HOST": metadata_host,
        "GCE_METADATA_IP": metadata_host,
        "GCE_METADATA_ROOT": metadata_host,
        "NO_PROXY": direct,
        "no_proxy": direct,
    }
