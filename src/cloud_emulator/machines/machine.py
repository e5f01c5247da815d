"""One VM: a folder, a metadata server, and the processes that its startup script begins."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud_emulator.machines import init_process
from cloud_emulator.machines.metadata import Metadata

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEAD_PROXY = "http://127.0.0.1:9"  # nothing listens there, so a connection is refused at once
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
MARK = "EMULATED_MACHINE"  # in the environment of every process of a machine
END_SECONDS = 20.0


@dataclass(frozen=True)
class MachineSettings:
    """What the emulated VMs are like."""

    python: str | os.PathLike[str] | None = None  # what `python3` is there; None: the interpreter of the emulator
    internet: bool = True  # False: proxies that are dead, for all but 127.0.0.0/8
    devices: int = 1  # as JAX counts them, on each worker's CPU
    environment: Mapping[str, str] = field(default_factory=dict)  # over everything else


class Machine:
    """Off until `boot`. What is in its folder outlives a reboot; `address` is in 127.0.0.0/8."""

    def __init__(
        self,
        mark: str,
        folder: Path,
        address: str,
        environment: Mapping[str, str],
        metadata: Metadata,
        settings: MachineSettings,
    ):
        self.folder = folder
        self.address = address
        self.metadata = metadata
        self.home = folder / "home"
        self.serial = folder / "serial.log"
        self._mark = f"{MARK}={mark}\0".encode()
        self._environment = {**environment, MARK: mark}
        self._settings = settings
        self._init: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def boot(self, script: str) -> None:
        """Start the startup script, "" for none, in a session of its own. Its output goes to `serial`."""
        if sys.platform != "linux":
            raise RuntimeError("emulated machines need Linux's /proc")
        with self._lock:
            if self._init is not None:
                return
            for folder in (self.home, self.folder / "tmp", self.folder / "bin"):
                folder.mkdir(parents=True, exist_ok=True)
            python = os.fspath(self._settings.python or sys.executable)
            _write_program(self.folder / "bin" / "python3", f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
            path = self.folder / "startup-script"
            _write_program(path, script)
            with self.serial.open("ab") as serial:
                self._init = subprocess.Popen(
                    [sys.executable, "-I", "-S", init_process.__file__, str(path) if script else "", str(self.folder)],
                    stdin=subprocess.PIPE,
                    stdout=serial,
                    stderr=serial,
                    cwd=self.home,
                    env=self._variables(),
                    start_new_session=True,
                )

    def _variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{PATH}",
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self._settings.devices}",
            **({} if self._settings.internet else dict.fromkeys(PROXIES, DEAD_PROXY)),
            **self._environment,
            **self._settings.environment,
        }

    @property
    def is_on(self) -> bool:
        return self._init is not None

    def processes(self) -> set[int]:
        """Those of the startup script and all that came of it: below the init process, or with the mark where that is gone."""
        if self._init is None:
            return set()
        return set(init_process.descendants(self._init.pid)) if self._init.poll() is None else self._marked()

    def _marked(self) -> set[int]:
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # ended meanwhile, or another user's
                    if self._mark in (entry / "environ").read_bytes() and _state(int(entry.name)) != b"Z":
                        found.add(int(entry.name))
        return found

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def freeze(self) -> None:
        """Stop all processes without ending them, also those that were begun meanwhile."""
        give_up_at = time.monotonic() + END_SECONDS
        while left := {process for process in self.processes() if _state(process) not in (b"T", b"t", b"Z", b"")}:
            self._give_up(left, give_up_at)
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill_processes(self) -> None:
        """The machine stays on, with nothing running; its init process goes on adopting orphans meanwhile."""
        if self._init is None:
            return
        give_up_at = time.monotonic() + END_SECONDS
        while left := self.processes() or self._marked() - {self._init.pid}:
            self._give_up(left, give_up_at)
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _give_up(self, left: set[int], at: float) -> None:
        if time.monotonic() > at:
            raise RuntimeError(f"processes {sorted(left)} of an emulated machine can be neither stopped nor killed")
        time.sleep(0.002)

    def power_off(self) -> None:
        """All processes are gone when this returns."""
        with self._lock:
            if self._init is None:
                return
            self.kill_processes()
            self._init.kill()
            self._init.wait()
            if self._init.stdin is not None:
                self._init.stdin.close()
            self._init = None

    def remove(self) -> None:
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def console(self) -> str:
        """What the startup script has said so far, over all boots."""
        return self.serial.read_text(errors="replace") if self.serial.exists() else ""


def _state(process: int) -> bytes:
    """One letter, as ps shows it; nothing where it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return b""


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
