"""One worker of a TPU slice: a folder, a metadata server, and the processes that its startup script begins."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud_emulator.machines import guardian, processes
from cloud_emulator.machines.metadata import Metadata

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEAD_PROXY = "http://127.0.0.1:9"  # nothing listens there, so a connection is refused at once


@dataclass(frozen=True)
class MachineSettings:
    """What the emulated TPU VMs are like."""

    python: str | os.PathLike[str] | None = None  # what `python3` is there; None: the interpreter of the emulator
    internet: bool = True  # False: proxies that are dead, for all but 127.0.0.0/8
    devices: int = 1  # as JAX counts them, on each worker's CPU
    environment: Mapping[str, str] = field(default_factory=dict)  # over everything else


class Machine:
    """Off until `boot`. What is in its folder outlives a reboot."""

    def __init__(self, mark: str, folder: Path, environment: Mapping[str, str], metadata: Metadata, settings: MachineSettings):
        self.mark = mark
        self.folder = folder
        self.metadata = metadata
        self.home = folder / "home"
        self.serial = folder / "serial.log"
        self.frozen = False
        self._environment = {**environment, processes.MARK: mark}
        self._settings = settings
        self._guardian: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def boot(self, script: str) -> None:
        """Start the startup script, "" for none, in a session of its own. Its output goes to `serial`."""
        if sys.platform != "linux":
            raise RuntimeError("emulated machines need Linux's /proc")
        with self._lock:
            if self._guardian is not None:
                return
            for folder in (self.home, self.folder / "tmp", self.folder / "bin"):
                folder.mkdir(parents=True, exist_ok=True)
            _write_program(self.folder / "bin" / "python3", f'#!/bin/sh\nexec {shlex.quote(self._python())} "$@"\n')
            path = self.folder / "startup-script"
            _write_program(path, script)
            with self.serial.open("ab") as serial:
                self._guardian = subprocess.Popen(
                    [sys.executable, "-I", "-S", guardian.__file__, str(path) if script else "", str(self.folder)],
                    stdin=subprocess.PIPE,
                    stdout=serial,
                    stderr=serial,
                    cwd=self.home,
                    env=self._variables(),
                    start_new_session=True,
                )
            self.frozen = False

    def _python(self) -> str:
        return os.fspath(self._settings.python or sys.executable)

    def _variables(self) -> dict[str, str]:
        count = self._settings.devices
        offline = {} if self._settings.internet else dict.fromkeys(_proxies(), DEAD_PROXY)
        return {
            "PATH": f"{self.folder / 'bin'}:{PATH}",
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}",
            **offline,
            **self._environment,
            **self._settings.environment,
        }

    @property
    def is_on(self) -> bool:
        return self._guardian is not None

    def processes(self) -> set[int]:
        """Those of the startup script and all that came of it."""
        if self._guardian is None:
            return set()
        return processes.members(self._guardian.pid if self._guardian.poll() is None else None, self.mark)

    def signal(self, number: signal.Signals) -> None:
        processes.send(self.processes(), number)

    def freeze(self) -> None:
        self.frozen = True
        if self._guardian is not None:
            processes.stop(self._guardian.pid, self.mark)

    def thaw(self) -> None:
        self.frozen = False
        self.signal(signal.SIGCONT)

    def kill_processes(self) -> None:
        """The machine stays on, with nothing running."""
        if self._guardian is not None:
            processes.end(self._guardian.pid, self.mark)

    def power_off(self) -> None:
        """All processes are gone when this returns."""
        with self._lock:
            if self._guardian is None:
                return
            processes.end(self._guardian.pid, self.mark)
            self._guardian.kill()
            self._guardian.wait()
            if self._guardian.stdin is not None:
                self._guardian.stdin.close()
            self._guardian = None

    def remove(self) -> None:
        self.power_off()
        shutil.rmtree(self.folder, ignore_errors=True)

    def console(self) -> str:
        """What the startup script has said so far, over all boots."""
        return self.serial.read_text(errors="replace") if self.serial.exists() else ""


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _proxies() -> list[str]:
    names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
    return [*names, *(name.lower() for name in names)]
