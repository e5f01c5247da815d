"""What goes wrong with TPU VMs, one trouble a test, with real agents on emulated VMs and a stand-in for the trainer.

After each of them there is no node, no queued resource and no process, and the job can be read.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import replace

import pytest
import trainer
from vm_rig import PATIENCE, QUICK, WORKDIR, ZONES, Cloud, cloud, endings, machines, newest_step, until

from tpulm import storage
from tpulm.cloud import launch as launching
from tpulm.cloud import tpu_api
from tpulm.cloud.control import Control
from tpulm.cloud.provider import NodeStatus
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import InUse

__all__ = ["cloud", "machines"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["type-not-permitted", "no-reserved-capacity-9"])
def test_a_zone_that_refuses_is_left_for_the_next(cloud: Cloud, name: str) -> None:
    cloud.tpu.answer_next(name, zone=ZONES[0], count=None)
    cloud.launch(plan={})
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["zone", "done"]), cloud.told
    assert job.attempts[-1].zone == ZONES[1] and list(job.closed) == [ZONES[0]]
    cloud.tpu.take_back()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), [("failed-stock-out", "stock-out"), ("failed-internal", "cloud")])
def test_a_queued_resource_that_fails(cloud: Cloud, name: str, ending: str) -> None:
    """Only its zone's; the other one's goes on."""
    cloud.tpu.answer_next(name, zone=ZONES[0])
    cloud.tpu.stock_out(ZONES[1])
    cloud.launch(queued=True)
    end = cloud.begin()
    until(lambda: any("FAILED" in line or "capacity" in line or "internal" in line for line in cloud.told))
    cloud.tpu.restock(ZONES[1])
    job = end()
    assert (job.status, endings(job)) == ("done", [ending, "done"]), cloud.told
    assert job.attempts[-1].zone == ZONES[1]


@pytest.mark.slow
def test_the_first_of_two_queues_is_kept(cloud: Cloud) -> None:
    cloud.tpu.stock_out(ZONES[0])
    cloud.launch(queued=True)
    job = cloud.begin()()
    assert job.status == "done" and sorted(endings(job)) == ["done", "withdrawn"], cloud.told
    assert {attempt.ending: attempt.zone for attempt in job.attempts} == {"done": ZONES[1], "withdrawn": ZONES[0]}
    assert next(attempt for attempt in job.attempts if attempt.ending == "withdrawn").dollars == 0.0


@pytest.mark.slow
def test_one_of_four_workers_is_killed(cloud: Cloud) -> None:
    cloud.launch(accelerator="v3-32", plan={"seconds": 2.0})
    end = cloud.begin(dataclasses.replace(QUICK, stale=4.0))
    until(lambda: newest_step() >= 1)
    cloud.tpu.kill_worker(cloud.node(), 2)
    job = end()
    assert job.status == "done" and endings(job)[0] == "silent", cloud.told
    assert "1 of 4 workers" in job.attempts[0].detail


def test_a_reboot(cloud: Cloud) -> None:
    """The agent comes back by itself and takes its local copy of the bundle."""
    cloud.launch()
    end = cloud.begin(QUICK)
    until(lambda: newest_step() >= 1)
    cloud.tpu.repair(cloud.node(), seconds=0.5)
    job = end()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


@pytest.mark.slow
def test_a_trainer_that_is_killed(cloud: Cloud) -> None:
    cloud.launch(plan={"dies_at": 2})
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["trainer", "done"]), cloud.told
    assert "signal 9" in job.attempts[0].detail


@pytest.mark.slow
def test_stopped_on_request_it_saves_and_goes_on_later(cloud: Cloud) -> None:
    cloud.launch()
    end = cloud.begin()
    until(lambda: newest_step() >= 1)
    Control(WORKDIR).change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    job = end()
    assert (job.status, endings(job)) == ("stopped", ["stopped"]), cloud.told
    saved = job.newest_step
    cloud.launch(zones=ZONES[1:], spot=False)
    job = cloud.begin()()
    assert (job.status, job.attempts[-1].first_step, job.newest_step) == ("done", saved, trainer.STEPS)
    assert (job.attempts[-1].zone, job.spot) == (ZONES[1], False), "where it runs may be another place"


@pytest.mark.slow
def test_a_cloud_that_is_silent_for_longer_than_requests_are_repeated(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor waits; the run goes on without it."""
    monkeypatch.setattr(tpu_api, "_PATIENCE_SECONDS", 0.5)
    cloud.launch()
    end = cloud.begin(QUICK)
    until(lambda: newest_step() >= 1)
    cloud.tpu.faults.set(error_rate=1.0, error_status=503, seconds=5.0)
    until(lambda: any("the TPU API has failed" in line for line in cloud.told))
    job = end()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


@pytest.mark.slow
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "409"])
def test_a_node_that_was_asked_for_by_a_supervisor_that_died(cloud: Cloud, is_seen: bool) -> None:
    """It had not recorded that it asked. The node is taken over when it is seen, or when asking again is answered with 409."""
    cloud.launch()
    first = cloud.supervisor()
    job, _ = first.step()
    assert job.node is not None and not job.node.requested
    first.provider.create(first.request(job, job.node))
    if not is_seen:
        second = dataclasses.replace(first, provider=NothingThere(cloud.settings.project))
        second.step()
        assert cloud.told[-1].startswith("creating")
    job = cloud.begin()()
    assert (job.status, job.attempt, endings(job)) == ("done", 1, ["done"]), cloud.told


class NothingThere(TpuApi):
    """Looks too early."""

    def look(self, name: str, zone: str) -> NodeStatus:
        return NodeStatus(None)


def test_the_budget_is_reached(cloud: Cloud) -> None:
    cloud.launch({"seconds": 1.5})
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and newest_step() >= 1)
    found = Control(WORKDIR).read()
    assert found is not None
    margin = (QUICK.save + QUICK.teardown) / 3600 * found[0].dollars_per_hour
    job = cloud.begin(dataclasses.replace(QUICK, budget=found[0].dollars(time.time()) + margin))()
    assert (job.status, endings(job)) == ("stopped", ["budget"]), cloud.told
    assert 0 < job.newest_step < trainer.STEPS


@pytest.mark.slow
def test_a_trackers_key_reaches_the_trainer_and_nothing_else(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "find_spec", lambda name: object())  # wandb is installed
    cloud.tpu.add_secret("wandb-key", "a-very-secret-value")
    cloud.launch(plan={"seconds": 1.5}, track=("wandb",), secrets={"WANDB_API_KEY": "wandb-key"})
    end = cloud.begin()
    name = cloud.node()
    until(lambda: newest_step() >= 1)
    assert "a-very-secret-value" not in json.dumps(cloud.tpu.status()) + cloud.tpu.console(name)
    assert end().status == "done"
    log = storage.read_text(Control(WORKDIR).attempt(1) / "log-0.txt")
    assert "training with the key [redacted]" in log and "a-very-secret-value" not in log


def test_nobody_supervises_and_the_node_keeps_to_the_budget(cloud: Cloud) -> None:
    cloud.launch({"seconds": 3.0}, budget=0.25)  # less than what the VM keeps for saving and deleting
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and cloud.tpu.nodes())
    until(lambda: not cloud.tpu.nodes(), PATIENCE)
    assert newest_step() < trainer.STEPS  # it saved and stopped, or was stopped before it began
    job = cloud.begin(replace(QUICK, budget=0.25))()
    assert (job.status, len(job.attempts)) == ("stopped", 1)


@pytest.mark.slow
def test_nobody_supervises_and_the_node_deletes_itself(cloud: Cloud) -> None:
    cloud.launch()
    supervisor = cloud.supervisor()
    until(lambda: supervisor.step() and newest_step() >= 1)
    until(lambda: not cloud.tpu.nodes(), PATIENCE)
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["done"])


@pytest.mark.slow
def test_nothing_goes_wrong(cloud: Cloud) -> None:
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job), job.newest_step) == ("done", ["done"], trainer.STEPS), cloud.told


@pytest.mark.slow
def test_no_capacity_in_two_zones_and_then_there_is(cloud: Cloud) -> None:
    for zone in ZONES:
        cloud.tpu.stock_out(zone, count=1)
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["stock-out", "stock-out", "done"])
    assert [attempt.zone for attempt in job.attempts] == [*ZONES, ZONES[0]]


def test_no_quota(cloud: Cloud) -> None:
    cloud.tpu.set_quota("v3-8", 0)
    cloud.launch()
    job = cloud.begin(dataclasses.replace(QUICK, quota_patience=1.0))()
    assert job.status == "refused" and set(job.closed) == set(ZONES), job
    assert all(zone in job.message for zone in ZONES)
    assert "TPUV3sPreemptible" in job.message or "quota" in job.message.lower()


@pytest.mark.slow
def test_a_quota_that_is_free_again(cloud: Cloud) -> None:
    cloud.tpu.answer_next("quota", count=3)
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", ["quota", "quota", "quota", "done"]), cloud.told


def test_all_zones_refuse(cloud: Cloud) -> None:
    cloud.tpu.answer_next("type-not-permitted", count=None)
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("refused", ["zone", "zone"])
    assert all(f"{zone}: User does not have permission" in job.message for zone in ZONES)


def test_a_permission_that_nobody_has_ends_the_run(cloud: Cloud) -> None:
    cloud.tpu.deny("tpu.nodes.create")
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("refused", ["denied"]) and "tpu.nodes.create" in job.message


@pytest.mark.slow
def test_preempted_before_it_was_ready(cloud: Cloud) -> None:
    cloud.tpu.answer_next("preempted-while-creating", count=4)
    cloud.launch()
    job = cloud.begin()()
    assert (job.status, endings(job)) == ("done", [*["preempted"] * 4, "done"]), cloud.told


@pytest.mark.slow
def test_two_queues_that_are_served_at_once(cloud: Cloud) -> None:
    """One is deleted, and only one ever trains."""
    cloud.launch(queued=True)
    job = cloud.begin()()
    assert job.status == "done" and sorted(endings(job)) == ["done", "withdrawn"], cloud.told


def test_stopped_while_it_is_being_provisioned(cloud: Cloud) -> None:
    """Which refuses to be deleted: it is waited out, and then deleted."""
    cloud.tpu.set(create_seconds=3.0, boot_seconds=3.0)
    cloud.launch(queued=True, zones=ZONES[:1])
    end = cloud.begin()
    until(lambda: "PROVISIONING" in cloud.tpu.queued_resources().values())
    Control(WORKDIR).change(lambda job: job.model_copy(update={"wanted": "stopped"}))
    job = end()
    assert (job.status, endings(job)) == ("stopped", ["stopped"])
    assert any("cannot be deleted yet" in line and "PROVISIONING" in line for line in cloud.told), cloud.told


def test_an_operation_that_fails(cloud: Cloud) -> None:
    cloud.tpu.answer_next("internal")
    cloud.launch()
    assert endings(cloud.begin()()) == ["cloud", "done"]


@pytest.mark.slow
def test_a_queued_resource_that_is_suspended(cloud: Cloud) -> None:
    cloud.launch(queued=True, zones=ZONES[:1])
    end = cloud.begin()
    until(lambda: newest_step() >= 2)
    cloud.tpu.suspend(cloud.node())
    job = end()
    assert (job.status, endings(job)) == ("done", ["preempted", "done"]), cloud.told


@pytest.mark.slow
def test_a_slow_creation_whose_workers_are_heard_is_left_alone(cloud: Cloud) -> None:
    cloud.tpu.set(create_seconds=15.0, boot_seconds=0.1)
    cloud.launch()
    job = cloud.begin(dataclasses.replace(QUICK, create=8.0))()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


@pytest.mark.slow
def test_heartbeats_that_freeze(cloud: Cloud) -> None:
    cloud.launch()
    end = cloud.begin(dataclasses.replace(QUICK, stale=4.0))
    until(lambda: newest_step() >= 1)
    cloud.tpu.freeze(cloud.node())
    job = end()
    assert (job.status, endings(job)) == ("done", ["silent", "done"]), job.attempts


@pytest.mark.slow
def test_a_run_that_fails_by_itself_is_not_tried_again(cloud: Cloud) -> None:
    cloud.launch(plan={"error": "train.batch_size 7 does not divide"})
    job = cloud.begin()()
    assert (job.status, endings(job), job.message) == ("failed", ["failed"], "train.batch_size 7 does not divide")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Google's clients leave sockets to be collected
def test_a_storm_of_refusals(cloud: Cloud) -> None:
    cloud.launch()
    end = cloud.begin(QUICK)
    until(lambda: newest_step() >= 1)
    cloud.gcs.faults.set(error_rate=0.5, error_status=503, seconds=2.0)
    cloud.tpu.faults.set(error_rate=0.5, error_status=503, seconds=2.0)
    job = end()
    assert (job.status, endings(job)) == ("done", ["done"]), cloud.told


@pytest.mark.slow
def test_a_supervisor_that_is_stopped_while_it_creates(cloud: Cloud) -> None:
    """As by Ctrl-C: the node is recorded, and another supervisor takes it over."""
    cloud.tpu.set(create_seconds=1.0)
    cloud.launch()
    supervisor = cloud.supervisor()
    while not cloud.tpu.nodes():
        supervisor.step()
    job = cloud.begin()()
    assert (job.status, job.attempt, endings(job)) == ("done", 1, ["done"])


def test_two_supervisors(cloud: Cloud) -> None:
    cloud.launch()
    end = cloud.begin()
    until(lambda: newest_step() >= 1)
    with pytest.raises(InUse, match="supervised already, by process"):
        cloud.supervisor().run()
    assert endings(end()) == ["done"]
