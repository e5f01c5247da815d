"""The TPU API as the supervisor needs it, against the emulator."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest
from cloud_rig import PROJECT, ZONE, request_of
from google.auth import exceptions as auth
from google.auth.credentials import Credentials

from cloud_emulator import Emulator
from cloud_emulator.recorded import answer
from tpulm.cloud.google_rest import GoogleRest
from tpulm.cloud.provider import LABEL, Refused, Request, is_rate_limit, refusal_of_code, refusal_of_http
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused, StorageRefused, StorageUnavailable, Unavailable
from tpulm.storage.causes import explain
from waiting import until

REQUEST = request_of("reviews-a1")
QUEUED = dataclasses.replace(REQUEST, queued=True)


def is_ready(api: TpuApi) -> bool:
    return api.node_status("reviews-a1", ZONE).state == "READY"


@pytest.mark.parametrize(
    "request_", [dataclasses.replace(REQUEST, network="net", subnetwork="sub"), QUEUED], ids=["node", "queued"]
)
def test_a_node_comes_and_goes(api: TpuApi, gcs: Emulator, request_: Request):
    assert api.node_status("reviews-a1", ZONE).state is None
    operation = api.create(request_)
    assert operation
    until(lambda: is_ready(api))
    until(lambda: not api.progress(operation).pending)
    sight = api.node_status("reviews-a1", ZONE)
    assert (sight.labels, sight.workers) == ({LABEL: "reviews"}, 1)
    assert api.create(request_) == "", "asking again is no error"
    kinds = {resource.kind: resource for resource in api.resources(ZONE)}
    assert kinds.keys() == ({"node", "queued resource"} if request_.queued else {"node"})
    assert all(found.labels == {LABEL: "reviews"} and found.accelerator == "v3-8" for found in kinds.values())
    assert all(found.spot for found in kinds.values())
    node = api.rest.get("tpu", f"v2/projects/{PROJECT}/locations/{ZONE}/nodes/reviews-a1")
    assert node["networkConfig"]["subnetwork"].endswith("/default" if request_.queued else "/sub")
    if request_.queued:  # a spot queued resource says so itself
        queued = api.rest.get("tpu", f"v2/projects/{PROJECT}/locations/{ZONE}/queuedResources/reviews-a1")
        assert "spot" in queued and "spot" not in queued["tpu"]["nodeSpec"][0]["node"].get("schedulingConfig", {})
    api.delete("reviews-a1", ZONE)
    until(lambda: api.node_status("reviews-a1", ZONE).state is None)
    api.delete("reviews-a1", ZONE)
    assert list(api.resources(ZONE)) == [] and gcs.tpu.nodes() == {}


@pytest.mark.parametrize(
    ("spoil", "change", "kind"),
    [
        (lambda tpu: tpu.set_quota("v3-8", 0), {}, "quota"),
        (lambda tpu: tpu.deny("tpu.nodes.create"), {}, "denied"),
        (lambda tpu: None, {"zone": "us-central1-z"}, "zone"),
        (lambda tpu: None, {"runtime_version": "tpu-vm-tf-1.15"}, "invalid"),
    ],
)
def test_what_is_refused(api: TpuApi, gcs: Emulator, spoil: Callable[..., None], change: dict[str, object], kind: str):
    spoil(gcs.tpu)
    with pytest.raises(Refused) as raised:
        api.create(dataclasses.replace(REQUEST, **change))  # type: ignore[arg-type]
    assert raised.value.kind == kind, str(raised.value)
    assert "127.0.0.1" not in str(raised.value), "the service's own words alone"
    assert gcs.tpu.nodes() == {}


def test_dropped_connections_are_waited_out(gcs: Emulator):
    gcs.tpu.faults.set(drop_rate=1.0, count=2)
    assert ZONE in TpuApi(PROJECT, GoogleRest(PROJECT, wait=lambda seconds: None)).zones()


def test_an_answer_that_was_lost_is_no_second_node(api: TpuApi, gcs: Emulator):
    gcs.tpu.faults.set(error_after_rate=1.0, count=1)
    assert api.create(REQUEST) == "", "it was created, and the second request finds it"
    until(lambda: is_ready(api))
    assert len(gcs.tpu.nodes()) == 1


def test_zones_and_types(api: TpuApi, gcs: Emulator):
    zones = api.zones()
    assert ZONE in zones and "us-south1-ai1b" in zones, "of the second page"
    assert "v3-8" in api.types(ZONE) and "v6e-8" not in api.types(ZONE)
    assert api.types("us-central1-z") == set()
    gcs.tpu.answer_next("location-unauthorized", requests="LIST types")
    assert api.types(ZONE) == set(), "it is closed"


# -- Google's own answers -------------------------------------------------------------------------------------------------


MEANINGS = {
    "quota": ("quota", "failed-addresses", "failed-quota"),
    "zone": (
        *("type-not-in-zone", "zone-without-tpus", "type-not-permitted", "location-policy", "location-unauthorized"),
        *("not-found", "no-reservation", "flex-start", "queue-not-permitted", "failed-not-permitted"),
    ),
    "denied": ("iam", "iam-in-detail", "scopes", "free-trial", "api-off", "billing-off", "policy-external-ip"),
    "stock-out": ("stock-out", "no-reserved-capacity", "no-reserved-capacity-9", "failed-stock-out", "failed-expired"),
    "invalid": ("no-network",),
    "preempted": ("preempted-while-creating",),
    "cloud": ("internal", "failed-internal"),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in MEANINGS.items() for name in names])
def test_what_a_recorded_refusal_means(name: str, kind: str):
    found = answer(name)
    if "http" in found:
        error = found["http"]["body"]["error"]
        reason = next((detail["reason"] for detail in error.get("details", ()) if "reason" in detail), error["status"])
        assert refusal_of_http(found["http"]["status"], reason, error["message"]) == kind
    else:
        error = (found.get("operation") or found["failed_data"])["error"]
        assert refusal_of_code(error["code"], error["message"]) == kind
    assert not is_rate_limit(error["message"])


def test_a_refusal_in_the_operation(api: TpuApi, gcs: Emulator):
    gcs.tpu.answer_next("queue-not-permitted")
    operation = api.create(QUEUED)
    until(lambda: api.progress(operation).refused)
    refused = api.progress(operation).refused
    assert refused is not None and refused.kind == "zone", str(refused)
    until(lambda: api.node_status("reviews-a1", ZONE).state is None)


def test_why_a_queued_resource_failed(api: TpuApi, gcs: Emulator):
    """The node that it began is being deleted meanwhile, which says nothing."""
    gcs.tpu.set(create_seconds=60.0)
    api.create(QUEUED)
    gcs.tpu.fail_queued("reviews-a1", "failed-addresses")
    states = set()
    while (sight := api.node_status("reviews-a1", ZONE)).state != "FAILED":
        states.add(sight.state)
        time.sleep(0.005)
    assert "DELETING" not in states
    assert sight.refused is not None and sight.refused.kind == "quota" == refusal_of_code(8, "IN_USE_ADDRESSES limit: 8.0")
    assert "IN_USE_ADDRESSES" in str(sight.refused) and "external_addresses = false" in str(sight.refused), "with its fix"
    api.delete("reviews-a1", ZONE)
    until(lambda: api.node_status("reviews-a1", ZONE).state is None)


def test_a_deletion_in_provisioning_is_refused_without_an_error(api: TpuApi, gcs: Emulator):
    """FAILED_PRECONDITION arrives with HTTP 400, of which google.api_core makes BadRequest."""
    gcs.tpu.set(create_seconds=60.0)
    api.create(QUEUED)
    until(lambda: gcs.tpu.queued_resources() == {"reviews-a1": "PROVISIONING"})
    assert "not supported when state is PROVISIONING" in api.delete("reviews-a1", ZONE)
    gcs.tpu.advance(60.0)
    assert api.delete("reviews-a1", ZONE) == ""
    until(lambda: api.node_status("reviews-a1", ZONE).state is None)


def test_other_bad_requests_of_a_deletion_are_errors(api: TpuApi, gcs: Emulator):
    gcs.tpu.answer_next("zone-without-tpus", requests="DELETE")
    with pytest.raises(CloudRefused, match="requested zone"):
        api.delete("reviews-a1", ZONE)


def test_a_login_that_ended_is_no_refusal_of_the_request(api: TpuApi, gcs: Emulator):
    """And the next request reads the login anew."""
    api.rest.__dict__["credentials"] = "those that ended"
    gcs.tpu.answer_next("unauthenticated", requests="CREATE node")
    with pytest.raises(CloudRefused, match="credentials"):
        api.create(REQUEST)
    assert api.create(REQUEST) and "credentials" not in api.rest.__dict__


class Login(Credentials):
    """One of which no token can be had."""

    why = ""

    def refresh(self, request: object) -> None:
        raise auth.RefreshError(self.why)


def test_tokens_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", raising=False)
    kinds = {"metadata-server-ill": Unavailable, **dict.fromkeys(("reauthentication", "session-over", "revoked"), CloudRefused)}
    for name, kind in kinds.items():
        found = answer(name, "credentials")
        text = found.get("text") or found["http"]["body"]["error_description"]
        rest = GoogleRest(PROJECT, patience_seconds=0.0)
        rest.__dict__["credentials"] = login = Login()
        login.why = text
        with pytest.raises(kind):
            TpuApi(PROJECT, rest).node_status("reviews-a1", ZONE)
        with pytest.raises(StorageUnavailable if kind is Unavailable else StorageRefused), explain("read", "gs://b/o"):
            raise auth.RefreshError(text)


def test_how_far_a_boot_came(api: TpuApi, gcs: Emulator):
    assert api.boot_progress("reviews-a1", ZONE) == ""
    api.create(REQUEST)
    until(lambda: is_ready(api))
    assert api.boot_progress("reviews-a1", ZONE) == "nothing"
    gcs.tpu.machine("reviews-a1").metadata.set("instance/guest-attributes/tpulm", {"boot": "installing"})
    assert api.boot_progress("reviews-a1", ZONE) == "installing"
    api.create(dataclasses.replace(REQUEST, name="slice", accelerator="v3-32"))
    until(lambda: api.node_status("slice", ZONE).state == "READY")
    gcs.tpu.machine("slice", 2).metadata.set("instance/guest-attributes/tpulm", {"boot": "training"})
    assert api.boot_progress("slice", ZONE) == "0: nothing, 1: nothing, 2: training, 3: nothing"
