"""Orbax, unmodified, against the emulator: in this process, in two, and killed in the middle of a save."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_writer import open_checkpoints, restore, save, state

from cloud_emulator import Emulator
from waiting import until

FOLDER = "gs://runs/w/checkpoints"
WRITER = Path(__file__).with_name("checkpoint_writer.py")


def start(environment: dict[str, str], *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(WRITER), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_saves_in_the_background_and_restores(gcs: Emulator):
    with open_checkpoints(FOLDER) as checkpoints:
        for step in (1, 2, 3):
            save(checkpoints, step)
        checkpoints.wait_until_finished()
        assert checkpoints.all_steps() == [2, 3]
    with open_checkpoints(FOLDER) as checkpoints:
        assert checkpoints.latest_step() == 3
        restored = restore(checkpoints, 3)["kernel"]
    assert np.array_equal(restored, state(3)["kernel"]) and restored.sharding == state(3)["kernel"].sharding


@pytest.mark.slow
def test_a_save_that_was_killed_is_no_checkpoint(gcs: Emulator, user_environment: dict[str, str]):
    gcs.faults.set(latency_seconds=0.3, match=r"^w/checkpoints/2/")
    child = start(user_environment, FOLDER, 3)
    until(lambda: any(name.startswith("w/checkpoints/2/default/") for name in gcs.object_names("runs")), child.poll)
    child.kill()
    child.communicate()
    gcs.wait_until_idle()  # what was on its way is slower than the next process is here, and never is in the cloud
    gcs.faults.clear()
    with open_checkpoints(FOLDER) as checkpoints:
        assert checkpoints.all_steps() == [1]
        save(checkpoints, 2)
        checkpoints.wait_until_finished()
        assert checkpoints.all_steps() == [1, 2]
        assert np.array_equal(restore(checkpoints, 2)["kernel"], state(2)["kernel"])


@pytest.mark.slow
def test_two_processes_save_one_checkpoint(gcs: Emulator, user_environment: dict[str, str]):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    environment = user_environment | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    children = [start(environment, FOLDER, 2, coordinator, 2, index) for index in range(2)]
    for child in children:
        said, complaints = child.communicate(timeout=120)
        assert child.returncode == 0, complaints
        assert "restored 2 of 2 shards of 4" in said
    with open_checkpoints(FOLDER) as checkpoints:
        assert checkpoints.all_steps() == [1, 2]
        assert np.array_equal(restore(checkpoints, 2)["kernel"], state(2)["kernel"])
