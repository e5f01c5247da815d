"""Setting up the emulated project: from nothing to a doctor that finds nothing wrong, again, and half-way."""

from __future__ import annotations

from typing import Any

import pytest

from cloud_emulator import Emulator
from tpulm.cloud import policies, setup
from tpulm.cloud.doctor import examine
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.settings import CloudSettings
from tpulm.cloud.setup import Step, apply, steps
from tpulm.errors import CloudRefused, ConfigError, TpulmError

PROJECT, WORKER = "tpulm-emulator", "tpulm-worker@tpulm-emulator.iam.gserviceaccount.com"
MEMBER = f"serviceAccount:{WORKER}"
OTHERS = {"role": "roles/viewer", "members": ["user:somebody@example.com", "group:all@example.com"]}
CONDITIONAL = {
    "role": "roles/storage.objectAdmin",
    "members": [MEMBER, "user:somebody@example.com"],
    "condition": {"title": "for a while", "expression": 'request.time < timestamp("2020-01-01T00:00:00Z")'},
}
SETTINGS = CloudSettings(
    project=PROJECT,
    accelerator="v3-8",
    zones=("us-central1-a",),
    bucket="my-runs",
    secrets={"TOKEN": "hub"},
)


@pytest.fixture
def empty(gcs: Emulator) -> Emulator:
    """A project as it is made, with a secret and somebody else's rights in it."""
    for name in ("tpu", "compute", "iam", "cloudresourcemanager", "cloudbilling", "cloudquotas", "secretmanager"):
        gcs.tpu.disable_service(f"{name}.googleapis.com")
    gcs.tpu.add_secret("hub", "x")
    gcs.tpu.projects.known().policies[""] = {"version": 1, "bindings": [OTHERS]}
    return gcs


def is_well(settings: CloudSettings = SETTINGS) -> bool:
    return [check for check in examine(settings) if check.ok is not True] == []


def test_from_an_empty_project(empty: Emulator):
    found = steps(SETTINGS)
    assert [step.what for step in found] == [
        "turn on the APIs tpu, compute, iam, cloudresourcemanager, secretmanager, cloudbilling, cloudquotas",
        "make the bucket gs://my-runs in us-central1",
        f"make the account {WORKER}",
        "make the role tpulmWorker",
        f"grant the VMs tpulmWorker on the project {PROJECT}",
        "grant the VMs roles/storage.objectAdmin on gs://my-runs",
        "grant the VMs roles/secretmanager.secretAccessor on the secret hub",
    ]
    told: list[Step] = []
    apply(found, tell=told.append)
    assert told == found and is_well()
    assert steps(SETTINGS) == []
    apply(found)
    assert is_well() and steps(SETTINGS) == [], "every step can be taken again"
    bindings = empty.tpu.projects.known().policies[""]["bindings"]
    assert bindings == [OTHERS, {"role": f"projects/{PROJECT}/roles/tpulmWorker", "members": [MEMBER]}]


def test_how_a_bucket_is_made(empty: Emulator):
    apply(steps(SETTINGS))
    found = GoogleRest(PROJECT).get("storage", "storage/v1/b/my-runs")
    assert found["location"] == "US-CENTRAL1" and found["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
    assert found["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert found["softDeletePolicy"]["retentionDurationSeconds"] == "0" and "versioning" not in found
    assert found["lifecycle"]["rule"] == [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}}]


def test_killed_half_way(gcs: Emulator):
    for done in (1, 2, 4, 6):
        project = f"half-way-{done}"
        gcs.tpu.add_project(project)
        gcs.tpu.disable_service("tpu.googleapis.com", project)
        gcs.tpu.add_secret("hub", "x", project)
        named = {"project": project, "bucket": f"runs-{done}", "service_account": ""}
        settings = CloudSettings.model_validate(SETTINGS.model_dump() | named)
        whole = steps(settings)
        assert len(whole) == 7
        apply(whole[:done])
        again = steps(settings)
        assert [step.what for step in again] == [step.what for step in whole[done:]]
        apply(again)
        assert is_well(settings) and steps(settings) == []


def test_what_is_there_stays_as_it_is(gcs: Emulator):
    gcs.create_bucket("my-runs", location="US-CENTRAL1", labels={"a": "b"}, lifecycle={"rule": []})
    rest = GoogleRest(PROJECT)
    bucket = policies.bucket(rest, "my-runs")
    bucket.write({**bucket.read(), "bindings": [OTHERS, CONDITIONAL], "version": 3})
    settings = SETTINGS.model_copy(update={"secrets": {}})
    apply(steps(settings))
    policy = bucket.read()
    assert policy["bindings"] == [OTHERS, CONDITIONAL, {"role": "roles/storage.objectAdmin", "members": [MEMBER]}]
    assert policy["version"] == 3
    found = rest.get("storage", "storage/v1/b/my-runs")
    assert found["labels"] == {"a": "b"} and found["lifecycle"] == {"rule": []}
    assert is_well(settings)


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
        assert seconds >= 1
        gcs.tpu.projects.known().accounts[WORKER] = {}

    policies.grant(policies.project(GoogleRest(PROJECT)), "roles/tpu.admin", MEMBER, wait=known_by_now)
    assert gcs.tpu.projects.known().policies[""]["bindings"][0]["members"] == [MEMBER]


@pytest.mark.parametrize("deleted", [True, False])
def test_a_role_that_was_deleted_or_changed(gcs: Emulator, deleted: bool):
    settings = SETTINGS.model_copy(update={"secrets": {}})
    apply(steps(settings))
    role = gcs.tpu.projects.known().roles[f"projects/{PROJECT}/roles/tpulmWorker"]
    role.update({"deleted": True} if deleted else {"includedPermissions": ["tpu.nodes.get", "tpu.nodes.stop"]})
    again = steps(settings)
    assert again[0].what == "make the role tpulmWorker"
    apply(again)
    assert is_well(settings)
    assert deleted or "tpu.nodes.stop" in role["includedPermissions"], "what somebody added stays"


def test_a_network_that_is_gone_is_no_refusal(empty: Emulator):
    found = steps(SETTINGS, rest=GoogleRest(PROJECT, patience_seconds=0.0))
    empty.stop()
    with pytest.raises(TpulmError, match=r"no answer from .*; run the same command again") as raised:
        apply(found)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("permission", "said"),
    [
        ("serviceusage.services.enable", "cannot turn on the APIs tpu.*: you lack serviceusage.services.enable"),
        ("iam.serviceAccounts.create", "cannot make the account .*: you lack iam.serviceAccounts.create"),
        ("iam.roles.create", "cannot make the role tpulmWorker: you lack iam.roles.create"),
        ("resourcemanager.projects.setIamPolicy", "cannot grant .*: you lack resourcemanager.projects.setIamPolicy .*an owner"),
        ("secretmanager.secrets.setIamPolicy", "cannot grant .* the secret hub: you lack secretmanager.secrets.setIamPolicy"),
    ],
)
def test_the_permission_that_is_missing_is_named(empty: Emulator, permission: str, said: str):
    empty.tpu.deny(permission)
    with pytest.raises(CloudRefused, match=said):
        apply(steps(SETTINGS))
    empty.tpu.allow(permission)
    apply(steps(SETTINGS))
    assert is_well()


def test_looking_needs_permissions_too(gcs: Emulator):
    gcs.tpu.deny("resourcemanager.projects.getIamPolicy")
    with pytest.raises(CloudRefused, match=r"cannot look at what is there: you lack resourcemanager\.projects\.getIamPolicy"):
        steps(SETTINGS)


def test_what_setup_cannot_mend(gcs: Emulator):
    with pytest.raises(CloudRefused, match="there is no project not-mine"):
        steps(CloudSettings.model_validate(SETTINGS.model_dump() | {"project": "not-mine"}))
    gcs.tpu.add_project("another-one")
    with pytest.raises(CloudRefused, match="correct service_account"):
        steps(SETTINGS.model_copy(update={"service_account": "other@another-one.iam.gserviceaccount.com"}))
    with pytest.raises(ConfigError, match="name zones or an accelerator"):
        steps(SETTINGS.model_copy(update={"zones": ()}))
    with pytest.raises(CloudRefused, match="there is no secret hub; make it, then run this again: gcloud secrets create hub"):
        apply(steps(SETTINGS))
    gcs.tpu.set_billing(False)
    with pytest.raises(CloudRefused, match=r"no billing account.*linkedaccount"):
        steps(SETTINGS)


def test_a_bucket_of_somebody_else(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    def refuse(look: Any, name: str) -> None:
        raise GoogleError("storage", 403, "forbidden", "somebody does not have storage.buckets.get access")

    monkeypatch.setattr(setup.Project, "bucket", refuse)
    with pytest.raises(CloudRefused, match=r"gs://my-runs is somebody else's.*choose another name"):
        steps(SETTINGS)
    found = {check.name: check for check in examine(SETTINGS)}
    assert found["bucket"].ok is False and "choose another name" in found["bucket"].remedy


def test_storms_are_waited_out(empty: Emulator):
    empty.faults.set(error_rate=1.0, error_status=503, count=2)
    waited: list[float] = []
    apply(steps(SETTINGS, rest=GoogleRest(PROJECT, wait=waited.append)))
    assert len(waited) == 2 and is_well()


def test_an_answer_that_was_lost(empty: Emulator):
    found = steps(SETTINGS, rest=GoogleRest(PROJECT, wait=lambda seconds: None))
    empty.faults.set(drop_after_rate=1.0, count=1)
    apply(found)
    assert is_well()
