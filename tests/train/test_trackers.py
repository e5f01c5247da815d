"""What trackers hold after a kill and a resumption is what metrics.jsonl holds."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toy_runs import Notes, toy_config, write_corpus
from tpulm import pipeline
from tpulm.config import RunConfig, TrackConfig
from tpulm.errors import ConfigError
from tpulm.train import trackers
from tpulm.train.metrics import MetricsLog, read_metrics
from tpulm.train.trackers import Tracking


class Remembering:
    """A tracker that survives its process: what it was told, by identity."""

    runs: dict[str, list[tuple[int, dict[str, float]]]]

    def __init__(self, tracking: Tracking, identity: str):
        self._told = self.runs.setdefault(identity, [])
        self.last_step = max((step for step, _ in self._told), default=-1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._told.append((step, dict(values)))

    def close(self) -> None:
        pass


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> type[Remembering]:
    made = type("Made", (Remembering,), {"runs": {}})
    monkeypatch.setitem(trackers._TRACKERS, "wandb", made)
    return made


def tracking(progress: Any = None) -> Tracking:
    return Tracking(TrackConfig(to=("wandb",)), "a run", {"train.steps": 4}, progress or Notes())


def test_what_a_killed_attempt_did_not_send_is_sent_by_the_next(tmp_path: Path, remembering: type[Remembering]) -> None:
    """The first attempt dies with two records unsent and goes on from step 2; steps 3 and 4 come again with equal values."""
    first = MetricsLog(tmp_path, first_step=0, tracking=tracking())
    for step in (1, 2, 3, 4):
        first.write("train", step, {"loss": 1.0 / step})
    [told] = remembering.runs.values()
    del told[1:2]  # lost on the way, although a later one has arrived
    del told[2:]
    first.__exit__(None, None, None)
    with MetricsLog(tmp_path, first_step=2, tracking=tracking()) as second:
        for step in (3, 4, 5):
            second.write("train", step, {"loss": 1.0 / step})
    assert list(remembering.runs) == [json.loads((tmp_path / "tracking.json").read_text())["id"]]
    held = {step: values["train/loss"] for step, values in told}
    assert held.keys() >= {1, 3, 4, 5}
    assert all(held[record.step] == record.values["loss"] for record in read_metrics(tmp_path) if record.step in held)


def test_a_tracker_that_fails_is_left_alone(tmp_path: Path, remembering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, step: int, values: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(remembering, "log", refuse)
    progress = Notes()
    with MetricsLog(tmp_path, first_step=0, tracking=tracking(progress)) as log:
        log.write("train", 1, {"loss": 1.0})
        log.write("train", 2, {"loss": 0.5})
    assert len(progress.notes) == 1 and "wandb" in progress.notes[0] and "OSError: no network" in progress.notes[0]
    assert [record.step for record in read_metrics(tmp_path)] == [1, 2]


def test_a_missing_package_is_named_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    config = toy_config(write_corpus(tmp_path / "corpus.txt.gz"), track={"to": ["mlflow"]})
    with pytest.raises(ConfigError, match="--track mlflow"):
        pipeline.run(config, tmp_path / "w")
    assert not (tmp_path / "w" / "corpus").exists()


def test_wandb_needs_a_key_unless_it_is_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(api=SimpleNamespace(api_key=None)))  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    for mode in ("online", "offline"):
        monkeypatch.setenv("WANDB_MODE", mode)
        with pytest.raises(ConfigError, match="WANDB_API_KEY") if mode == "online" else contextlib.nullcontext():
            trackers.check_trackers(TrackConfig(to=("wandb",)))


def test_tensorboard_has_the_settings(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, first_step=0, tracking=Tracking(TrackConfig(), "a", {"train.steps": 4, "corpus.x": None})) as log:
        log.write("train", 1, {"loss": 1.0})
    [events] = (tmp_path / "tensorboard").iterdir()
    assert b"_hparams_/session_start_info" in events.read_bytes() and b"train.steps" in events.read_bytes()


KILLED = """
import os, signal, sys
from pathlib import Path
from tpulm import pipeline
from tpulm.config import from_json
from tpulm.progress import Silent
class Killing(Silent):
    left, training = int(sys.argv[2]), False
    def start(self, description, total=None, unit=""):
        self.training = description == "Training"
    def advance(self, amount):
        self.left -= int(amount) if self.training else 0
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
pipeline.run(from_json((folder / "run.json").read_text()), folder / "w", progress=Killing())
"""


def script(folder: Path, code: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, timeout=300)


def killed_and_resumed(folder: Path, name: str, environment: dict[str, str]) -> dict[tuple[int, str], float]:
    """What metrics.jsonl has, by step and name, of a run that was killed at its ninth step of 12 and went on from its sixth."""
    corpus = write_corpus(folder / "corpus.txt.gz")
    train = {**toy_config(corpus).train.model_dump(), "steps": 12, "evaluate_every_steps": 4, "log_every_steps": 1}
    config = RunConfig.model_validate({**toy_config(corpus, train=train).model_dump(), "track": {"to": [name]}})
    (folder / "run.json").write_text(config.model_dump_json())
    for left, expected in ((9, -signal.SIGKILL), (99, 0)):
        done = script(folder, KILLED, environment, str(folder), str(left))
        assert done.returncode == expected and "Warning" not in done.stderr, done.stderr[-3000:]
    records = read_metrics(folder / "w")
    return {(one.step, f"{one.kind}/{name}"): value for one in records for name, value in one.values.items() if name != "time"}


def exact(values: dict[tuple[int, str], float]) -> dict[tuple[int, str], float]:
    """Without what differs between attempts."""
    return {key: value for key, value in values.items() if not key[1].endswith(("per_second", "mfu"))}


@pytest.mark.slow
def test_trackio_holds_the_metrics_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="pip install trackio")
    expected = killed_and_resumed(tmp_path, "trackio", {"TRACKIO_DIR": str(tmp_path / "trackio")})
    import sqlite3

    [database] = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    assert len({name for name, _, _ in rows}) == 1
    held = {(step, name): value for _, step, metrics in rows for name, value in json.loads(metrics).items()}
    assert exact(held) == exact(expected)


def records_of(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: 7 bytes of its own, then LevelDB's log (doc/log_format.md there).

    Its blocks of 32 KiB hold pieces of records. Before each are a checksum (4 bytes), a length (2) and a kind (1: whole,
    2: first, 3: middle, 4: last).
    """
    assert content[:4] == b":W&B"
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        piece = content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind == 0 or len(piece) < length:
            return
        parts = piece if kind in (1, 2) else parts + piece
        if kind in (1, 4):
            yield parts


@pytest.mark.slow
def test_wandb_offline_holds_the_metrics_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="pip install wandb")
    expected = killed_and_resumed(tmp_path, "wandb", {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)})
    wandb_internal_pb2: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    held: dict[tuple[int, str], float] = {}
    identities = set[str]()
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb")):
        identities.add(path.stem.removeprefix("run-"))
        for data in records_of(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
                held |= {(row["_step"], name): value for name, value in row.items() if not name.startswith("_")}
    assert len(identities) == 1
    assert exact(held) == exact(expected)


MLFLOW_HOLDS = """
import json
from mlflow import MlflowClient
client = MlflowClient()
[run] = client.search_runs([client.get_experiment_by_name("tpulm").experiment_id])
metrics = [one for key in run.data.metrics for one in client.get_metric_history(run.info.run_id, key)]
held = [(one.step, one.key, one.value) for one in metrics]
print(json.dumps({"status": run.info.status, "steps": run.data.params["train.steps"], "held": held}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["folder", "database"])
def test_mlflow_holds_the_metrics_after_a_kill(tmp_path: Path, store: str) -> None:
    """As mlflow's own client reads them, in a process of its own: its imports warn of what its dependencies will drop."""
    pytest.importorskip("mlflow", reason="pip install mlflow")
    place = {"folder": (tmp_path / "mlruns").as_uri(), "database": f"sqlite:///{tmp_path / 'mlflow.db'}"}[store]
    environment = {"MLFLOW_TRACKING_URI": place, "MLFLOW_ALLOW_FILE_STORE": "true"}
    expected = killed_and_resumed(tmp_path, "mlflow", environment)
    done = script(tmp_path, MLFLOW_HOLDS, environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["status"], found["steps"]) == ("FINISHED", "12")
    held = {(step, name): value for step, name, value in found["held"]}
    assert exact(held) == exact(expected)
    # A step that was sent twice, too.
    assert all(held[step, name] == value for step, name, value in found["held"] if (step, name) in exact(held))


def test_an_address_that_mlflow_refuses_is_named_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a plain folder without MLFLOW_ALLOW_FILE_STORE=true (mlflow 3.17), and anything of no scheme it knows."""
    pytest.importorskip("mlflow", reason="pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://place")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"):
        trackers.check_trackers(TrackConfig(to=("mlflow",)))
