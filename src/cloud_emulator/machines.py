"""VMs as local processes (docs/design/emulated-tpus.md): each VM has an address, a metadata server and a folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cloud_emulator import init_process
from cloud_emulator.metadata import Metadata, Tree

METADATA_PORT = 8479  # beside JAX's coordinator (8476, 8477) and the TPU's own 8470
ATTEMPTS = 50
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEAD_PROXY = "http://127.0.0.1:9"  # nothing listens there, so a connection is refused at once
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
NOT_ON_MACHINES = ("NO_GCE_CHECK", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # of whoever stands between this machine and the internet
MARK = "EMULATED_MACHINE"  # in the environment of every process of a machine
END_SECONDS = 20.0
SERVER = {"ws": "none", "lifespan": "off", "log_config": None, "log_level": "critical", "access_log": False}  # for uvicorn


@dataclass(frozen=True)
class MachineSettings:
    """What the emulated VMs are like."""

    python: str | os.PathLike[str] | None = None  # what `python3` is there; None: the interpreter of the emulator
    internet: bool = True  # False: dead proxies for all but 127.0.0.0/8
    devices: int = 1  # as JAX counts them, on each worker's CPU
    environment: Mapping[str, str] = field(default_factory=dict)  # overrides everything else


class Machine:
    """An emulated VM, off until `boot`. Its folder survives a reboot; `address` is in 127.0.0.0/8."""

    def __init__(
        self,
        mark: str,
        folder: Path,
        address: str,
        environment: Mapping[str, str],
        metadata: Metadata,
        settings: MachineSettings,
        stop_metadata: Callable[[], None],
    ):
        self.folder, self.home, self.serial = folder, folder / "home", folder / "serial.log"
        self.address, self.metadata = address, metadata
        self._mark = f"{MARK}={mark}\0".encode()
        self._environment = {**environment, MARK: mark}
        self._settings = settings
        self._stop_metadata = stop_metadata
        self._init: subprocess.Popen[bytes] | None = None
        self._shutdown: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def boot(self, script: str) -> None:
        """Start the startup script, "" for none, in its own session. Its output goes to `serial`."""
        if sys.platform != "linux":
            raise RuntimeError("emulated machines need Linux's /proc")
        with self._lock:
            if self._init is not None:
                return
            for folder in (self.home, self.folder / "tmp", self.folder / "bin"):
                folder.mkdir(parents=True, exist_ok=True)
            program, python = self.folder / "startup-script", shlex.quote(os.fspath(self._settings.python or sys.executable))
            for path, text in ((program, script), (self.folder / "bin/python3", f'#!/bin/sh\nexec {python} "$@"\n')):
                path.write_text(text)
                path.chmod(0o755)
            with self.serial.open("ab") as serial:
                self._init = subprocess.Popen(
                    [sys.executable, "-I", "-S", init_process.__file__, str(program) if script else "", str(self.folder)],
                    stdin=subprocess.PIPE,
                    stdout=serial,
                    stderr=serial,
                    cwd=self.home,
                    env=self._variables(),
                    start_new_session=True,
                )

    def shut_down(self, script: str) -> None:
        """Start the shutdown script, beside what runs; `is_shutting_down` until it has ended."""
        with self._lock, self.serial.open("ab") as serial:
            if self._init is not None and self._shutdown is None:
                command, environment = ["bash", "-c", script], self._variables()
                self._shutdown = subprocess.Popen(command, stdout=serial, stderr=serial, cwd=self.home, env=environment)

    @property
    def is_shutting_down(self) -> bool:
        return self._shutdown is not None and self._shutdown.poll() is None

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{PATH}",
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self._settings.devices}",
            **{name: os.environ[name] for name in CERTIFICATES if name in os.environ},
            **({} if self._settings.internet else dict.fromkeys(PROXIES, DEAD_PROXY)),
            **self._environment,
            **self._settings.environment,
        }

    @property
    def is_on(self) -> bool:
        return self._init is not None

    def processes(self) -> set[int]:
        """The startup script's process and its descendants: below the init process, or by their mark if that is gone."""
        if self._init is None:
            return set()
        return set(init_process.descendants(self._init.pid)) if self._init.poll() is None else self._marked()

    def _marked(self) -> set[int]:
        pids: set[int] = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                    if self._mark in (entry / "environ").read_bytes() and _state(int(entry.name)) != b"Z":
                        pids.add(int(entry.name))
        return pids

    def signal(self, number: signal.Signals) -> None:
        _send(self.processes(), number)

    def freeze(self) -> None:
        """Stop all processes without ending them, including those started meanwhile."""
        self._signal_until_none(
            lambda: {process for process in self.processes() if _state(process) not in (b"T", b"t", b"Z", b"")}, signal.SIGSTOP
        )

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill_processes(self) -> None:
        """Kill all processes but the init process, which keeps adopting orphans; the machine stays on."""
        if self._init is not None:
            init = {self._init.pid}
            self._signal_until_none(lambda: self.processes() or self._marked() - init, signal.SIGKILL)

    def _signal_until_none(self, processes: Callable[[], set[int]], number: signal.Signals) -> None:
        give_up_at = time.monotonic() + END_SECONDS
        while remaining := processes():
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"processes {sorted(remaining)} of an emulated machine can be neither stopped nor killed")
            _send(remaining, number)
            time.sleep(0.002)

    def power_off(self) -> None:
        """All processes are gone when this returns."""
        with self._lock:
            if self._init is None:
                return
            self.kill_processes()
            if self._shutdown is not None:
                self._shutdown.kill()
                self._shutdown.wait()
                self._shutdown = None
            self._init.kill()
            self._init.wait()
            self._signal_until_none(self._marked, signal.SIGKILL)  # a script that it began just before it was killed
            if self._init.stdin is not None:
                self._init.stdin.close()
            self._init = None

    def remove(self) -> None:
        """Delete the machine, its metadata server and its folder."""
        self.power_off()
        self._stop_metadata()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other workers of the node still exist
            self.folder.parent.rmdir()

    def console(self) -> str:
        """What the startup script has printed so far, over all boots."""
        return self.serial.read_text(errors="replace") if self.serial.exists() else ""


def _send(processes: Collection[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _state(process: int) -> bytes:
    """A process's state letter, as in ps; empty if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return b""


class Machines:
    """Makes machines. `environment` points clients at the emulator; metadata is served in `loop`."""

    def __init__(
        self,
        settings: MachineSettings,
        environment: Callable[[], Mapping[str, str]],
        loop: Callable[[], asyncio.AbstractEventLoop],
    ):
        self._settings, self._environment, self._loop = settings, environment, loop
        self._lock = threading.Lock()
        self._next = _anywhere()
        self._folder: Path | None = None
        self._mark = uuid.uuid4().hex

    def create(self, name: str, count: int, tree_of: Callable[[int, list[str]], Tree]) -> list[Machine]:
        """Create machines, still off; `tree_of` gives the metadata of one by its number and the addresses of all."""
        listeners = [self._listen() for _ in range(count)]
        addresses: list[str] = [listener.getsockname()[0] for listener in listeners]
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"tpulm-{os.getpid()}-", suffix=".tmp"))
            self._folder_lock = os.open(self._folder, os.O_RDONLY)  # by name and lock tpulm knows what it may remove if
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX)  # the init processes are killed as well
        folder = self._folder / f"{name}-{uuid.uuid4().hex[:6]}"
        machines: list[Machine] = []
        for number, (listener, address) in enumerate(zip(listeners, addresses, strict=True)):
            tree, worker = tree_of(number, addresses), f"worker-{number}"
            metadata = Metadata(tree, address)
            variables = self._variables(address, addresses) | {"HOSTNAME": tree["instance"]["name"]}
            mark, stop = f"{self._mark}/{folder.name}/{worker}", self._serve(listener, metadata)
            machines.append(Machine(mark, folder / worker, address, variables, metadata, self._settings, stop))
        return machines

    def close(self) -> None:
        """Call this after all machines were removed."""
        if self._folder is not None:
            os.close(self._folder_lock)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> socket.socket:
        """A socket on METADATA_PORT of an address that no other emulator here uses: listening reserves the address."""
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
        """Start a metadata server; returns what stops it."""
        loop, state, config = self._loop(), ServerState(), uvicorn.Config(metadata, **SERVER)
        config.load()

        async def begin() -> asyncio.Server:
            return await loop.create_server(lambda: H11Protocol(config, state, {}), sock=listener)

        server = asyncio.run_coroutine_threadsafe(begin(), loop).result()

        async def end() -> None:
            server.close()
            for connection in list(state.connections):
                connection.transport.abort()
            for task in list(state.tasks):
                task.cancel()

        return lambda: asyncio.run_coroutine_threadsafe(end(), loop).result()

    def _variables(self, address: str, addresses: list[str]) -> dict[str, str]:
        """A machine's environment: credentials come from its metadata server, so clients must look for one."""
        own = {name: value for name, value in self._environment().items() if name not in NOT_ON_MACHINES}
        direct = ",".join(["127.0.0.1", "localhost", "127.0.0.0/8", "metadata.google.internal", *addresses])
        servers = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"), f"{address}:{METADATA_PORT}")
        return {**own, **servers, "NO_PROXY": direct, "no_proxy": direct}


def _anywhere() -> int:
    """A random address in 127.0.0.0/8, as its last 24 bits."""
    return random.randrange(1, 255) * 65_536 + random.randrange(256) * 256 + 1
