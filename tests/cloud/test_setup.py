"""What is found in the emulated project, and setting it up: from nothing to nothing wrong, again, and half-way."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_emulator import Emulator
from cloud_emulator.recorded import answer
from tpulm.cloud import launch, policies, setup
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.settings import CloudSettings, load
from tpulm.cloud.setup import SetupCheck, SetupStep, apply, examine
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, TpulmError

PROJECT, WORKER = "tpulm-emulator", "tpulm-worker@tpulm-emulator.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{WORKER}"
OTHERS = {"role": "roles/viewer", "members": ["user:somebody@example.com", "group:all@example.com"]}
CONDITIONAL = {
    "role": "roles/storage.objectAdmin",
    "members": [MEMBER, "user:somebody@example.com"],
    "condition": {"title": "for a while", "expression": 'request.time < timestamp("2020-01-01T00:00:00Z")'},
}
PLACE = {"project": PROJECT, "accelerator": "v3-8", "zones": ("us-central1-a",), "bucket": "my-runs"}
SETTINGS = CloudSettings.model_validate({**PLACE, "secrets": {"TOKEN": "hub"}})
WITHOUT_SECRETS = CloudSettings.model_validate(PLACE)


@pytest.fixture
def empty(gcs: Emulator) -> Emulator:
    """A project as it is made, with a secret and somebody else's rights in it."""
    for name in ("tpu", "compute", "iam", "cloudresourcemanager", "cloudbilling", "cloudquotas", "secretmanager"):
        gcs.tpu.disable_service(f"{name}.googleapis.com")
    gcs.tpu.add_secret("hub", "x")
    gcs.tpu.projects.known().policies[""] = {"version": 1, "bindings": [OTHERS]}
    return gcs


def steps(settings: CloudSettings = SETTINGS, **options: Any) -> list[SetupStep]:
    return setup.steps(examine(settings, **options))


def is_well(settings: CloudSettings = SETTINGS) -> bool:
    return [check for check in examine(settings) if check.ok is not True] == []


def test_from_an_empty_project_though_killed_half_way(empty: Emulator):
    found = steps()
    assert [step.what for step in found] == [
        "turn on the APIs tpu, compute, iam, cloudresourcemanager, secretmanager, cloudbilling, cloudquotas",
        "make the bucket gs://my-runs in us-central1",
        f"make the account {WORKER}",
        "make the role tpulmWorker",
        f"grant the VMs tpulmWorker on the project {PROJECT}",
        "grant the VMs roles/storage.objectAdmin on gs://my-runs",
        "grant the VMs roles/secretmanager.secretAccessor on the secret hub",
    ]
    told: list[SetupStep] = []
    for begin, end in ((0, 2), (2, 5), (5, 7)):  # killed half-way, and run again
        again = steps()
        assert [step.what for step in again] == [step.what for step in found[begin:]]
        apply(again[: end - begin], log=told.append)
    assert [step.what for step in told] == [step.what for step in found] and is_well() and steps() == []
    apply(found)
    assert is_well() and steps() == [], "every step can be taken again"
    bindings = empty.tpu.projects.known().policies[""]["bindings"]
    assert bindings == [OTHERS, {"role": f"projects/{PROJECT}/roles/tpulmWorker", "members": [MEMBER]}]
    bucket = GoogleRest(PROJECT).get("storage", "storage/v1/b/my-runs")
    assert bucket["location"] == "US-CENTRAL1" and bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == "0" and "versioning" not in bucket
    assert bucket["lifecycle"]["rule"] == [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}]


def test_what_is_there_stays_as_it_is(gcs: Emulator):
    gcs.create_bucket("my-runs", location="US-CENTRAL1", labels={"a": "b"}, lifecycle={"rule": []})
    rest = GoogleRest(PROJECT)
    bucket = policies.bucket(rest, "my-runs")
    bucket.write({**bucket.read(), "bindings": [OTHERS, CONDITIONAL], "version": 3})
    apply(steps(WITHOUT_SECRETS))
    policy = bucket.read()
    assert policy["bindings"] == [OTHERS, CONDITIONAL, {"role": "roles/storage.objectAdmin", "members": [MEMBER]}]
    assert policy["version"] == 3
    found = rest.get("storage", "storage/v1/b/my-runs")
    assert found["labels"] == {"a": "b"} and found["lifecycle"] == {"rule": []}
    assert is_well(WITHOUT_SECRETS)


def test_rights_that_come_another_way_are_enough(gcs: Emulator):
    settings = SETTINGS.model_copy(update={"bucket": "runs", "secrets": {}})
    apply([step for step in steps(settings) if step.what.startswith("make the account")])
    binding = [{"role": role, "members": [MEMBER]} for role in ("roles/tpu.admin", "roles/storage.admin")]
    gcs.tpu.projects.known().policies[""] = {"version": 1, "bindings": binding}
    assert steps(settings) == []


def test_somebody_else_changes_the_policy_meanwhile(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    gcs.tpu.projects.known().accounts[WORKER] = {}
    place = policies.project(GoogleRest(PROJECT))
    read, raced = policies.Place.read, []

    def read_and_lose(self: policies.Place) -> dict[str, Any]:
        found = read(self)
        if len(raced) < 3:
            raced.append(1)
            person = f"user:{len(raced)}@example.com"
            self.write(policies.with_binding(found, "roles/viewer", person))
        return found

    monkeypatch.setattr(policies.Place, "read", read_and_lose)
    waited: list[float] = []
    policies.grant(place, "roles/tpu.admin", MEMBER, wait=waited.append)
    assert len(waited) == 3
    assert gcs.tpu.projects.known().policies[""]["bindings"] == [
        {"role": "roles/viewer", "members": [f"user:{number}@example.com" for number in (1, 2, 3)]},
        {"role": "roles/tpu.admin", "members": [MEMBER]},
    ]


def test_an_account_that_is_too_new(gcs: Emulator):
    def known_by_now(seconds: float) -> None:
        waits.append(seconds)
        gcs.tpu.projects.known().accounts[WORKER] = {}

    waits: list[float] = []
    policies.grant(policies.project(GoogleRest(PROJECT)), "roles/tpu.admin", MEMBER, wait=known_by_now)
    assert len(waits) == 1 and waits[0] >= 1
    assert gcs.tpu.projects.known().policies[""]["bindings"][0]["members"] == [MEMBER]


def test_a_role_that_was_deleted_or_changed(gcs: Emulator):
    apply(steps(WITHOUT_SECRETS))
    role = gcs.tpu.projects.known().roles[f"projects/{PROJECT}/roles/tpulmWorker"]
    for change in ({"deleted": True}, {"includedPermissions": ["tpu.nodes.get", "tpu.nodes.stop"]}):
        role.update(change)
        again = steps(WITHOUT_SECRETS)
        assert again[0].what == "make the role tpulmWorker"
        apply(again)
        assert is_well(WITHOUT_SECRETS)
    assert "tpu.nodes.stop" in role["includedPermissions"], "what somebody added stays"


def test_a_network_that_is_gone_is_no_refusal(empty: Emulator, monkeypatch: pytest.MonkeyPatch):
    found = steps(SETTINGS, rest=GoogleRest(PROJECT, patience_seconds=0.0))
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE", "http://127.0.0.1:9/")
    with pytest.raises(TpulmError, match="127") as raised:
        apply(found)
    assert raised.value.exit_code == 1


def test_the_permission_that_is_missing_is_named(empty: Emulator):
    lacking = {"serviceusage.services.enable": "APIs tpu", "iam.roles.create": "tpulmWorker",
               "secretmanager.secrets.setIamPolicy": "secret hub"}  # fmt: skip
    for permission, step in lacking.items():
        empty.tpu.deny(permission)
        with pytest.raises(CloudRefused, match=f"{step}.*{permission}"):
            apply(steps())
        empty.tpu.allow(permission)


def test_what_setup_cannot_mend(gcs: Emulator):
    with pytest.raises(CloudRefused, match="not-mine"):
        steps(CloudSettings.model_validate(SETTINGS.model_dump() | {"project": "not-mine"}))
    gcs.tpu.add_project("another-one")
    with pytest.raises(CloudRefused, match="service_account"):
        steps(SETTINGS.model_copy(update={"service_account": "other@another-one.iam.gserviceaccount.com"}))
    with pytest.raises(CloudRefused, match="zones"):
        steps(SETTINGS.model_copy(update={"zones": ()}))
    apply(steps())
    assert wrong(found := checks()) == {"secrets": False}, "for which nothing waits"
    assert found["secrets"].remedy == f"gcloud secrets create hub --data-file=FILE --project={PROJECT}"
    gcs.tpu.set_billing(False)
    with pytest.raises(CloudRefused, match="linkedaccount"):
        steps()


def test_a_bucket_of_somebody_else(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    def refuse(look: Any) -> None:
        raise GoogleError("storage", 403, "forbidden", "somebody does not have storage.buckets.get access")

    monkeypatch.setattr(setup.Project, "bucket", refuse)
    with pytest.raises(CloudRefused, match="gs://my-runs"):
        steps()


def test_an_answer_that_was_lost(empty: Emulator):
    found = steps(SETTINGS, rest=GoogleRest(PROJECT, wait=lambda seconds: None))
    empty.faults.set(drop_after_rate=1.0, count=1)
    apply(found)
    assert is_well()


# -- what is found ------------------------------------------------------------------------------------------------------


@pytest.fixture
def whole(gcs: Emulator) -> Emulator:
    """A project that was set up."""
    gcs.tpu.add_secret("hub", "x")
    apply(steps())
    return gcs


def checks(**changes: Any) -> dict[str, SetupCheck]:
    settings = CloudSettings.model_validate(SETTINGS.model_dump() | changes)
    found = examine(settings, rest=GoogleRest(settings.project, patience_seconds=0.0))
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def wrong(found: dict[str, SetupCheck]) -> dict[str, bool | None]:
    return {name: check.ok for name, check in found.items() if check.ok is not True}


def test_looking_changes_nothing(whole: Emulator):
    before = whole.requests
    found = checks()
    assert wrong(found) == {} and [check.name for check in found.values() if check.remedy] == []
    made = {kind for kind, count in whole.requests.items() if count != before.get(kind, 0)}
    assert not any(kind.startswith(("SET", "CREATE", "ENABLE", "PATCH")) for kind in made)


def test_a_failed_check_hides_only_those_that_need_it(whole: Emulator, monkeypatch: pytest.MonkeyPatch):
    found = checks(project="somebody-elses")
    assert found["project"].ok is False and "gcloud projects list" in found["project"].remedy
    others = {name: check for name, check in found.items() if name not in ("credentials", "project")}
    assert all(check.ok is None and "because of 'project'" in check.found for check in others.values())
    whole.tpu.set_billing(False)
    assert wrong(checks()) == {"billing": False}
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER", "http://127.0.0.1:9/")
    assert wrong(checks())["project"] is False


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    found = checks()
    assert found["credentials"].ok is False and "gcloud auth application-default login" in found["credentials"].remedy
    assert "because of 'credentials' above" in found["quota"].found


def test_permissions_that_are_missing(whole: Emulator):
    for permission, name, ok in (
        ("tpu.nodes.create", "your rights", False),
        ("iam.serviceAccounts.actAs", "your rights", False),
        ("tpu.locations.list", "zones", None),
        ("cloudquotas.quotas.get", "quota", None),
        ("iam.serviceAccounts.get", "VM account", None),
        ("resourcemanager.projects.get", "billing", None),
    ):
        whole.tpu.deny(permission)
        found = checks()
        assert wrong(found) == {name: ok} and f"you lack {permission}" in found[name].found
        assert ok is None or "an owner of the project grants you roles/" in found[name].remedy
        whole.tpu.allow(permission)
    whole.faults.set(read_only=True)
    found = checks()
    assert wrong(found) == {"your rights": False}
    assert "storage.objects.create, storage.objects.delete on gs://my-runs" in found["your rights"].found


def test_where_the_bucket_is(whole: Emulator):
    cases: list[tuple[str, tuple[str, ...], bool, str, str]] = [
        ("EUROPE-WEST4", ("us-central1-a",), False, "but the TPUs are in us-central1-a", "zones in europe-west4"),
        ("US-EAST1", ("us-central1-a",), False, "every byte between them is charged", "makes in us-central1"),
        ("EU", ("us-central1-a",), False, "EU, but", "zones in eu"),
        ("US", ("us-central1-a",), True, "several regions", "us-central1 is cheaper"),
        ("NAM4", ("us-central1-a",), True, "several regions", "us-central1 is cheaper"),
        ("ASIA-EAST1", ("asia-east1-c",), True, "ASIA-EAST1", ""),
        ("US-CENTRAL1", ("us-central1-a", "europe-west4-a"), False, "far from europe-west4-a", '["us-central1-a"]'),
        ("US-CENTRAL1", ("us-central1-*",), True, "US-CENTRAL1", ""),
    ]
    for number, (location, zones, ok, found, remedy) in enumerate(cases):
        whole.create_bucket(f"elsewhere-{number}", location=location)
        check = checks(bucket=f"elsewhere-{number}", zones=zones, accelerator="v2-8")["bucket: location"]
        assert check.ok is ok and found in check.found and remedy in check.remedy, location
        assert bool(check.remedy) is bool(remedy)
    far = {"bucket": "elsewhere-6", "accelerator": "v2-8"}
    assert checks(**far, zones=("us-central1-a", "europe-west4-a"), far_bucket=True)["bucket: location"].ok
    assert checks(**far, zones=("europe-west4-a",), far_bucket=True)["bucket: location"].ok
    assert checks(**far, zones=())["bucket: location"] == SetupCheck(
        True, "US-CENTRAL1; far from europe-west4-a, asia-east1-c, which a launch leaves out", name="bucket: location"
    )
    told: list[str] = []
    settings = launch.offered(load(project=PROJECT, **far), TpuApi(PROJECT), note=told.append)
    assert {zone[:-2] for zone in settings.zones} == {"us-central1"}
    assert len(told) == 1 and "asia-east1-c: left out, far from gs://elsewhere-6 in US-CENTRAL1" in told[0]


def test_the_network(whole: Emulator):
    """Google's own rule for a slice opens five ports (jax issue 35905); the default network's, all of them."""
    project = whole.tpu.projects.known()
    assert checks(accelerator="v3-32")["network"].ok
    (rule,) = project.networks["default"]
    project.networks["mine"] = [{**rule, "allowed": [{"IPProtocol": "tcp", "ports": ["8470-8471", "8474", "8476", "11211"]}]}]
    assert checks(network="mine")["network"].ok
    closed = checks(network="mine", accelerator="v3-32")["network"]
    assert closed.ok is False and "8476 and 8477" in closed.found
    assert "firewall-rules create mine-hosts" in closed.remedy and "--allow=tcp:8476-8477" in closed.remedy
    del project.networks["default"]
    gone = checks()["network"]
    assert gone.ok is False and "gcloud compute networks create default --subnet-mode=auto" in gone.remedy
    assert is_well(SETTINGS.model_copy(update={"network": f"projects/{PROJECT}/global/networks/mine"}))


def test_deleted_checkpoints_that_go_on_costing(whole: Emulator):
    found = checks(bucket="runs")["bucket"]
    assert found.ok and found.remedy == "gcloud storage buckets update gs://runs --clear-soft-delete"
    whole.create_bucket("versioned", versioning={"enabled": True})
    assert "--no-versioning" in checks(bucket="versioned")["bucket"].remedy


def test_types_and_zones(whole: Emulator):
    found = checks(accelerator="v4-8")["zones"]
    assert found.ok is False and 'zones = ["us-central2-b"]' in found.remedy
    found = checks(zones=("us-central1-a", "us-central1-q"))["zones"]
    assert found.ok is False and "us-central1-q" in found.found and 'zones = ["us-central1-a"]' in found.remedy
    found = checks(zones=("asia-south1-*",))
    assert "begins with 'asia-south1-'" in found["zones"].found and "because of 'zones'" in found["quota"].found
    found = checks(accelerator="", zones=(), bucket="")
    assert wrong(found) == {"zones": None, "quota": None, "bucket": None}


def test_an_account_without_rights(whole: Emulator):
    whole.tpu.projects.known().policies.clear()
    found = checks(bucket="runs", secrets={"TOKEN": "hub", "KEY": "gs://runs/key"})
    assert "tpu.nodes.delete" in (rights := found["VM account: rights"].found) and "storage.objects.create" in rights
    assert found["secrets"].ok is False and found["secrets"].remedy == "gcloud storage cp FILE gs://runs/key"
    assert "secretmanager.versions.access" in found["secrets"].found
    whole.tpu.add_project("another")
    other = checks(service_account="mine@another.iam.gserviceaccount.com")["VM account"]
    assert other.ok is False and "correct service_account" in other.remedy


# -- quota: https://cloud.google.com/docs/quotas/reference/rest/v1/projects.locations.services.quotaInfos ---------------


def test_quota(whole: Emulator):
    cases: list[tuple[dict[str, Any], bool, bool, str]] = [
        ({"limit": 0}, True, False, "TPUV3sPreemptiblePerProjectPerRegionForTPUAPI in us-central1: 0 of 8 cores"),
        ({"limit": 0, "spot": True}, False, True, "on demand"),
        ({"limit": 4, "location": "us-central1-a"}, False, False, "TPUV3sPerProjectPerZoneForTPUAPI in us-central1-a: 4 of 8"),
        ({"limit": 0, "location": "europe-west4"}, True, True, "enough for a v3-8, spot, in us-central1-a"),
    ]
    for order, spot, ok, found in cases:
        for location in (None, "us-central1-a"):
            whole.tpu.set_quota("v3-8", 8, location)
        whole.tpu.set_quota("v3-8", **order)
        settings = SETTINGS.model_copy(update={"spot": spot})
        check = setup.quota(setup.Project(settings, GoogleRest(PROJECT)))
        assert check.ok is ok and found in check.found
        assert ok or f"ask for 8 of it at https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}" in check.remedy


def test_the_quota_of_every_generation_is_found(gcs: Emulator):
    rest = GoogleRest(PROJECT)
    for name in ("v2-8", "v2-32", "v4-8", "v5litepod-8", "v5litepod-16", "v5p-8", "v6e-8"):
        project = setup.Project(CloudSettings(project=PROJECT, accelerator=name), rest)
        assert setup.zones(project).ok and setup.quota(project).ok, name


def quota(accelerator: str, stem: str, *dimensions: dict[str, Any], spot: bool = False) -> SetupCheck:
    """With limits per zone alone, in the shape of Google's answer."""
    info = {"quotaId": f"{stem}PerProjectPerZoneForTPUAPI", "dimensions": ["zone"], "dimensionsInfos": list(dimensions)}
    rest = GoogleRest(PROJECT)
    rest.get = lambda *path, **query: {"quotaInfos": [info]}  # type: ignore[method-assign]
    zones = ("us-central1-a", "us-east1-c")
    settings = CloudSettings(project=PROJECT, accelerator=accelerator, zones=zones, spot=spot)
    return setup.quota(setup.Project(settings, rest))


def of_zone(zone: str, **details: str) -> dict[str, Any]:
    return {"dimensions": {"zone": zone}, "details": details, "applicableLocations": [zone]}


def by_default(value: str = "16") -> dict[str, Any]:
    return {"details": {"value": value}, "applicableLocations": ["us-central1-a", "us-east1-c"]}


@pytest.mark.parametrize("spot", [False, True])
def test_one_host_of_a_v5e_counts_against_the_serving_quota(spot: bool):
    """As the recorded refusal of a v5litepod-8 names it; more hosts count against the other."""
    preemptible = "Preemptible" if spot else ""
    serving, pods = f"TPUV5s{preemptible}LitepodServing", f"TPUV5s{preemptible}Litepod"
    assert "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI" in str(answer("quota"))
    assert quota("v5litepod-8", serving, by_default(), spot=spot).ok
    assert quota("v5litepod-8", pods, by_default(), spot=spot).ok is None
    assert quota("v5litepod-16", pods, by_default(), spot=spot).ok
    found = quota("v5litepod-8", serving, by_default("4"), spot=spot)
    assert found.ok is False and f"{serving}PerProjectPerZoneForTPUAPI in us-central1-a: 4 of 8 chips" in found.found


def test_the_three_kinds_of_limits():
    """A zone's own, which without a value is zero and not the default; the default of other zones; -1, none."""
    stem, default = "TPUV5sLitepod", by_default()
    assert quota("v5litepod-16", stem, default).ok
    found = quota("v5litepod-16", stem, default, of_zone("us-central1-a"))
    assert found.ok is False and "in us-central1-a: 0 of 16 chips" in found.found and 'zones = ["us-east1-c"]' in found.remedy
    assert quota("v5litepod-32", stem, default, of_zone("us-central1-a", value="-1"), of_zone("us-east1-c", value="64")).ok
    assert quota("v5litepod-32", stem, default).ok is False
