"""What is left behind is found, in whatever zone and state, and a live run is left alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cloud_rig import OTHER_ZONE, PROJECT, WORKDIR_PATH, ZONE, job_of, node_of, plant, quick, running, until, write_job

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import teardown as audit
from tpulm.cloud.compute import AllResources
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, WORKDIR
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused
from tpulm.runtime import interrupt


@pytest.fixture
def api(gcs: Emulator) -> TpuApi:
    return quick(gcs)


def verdicts(api: TpuApi, **settings: Any) -> dict[tuple[str, str], str]:
    return {(item.resource.name, item.resource.kind): item.verdict for item in audit.audit(api, **settings).findings}


def test_a_live_run_is_left_alone_and_its_earlier_nodes_are_not(api: TpuApi, gcs: Emulator):
    write_job(running())
    plant(api, "toy-a2")
    plant(api, "toy-a1", OTHER_ZONE)
    gcs.tpu.kill("toy-a1")
    until(lambda: api.node_status("toy-a1", OTHER_ZONE).state == "PREEMPTED")
    found = audit.audit(api, rest=GoogleRest(api.project))
    assert verdicts(api) == {("toy-a1", "node"): "orphan", ("toy-a2", "node"): "live"}
    (orphan,) = found.of("orphan")
    assert "is at toy-a2 in us-central1-a" in orphan.why and orphan.dollars_per_hour == 0, "it holds quota, and is not billed"
    (live,) = found.of("live")
    assert live.dollars_per_hour == pytest.approx(4 * 0.51) and 0 <= (live.age(time.time()) or -1) < 60
    assert found.zones > 3 and not found.silent and found.others == 0
    assert audit.delete(api, found.of("orphan"), pause_seconds=0.05).left == ()
    assert verdicts(api) == {("toy-a2", "node"): "live"}


def test_whose_run_does_not_need_it_is_an_orphan(api: TpuApi):
    jobs = {
        "has no run in the cloud": None,
        "is over (done)": job_of(status="done", attempt=1),
        "is over (refused)": job_of(status="refused"),
        "has no node now": job_of(attempt=1),
        "is at left-4 in europe-west4-a": running(node=node_of(2, name="left-4", zone=OTHER_ZONE)),
    }
    for number, job in enumerate(jobs.values()):
        if job is not None:
            write_job(job, storage.as_path(f"gs://runs/{number}"))
        plant(api, f"left-{number}", workdir=f"gs://runs/{number}")
    findings = audit.audit(api).findings
    assert [finding.verdict for finding in findings] == ["orphan"] * 5
    for finding, why in zip(findings, jobs, strict=True):
        assert why in finding.why
    assert audit.delete(api, findings, pause_seconds=0.05).left == ()
    assert audit.audit(api).findings == ()


def test_what_is_queued_elsewhere_for_a_live_run_is_left_alone(api: TpuApi):
    spare = (node_of(3, zone=OTHER_ZONE), node_of(4, zone=OTHER_ZONE, ending="withdrawn"))
    write_job(running(spare=spare))
    plant(api, "toy-a2")
    for node in spare:
        plant(api, node.name, node.zone, queued=True)
    found = audit.audit(api)
    assert {(item.resource.name, item.verdict) for item in found.findings} == {
        ("toy-a2", "live"),
        ("toy-a3", "live"),
        ("toy-a4", "orphan"),
    }
    assert all("has given it up (withdrawn)" in item.why for item in found.of("orphan"))
    assert audit.delete(api, found.findings, pause_seconds=0.05).left == ()
    assert {item.resource.name for item in audit.audit(api).findings} == {"toy-a2", "toy-a3"}


def test_queued_resources_are_orphans_with_or_without_a_node(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a1", queued=True)
    until(lambda: gcs.tpu.nodes())
    gcs.tpu.suspend("toy-a1")
    until(lambda: api.queued_state("toy-a1", ZONE) == "SUSPENDED")
    plant(api, "toy-a3", OTHER_ZONE, queued=True)
    found = audit.audit(api)
    assert {item.verdict for item in found.findings} == {"orphan"}
    assert {item.resource.workdir for item in found.findings} == {str(WORKDIR_PATH)}
    assert ("toy-a3", "queued resource") in verdicts(api)
    assert audit.delete(api, found.findings, pause_seconds=0.05).left == ()
    assert gcs.tpu.nodes() == {} and gcs.tpu.queued_resources() == {}


def test_past_its_end_it_is_an_orphan_though_the_run_is_live(api: TpuApi):
    write_job(running())
    plant(api, "toy-a2", labels={LABEL: "toy", UNTIL_LABEL: str(round(time.time() - 7200))})
    (finding,) = audit.audit(api).findings
    assert finding.verdict == "orphan" and "gone 2.0 h ago" in finding.why


def test_what_cannot_be_read_is_not_known(api: TpuApi):
    reasons = {
        "gs://runs/empty": "job.json is not a job",
        "gs://runs/damaged": "job.json is not a job",
        "gs://no-such-bucket-here/toy": "no-such-bucket-here",
        "/on/another/machine": "on another machine",
        "": "does not say which work folder",
    }
    storage.write_atomic("gs://runs/empty/cloud/job.json", b"")
    storage.write_atomic("gs://runs/damaged/cloud/job.json", b'{"run": 3}')
    for number, workdir in enumerate(reasons):
        plant(api, f"odd-{number}", workdir=workdir)
    findings = audit.audit(api).findings
    assert [finding.verdict for finding in findings] == ["unknown"] * 5
    for finding, why in zip(findings, reasons.values(), strict=True):
        assert why in finding.why and "\n" not in finding.why


def test_of_others_only_the_number_is_told(api: TpuApi):
    plant(api, "theirs", labels={})
    found = audit.audit(api)
    assert (found.findings, found.others) == ((), 1)


def test_each_is_priced_by_its_zone_and_spot_and_an_unknown_price_is_not_nothing(api: TpuApi):
    plant(api, "toy-a1")
    plant(api, "toy-a2", spot=False)
    plant(api, "toy-a3", "europe-west4-b", accelerator="v5p-8")
    findings = audit.audit(api, rest=GoogleRest(api.project)).findings
    assert {item.resource.name: item.dollars_per_hour for item in findings} == {"toy-a1": 2.04, "toy-a2": 8.0, "toy-a3": None}
    assert [item.dollars_per_hour for item in audit.audit(api).findings] == [None, None, None], "nobody was asked"


def test_a_zone_that_does_not_answer_hides_no_other(api: TpuApi, gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    plant(api, "toy-a1")
    ask = api.resources

    def resources(zone: str) -> Any:
        if zone == OTHER_ZONE:
            raise CloudRefused("not here")
        return ask(zone)

    monkeypatch.setattr(api, "resources", resources)
    found = audit.audit(api)
    assert found.silent == {OTHER_ZONE: "not here"} and [item.verdict for item in found.findings] == ["orphan"]


def test_who_may_see_nothing_is_refused(api: TpuApi, gcs: Emulator):
    with pytest.raises(CloudRefused, match="another-project"):
        audit.audit(TpuApi("another-project"))
    gcs.tpu.deny("tpu.nodes.list")
    with pytest.raises(CloudRefused, match=r"tpu\.nodes\.list"):
        audit.audit(api)


def test_what_became_a_live_runs_meanwhile_is_not_deleted(api: TpuApi):
    plant(api, "toy-a2")
    found = audit.audit(api).of("orphan")
    write_job(running())
    assert audit.delete(api, found, pause_seconds=0.05) == audit.Deleted((), ())
    assert api.node_status("toy-a2", ZONE).state == "READY"


def test_what_does_not_go_in_time_is_told(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a2")
    gcs.tpu.set(delete_seconds=60)
    found = audit.audit(api).of("orphan")
    left = audit.delete(api, found, seconds=0.1, pause_seconds=0.05).left
    assert [(item.name, item.zone) for item in left] == [("toy-a2", ZONE)]
    assert verdicts(api) == {("toy-a2", "node"): "going"}


def test_a_vm_by_which_an_earlier_version_supervised_a_run_is_found_and_deleted(gcs: Emulator):
    """Instances of Compute Engine, in the shape of instances.aggregatedList."""
    named = {"labels": {LABEL: "toy"}, "metadata": {WORKDIR: str(WORKDIR_PATH)}}
    gcs.compute.add("theirs", ZONE)
    gcs.compute.add("supervisor-toy", "us-central1-f", **named)
    write_job(job_of())
    api = AllResources(PROJECT)
    assert verdicts(api) == {("supervisor-toy", "VM"): "live"}
    with interrupt.handled():
        assert audit.end(WORKDIR_PATH, PROJECT, run="toy") > 3
    assert set(gcs.compute.instances()) == {"theirs"}
    gcs.compute.add("supervisor-toy", ZONE, **named)
    (orphan,) = audit.audit(api).of("orphan")
    assert orphan.bills and orphan.dollars_per_hour is None
    assert audit.delete(api, [orphan], pause_seconds=0.05).left == () and set(gcs.compute.instances()) == {"theirs"}
    gcs.tpu.deny("compute.instances.list")
    assert "compute.instances.list" in audit.audit(api).silent["Compute Engine"]
    gcs.tpu.disable_service("compute.googleapis.com")
    assert audit.audit(AllResources(PROJECT)).silent == {}
