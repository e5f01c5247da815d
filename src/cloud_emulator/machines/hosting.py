"""The machines there are: an address, a metadata server and a folder for each."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cloud_emulator.machines.machine import Machine, MachineSettings
from cloud_emulator.machines.metadata import Metadata, Tree

METADATA_PORT = 8479  # beside JAX's coordinator (8476, 8477) and the TPU's own 8470
ATTEMPTS = 50

OWN = ("NO_GCE_CHECK", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT")


class Machines:
    """`environment` is what points clients at the emulator; metadata is served in `loop`."""

    def __init__(
        self,
        settings: MachineSettings,
        environment: Callable[[], Mapping[str, str]],
        loop: Callable[[], asyncio.AbstractEventLoop],
    ):
        self._settings = settings
        self._environment = environment
        self._loop = loop
        self._lock = threading.Lock()
        self._next = _anywhere()
        self._closers: dict[Machine, Callable[[], None]] = {}
        self._folder: Path | None = None
        self._mark = uuid.uuid4().hex

    def create(self, name: str, count: int, tree_of: Callable[[int, list[str]], Tree]) -> list[Machine]:
        """Machines that are still off; `tree_of` gives the metadata of one by its number and the addresses of all."""
        listeners = [self._listen() for _ in range(count)]
        addresses: list[str] = [listener.getsockname()[0] for listener in listeners]
        folder = self._new_folder(name)
        made: list[Machine] = []
        for number, (listener, address) in enumerate(zip(listeners, addresses, strict=True)):
            tree = tree_of(number, addresses)
            metadata = Metadata(tree, address)
            variables = self._variables(address, addresses) | {"HOSTNAME": tree["instance"]["name"]}
            worker = f"worker-{number}"
            mark = f"{self._mark}/{folder.name}/{worker}"
            machine = Machine(mark, folder / worker, address, variables, metadata, self._settings)
            self._closers[machine] = self._serve(listener, metadata)
            made.append(machine)
        return made

    def remove(self, machine: Machine) -> None:
        machine.power_off()
        if machine in self._closers:
            self._closers.pop(machine)()
        machine.remove()
        shutil.rmtree(machine.folder.parent, ignore_errors=True)

    def close(self) -> None:
        """After all were removed."""
        if self._folder is not None:
            os.close(self._folder_lock)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> socket.socket:
        """At METADATA_PORT of an address that no other emulator of this machine has: listening there is what reserves it."""
        with self._lock:
            for _ in range(ATTEMPTS):
                number, self._next = self._next, self._next + 1
                if number % 256 in (0, 255) or number >= 254 << 16:
                    self._next = number + 1 if number < 254 << 16 else _anywhere()
                    continue
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                try:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind((f"127.{number >> 16}.{number >> 8 & 255}.{number & 255}", METADATA_PORT))
                    listener.listen(128)
                    return listener
                except OSError as error:
                    listener.close()
                    if error.errno != errno.EADDRINUSE:
                        raise
                    self._next = _anywhere()
        raise RuntimeError(f"port {METADATA_PORT} is taken on every address that was tried; something listens on 0.0.0.0")

    def _serve(self, listener: socket.socket, metadata: Metadata) -> Callable[[], None]:
        """What it gives ends it."""
        loop, state = self._loop(), ServerState()
        config = uvicorn.Config(metadata, ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False)
        config.load()

        async def begin() -> asyncio.Server:
            return await loop.create_server(lambda: H11Protocol(config, state, {}), sock=listener)

        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()

        async def end() -> None:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()  # type: ignore[union-attr]
            for task in list(state.tasks):
                task.cancel()

        return lambda: asyncio.run_coroutine_threadsafe(end(), loop).result()

    def _new_folder(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"tpulm-{os.getpid()}-", suffix=".tmp"))
            self._folder_lock = os.open(self._folder, os.O_RDONLY)  # by name and lock tpulm knows what it may remove, should
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX)  # the init processes be killed as well
        return self._folder / f"{name}-{uuid.uuid4().hex[:6]}"

    def _variables(self, address: str, addresses: list[str]) -> dict[str, str]:
        """Credentials come from the machine's own metadata server, so that is to be looked for."""
        host = f"{address}:{METADATA_PORT}"
        direct = ",".join(["127.0.0.1", "localhost", "127.0.0.0/8", "metadata.google.internal", *addresses])
        return {
            **{name: value for name, value in self._environment().items() if name not in OWN},
            "GCE_METADATA_HOST": host,
            "GCE_METADATA_IP": host,
            "GCE_METADATA_ROOT": host,
            "NO_PROXY": direct,
            "no_proxy": direct,
        }


def _anywhere() -> int:
    """The last 24 bits of an address in 127.0.0.0/8."""
    return random.randrange(1, 255) * 65_536 + random.randrange(256) * 256 + 1
