"""Metrics: a file for each attempt, their union, what TensorBoard makes of them, what is damaged, and the speed."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

import pytest

from cloud_emulator import Emulator
from toy_runs import Notes
from tpulm import storage
from tpulm.train.metrics import MetricsLog, read_attempts, read_metrics, repair
from tpulm.train.throughput import Meter

# gcsfs leaves event loops and connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
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


def test_attempts_that_begin_at_once_get_numbers_of_their_own(workdir: PurePath):
    def attempt(number: int) -> int:
        with MetricsLog(workdir, first_step=0) as made:
            made.write("train", 100 + number, {"loss": float(number)})
            return made.attempt

    with ThreadPoolExecutor(8) as pool:
        attempts = list(pool.map(attempt, range(8)))
    assert sorted(attempts) == list(range(1, 9))
    assert losses(workdir) == [(100 + number, float(number)) for number in range(8)]


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
    """The second attempt goes on from an earlier checkpoint than the first one's last line."""
    log(workdir, 0, 8, 100.0)
    log(workdir, 4, 10, 200.0)
    expected = [(2, 102.0), (4, 104.0), (6, 206.0), (8, 208.0), (10, 210.0)]
    assert losses(workdir) == scalars(str(workdir / "tensorboard"), "train/loss") == expected
    assert [path.name for path in storage.list_folder(workdir / "metrics")] == ["0001.jsonl", "0002.jsonl"]


FOLLOW = f"""
import os, signal, time

from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tpulm import storage
from tpulm.train.metrics import MetricsLog

multiplexer, log = EventMultiplexer(), MetricsLog(storage.as_path("{WORKDIR}"), first_step=0)
for step in (1, 2, 3):
    log.write("train", step, {{"loss": float(step)}})
    log.sync()
    found, until = [], time.monotonic() + 200
    while len(found) < step and time.monotonic() < until:  # TensorBoard looks again and again
        multiplexer.AddRunsFromDirectory("{WORKDIR}/tensorboard")
        multiplexer.Reload()
        found = [event.step for event in multiplexer.Tensors(".", "train/loss")]
    print("FOUND", *found, flush=True)
log.write("train", 4, {{"loss": 4.0}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_synced_is_followed_by_tensorboard_and_outlives_a_kill(
    gcs: Emulator, tmp_path: Path, user_environment: dict[str, str]
):
    """In a process of its own: in one that has talked to another emulator before, TensorBoard's client keeps old answers."""
    fresh = {"FSSPEC_GS": '{"use_listings_cache": false}'}  # or its client may go by the size that the file had before
    environment = os.environ | user_environment | fresh | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FOLLOW], env=environment, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert found == ["FOUND 1", "FOUND 1 2", "FOUND 1 2 3"], done.stderr
    workdir = storage.as_path(WORKDIR)
    assert losses(workdir) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    log(workdir, 0, 2, 5.0)
    assert losses(workdir) == [(1, 1.0), (2, 7.0), (3, 3.0)]


def test_what_is_damaged_is_left_out_and_mended_with_one_note(tmp_path: Path) -> None:
    """A torn last line is what a kill leaves, and no damage."""
    progress = Notes()
    notes = progress.notes
    log = MetricsLog(tmp_path, first_step=0)
    log.started(lambda: {"device": "1 x cpu"})
    for step in (1, 2, 3):
        log.write("train", step, {"loss": 1.0})
    log.__exit__(None, None, None)
    path, start = (tmp_path / "metrics" / f"0001.{suffix}" for suffix in ("jsonl", "start.json"))
    path.write_bytes(whole := path.read_bytes() + b'{"kind": "tr')
    assert [record.step for record in read_metrics(tmp_path)] == [1, 2, 3]
    repair(tmp_path, progress)
    assert not notes and path.read_bytes() == whole
    for damaged in (whole.replace(b'"step": 2', b'"step": .'), whole.replace(b"kind", b"k\xff", 1), whole[40:]):
        path.write_bytes(damaged)
        with pytest.warns(match="0001.jsonl"):
            left = read_metrics(tmp_path)
        assert len(left) == 2
        repair(tmp_path, progress)
        repair(tmp_path, progress)
        assert read_metrics(tmp_path) == left and len(notes) == 1 and "0001.jsonl" in notes.pop()
    assert damaged in [kept.read_bytes() for kept in (tmp_path / "damaged").iterdir()]
    start.write_bytes(start.read_bytes().replace(b"1 x", b"2 x"))
    repair(tmp_path, progress)
    assert len(notes) == 1 and [attempt.start for attempt in read_attempts(tmp_path)] == [{}]


def test_torch_is_not_loaded_but_can_be(tmp_path: Path) -> None:
    """tensorboardX would, in two seconds of every start."""
    (tmp_path / "torch.py").write_text("")
    code = "import sys, tpulm.train.metrics; assert 'torch' not in sys.modules; import torch; import tpulm.train.metrics"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True)


def test_the_meter_leaves_pauses_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    meter = Meter(per_row=10, flops_per_row=100.0, peak=1000.0, text_fraction=0.5)
    now[0] = 2.0
    meter.count(8)
    meter.pause()
    now[0] = 50.0
    meter.resume()
    now[0] = 52.0
    rate = meter.close_window()
    assert rate.per_second == pytest.approx(10.0)  # 8 rows of 10 slots in 4 s, half of them padding
    assert rate.mfu == pytest.approx(0.1) and str(rate) == "10 tokens/s (50% of slots)"
    assert str(rate._replace(per_second=1234.5, text_fraction=1.0)) == "1,234 tokens/s"
    assert meter.overall() == rate
    meter.count(1_000)
    now[0] = 53.0
    assert meter.close_window().mfu is None  # faster than the peak, which was measured too low
