"""What goes wrong around a run in the cloud, and that nothing bills because of it.

First by a clock: the real supervisor and Google's answers from the emulator, with agents that are played. Then, in real
processes, what only those can show.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cloud_rig import PRICES, PROJECT, SETTINGS, WORKDIR_PATH, ZONES, job_of, run_of, running, write_job
from vm_rig import PATIENCE, Cloud, agents, cloud, endings, machines, until

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import bundle, launch as launching
from tpulm.cloud.control import Control
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.job import Job, Node
from tpulm.cloud.launch import policy_of, request_for
from tpulm.cloud.provider import NodeStatus, Request
from tpulm.cloud.supervise import Supervisor
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import ConfigError

__all__ = ["cloud", "machines"]

STEPS = 5
Event = Callable[["Run"], object]


class Run(Control):
    """A run of five checkpoints in a folder of this machine, by the emulator's clock, of which each look takes half a minute.

    `events` are by the step after which they happen, once.
    """

    def __init__(self, gcs: Emulator, folder: Path, **options: Any):
        super().__init__(folder)
        Path(str(self.folder)).mkdir()
        self.tpu, self.step, self.told = gcs.tpu, 0, list[str]()
        self.events: dict[int, Event] = {}
        self.tpu.set(create_seconds=100.0, delete_seconds=20.0, queue_seconds=40.0)
        settings = SETTINGS.model_copy(update={"budget": None, **options})
        job = job_of(created_at=self.now(), **{name: getattr(settings, name) for name in ("queued", "zones", "budget")})
        assert self.create(job)

        def request(job: Job, node: Node) -> Request:
            found = request_for(job, node, settings, workdir=WORKDIR_PATH, bundle_path="gs://runs/bundle.tar.gz")
            metadata = {name: value for name, value in found.metadata.items() if name != "startup-script"}
            return dataclasses.replace(found, service_account=None, metadata=metadata)

        api = TpuApi(PROJECT, GoogleRest(PROJECT, patience_seconds=0.0, wait=lambda seconds: None))
        self.supervisor = Supervisor(
            self, api, policy_of(settings, job), request, log=self.told.append, clock=self.now, pause_seconds=0.0
        )

    def now(self) -> float:
        return self.tpu.clock.now()

    def run(self) -> Job:
        job = self.supervisor.run()
        assert (self.tpu.nodes(), self.tpu.queued_resources(), job.nodes) == ({}, {}, ()), self.told
        return job

    def is_complete(self) -> bool:
        return self.step >= STEPS

    def newest_step(self) -> int:
        """Called at every look."""
        self.tpu.advance(30.0)
        if self.step in self.events:
            self.events.pop(self.step)(self)
        job = self.job()
        node = job.node
        if node is not None and node.ending is None and node.name in self.tpu.nodes():
            self._play(job, node)
        return self.step

    def _play(self, job: Job, node: Node) -> None:
        """What the agents of an attempt write."""
        machines = self.tpu.node_table[f"projects/{PROJECT}/locations/{node.zone}/nodes/{node.name}"].machines
        folder = self.attempt(node.attempt)
        if not (machines and all(machine.is_on for machine in machines)) or storage.exists(folder / "end-0.json"):
            return
        for worker in range(len(machines)):
            storage.write_json(folder / f"beat-{worker}.json", {"time": self.now(), "state": "training"})
        if job.wanted != "running" or node.asked_because not in (None, "done"):
            outcome: dict[str, Any] | None = {"exit_code": 75, "message": "saved"}
        else:
            self.step += 1
            outcome = {"exit_code": 0} if self.is_complete() else None
        if outcome is not None:
            storage.write_json(folder / "end-0.json", {"failure": None, "message": "", **outcome})


def answers(name: str, **when: Any) -> Event:
    return lambda run: run.tpu.answer_next(name, **when)


def fails(**faults: Any) -> Event:
    return lambda run: run.tpu.faults.set(error_rate=1.0, **faults)


ONE_QUEUED = {"queued": True, "zones": ZONES[:1]}
# What happens after which step, other settings, and how the attempts end.
TROUBLES: Mapping[str, tuple[int, Event, dict[str, Any], list[str]]] = {
    "nothing": (0, lambda run: None, {}, ["done"]),
    "a type that is not permitted": (0, answers("type-not-permitted", zone=ZONES[0], count=None), {}, ["zone", "done"]),
    "no zone permits the type": (0, answers("type-not-permitted", count=None), {}, ["zone", "zone"]),
    "no capacity in two zones, then there is": (0, answers("stock-out", count=2), {}, ["stock-out", "stock-out", "done"]),
    "preempted before it was ready": (0, answers("preempted-while-creating", count=2), {}, ["preempted", "preempted", "done"]),
    "a quota that is free again": (0, answers("quota", count=2), {}, ["quota", "quota", "done"]),
    "a policy against external addresses": (0, answers("policy-external-ip", count=None), {}, ["denied"]),
    "a project without the default network": (0, answers("no-network"), {}, ["invalid"]),
    "a queue that ends without capacity": (0, answers("failed-stock-out", zone=ZONES[0]), ONE_QUEUED, ["stock-out", "done"]),
    "the second of two queues is served": (0, lambda run: run.tpu.stock_out(ZONES[0]), {"queued": True}, ["withdrawn", "done"]),
    "slow, but its workers are heard": (0, lambda run: run.tpu.set(create_seconds=1900.0, boot_seconds=300.0), {}, ["done"]),
    "a preemption": (2, lambda run: run.tpu.kill("toy-a1"), {}, ["preempted", "done"]),
    "a node that vanishes": (2, lambda run: run.tpu.vanish("toy-a1"), {}, ["lost", "done"]),
    "a queued resource that is suspended": (2, lambda run: run.tpu.suspend("toy-a1"), ONE_QUEUED, ["preempted", "done"]),
    "maintenance": (2, lambda run: run.tpu.repair("toy-a1", seconds=200.0), {}, ["done"]),
    "one conflict": (2, fails(error_status=409, count=1), {}, ["done"]),
    "a silent cloud": (2, fails(error_status=503, count=9), {}, ["done"]),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_comes_of_a_trouble(gcs: Emulator, tmp_path: Path, trouble: str):
    step, event, options, ends = TROUBLES[trouble]
    run = Run(gcs, tmp_path, **options)
    run.events[step] = event
    job = run.run()
    is_done = ends[-1] == "done"
    assert (job.status, endings(job), job.newest_step) == ("done" if is_done else "refused", ends, STEPS * is_done), run.told
    if step and len(ends) > 1:
        assert 0 < job.attempts[0].last_step == job.attempts[1].first_step
    if ends == ["zone", "done"]:
        assert (job.attempts[-1].zone, list(job.closed)) == (ZONES[1], [ZONES[0]])
    if ends == ["zone", "zone"]:
        assert all(zone in job.message for zone in ZONES)
    if "withdrawn" in ends:
        assert {attempt.ending: attempt.zone for attempt in job.attempts}["withdrawn"] != job.attempts[-1].zone
        assert job.attempts[0].dollars == 0.0
    advice = {"denied": "external_addresses = false", "invalid": "networks create default --subnet-mode=auto"}
    assert advice.get(ends[-1], "") in job.message


@pytest.mark.parametrize("wanted", ["stopped", "running"], ids=["stopped", "budget"])
def test_it_saves_before_it_ends(gcs: Emulator, tmp_path: Path, wanted: str):
    """Stopped on request or by the budget: $0.60 are what 18 minutes cost, of which 15 are kept for the end."""
    run = Run(gcs, tmp_path, budget=0.6 if wanted == "running" else None)
    if wanted == "stopped":
        run.events[2] = lambda run: run.change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    job = run.run()
    assert (job.status, endings(job)) == ("stopped", ["stopped" if wanted == "stopped" else "budget"]), run.told
    assert 0 < job.newest_step < STEPS and job.attempts[0].detail == "saved"
    run.change(launching.reopened)
    run.supervisor = dataclasses.replace(run.supervisor, policy=dataclasses.replace(run.supervisor.policy, budget=None))
    job = run.run()
    assert (job.status, job.attempts[-1].first_step, job.newest_step) == ("done", job.attempts[0].last_step, STEPS)


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "409"])
def test_a_node_that_was_asked_for_by_a_supervisor_that_died(gcs: Emulator, tmp_path: Path, is_seen: bool):
    """It had not recorded that it asked. The node is taken over when it is seen, or when asking again is answered with 409."""
    run = Run(gcs, tmp_path)
    job, _ = run.supervisor.step()
    assert job.node is not None and not job.node.requested
    run.supervisor.provider.create(run.supervisor.request(job, job.node))
    if not is_seen:
        with patch.object(TpuApi, "node_status", return_value=NodeStatus(None)):  # it looks too early
            run.supervisor.step()
    job = run.run()
    assert (job.status, job.attempt, endings(job)) == ("done", 1, ["done"]), run.told


# -- launching again ------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(gcs: Emulator, monkeypatch: pytest.MonkeyPatch) -> Control:
    """A run with a node, and the settings that it was launched with."""
    monkeypatch.setattr(bundle, "stage", lambda folder, **options: folder / "bundle.tar.gz")
    return write_job(running())


def test_settings_that_the_node_does_not_have(launched: Control):
    """Nothing of the run that goes on is changed."""
    before = storage.read_bytes(launched.run_file), storage.read_bytes(launched.settings_file)
    run = run_of()
    other = SETTINGS.model_copy(update={"accelerator": "v6e-8", "budget": 7.0})
    with pytest.raises(ConfigError, match=r"accelerator: v3-8 -> v6e-8\n  budget: 50\.0 -> 7\.0"):
        launching.reattach(run, WORKDIR_PATH, other)
    others = {"zones": ZONES[1:], "queued": True, "network": "other", "external_addresses": False, "quota_patience_hours": 9.0}
    with pytest.raises(ConfigError) as raised:
        launching.reattach(run, WORKDIR_PATH, SETTINGS.model_copy(update=others))
    assert all(f"{name}: " in str(raised.value) for name in others)
    with pytest.raises(ConfigError, match=r"train\.steps"):
        launching.reattach(run_of(steps=7), WORKDIR_PATH, SETTINGS)
    with pytest.raises(ConfigError, match="toy-a2"):
        launching.launch(run, WORKDIR_PATH, other, prices=PRICES)
    assert before == (storage.read_bytes(launched.run_file), storage.read_bytes(launched.settings_file))
    assert launching.reattach(run, WORKDIR_PATH, SETTINGS) == launched.job()
    launched.change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    assert launching.reattach(run, WORKDIR_PATH, SETTINGS).wanted == "running"


def test_a_stopped_run_goes_on_where_it_is_launched_next(launched: Control):
    launched.change(lambda job: job.model_copy(update={"status": "stopped", "wanted": "stopped", "node": None}))
    elsewhere = SETTINGS.model_copy(update={"zones": ZONES[1:], "spot": False})
    job = launching.launch(run_of(), WORKDIR_PATH, elsewhere, prices=PRICES)
    assert (job.status, job.wanted, job.zones, job.spot) == ("active", "running", ZONES[1:], False)


def test_a_job_that_was_deleted_by_hand_begins_after_the_attempts_that_there_were(launched: Control):
    storage.remove(launched.path)
    storage.write_json(launched.attempt(2) / "end-0.json", {})
    job = launching.launch(run_of(), WORKDIR_PATH, SETTINGS, prices=PRICES)
    assert (job.status, job.attempt, job.nodes) == ("active", 2, ())


# -- in real processes ----------------------------------------------------------------------------------------------------


def test_secrets_reach_the_trainer_and_nothing_else(cloud: Cloud) -> None:
    """A tracker's key and a secret of several lines, in a work folder with an odd name: the trainer prints one of them, and
    fails with a message that has the other."""
    cloud.workdir = storage.as_path("gs://runs/my run #1 [100%]/여름?")
    cloud.tpu.add_secret("wandb-key", "a-very-secret-value")
    storage.write_atomic("gs://runs/key", "-----BEGIN-----\nsecret-line-one\nsecret-line-two\n-----END-----\n")
    secrets = {"WANDB_API_KEY": "wandb-key", "KEY": "gs://runs/key"}
    cloud.launch({"error": "no access with a-very-secret-value"}, secrets)
    attempt = Control(cloud.workdir).attempt(1)
    cloud.supervise(lambda: storage.exists(attempt / "end-0.json"))
    shown = cloud.tpu.console(cloud.node()) + json.dumps(cloud.tpu.status())
    job = cloud.supervise()
    assert (job.status, endings(job), job.message) == ("failed", ["failed"], "no access with [redacted]"), cloud.told
    text = storage.read_text(attempt / "log-0.txt")
    assert "training with the key" in text and "secret-line" not in text
    assert not any(secret in shown for secret in ("a-very-secret-value", "secret-line"))


@pytest.mark.slow
def test_a_preemption_with_notice_is_time_to_save(cloud: Cloud) -> None:
    """Told by the shutdown script alone, unless the agent had asked the metadata server before that began to fail."""
    cloud.launch({"seconds": 2.0})
    cloud.supervise(lambda: cloud.newest_step() >= 1)
    saved, name = cloud.newest_step(), cloud.node()
    cloud.tpu.fail_metadata(name, count=999, path="instance/preempted")
    cloud.tpu.preempt(name, grace_seconds=12.0)
    job = cloud.supervise()
    assert job.status == "done" and job.attempts[0].ending in ("again", "preempted"), cloud.told
    assert job.attempts[0].last_step > saved and len(job.attempts) == 2


@pytest.mark.slow
def test_an_agent_that_is_killed_then_a_reboot_and_nobody_supervises(cloud: Cloud) -> None:
    """Either time it is started again, and its trainer with it; the node deletes itself in the end."""
    cloud.launch({"seconds": 1.0})
    cloud.supervise(lambda: cloud.newest_step() >= 1)
    for process in agents(cloud.gcs.url):
        if b"agent.py" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
    until(lambda: "it is started again" in cloud.tpu.console(cloud.node()))
    saved = cloud.newest_step()
    until(lambda: cloud.newest_step() > saved)
    cloud.tpu.repair(cloud.node(), seconds=0.5)
    until(lambda: not cloud.tpu.nodes(), seconds=PATIENCE)
    job = cloud.supervise()
    assert (job.status, endings(job)) == ("done", ["done"])
