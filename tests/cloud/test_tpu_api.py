"""The TPU API as the supervisor needs it, by google's client, against the emulator."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest

from tpulm.cloud.provider import LABEL, Refused, Request
from tpulm.cloud.tpu_api import TpuApi
from tpulm.emulator import Emulator
from tpulm.errors import CloudRefused

ZONE, PROJECT = "us-central1-a", "tpulm-emulator"
REQUEST = Request(
    name="reviews-a1",
    zone=ZONE,
    accelerator="v3-8",
    runtime_version="tpu-ubuntu2204-base",
    spot=True,
    queued=False,
    valid_seconds=600.0,
    service_account=None,
    labels={LABEL: "reviews"},
    metadata={},
)
QUEUED = dataclasses.replace(REQUEST, queued=True)


@pytest.fixture
def api(gcs: Emulator) -> TpuApi:
    gcs.tpu.set(create_seconds=0.05, delete_seconds=0.02)
    return TpuApi(PROJECT)


def until(fits: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + 15
    while not fits():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def is_ready(api: TpuApi) -> bool:
    return api.look("reviews-a1", ZONE).state == "READY"


@pytest.mark.parametrize("request_", [REQUEST, QUEUED], ids=["node", "queued"])
def test_a_node_comes_and_goes(api: TpuApi, gcs: Emulator, request_: Request):
    assert api.look("reviews-a1", ZONE).state is None
    operation = api.create(request_)
    assert operation
    until(lambda: is_ready(api))
    until(lambda: not api.progress(operation).pending)
    sight = api.look("reviews-a1", ZONE)
    assert (sight.labels, sight.workers) == ({LABEL: "reviews"}, 1)
    assert api.create(request_) == "", "asking again is no error"
    kinds = {resource.kind: resource for resource in api.resources(ZONE)}
    assert kinds.keys() == ({"node", "queued resource"} if request_.queued else {"node"})
    assert all(found.labels == {LABEL: "reviews"} and found.accelerator == "v3-8" for found in kinds.values())
    api.delete("reviews-a1", ZONE)
    until(lambda: api.look("reviews-a1", ZONE).state is None)
    api.delete("reviews-a1", ZONE)
    assert list(api.resources(ZONE)) == [] and gcs.tpu.nodes() == {}


def test_workers_are_counted(api: TpuApi):
    api.create(dataclasses.replace(REQUEST, accelerator="v3-32"))
    until(lambda: is_ready(api))
    assert api.look("reviews-a1", ZONE).workers == 4


def test_a_stock_out_is_told_by_the_operation(api: TpuApi, gcs: Emulator):
    gcs.tpu.stock_out(ZONE)
    operation = api.create(REQUEST)
    until(lambda: api.progress(operation).refused)
    refused = api.progress(operation).refused
    assert refused is not None and refused.kind == "stock-out" and "capacity" in str(refused)
    until(lambda: api.look("reviews-a1", ZONE).state is None)


def test_a_failed_operation_is_the_clouds_fault(api: TpuApi, gcs: Emulator):
    gcs.tpu.answer_next("internal")
    operation = api.create(REQUEST)
    until(lambda: api.progress(operation).refused)
    refused = api.progress(operation).refused
    assert refused is not None and refused.kind == "cloud"


@pytest.mark.parametrize(
    ("spoil", "change", "kind"),
    [
        (lambda tpu: tpu.set_quota("v3-8", 0), {}, "quota"),
        (lambda tpu: tpu.deny("tpu.nodes.create"), {}, "denied"),
        (lambda tpu: tpu.disable_service("tpu.googleapis.com"), {}, "denied"),
        (lambda tpu: None, {"zone": "us-central1-z"}, "stock-out"),
        (lambda tpu: None, {"accelerator": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}, "stock-out"),
        (lambda tpu: None, {"runtime_version": "tpu-vm-tf-1.15"}, "invalid"),
        (lambda tpu: None, {"labels": {LABEL: "Not A Label"}}, "invalid"),
    ],
)
def test_what_is_refused(api: TpuApi, gcs: Emulator, spoil: Callable[..., None], change: dict[str, object], kind: str):
    spoil(gcs.tpu)
    with pytest.raises(Refused) as raised:
        api.create(dataclasses.replace(REQUEST, **change))  # type: ignore[arg-type]
    assert raised.value.kind == kind, str(raised.value)
    assert "127.0.0.1" not in str(raised.value), "the service's own words alone"
    assert gcs.tpu.nodes() == {}


def test_storms_are_waited_out(api: TpuApi, gcs: Emulator):
    gcs.tpu.faults.set(error_rate=1.0, error_status=503, count=2)
    api.create(REQUEST)
    until(lambda: is_ready(api))


def test_dropped_connections_are_waited_out(api: TpuApi, gcs: Emulator):
    gcs.tpu.faults.set(drop_rate=1.0, count=2)
    assert ZONE in api.zones()


def test_an_answer_that_was_lost_is_no_second_node(api: TpuApi, gcs: Emulator):
    gcs.tpu.faults.set(error_after_rate=1.0, count=1)
    assert api.create(REQUEST) == "", "it was created, and the second request finds it"
    until(lambda: is_ready(api))
    assert len(gcs.tpu.nodes()) == 1


def test_what_may_not_be_read_is_told(api: TpuApi, gcs: Emulator):
    gcs.tpu.deny("tpu.*")
    with pytest.raises(CloudRefused, match=r"tpu\.nodes\.get"):
        api.look("reviews-a1", ZONE)


def test_zones_and_types(api: TpuApi):
    assert ZONE in api.zones()
    assert "v3-8" in api.types(ZONE) and "v6e-8" not in api.types(ZONE)
    assert api.types("us-central1-z") == set()


def test_a_suspended_queued_resource_can_be_deleted(api: TpuApi, gcs: Emulator):
    api.create(QUEUED)
    until(lambda: is_ready(api))
    gcs.tpu.suspend("reviews-a1")
    until(lambda: api.look("reviews-a1", ZONE).state == "SUSPENDED")
    api.delete("reviews-a1", ZONE)
    until(lambda: api.look("reviews-a1", ZONE).state is None)
