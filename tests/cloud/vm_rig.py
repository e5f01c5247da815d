"""Runs on emulated VMs with real agents and a stand-in for the trainer, and what is to be there after each of them: nothing."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trainer
from cloud_rig import PRICES, PROJECT, SETTINGS, WORKDIR_PATH, run_of

from cloud_emulator import Emulator, MachineSettings
from tpulm import storage
from tpulm.cloud import bundle, launch as launching, setup
from tpulm.cloud.control import Control
from tpulm.cloud.decide import Policy
from tpulm.cloud.job import Job
from tpulm.cloud.tpu_api import TpuApi
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
        self.tpu.set(create_seconds=0.1, delete_seconds=0.05, stop_seconds=0.05)

    def launch(self, plan: dict[str, Any], secrets: dict[str, str] | None = None, **options: Any) -> None:
        """`plan` is what is to go wrong with the trainer."""
        storage.write_json("gs://runs/plan.json", plan)
        secrets = {**(secrets or {}), "TRAINER": "gs://runs/plan.json"}
        self.settings = SETTINGS.model_copy(update={"secrets": secrets, **options})
        setup.apply(setup.steps(setup.examine(self.settings)))
        python = self._interpreter()
        with patch.object(bundle, "fetch_uv", lambda _: python):  # 50 MB to pack, which nobody needs where an interpreter is
            launching.launch(run_of(), self.workdir, self.settings, prices=PRICES, python=str(python))

    def _interpreter(self) -> Path:
        path = self._folder / "python"
        source = bundle.source_folder().parent  # this tpulm, wherever the environment has another
        path.write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} {trainer.__file__} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def supervise(self, fits: Callable[[], object] | None = None) -> Job:
        """By a new supervisor, until that is so, or until the run is over."""
        control = Control(self.workdir)
        supervisor = launching.supervisor(self.workdir, self.settings, TpuApi(PROJECT), log=self.told.append, policy=QUICK)
        until(lambda: supervisor.step() and (fits() if fits else control.job().is_over), lambda: self.told, PATIENCE)
        return control.job()

    def node(self) -> str:
        """The one there is, once it is READY."""
        until(lambda: "READY" in self.tpu.nodes().values())
        (name,) = self.tpu.nodes()
        return name.rpartition("/")[2]

    def newest_step(self) -> int:
        return Control(self.workdir).newest_step()


@pytest.fixture
def machines() -> MachineSettings:
    environment = {"TPULM_LOOK_SECONDS": "0.2", "TPULM_SELF_DELETE_SECONDS": "5", "TPULM_BOOT_SECONDS": "5"}
    return MachineSettings(environment=environment)


@pytest.fixture
def cloud(gcs: Emulator, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(gcs, tmp_path)
    yield made
    assert (gcs.tpu.nodes(), gcs.tpu.queued_resources()) == ({}, {})
    until(lambda: not agents(gcs.url))
    assert Control(made.workdir).read() is not None


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
