"""The end of a run: nothing bills, and what was named is deleted, and nothing else."""

from __future__ import annotations

import threading
import time

import pytest
from cloud_rig import PROJECT, WORKDIR_PATH, ZONE, job_of, node_of, plant, running, write_job

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import status, teardown
from tpulm.cloud.decide import Policy
from tpulm.cloud.job import Job
from tpulm.cloud.prices import Price
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import ConfigError, InUse, StorageError, TpulmError


def stop(api: TpuApi, seconds: float = 20) -> Job:
    return teardown.stop(WORKDIR_PATH, api, pause_seconds=0.05, seconds=seconds)


def test_without_a_supervisor_it_is_ended_from_here(api: TpuApi, gcs: Emulator):
    write_job(running())
    plant(api, "toy-a2")
    storage.write_atomic(WORKDIR_PATH / "checkpoints" / "70" / storage.COMMIT, b"")
    job = stop(api)
    assert (job.status, job.attempts[-1].ending, job.newest_step) == ("stopped", "stopped", 70)
    assert gcs.tpu.nodes() == {} and teardown.list_remaining(api, WORKDIR_PATH, "toy").resources == ()
    assert stop(api) == job, "again, it is over already"


def test_what_cannot_be_deleted_is_named_with_the_command(api: TpuApi, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    control = write_job(running(project=PROJECT))
    plant(api, "toy-a2")
    gcs.tpu.answer_next("delete-refused", count=None, requests="DELETE node")
    monkeypatch.setattr(teardown, "Policy", lambda: Policy(teardown=0.3))
    with pytest.raises(TpulmError, match=f"delete toy-a2 --zone={ZONE} --project={PROJECT}"):
        stop(api)
    job = control.job()
    assert job.node is not None and (job.node.name, job.node.ending) == ("toy-a2", "stopped")
    gcs.tpu.take_back()
    assert stop(api).status == "stopped" and gcs.tpu.nodes() == {}


def test_a_node_that_was_only_intended_is_not_created(api: TpuApi, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(teardown, "Policy", lambda: Policy(appear=0.3))
    write_job(job_of(attempt=1, node=node_of(1, requested=False, state="", ready_at=None)))
    assert stop(api).status == "stopped"
    assert gcs.tpu.nodes() == {} and "POST node" not in str(gcs.tpu.history())


def test_a_supervisor_elsewhere_is_left_to_end_it(api: TpuApi, gcs: Emulator):
    control = write_job(job_of(attempt=1, node=node_of(1)))

    def supervise() -> None:
        with storage.held(control.folder):
            held.set()
            while (found := control.read()) and found[0].wanted != "stopped":
                time.sleep(0.02)
            control.change(lambda job: job.model_copy(update={"node": None, "status": "stopped", "message": "by the other"}))

    held = threading.Event()
    with storage.held(control.folder), pytest.raises(TpulmError, match="process"):
        stop(api, seconds=0.1)  # one that does not end it is named
    control.change(lambda job: job.model_copy(update={"wanted": "running"}))
    thread = threading.Thread(target=supervise)
    thread.start()
    held.wait(10)
    assert stop(api).message == "by the other"
    thread.join()


def test_what_is_left_is_this_runs_alone(api: TpuApi):
    plant(api, "toy-a1")
    plant(api, "toy-a2", workdir="gs://runs/another")
    plant(api, "toy-a3", workdir="")
    assert [item.name for item in teardown.list_remaining(api, WORKDIR_PATH, "toy").resources] == ["toy-a1", "toy-a3"]
    assert [item.name for item in teardown.list_remaining(api, WORKDIR_PATH, None).resources] == ["toy-a1"]


def test_files_go_with_the_job_last(gcs: Emulator):
    control = write_job(job_of(status="done"))
    for name in ("dataset/a", "dataset/b", "corpus/c", "export/model", "run.json"):
        storage.write_atomic(WORKDIR_PATH / name, b"12345")
    storage.write_atomic("gs://runs/toy-two/run.json", b"1")
    data = teardown.files_of(WORKDIR_PATH, data_only=True)
    assert sorted(data.names) == ["corpus/c", "dataset/a", "dataset/b"] and data.bytes == 15
    assert teardown.delete_files(data) == 3
    work = teardown.files_of(WORKDIR_PATH)
    assert work.names[-1] == "cloud/job.json" and not {"corpus/c", "dataset/a"} & set(work.names)
    assert teardown.foreign_objects(WORKDIR_PATH, deleted=True) == ["toy-two/run.json"]
    teardown.delete_files(work)
    assert storage.walk(storage.as_path("gs://runs")).keys() == {"toy-two/run.json"} and control.read() is None
    with pytest.raises(StorageError, match="gs://runs"):
        teardown.delete_bucket(PROJECT, "runs")
    storage.remove(storage.as_path("gs://runs/toy-two"))
    teardown.delete_bucket(PROJECT, "runs")
    teardown.delete_bucket(PROJECT, "runs")
    assert gcs.bucket_names() == []


def test_a_folder_in_use_is_not_deleted(gcs: Emulator):
    for folder in (WORKDIR_PATH, WORKDIR_PATH / "cloud"):
        with storage.held(folder), pytest.raises(TpulmError, match="in use"), teardown.locked_for_deletion(WORKDIR_PATH):
            pytest.fail("it is in use")
    with teardown.locked_for_deletion(WORKDIR_PATH), pytest.raises(InUse), storage.held(WORKDIR_PATH / "cloud"):
        pytest.fail("it is being deleted")


def test_a_run_that_was_launched_again_meanwhile_is_not_deleted(gcs: Emulator):
    write_job(running())
    with pytest.raises(ConfigError, match="launched"), teardown.locked_for_deletion(WORKDIR_PATH):
        pytest.fail("it runs")


def cost(job: Job, seconds_left: float | None = None, prices: dict[str, Price] | None = None) -> status.Cost:
    """At step 70 of 100; each of those that are left takes the thirtieth part of `seconds_left`."""
    speed = None if seconds_left is None else status.Speed(70, time.time(), seconds_left / 30, None)
    found = status.RunStatus(job, None, None, None, "", (), 70, 100, None, prices, speed)
    return status.cost_of(found, WORKDIR_PATH, now=time.time())


def test_the_cost_of_spare_nodes_that_bill(gcs: Emulator):
    spare = (node_of(3, ending="lost", ready_at=time.time() - 36_000), node_of(4, ready_at=None))
    job = running(spare=spare)
    found = cost(job)
    assert found.dollars == pytest.approx(job.dollars(time.time()), abs=0.01) and found.dollars > 20 and found.runs
    assert [(item.node, item.steps) for item in found.attempts] == [("toy-a1", 40), ("toy-a3", 0), ("toy-a2", 30)]


def test_the_cost_of_attempts_storage_and_what_is_to_come(gcs: Emulator):
    job = running()
    write_job(job)
    storage.write_atomic(WORKDIR_PATH / "x", b"0" * 1_000_000)
    found = cost(job, 7200)
    assert [(item.attempt, item.ending, item.steps) for item in found.attempts] == [(1, "preempted", 40), (2, "", 30)]
    assert found.dollars == pytest.approx(4.0, abs=0.2) and found.runs and found.hours == pytest.approx(2.0, abs=0.1)
    assert found.dollars_at_end == pytest.approx(8.0, abs=0.2)
    assert found.stored.objects == 4 and found.stored.region == "us-central1"
    assert found.stored.dollars_per_month == pytest.approx(found.stored.bytes / 2**30 * 0.02)
    granted = cost(running(prices={}, attempts=()), 7200)
    assert (granted.dollars, granted.dollars_at_end) == (0.0, 0.0)
    assert cost(job).dollars_at_end is None
    assert (status.stored(WORKDIR_PATH, "asia-northeast1").dollars_per_month or 0) > (found.stored.dollars_per_month or 0)
    assert status.stored(WORKDIR_PATH, "us-central2").dollars_per_month is None, "no other region's price stands for it"
