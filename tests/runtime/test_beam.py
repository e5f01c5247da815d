"""Identity: what a cluster computes is what a pool here computes; and what it says when it cannot."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toy_runs import WORDS
from tpulm.config import RunConfig
from tpulm.errors import ConfigError, DataError, Stopped
from tpulm.pipeline import preparation
from tpulm.runtime import beam, interrupt

pytestmark = pytest.mark.filterwarnings("default")  # Beam's own
TWO_PROCESSES = ["--runner=FnApiRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    if number == 3:
        raise DataError("bad text", location="file 3, line 7")
    return number


def texts(folder: Path, lines: int) -> Path:
    draw = random.Random(0)
    folder.mkdir()
    for number in range(3):
        text = "".join(" ".join(draw.choices(WORDS, k=draw.randint(3, 30))) + ".\n" for _ in range(lines))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def run_of(folder: Path) -> RunConfig:
    return RunConfig.model_validate({
        "corpus": {"sources": [str(folder / f"{number}.txt") for number in range(3)], "holdout_fraction": 0.05},
        "tokenizer": {"vocab_size": 60},
        "data": {"sequence_length": 32, "part_bytes": 10_000, "block_rows": 8, "dupe_factor": 2},
    })  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    """Digests of all files but the lock, which names its process, and the settings, which name the folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "run.json")]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_what_a_user_can_mend_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file 3, line 7: bad text"):
        list(beam.BeamRunner([], tmp_path)(refuse, [(number,) for number in range(5)]))
    assert list(tmp_path.iterdir()) == []


def test_a_requested_stop_is_one_here_too(tmp_path: Path) -> None:
    with interrupt.handled():
        interrupt.request("SIGTERM")
        with pytest.raises(Stopped, match="parts"):
            list(beam.BeamRunner([], tmp_path)(square, [(1,)]))


def test_options_are_beams_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runner"):
        beam.BeamRunner(["--runer=FnApiRunner"], tmp_path)
    with pytest.raises(ConfigError, match="gs://"):
        beam.BeamRunner(["--runner=DataflowRunner", "--project=p"], tmp_path)


def test_a_dataset_is_the_same_from_either_runner(tmp_path: Path) -> None:
    config = run_of(texts(tmp_path / "texts", 150))
    preparation.prepare_data(config, tmp_path / "local")
    runner = beam.BeamRunner(["--runner=FnApiRunner"], tmp_path / "beam")
    manifest = preparation.prepare_data(config, tmp_path / "beam", runner=runner).datasets[0]
    assert len(manifest.train.parts) > 2 and manifest.corpus["documents"] == 450
    assert digests(tmp_path / "beam") == digests(tmp_path / "local")


@pytest.mark.slow
def test_killed_in_the_middle_and_run_again_it_gives_the_same_bytes(tmp_path: Path, user_environment: dict[str, str]) -> None:
    run_file, folder = tmp_path / "run.toml", texts(tmp_path / "texts", 8_000)
    settings = "[tokenizer]\nvocab_size = 60\n[data]\npart_bytes = 200000\nsequence_length = 32\n"
    run_file.write_text(f"[corpus]\nsources = '{folder}/*.txt'\n{settings}", encoding="utf-8")

    def command(workdir: Path, *more: str) -> list[str]:
        return [sys.executable, "-m", "tpulm", "dataset", "prepare", str(run_file), "--workdir", str(workdir), *more]

    subprocess.run(command(tmp_path / "local"), env=user_environment, check=True, capture_output=True)
    workdir, more = tmp_path / "beam", ["--runner", "beam", "--", *TWO_PROCESSES]
    process = subprocess.Popen(
        command(workdir, *more), env=user_environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and len(list(workdir.glob("dataset/train/part-*"))) < 3:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in workdir.glob("dataset/*/part-*/part.json")}
    assert kept and not (workdir / "dataset" / "manifest.json").exists()
    subprocess.run(command(workdir, *more), env=user_environment, check=True, capture_output=True)
    assert all(path.stat().st_mtime_ns == modified for path, modified in kept.items() if _pair(path) in kept)
    assert digests(workdir / "dataset") == digests(tmp_path / "local" / "dataset")
    assert not (workdir / "beam").exists()


def _pair(path: Path) -> Path:
    """The same part of the other split: a part counts when both are there."""
    split = {"train": "holdout", "holdout": "train"}[path.parents[1].name]
    return path.parents[2] / split / path.parent.name / path.name
