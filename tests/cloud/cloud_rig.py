"""A run in the cloud as the commands about it find one: a job in the bucket, a node or what is left of it in the API."""

from __future__ import annotations

import time
from typing import Any

from tpulm import storage
from tpulm.cloud.control import Control
from tpulm.cloud.job import Attempt, Job, Node
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, WORKDIR, Request
from tpulm.cloud.settings import load
from tpulm.cloud.tpu_api import TpuApi
from tpulm.config import RunConfig, canonical_json, load as load_run
from waiting import until

ZONE, OTHER_ZONE, PROJECT = "us-central1-a", "europe-west4-a", "tpulm-emulator"
ZONES = (ZONE, "us-central1-b")
SETTINGS = load(project=PROJECT, accelerator="v3-8", bucket="runs", zones=ZONES, budget=50.0)
PRICES: dict[str, float] = dict.fromkeys((*ZONES, OTHER_ZONE), 2.0)
WORKDIR_PATH = storage.as_path("gs://runs/toy")


def job_of(**changes: Any) -> Job:
    values: dict[str, Any] = {"run": "toy", "accelerator": "v3-8", "spot": True, "zones": ZONES, "project": PROJECT}
    values |= {"prices": PRICES, "created_at": time.time() - 7200}
    return Job(**{**values, **changes})


def attempt_of(number: int = 1, **changes: Any) -> Attempt:
    now, node = time.time(), f"toy-a{number}"
    values: dict[str, Any] = {"number": number, "node": node, "zone": ZONE, "first_step": 0, "last_step": 40, "dollars": 2.0}
    values |= {"intended_at": now - 7200, "ready_at": now - 7000, "ended_at": now - 3400}
    return Attempt(**{**values, "ending": "preempted", "detail": f"{node} is PREEMPTED", **changes})


def node_of(number: int = 1, **changes: Any) -> Node:
    now = time.time()
    values: dict[str, Any] = {"name": f"toy-a{number}", "zone": ZONE, "attempt": number, "requested": True, "state": "READY"}
    return Node(**{**values, "intended_at": now - 3700, "since": now - 3600, "ready_at": now - 3600, **changes})


def running(**changes: Any) -> Job:
    """In its second attempt, an hour long."""
    return job_of(**{"attempt": 2, "node": node_of(2), "attempts": (attempt_of(1),), "newest_step": 40, **changes})


def run_of(steps: int = 1000) -> RunConfig:
    return load_run("bert-tiny", {"corpus.sources": ["gs://runs/text.txt"], "train.steps": steps})


def write_job(job: Job, workdir: Any = WORKDIR_PATH) -> Control:
    """As a launch of `run_of()` with SETTINGS leaves it."""
    control = Control(workdir)
    storage.remove(control.path)
    assert control.create(job)
    storage.write_json(control.settings_file, {**SETTINGS.model_dump(mode="json"), "bundle": "gs://runs/none"})
    storage.write_atomic(control.run_file, canonical_json(run_of()))
    return control


def request_of(name: str, **changes: Any) -> Request:
    """A request for a spot v3-8 in us-central1-a."""
    values: dict[str, Any] = {"zone": ZONE, "accelerator": "v3-8", "runtime_version": "tpu-ubuntu2204-base", "spot": True}
    values |= {"queued": False, "valid_seconds": 600.0, "service_account": None}
    values |= {"labels": {LABEL: name.partition("-")[0]}, "metadata": {}}
    return Request(name=name, **{**values, **changes})


def plant(api: TpuApi, name: str, zone: str = ZONE, **changes: Any) -> None:
    """A node, or a queued resource, of the run in gs://runs/toy unless `workdir` and `labels` say otherwise."""
    workdir = str(changes.pop("workdir", WORKDIR_PATH))
    labels = {LABEL: "toy", UNTIL_LABEL: str(round(time.time() + 3600))}
    told = {"labels": labels, "metadata": {WORKDIR: workdir} if workdir else {}}
    api.create(request_of(name, zone=zone, **{**told, **changes}))
    until(lambda: api.node_status(name, zone).state in ("READY", "WAITING_FOR_RESOURCES"))
