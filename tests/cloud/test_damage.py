"""What is damaged, refused or wrong around a run, and that nothing bills because of it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import pytest
from test_decide import NOW, POLICY, WORKING, requested, working
from vm_rig import PATIENCE, QUICK, WORKDIR, Cloud, agents, cloud, endings, machines, newest_step, until

from tpulm import storage
from tpulm.cloud import job as jobs
from tpulm.cloud import launch as launching
from tpulm.cloud.control import Control
from tpulm.cloud.decide import AskToStop, MarkForDeletion, Outcome, RecordNodeState, decide, recorded
from tpulm.cloud.provider import is_rate_limit
from tpulm.config import load as load_run
from tpulm.errors import CloudRefused, ConfigError, StorageError

__all__ = ["cloud", "machines"]


# -- objects that VMs write ---------------------------------------------------------------------------------------------

GARBAGE = [b"", b'{"time": 17', b"[]", b"{}", b'{"time": "soon"}', b"\xff\xfe", b"null"]


@pytest.mark.parametrize("content", GARBAGE)
def test_a_heartbeat_that_cannot_be_read_is_none(tmp_path: Path, content: bytes):
    control = Control(tmp_path)
    folder = Path(str(control.attempt(1)))
    folder.mkdir(parents=True)
    for name in ("beat-0.json", "beat-x.json", "beat-1.json.tmp", "beat--1.json"):
        (folder / name).write_bytes(content)
    assert control.heartbeats(1) == [] and set(control.heard(1)) == {0}


@pytest.mark.parametrize(
    "content", [*GARBAGE, b'{"exit_code": null}', b'{"exit_code": 1, "failure": ["x"]}', b'{"exit_code": true}']
)
def test_an_end_that_cannot_be_read_is_nobodys_fault(tmp_path: Path, content: bytes):
    control = Control(tmp_path)
    folder = Path(str(control.attempt(1)))
    folder.mkdir(parents=True)
    for name in ("end-0.json", "end-x.json"):
        (folder / name).write_bytes(content)
    assert control.outcome(1) == Outcome(1, None, "the VM's report of its end cannot be read")


def test_silence_is_measured_by_one_clock(tmp_path: Path, cloud: Cloud):
    """Whatever the VMs' clocks say."""
    cloud.launch()
    supervisor = cloud.supervisor()
    control = Control(WORKDIR)
    silence = []
    for now, beat in ((1000.0, {"time": 8200.0}), (1050.0, None), (1100.0, {"time": -6000.0}), (1130.0, None)):
        if beat is not None:
            storage.write_json(control.attempt(1) / "beat-0.json", beat)
        silence.append(supervisor._silence(1, now))
    assert silence == [(0.0,), (50.0,), (0.0,), (30.0,)]


# -- jobs ---------------------------------------------------------------------------------------------------------------


def test_what_nobody_saw_is_counted_from_before():
    """A night without a supervisor: it was READY since shortly after it was last seen coming."""
    coming = jobs.with_node(requested(), state="CREATING", since=NOW + 5)
    morning = NOW + 40_000
    assert recorded(coming, RecordNodeState("READY"), WORKING, morning).node.ready_at == NOW + 5  # type: ignore[union-attr]
    done = dataclasses.replace(WORKING, outcome=Outcome(0, None, ""), complete=True)
    assert recorded(coming, MarkForDeletion("done", "x"), done, morning).node.ready_at == NOW + 5  # type: ignore[union-attr]
    unheard = dataclasses.replace(WORKING, silence=())
    assert recorded(coming, RecordNodeState("READY"), unheard, NOW + 9).node.ready_at == NOW + 9  # type: ignore[union-attr]


def test_a_run_that_is_launched_while_it_stops_goes_on():
    job = recorded(working().model_copy(update={"wanted": "stopped"}), AskToStop("stopped"), WORKING, NOW)
    job = jobs.reopened(job)
    saved = dataclasses.replace(WORKING, outcome=Outcome(75, None, ""))
    action = decide(job, saved, NOW + 5, POLICY)
    assert isinstance(action, MarkForDeletion) and action.why == "again"


@pytest.mark.parametrize(
    ("message", "is_rate"),
    [
        ("Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute' of service", True),
        ("RATE_LIMIT_EXCEEDED", True),
        ("Quota limit 'TPUV3sPreemptiblePerProjectPerZoneForTPUAPI' has been exceeded. Limit: 8 in zone us-central1-a.", False),
        ("There is no more capacity in the zone", False),
    ],
)
def test_requests_too_often_are_no_quota_of_cores(message: str, is_rate: bool):
    assert is_rate_limit(message) is is_rate


# -- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_that_cannot_be_read_for_a_while(cloud: Cloud):
    """The supervisor ends with a clear line; the agent lives on and finds the job again."""
    cloud.launch()
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and newest_step() >= 1)
    control = Control(WORKDIR)
    content = storage.read_bytes(control.path)
    storage.write_atomic(control.path, content[:50])
    with pytest.raises(StorageError, match="tpulm cloud audit"):
        cloud.supervisor().run()
    time.sleep(1)
    storage.write_atomic(control.path, content)
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


def test_a_bucket_that_refuses_the_vm(cloud: Cloud):
    """The agent cannot say how it ended, and deletes its node all the same."""
    cloud.launch(plan={"exit": 1, "seconds": 3.0})
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and "starting" in cloud.consoles())
    cloud.gcs.faults.set(read_only=True)
    until(lambda: not cloud.tpu.nodes(), PATIENCE)
    cloud.gcs.faults.clear()
    Control(WORKDIR).change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    assert cloud.begin()().status == "stopped"


@pytest.mark.slow
def test_an_agent_that_is_killed_and_nobody_supervises(cloud: Cloud):
    """It is started again, and its trainer with it."""
    cloud.launch()
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and newest_step() >= 1)
    for process in agents(cloud.gcs.url):
        if b"agent.py" in Path(f"/proc/{process}/cmdline").read_bytes():
            os.kill(process, signal.SIGKILL)
    until(lambda: "it is started again" in cloud.consoles())
    until(lambda: not cloud.tpu.nodes(), PATIENCE)
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["done"])


@pytest.mark.slow
@pytest.mark.parametrize("secret", [b"\xff\xfe\x00", None], ids=["binary", "missing"])
def test_a_secret_that_cannot_be_used(cloud: Cloud, secret: bytes | None):
    if secret is not None:
        storage.write_atomic("gs://runs/secret", secret)
    cloud.launch(secrets={"KEY": "gs://runs/secret"})
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("failed", ["failed"]) and "gs://runs/secret for KEY" in job.message


@pytest.mark.slow
def test_a_bundle_that_is_gone(cloud: Cloud):
    """A VM that cannot boot deletes its node."""
    cloud.launch()
    (bundle,) = storage.list_folder(Control(WORKDIR).folder / "bundles")
    content = storage.read_bytes(bundle)
    storage.remove(bundle)
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and cloud.tpu.nodes())
    until(lambda: not cloud.tpu.nodes(), PATIENCE)
    storage.write_atomic(bundle, content)
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["lost", "done"])


@pytest.mark.slow
def test_settings_that_the_node_does_not_have(cloud: Cloud):
    """Nothing of the run that goes on is changed."""
    cloud.launch()
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and cloud.tpu.nodes())
    control = Control(WORKDIR)
    before = storage.read_bytes(control.run_file), storage.read_bytes(control.settings_file)
    run = load_run("bert-tiny", {"corpus.sources": ["gs://runs/text.txt"]})
    other = cloud.settings.model_copy(update={"accelerator": "v6e-8", "budget": 7.0})
    with pytest.raises(ConfigError, match=r"accelerator: v3-8 -> v6e-8\n  budget: None -> 7\.0"):
        launching.take_up(run, WORKDIR, other)
    with pytest.raises(ConfigError, match=r"train\.steps"):
        launching.take_up(load_run("bert-tiny", {"train.steps": 7}), WORKDIR, cloud.settings)
    with pytest.raises(ConfigError, match="was recorded meanwhile"):
        launching.launch(run, WORKDIR, other, prices=dict.fromkeys(other.zones, 1.0))
    assert before == (storage.read_bytes(control.run_file), storage.read_bytes(control.settings_file))
    launching.take_up(run, WORKDIR, cloud.settings)
    assert cloud.begin()().status == "done"


@pytest.mark.slow
def test_a_job_that_was_deleted_by_hand_begins_after_the_attempts_that_there_were(cloud: Cloud):
    cloud.launch(plan={"error": "x"})
    assert cloud.begin()().status == "failed"
    storage.remove(Control(WORKDIR).path)
    cloud.launch(plan={})
    job = cloud.begin()()
    assert (job.status, job.attempt, endings(job)) == ("done", 2, ["done"])


def test_a_work_folder_with_an_odd_name(cloud: Cloud):
    cloud.workdir = storage.as_path("gs://runs/my run #1 [100%]/여름?")
    cloud.launch(plan={})
    job = cloud.begin(dataclasses.replace(QUICK, boot=20.0))()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


def test_a_budget_that_is_no_more_than_what_is_kept_for_the_end(cloud: Cloud):
    cloud.launch(budget=10.0)
    prices = dict.fromkeys(cloud.settings.zones, 2.0)
    launching.check_means(cloud.settings, prices, spent=0.0)
    with pytest.raises(CloudRefused, match=r"15 minutes \(\$0.50\) are kept"):
        launching.check_means(cloud.settings, prices, spent=9.6)


@pytest.mark.slow
def test_a_trainer_that_ends_well_without_a_model(cloud: Cloud):
    cloud.launch(plan={"exit": 0})
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("failed", ["trainer"] * 3) and "has no export" in job.message


@pytest.mark.parametrize("status", [409, 429, 503])
def test_one_refusal_that_passes(cloud: Cloud, status: int):
    cloud.launch()
    end = cloud.begin()
    until(lambda: newest_step() >= 1)
    cloud.tpu.faults.set(error_rate=1.0, error_status=status, count=1)
    job = end()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


@pytest.mark.slow
def test_a_permission_that_is_taken_away_names_what_may_bill(cloud: Cloud):
    cloud.launch()
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and newest_step() >= 1)
    name = cloud.node()
    cloud.tpu.faults.set(error_rate=1.0, error_status=403)
    with pytest.raises(CloudRefused, match=f"{name} in us-central1-a of tpulm-emulator may be there, and bill"):
        supervisor.run()
    cloud.tpu.faults.clear()
    assert cloud.begin()().status == "done"


def test_a_secret_of_several_lines_is_redacted(cloud: Cloud):
    storage.write_atomic("gs://runs/key", "-----BEGIN-----\nsecret-line-one\nsecret-line-two\n-----END-----\n")
    cloud.launch(plan={"error": json.dumps("secret-line-one")}, secrets={"KEY": "gs://runs/key"})
    cloud.begin()()
    log = storage.read_text(Control(WORKDIR).attempt(1) / "log-0.txt")
    assert "training with the key" in log and "secret-line" not in log
