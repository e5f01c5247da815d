"""Metrics of runs in Cloud Storage: a file for each attempt, their union, and what TensorBoard makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

import pytest

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.train.metrics import MetricsLog, read_metrics

# gcsfs leaves event loops and connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # tensorboard's
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
WORKDIR = "gs://runs/w"


@pytest.fixture(params=["disk", "cloud"])
def workdir(request: pytest.FixtureRequest, tmp_path: Path) -> PurePath:
    if request.param == "disk":
        return tmp_path / "w"
    request.getfixturevalue("gcs")
    return storage.as_path(WORKDIR)


def log(workdir: PurePath, first_step: int, last_step: int, offset: float) -> None:
    """One attempt, which logs every second step."""
    with MetricsLog(workdir, first_step=first_step) as made:
        for step in range(first_step + 2, last_step + 1, 2):
            made.write("train", step, {"loss": offset + step})


def losses(workdir: PurePath) -> list[tuple[int, float]]:
    return [(record.step, record.values["loss"]) for record in read_metrics(workdir)]


# The second attempt goes on from an earlier checkpoint than the first one's last line.
SERIES = [(2, 102.0), (4, 104.0), (6, 206.0), (8, 208.0), (10, 210.0)]


def test_attempts_that_begin_at_once_get_numbers_of_their_own(workdir: PurePath):
    def attempt(number: int) -> int:
        with MetricsLog(workdir, first_step=0) as made:
            made.write("train", 100 + number, {"loss": float(number)})
            return made.attempt

    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(attempt, range(8)))
    assert sorted(attempts) == list(range(1, 9))
    assert losses(workdir) == [(100 + number, float(number)) for number in range(8)]


def test_what_was_synced_outlives_a_kill(gcs: Emulator, tmp_path: Path, user_environment: dict[str, str]):
    script = """
import os, signal, sys
from tpulm import storage
from tpulm.train.metrics import MetricsLog
log = MetricsLog(storage.as_path(sys.argv[1]), first_step=0)
log.write("train", 1, {"loss": 1.0})
log.sync()
log.write("train", 2, {"loss": 2.0})
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | user_environment | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script, WORKDIR], env=environment, check=False)
    assert losses(storage.as_path(WORKDIR)) == [(1, 1.0)]
    log(storage.as_path(WORKDIR), 0, 2, 5.0)
    assert losses(storage.as_path(WORKDIR)) == [(1, 1.0), (2, 7.0)]


def scalars(logdir: str, tag: str) -> list[tuple[int, float]]:
    """As `tensorboard --load_fast=false --logdir` reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

        multiplexer = EventMultiplexer(purge_orphaned_data=True)
        multiplexer.AddRunsFromDirectory(logdir)
        multiplexer.Reload()
        return [(event.step, event.tensor_proto.float_val[0]) for event in multiplexer.Tensors(".", tag)]


def test_the_union_of_attempts_is_one_line_in_tensorboard(workdir: PurePath):
    log(workdir, 0, 8, 100.0)
    log(workdir, 4, 10, 200.0)
    assert losses(workdir) == scalars(str(workdir / "tensorboard"), "train/loss") == SERIES
    assert [path.name for path in storage.list_folder(workdir / "metrics")] == ["0001.jsonl", "0002.jsonl"]


FOLLOW = f"""
import time

from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tpulm import storage
from tpulm.train.metrics import MetricsLog

multiplexer = EventMultiplexer()
with MetricsLog(storage.as_path("{WORKDIR}"), first_step=0) as made:
    for step in (1, 2, 3):
        made.write("train", step, {{"loss": float(step)}})
        made.sync()
        found, until = [], time.monotonic() + 200
        while len(found) < step and time.monotonic() < until:  # TensorBoard looks again and again
            multiplexer.AddRunsFromDirectory("{WORKDIR}/tensorboard")
            multiplexer.Reload()
            found = [event.step for event in multiplexer.Tensors(".", "train/loss")]
        print("FOUND", *found)
"""


def test_tensorboard_follows_a_file_that_grows(gcs: Emulator, user_environment: dict[str, str]):
    """In a process of its own: in one that has talked to another emulator before, TensorBoard's client keeps old answers."""
    fresh = {"FSSPEC_GS": '{"use_listings_cache": false}'}  # or its client may go by the size that the file had before
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW], env=os.environ | user_environment | fresh, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert found == ["FOUND 1", "FOUND 1 2", "FOUND 1 2 3"], done.stderr
