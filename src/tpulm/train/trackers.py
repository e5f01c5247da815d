"""Experiment trackers: what a run logs is also sent to them, and a resumed run continues its tracker run.

A step that a killed attempt logged is recomputed with the same values. So a tracker is asked for its last step, then sent the
part of the log that it lacks, then every new record.
"""

from __future__ import annotations

# These packages are optional, and their types unknown:
# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
import contextlib
import io
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, Protocol

from tpulm import storage
from tpulm.config import TrackConfig
from tpulm.errors import ConfigError, MissingExtra, installing
from tpulm.progress import SILENT, Progress


@dataclass(frozen=True)
class Tracking:
    """Where and under which name a run is tracked, and its settings by dotted name."""

    config: TrackConfig
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = SILENT


class Tracker(Protocol):
    """One run in a tracker."""

    last_step: int  # when it was opened; -1: none

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Wandb:
    """Weights & Biases (offline: a folder ./wandb, for `wandb sync`), and Trackio, which has the same interface (a SQLite
    file in TRACKIO_DIR, for `trackio show`)."""

    def __init__(self, package: str, tracking: Tracking, identity: str):
        module, project, name = import_module(package), tracking.config.project, tracking.name
        if package == "wandb":
            own: dict[str, Any] = {"id": identity, "settings": module.Settings(console="off", silent=True)}
        else:
            name, own = f"{name}-{identity}", {"embed": False, "auto_log_gpu": False}
        with contextlib.redirect_stdout(io.StringIO()):  # Trackio prints where to look, and --json must keep stdout clean
            self._run = module.init(project=project, name=name, config=dict(tracking.settings), resume="allow", **own)
        if package == "wandb":
            self.last_step = int(self._run.step) - 1
        else:
            logs = import_module("trackio.sqlite_storage").SQLiteStorage.get_logs(project, name)
            self.last_step = max((int(row["step"]) for row in logs), default=-1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


class _Mlflow:
    """The server or database of MLFLOW_TRACKING_URI; without it, MLflow's default, such as ./mlflow.db."""

    def __init__(self, tracking: Tracking, identity: str):
        from mlflow import MlflowClient

        self._client, project = MlflowClient(), tracking.config.project
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self._client.create_experiment(project)
        runs = self._client.search_runs([experiment], f"tags.`tpulm.id` = '{identity}'")
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment, tags={"tpulm.id": identity}, run_name=tracking.name).info.run_id
            for name, value in tracking.settings.items():
                self._client.log_param(self._id, name, value)
        self.last_step = -1
        for key in runs[0].data.metrics if runs else ():
            self.last_step = max(self.last_step, *(one.step for one in self._client.get_metric_history(self._id, key)))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


_TRACKERS: dict[str, Callable[[Tracking, str], Tracker]] = {
    "trackio": partial(_Wandb, "trackio"),
    "wandb": partial(_Wandb, "wandb"),
    "mlflow": _Mlflow,
}


def check_trackers(config: TrackConfig) -> None:
    """Raise ConfigError if a package or a key is missing; call this before anything is computed."""
    for name in config.to:
        if find_spec(name) is None:
            raise MissingExtra(f"--track {name} needs the package {name}: {installing(name)}")
        if name == "wandb":
            import wandb

            offline = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
            if not (offline or os.environ.get("WANDB_API_KEY") or wandb.api.api_key):
                raise ConfigError("wandb has no key: set WANDB_API_KEY, run 'wandb login', or set WANDB_MODE=offline")
        elif name == "mlflow":
            from mlflow import MlflowClient, MlflowException

            try:
                MlflowClient()  # creates the tables of a database; sends a server nothing
            except MlflowException as error:
                raise ConfigError(f"mlflow refuses its MLFLOW_TRACKING_URI: {error.message}") from error


class Trackers:
    """All trackers of one attempt. One that fails is reported and no longer used: training does not stop for it."""

    def __init__(self, tracking: Tracking, workdir: PurePath, logged: Iterable[tuple[int, Mapping[str, float]]]):
        """`logged` are the records of earlier attempts, by step, up to where this attempt continues."""
        self._progress, self._open, past = tracking.progress, dict[str, Tracker](), list(logged)
        file = workdir / "tracking.json"
        storage.create_if_absent(file, f'{{"id": "{uuid.uuid4().hex[:12]}"}}\n'.encode())
        identity = storage.read_json(file)["id"]  # the same for all attempts
        for name in tracking.config.to:
            with self._surviving(name):
                tracker = _TRACKERS[name](tracking, identity)
                self._open[name] = tracker
                for step, values in past:
                    self._send(tracker, step, values)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, tracker in tuple(self._open.items()):
            with self._surviving(name):
                self._send(tracker, step, values)

    def close(self) -> None:
        for name, tracker in tuple(self._open.items()):
            with self._surviving(name):
                tracker.close()

    @staticmethod
    def _send(tracker: Tracker, step: int, values: Mapping[str, float]) -> None:
        if step >= tracker.last_step:  # of its last step it may have only a part
            tracker.log(step, values)

    @contextlib.contextmanager
    def _surviving(self, name: str):
        try:
            yield
        except Exception as error:  # anything: network, server, disk
            self._open.pop(name, None)
            self._progress.note(f"{name} gets no more of this run: {type(error).__name__}: {error}")
