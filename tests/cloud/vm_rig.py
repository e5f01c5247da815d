"""Runs on emulated VMs with real agents and a stand-in for the trainer, and what is to be there after each of them: nothing."""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trainer
from cloud_rig import PROJECT, SETTINGS, WORKDIR_PATH, ZONES, run_of

from cloud_emulator import Emulator, MachineSettings
from tpulm import storage
from tpulm.cloud import bundle, launch as launching, setup
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy
from tpulm.cloud.job import Job
from tpulm.cloud.supervise import Supervisor
from tpulm.cloud.tpu_api import TpuApi
from tpulm.runtime import interrupt
from waiting import until as until_soon

PATIENCE = 120.0  # seconds until a test gives up
QUICK = Policy(create=60.0, appear=10.0, boot=PATIENCE, stale=30.0, repair=30.0, save=20.0, pause=0.2, longest_pause=1.0)
until = partial(until_soon, pause=0.2)  # processes need the processor more


class Cloud:
    """An emulated cloud that is set up, with a run launched in it."""

    def __init__(self, gcs: Emulator, folder: Path):
        self.gcs, self.tpu = gcs, gcs.tpu
        self.told: list[str] = []
        self.workdir = WORKDIR_PATH
        self._folder = folder
        self._threads: list[threading.Thread] = []
        self.tpu.set(create_seconds=0.1, delete_seconds=0.05, stop_seconds=0.05)

    def launch(self, plan: dict[str, Any], secrets: dict[str, str] | None = None, **options: Any) -> None:
        """`plan` is what is to go wrong with the trainer."""
        storage.write_json("gs://runs/plan.json", plan)
        secrets = {**(secrets or {}), "TRAINER": "gs://runs/plan.json"}
        self.settings = SETTINGS.model_copy(update={"secrets": secrets, **options})
        setup.apply(setup.steps(setup.examine(self.settings)))
        python = self._interpreter()
        with patch.object(bundle, "fetch_uv", lambda _: python):  # 50 MB to pack, which nobody needs where an interpreter is
            prices = dict.fromkeys(ZONES, 2.0)
            launching.launch(run_of(), self.workdir, self.settings, prices=prices, python=str(python))

    def _interpreter(self) -> Path:
        path = self._folder / "python"
        source = bundle.source_folder().parent  # this tpulm, wherever the environment has another
        path.write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} {trainer.__file__} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def supervisor(self) -> Supervisor:
        return launching.supervisor(
            self.workdir, self.settings, TpuApi(PROJECT), log=self.told.append, policy=QUICK, pause_seconds=0.3
        )

    def begin(self) -> Callable[[], Job]:
        """Supervises in a thread; what it gives waits for the end."""
        jobs: list[Job] = []
        supervisor = self.supervisor()
        thread = threading.Thread(target=lambda: jobs.append(supervisor.run()))
        thread.start()
        self._threads.append(thread)

        def end() -> Job:
            thread.join(PATIENCE)
            assert jobs, self.told
            return jobs[0]

        return end

    def end(self) -> None:
        """End what a failed test has left."""
        if any(thread.is_alive() for thread in self._threads):
            interrupt.request("the end of the test")
            for thread in self._threads:
                thread.join(PATIENCE)

    def node(self) -> str:
        """The one there is, once it is READY."""
        until(lambda: "READY" in self.tpu.nodes().values())
        (name,) = self.tpu.nodes()
        return name.rpartition("/")[2]

    def consoles(self) -> str:
        """What the startup scripts of all nodes that are READY have said so far."""
        ready = [name.rpartition("/")[2] for name, state in self.tpu.nodes().items() if state == "READY"]
        return "".join(map(self.tpu.console, ready))

    def newest_step(self) -> int:
        return Control(self.workdir).newest_step()

    def nothing_is_left(self) -> None:
        assert (self.tpu.nodes(), self.tpu.queued_resources()) == ({}, {})
        until(lambda: not agents(self.gcs.url))
        assert Control(self.workdir).read() is not None


@pytest.fixture
def machines() -> MachineSettings:
    environment = {"TPULM_LOOK_SECONDS": "0.2", "TPULM_SELF_DELETE_SECONDS": "5", "TPULM_BOOT_SECONDS": "5"}
    return MachineSettings(environment=environment)


@pytest.fixture
def cloud(gcs: Emulator, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(gcs, tmp_path)
    with interrupt.handled():
        yield made
        made.end()
    made.nothing_is_left()


def agents(url: str) -> list[int]:
    """Processes on the VMs of the emulator with that address."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"/tpulm/bundles/" in command and f"STORAGE_EMULATOR_HOST={url}\0".encode() in environment:
            found.append(int(folder.name))
    return found


def endings(job: Job) -> list[str]:
    return [attempt.ending for attempt in job.attempts]
