"""The end of a run: nothing bills, and what was named is deleted, and nothing else. What is left behind is found anywhere."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from cloud_rig import OTHER_ZONE, PROJECT, WORKDIR_PATH, ZONE, job_of, node_of, plant, running, write_job

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import status, teardown
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.job import Job
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, Resource
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, ConfigError, InUse, StorageError, TpulmError, Unavailable
from waiting import until

pytestmark = pytest.mark.usefixtures("few_zones")  # test_cloud_commands asks all of them


def stop(api: TpuApi, seconds: float = 20) -> Job:
    return teardown.stop(WORKDIR_PATH, api, pause_seconds=0.05, seconds=seconds)


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


def test_a_folder_in_use_or_launched_again_meanwhile_is_not_deleted(gcs: Emulator):
    for folder in (WORKDIR_PATH, WORKDIR_PATH / "cloud"):
        with storage.held(folder), pytest.raises(TpulmError, match="in use"), teardown.locked_for_deletion(WORKDIR_PATH):
            pytest.fail("it is in use")
    with teardown.locked_for_deletion(WORKDIR_PATH), pytest.raises(InUse), storage.held(WORKDIR_PATH / "cloud"):
        pytest.fail("it is being deleted")
    write_job(running())
    with pytest.raises(ConfigError, match="launched"), teardown.locked_for_deletion(WORKDIR_PATH):
        pytest.fail("it runs")


def cost(job: Job, seconds_left: float | None = None) -> status.Cost:
    """At step 70 of 100; each of those that are left takes the thirtieth part of `seconds_left`."""
    speed = None if seconds_left is None else status.Speed(70, time.time(), seconds_left / 30, None)
    found = status.RunStatus(job, None, None, None, "", (), 70, 100, None, None, speed)
    return status.cost_of(found, WORKDIR_PATH, now=time.time())


def test_the_cost_of_spare_nodes_that_bill(gcs: Emulator):
    spare = (node_of(3, ending="lost", ready_at=time.time() - 36_000), node_of(4, ready_at=None))
    job = running(spare=spare)
    found = cost(job)
    assert found.dollars == pytest.approx(job.dollars(time.time()), abs=0.01) and found.dollars > 20 and found.runs
    assert [(item.node, item.steps) for item in found.attempts] == [("toy-a1", 40), ("toy-a3", 0), ("toy-a2", 30)]


def test_the_cost_of_what_is_granted_to_come_and_stored(gcs: Emulator):
    granted = cost(running(prices={}, attempts=()), 7200)
    assert (granted.dollars, granted.dollars_at_end) == (0.0, 0.0)
    assert cost(running()).dollars_at_end is None, "no speed is known"
    storage.write_atomic(WORKDIR_PATH / "x", b"0" * 1_000_000)
    here, dearer = (status.stored(WORKDIR_PATH, region).dollars_per_month for region in ("us-central1", "asia-northeast1"))
    assert here is not None and dearer is not None and here < dearer
    assert status.stored(WORKDIR_PATH, "us-central2").dollars_per_month is None, "no other region's price stands for it"


# -- audit ---------------------------------------------------------------------------------------------------------------


SPARE = (node_of(3, zone=OTHER_ZONE), node_of(4, zone=OTHER_ZONE, ending="withdrawn"))
CASES: list[tuple[Job | bytes | None, dict[str, Any], str, str]] = [
    (running(), {}, "live", "gs://runs/0"),
    (running(spare=SPARE), {"name": "toy-a3", "zone": OTHER_ZONE, "kind": "queued resource"}, "live", ""),
    (running(spare=SPARE), {"name": "toy-a4", "zone": OTHER_ZONE}, "orphan", "has given it up (withdrawn)"),
    (running(), {"zone": OTHER_ZONE}, "orphan", "is at toy-a2 in us-central1-a"),
    (job_of(attempt=1), {}, "orphan", "has no node now"),
    (job_of(status="done", attempt=1), {}, "orphan", "is over (done)"),
    (None, {}, "orphan", "has no run in the cloud"),
    (running(), {"labels": {LABEL: "toy", UNTIL_LABEL: "1"}}, "orphan", "it was to be gone"),
    (None, {"state": "DELETING"}, "going", ""),
    (b"", {}, "unknown", "job.json is not a job"),
    (b'{"run": 3}', {}, "unknown", "job.json is not a job"),
    (None, {"workdir": "gs://no-such-bucket-here/toy"}, "unknown", "no-such-bucket-here"),
    (None, {"workdir": "/on/another/machine"}, "unknown", "on another machine"),
    (None, {"workdir": ""}, "unknown", "does not say which work folder"),
]


def test_whose_run_does_not_need_it_is_an_orphan(gcs: Emulator):
    for number, (job, changes, verdict, why) in enumerate(CASES):
        workdir = f"gs://runs/{number}"
        if isinstance(job, Job):
            write_job(job, storage.as_path(workdir))
        elif job is not None:
            storage.write_atomic(f"{workdir}/cloud/job.json", job)
        values = {"name": "toy-a2", "zone": ZONE, "state": "READY", "labels": {LABEL: "toy"}, "workdir": workdir}
        resource = Resource(accelerator="v3-8", **{"kind": "node", **values, **changes})
        (finding,) = teardown.judged([resource], now=time.time())
        assert finding.verdict == verdict and why in finding.why and "\n" not in finding.why, finding


def test_queued_resources_are_orphans_with_or_without_a_node(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a1", queued=True)
    until(lambda: gcs.tpu.nodes())
    gcs.tpu.suspend("toy-a1")
    until(lambda: api.queued_state("toy-a1", ZONE) == "SUSPENDED")
    plant(api, "toy-a3", OTHER_ZONE, queued=True)
    found = teardown.audit(api)
    assert {item.verdict for item in found.findings} == {"orphan"}
    assert {item.resource.workdir for item in found.findings} == {str(WORKDIR_PATH)}
    assert ("toy-a3", "queued resource") in {(item.resource.name, item.resource.kind) for item in found.findings}
    assert teardown.delete(api, found.findings, pause_seconds=0.05).left == ()
    assert gcs.tpu.nodes() == {} and gcs.tpu.queued_resources() == {}


def test_each_is_priced_by_its_zone_and_spot_and_an_unknown_price_is_not_nothing(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a1")
    plant(api, "toy-a2", spot=False)
    plant(api, "toy-a3", "europe-west4-b", accelerator="v5p-8")
    plant(api, "toy-a4")
    plant(api, "theirs", labels={})
    gcs.tpu.kill("toy-a4")
    until(lambda: api.node_status("toy-a4", ZONE).state == "PREEMPTED")
    found = teardown.audit(api, rest=GoogleRest(api.project))
    assert found.others == 1, "of others only the number is known"
    assert found.zones == 3 and not found.silent
    assert all(0 <= (item.age(time.time()) or -1) < 60 for item in found.findings)
    dollars = {item.resource.name: item.dollars_per_hour for item in found.findings}
    assert dollars == {"toy-a1": 2.04, "toy-a2": 8.0, "toy-a3": None, "toy-a4": 0.0}, "the last holds quota, and is not billed"
    assert {item.dollars_per_hour for item in teardown.audit(api).findings} == {None, 0.0}, "nobody was asked"


def test_a_zone_that_does_not_answer_hides_no_other(api: TpuApi, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    plant(api, "toy-a1")
    ask = api.resources

    def resources(zone: str) -> Any:
        if zone == OTHER_ZONE:
            raise CloudRefused("not here")
        return ask(zone)

    monkeypatch.setattr(api, "resources", resources)
    found = teardown.audit(api)
    assert found.silent == {OTHER_ZONE: "not here"} and [item.verdict for item in found.findings] == ["orphan"]


def test_a_zone_that_does_not_delete_keeps_no_other_from_it(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a1", OTHER_ZONE)
    plant(api, "toy-a2")
    found = teardown.audit(api).of("orphan")
    gcs.tpu.faults.set(error_rate=1.0, match="toy-a1")
    quick = TpuApi(api.project, GoogleRest(api.project, patience_seconds=0.0))
    with pytest.raises(Unavailable, match="toy-a1"):
        teardown.delete(quick, found, pause_seconds=0.05)
    assert [name.rpartition("/")[2] for name in gcs.tpu.nodes()] == ["toy-a1"]


def test_who_may_see_nothing_is_refused(api: TpuApi, gcs: Emulator):
    with pytest.raises(CloudRefused, match="another-project"):
        teardown.audit(TpuApi("another-project"))
    gcs.tpu.deny("tpu.nodes.list")
    with pytest.raises(CloudRefused, match=r"tpu\.nodes\.list"):
        teardown.audit(api)


def test_what_became_a_live_runs_meanwhile_is_not_deleted(api: TpuApi):
    plant(api, "toy-a2")
    found = teardown.audit(api).of("orphan")
    write_job(running())
    assert teardown.delete(api, found, pause_seconds=0.05) == teardown.Deleted((), ())
    assert api.node_status("toy-a2", ZONE).state == "READY"


def test_what_does_not_go_in_time_is_told(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a2")
    gcs.tpu.set(delete_seconds=60)
    found = teardown.audit(api).of("orphan")
    left = teardown.delete(api, found, seconds=0.1, pause_seconds=0.05).left
    assert [(item.name, item.zone) for item in left] == [("toy-a2", ZONE)]
    assert [item.verdict for item in teardown.audit(api).findings] == ["going"]
