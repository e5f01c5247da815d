"""What is left behind is found, in whatever zone and state, and a live run is left alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cloud_rig import OTHER_ZONE, WORKDIR_PATH, ZONE, job_of, node_of, plant, running, write_job

from cloud_emulator import Emulator
from tpulm import storage
from tpulm.cloud import teardown as audit
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.job import Job
from tpulm.cloud.provider import LABEL, UNTIL_LABEL, Resource
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, Unavailable
from waiting import until


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
        values = {
            "kind": "node",
            "name": "toy-a2",
            "zone": ZONE,
            "state": "READY",
            "labels": {LABEL: "toy"},
            "workdir": workdir,
        }
        (finding,) = audit.judged([Resource(accelerator="v3-8", **{**values, **changes})], now=time.time())
        assert finding.verdict == verdict and why in finding.why and "\n" not in finding.why, finding


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


def test_each_is_priced_by_its_zone_and_spot_and_an_unknown_price_is_not_nothing(api: TpuApi):
    plant(api, "toy-a1")
    plant(api, "toy-a2", spot=False)
    plant(api, "toy-a3", "europe-west4-b", accelerator="v5p-8")
    plant(api, "theirs", labels={})
    found = audit.audit(api, rest=GoogleRest(api.project))
    findings = found.findings
    assert found.others == 1, "of others only the number is known"
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


def test_a_zone_that_does_not_delete_keeps_no_other_from_it(api: TpuApi, gcs: Emulator):
    plant(api, "toy-a1", OTHER_ZONE)
    plant(api, "toy-a2")
    found = audit.audit(api).of("orphan")
    gcs.tpu.faults.set(error_rate=1.0, match="toy-a1")
    quick = TpuApi(api.project, GoogleRest(api.project, patience_seconds=0.0))
    with pytest.raises(Unavailable, match="toy-a1"):
        audit.delete(quick, found, pause_seconds=0.05)
    assert [name.rpartition("/")[2] for name in gcs.tpu.nodes()] == ["toy-a1"]


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
