"""What the doctor finds, and what it says to do, against the emulated project."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from compute_answers import API_OFF, REFUSED, served, usual

from cloud_emulator import Emulator
from tpulm.cloud.doctor import Check, examine
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.settings import CloudSettings
from tpulm.cloud.setup import apply, steps

PROJECT, WORKER = "tpulm-emulator", "tpulm-worker@tpulm-emulator.iam.gserviceaccount.com"
SETTINGS = CloudSettings(project=PROJECT, accelerator="v3-8", zones=("us-central1-a",), bucket="my-runs", budget=102.0)


@pytest.fixture
def compute(gcs: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Compute Engine: it answers as for a new project, or whatever the test puts into the list."""
    instead: list[dict[str, Any]] = []
    with served(lambda path: instead[0] if instead else usual(path)) as address:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", address)
        yield instead


@pytest.fixture
def whole(gcs: Emulator, compute: list[dict[str, Any]]) -> Emulator:
    """A project that was set up."""
    apply(steps(SETTINGS))
    return gcs


def checks(**changes: Any) -> dict[str, Check]:
    settings = CloudSettings.model_validate(SETTINGS.model_dump() | changes)
    found = examine(settings, rest=GoogleRest(settings.project, patience_seconds=0.0))
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def wrong(found: dict[str, Check]) -> dict[str, bool | None]:
    return {name: check.ok for name, check in found.items() if check.ok is not True}


def test_nothing_is_wrong(whole: Emulator):
    found, today = checks(), time.strftime("%Y-%m-%d", time.gmtime())
    assert wrong(found) == {} and [check.name for check in found.values() if check.remedy] == []
    assert found["price"].found == f"$2.04 an hour spot in us-central1-a (Cloud Billing Catalog, {today}); $102.00 buy 50.0 h"
    assert found["zones"].found == "v3-8 is offered in us-central1-a"
    assert not any(kind.startswith(("SET", "CREATE", "ENABLE", "PATCH")) for kind in changes_made(whole))


def changes_made(emulator: Emulator) -> set[str]:
    before = emulator.requests
    checks()
    return {kind for kind, count in emulator.requests.items() if count != before.get(kind, 0)}


def test_the_wrong_project(whole: Emulator):
    found = checks(project="somebody-elses")
    assert found["project"].ok is False and "gcloud projects list" in found["project"].remedy
    rest = {name: check for name, check in found.items() if name not in ("credentials", "project", "price")}
    assert all(check.ok is None and check.found == "not checked, because of 'project' above" for check in rest.values())
    assert found["price"].ok, "which asks nobody"


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    found = checks()
    assert found["credentials"].ok is False
    assert "gcloud auth application-default login" in found["credentials"].remedy
    assert "because of 'credentials' above" in found["quota"].found


def test_an_empty_project(gcs: Emulator):
    for name in ("tpu", "compute", "iam", "cloudresourcemanager", "cloudbilling", "cloudquotas"):
        gcs.tpu.disable_service(f"{name}.googleapis.com")
    found = checks()
    assert found["project"].ok, "Service Usage knows it, too"
    assert found["APIs"] == Check("APIs", False, "off: tpu, compute, iam, cloudresourcemanager", "tpulm cloud setup")
    assert found["bucket"].ok is False and found["bucket"].remedy == "tpulm cloud setup"
    assert found["zones"] == Check("zones", None, "not checked, because the API tpu.googleapis.com is off", "tpulm cloud setup")
    assert found["VM account"].ok is None and found["billing"].ok is None and found["quota"].ok is None
    assert found["bucket: location"].found == "not checked, because of 'bucket' above"


def test_billing_is_off(whole: Emulator):
    whole.tpu.set_billing(False)
    found = checks()
    assert found["billing"].ok is False and found["billing"].remedy.endswith(f"linkedaccount?project={PROJECT}")
    assert found["quota"].ok and found["VM account: bucket"].ok, "the others are looked at all the same"


MISSING = [
    ("tpu.nodes.create", "you: TPUs", False, "you lack tpu.nodes.create"),
    ("tpu.nodes.*", "you: TPUs", False, "tpu.nodes.create, tpu.nodes.delete, tpu.nodes.get, tpu.nodes.list"),
    ("iam.serviceAccounts.actAs", "you: VM account", False, f"actAs on {WORKER}"),
    ("tpu.locations.list", "zones", None, "you lack tpu.locations.list"),
    ("cloudquotas.quotas.get", "quota", None, "you lack cloudquotas.quotas.get"),
    ("resourcemanager.projects.getIamPolicy", "VM account: its TPU", None, "you lack resourcemanager.projects.getIamPolicy"),
    ("iam.serviceAccounts.get", "VM account", None, "you lack iam.serviceAccounts.get"),
]


def test_permissions_that_are_missing(whole: Emulator):
    for permission, name, ok, said in MISSING:
        whole.tpu.deny(permission)
        found = checks()
        assert found[name].ok is ok and said in found[name].found
        assert ok is None or "add-iam-policy-binding" in found[name].remedy
        assert set(wrong(found)) == {name}
        whole.tpu.allow()


def test_a_project_that_may_be_used_and_not_seen(whole: Emulator):
    whole.tpu.deny("resourcemanager.projects.get")
    found = checks()
    assert found["project"].ok and wrong(found) == {"billing": None}


def test_a_bucket_that_may_not_be_written(whole: Emulator):
    whole.faults.set(read_only=True)
    found = checks()
    assert wrong(found) == {"you: bucket": False}
    assert "storage.objects.create, storage.objects.delete on gs://my-runs" in found["you: bucket"].found
    assert "gs://my-runs --member=user:YOUR-EMAIL --role=roles/storage.objectAdmin" in found["you: bucket"].remedy


WHERE = [
    ("EUROPE-WEST4", ("us-central1-a",), False, "EUROPE-WEST4, but the TPUs are in us-central1-a", '"europe-west4-a"'),
    ("US-EAST1", ("us-central1-a",), False, "every byte between them is charged", "makes in us-central1"),
    ("EU", ("us-central1-a",), False, "EU, but", '"europe-west4-a"'),
    ("US", ("us-central1-a",), True, "US, all of a continent", "us-central1 itself is cheaper"),
    ("NAM4", ("us-central1-a",), True, "NAM4", ""),
    ("US-CENTRAL1", ("us-central1-a", "europe-west4-a"), True, "far from europe-west4-a", '["us-central1-a"]'),
    ("US-CENTRAL1", ("us-central1-*",), True, "US-CENTRAL1", ""),
]


def test_where_the_bucket_is(whole: Emulator):
    for number, (location, zones, ok, said, remedy) in enumerate(WHERE):
        whole.create_bucket(f"elsewhere-{number}", location=location)
        found = checks(bucket=f"elsewhere-{number}", zones=zones)["bucket: location"]
        assert found.ok is ok and said in found.found and remedy in found.remedy, found
        assert bool(found.remedy) is bool(remedy)


def test_deleted_checkpoints_that_go_on_costing(whole: Emulator):
    found = checks(bucket="runs")["bucket"]
    assert found.ok and "for 7 days (soft delete)" in found.found
    assert found.remedy == "gcloud storage buckets update gs://runs --clear-soft-delete"
    whole.create_bucket("versioned", versioning={"enabled": True})
    assert "--no-versioning" in checks(bucket="versioned")["bucket"].remedy


def test_types_and_zones(whole: Emulator):
    assert "v4-8 is not offered in us-central1-a" in (found := checks(accelerator="v4-8")["zones"]).found
    assert found.ok is False and 'zones = ["us-central2-b"]' in found.remedy
    found = checks(zones=("us-central1-a", "us-central1-q"))["zones"]
    assert found.ok is False and "no zone with TPUs is named us-central1-q" in found.found
    assert 'zones = ["us-central1-a"]' in found.remedy
    assert "begins with 'asia-south1-'" in checks(zones=("asia-south1-*",))["zones"].found
    assert "because of 'zones'" in checks(zones=("asia-south1-*",))["quota"].found


def test_the_quota_of_every_generation_is_found(whole: Emulator):
    for name in ("v2-8", "v2-32", "v4-8", "v5litepod-8", "v5litepod-16", "v5p-8", "v6e-8"):
        found = checks(accelerator=name, zones=CloudSettings(project=PROJECT, accelerator=name).zones)
        assert found["zones"].ok and found["quota"].ok, found["quota"]


def test_the_account_of_the_vms(gcs: Emulator):
    found = checks(bucket="runs")
    assert found["VM account"] == Check("VM account", False, f"there is no account {WORKER}", "tpulm cloud setup")
    assert found["VM account: bucket"].found == "not checked, because of 'VM account' above"
    other = checks(bucket="runs", service_account="mine@another.iam.gserviceaccount.com")["VM account"]
    assert other.ok is None, "what is in another project may not be seen"
    gcs.tpu.add_project("another")
    other = checks(bucket="runs", service_account="mine@another.iam.gserviceaccount.com")["VM account"]
    assert other.ok is False and "correct service_account" in other.remedy


def test_an_account_without_rights(whole: Emulator):
    whole.tpu.projects.known().policies.clear()
    found = checks()
    assert wrong(found) == {"VM account: its TPU": False}
    assert found["VM account: its TPU"].remedy == "tpulm cloud setup"
    found = checks(bucket="runs")
    assert found["VM account: bucket"].ok is False and "storage.objects.create" in found["VM account: bucket"].found


def test_secrets(whole: Emulator):
    named = {"TOKEN": "hub", "KEY": "gs://runs/key"}
    found = checks(secrets=named)
    assert found["secret TOKEN"].remedy == f"gcloud secrets create hub --data-file=FILE --project={PROJECT}"
    assert found["secret KEY"].remedy == "gcloud storage cp FILE gs://runs/key"
    whole.tpu.add_secret("hub", "x")
    found = checks(secrets=named)
    assert found["secret TOKEN"].ok is False and "secretmanager.versions.access" in found["secret TOKEN"].found


def test_compute_engine_may_not_be_seen(whole: Emulator, compute: list[dict[str, Any]]):
    compute.append(API_OFF)
    found = checks()
    said = "not checked, because the API compute.googleapis.com is off"
    assert found["network"] == Check("network", None, said, "tpulm cloud setup")
    assert found["external addresses"].ok is None and found["subnetwork"].ok is None
    compute[:] = [REFUSED]
    found = checks()
    assert all(found[name].ok is None and "roles/compute.viewer" in found[name].remedy for name in ("network", "subnetwork"))


def test_prices(whole: Emulator):
    assert checks(dollars_per_hour=0.0)["price"].found == (
        "$0 an hour spot in us-central1-a (cloud.toml); the budget is never reached"
    )
    found = checks(budget=None)["price"]
    assert found.ok and "no budget is set" in found.found and "budget = 100" in found.remedy
    found = checks(accelerator="v5p-8", zones=())["price"]
    assert found.ok and "no price is known in us-east5-a, europe-west4-b: left out" in found.found
    assert checks(accelerator="v5p-8", zones=("us-central1-a", "us-east5-a"))["price"].ok is False


def test_little_is_named(whole: Emulator):
    found = checks(accelerator="", zones=(), bucket="")
    assert wrong(found) == {"zones": None, "quota": None, "price": None, "bucket": None}
    assert "--accelerator" in found["zones"].remedy and "--bucket" in found["bucket"].remedy


def test_nobody_answers(gcs: Emulator):
    gcs.stop()
    found = checks()
    assert found["project"].ok is False and "no answer from" in found["project"].found
    assert found["quota"].ok is None and found["price"].ok is False, "a budget needs a price"
    assert "no answer from" in found["price"].found and "dollars_per_hour" in found["price"].remedy
    assert checks(budget=None)["price"].ok is None
    assert checks(accelerator="v6e-8", zones=("us-east5-a",))["price"].found.startswith(
        "$12.96 an hour spot in us-east5-a (readings of the Cloud Billing Catalog by third parties, 2026-08); the Cloud Billing"
    )


def test_a_configurable_dual_region(whole: Emulator):
    whole.create_bucket("elsewhere", location="US", customPlacementConfig={"dataLocations": ["US-CENTRAL1", "US-WEST1"]})
    assert checks(bucket="elsewhere")["bucket: location"] == Check("bucket: location", True, "US")


@pytest.mark.parametrize(
    ("order", "spot", "ok", "said"),
    [
        ({"limit": 0}, True, False, "TPUV3sPreemptiblePerProjectPerRegionForTPUAPI in us-central1: 0 of 8 cores"),
        ({"limit": 0, "spot": True}, False, True, "on demand"),
        ({"limit": 4, "location": "us-central1-a"}, False, False, "TPUV3sPerProjectPerZoneForTPUAPI in us-central1-a: 4 of 8"),
        ({"limit": 0, "location": "europe-west4"}, True, True, "enough for a v3-8, spot, in us-central1-a"),
    ],
)
def test_quota(whole: Emulator, order: dict[str, Any], spot: bool, ok: bool, said: str):
    whole.tpu.set_quota("v3-8", **order)
    found = checks(spot=spot)["quota"]
    assert found.ok is ok and said in found.found
    assert ok or f"ask for 8 of it at https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}" in found.remedy


def test_networks_and_addresses(whole: Emulator):
    found = checks(accelerator="v3-32", budget=None)
    assert found["network"].found == "default" and found["subnetwork"].found == "default in us-central1"
    assert found["external addresses"].found == "4 needed; 8 of 8 free in us-central1"
    assert "Private Google Access" not in found
    found = checks(accelerator="v3-128", budget=None)["external addresses"]
    assert found.ok is False and "takes 16: 8 of 8 free in us-central1" in found.found and "Cloud NAT" in found.remedy
    found = checks(external_addresses=False)
    assert found["Private Google Access"].ok is False and "external addresses" not in found
    assert checks(network="projects/host/global/networks/lab", subnetwork="tpus")["subnetwork"].ok is False
