"""Queued resources as Google's own client meets them."""

from __future__ import annotations

import google.api_core.exceptions as refusals
import pytest
import requests
from google.cloud import tpu_v2
from google.protobuf.duration_pb2 import Duration
from rig import POLL, Rig

from cloud_emulator import recorded
from cloud_emulator.machines import Machine
from waiting import until

SOON = {"valid_until_duration": Duration(seconds=600)}


def removed(rig: Rig, name: str = "run-q1", force: bool = True) -> None:
    request = tpu_v2.DeleteQueuedResourceRequest(name=f"{rig.place}/queuedResources/{name}", force=force)
    rig.client.delete_queued_resource(request=request).result(timeout=20, polling=POLL)


def test_from_waiting_to_gone(rig: Rig):
    rig.tpu.set(queue_seconds=100)
    made = rig.queue(spot=tpu_v2.QueuedResource.Spot())
    assert made.state.state.name == "WAITING_FOR_RESOURCES" and rig.tpu.nodes() == {}
    rig.tpu.advance(101)
    assert rig.queued_state() == "ACTIVE"
    node = rig.get("run-q1-node")
    assert node.state.name == "READY" and node.scheduling_config.spot
    number = f"projects/{rig.tpu.projects.known().number}/locations/us-central1-a"
    assert node.queued_resource == f"{number}/queuedResources/run-q1"
    listed = list(rig.client.list_queued_resources(parent=rig.place))
    assert [found.name for found in listed] == [f"{rig.place}/queuedResources/run-q1"]
    assert listed[0].tpu.node_spec[0].parent == number and listed[0].tpu.node_spec[0].node_id == "run-q1-node"
    removed(rig)
    with pytest.raises(refusals.NotFound):
        rig.queued_state()
    assert rig.tpu.nodes() == {} and rig.tpu.queued_resources() == {}


def test_valid_until(rig: Rig):
    rig.tpu.stock_out("us-central1-a")
    rig.queue(queueing_policy=SOON)
    rig.tpu.advance(590)
    assert rig.queued_state() == "WAITING_FOR_RESOURCES"
    rig.tpu.advance(20)
    assert rig.queued_state() == "FAILED"
    found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1")
    assert "valid_until" in found.state.failed_data.error.message
    rig.tpu.restock()
    assert rig.queued_state() == "FAILED", "it is never served again"
    removed(rig, force=False)
    rig.tpu.stock_out("us-central1-a")
    rig.queue("run-q2")
    assert rig.queued_state("run-q2") == "WAITING_FOR_RESOURCES"
    rig.tpu.restock("us-central1-a")
    until(lambda: rig.queued_state("run-q2") == "ACTIVE")


def test_orders(rig: Rig):
    rig.tpu.set(queue_seconds=10)
    rig.queue()
    rig.tpu.hold("run-q1")
    rig.tpu.advance(1000)
    assert rig.queued_state() == "WAITING_FOR_RESOURCES"
    rig.tpu.release("run-q1")
    until(lambda: rig.queued_state() == "ACTIVE")
    rig.tpu.set(queue_seconds=0, create_seconds=5400, force_in_provisioning=True)
    rig.queue("run-q2")
    removed(rig, "run-q2")
    assert rig.tpu.nodes() == {"run-q1-node": "READY"}, "force deletes in PROVISIONING, too, if it is told to"


def refused(rig: Rig, state: str, force: bool) -> None:
    body = recorded.answer("delete-refused", state=state)["http"]["body"]
    with pytest.raises(refusals.BadRequest) as caught:
        removed(rig, force=force)
    told = caught.value.response
    assert told is not None and told.json() == body


def test_hours_of_waiting_and_no_deletion_while_it_is_provisioned(rig: Rig):
    rig.tpu.set_quota("v3-8", 8)
    rig.tpu.set(queue_seconds=7 * 3600, create_seconds=5400, delete_seconds=120)
    rig.queue()
    rig.tpu.advance(6.9 * 3600)
    rig.tpu.restock()
    assert rig.queued_state() == "WAITING_FOR_RESOURCES" and rig.tpu.nodes() == {}
    rig.tpu.advance(0.2 * 3600)
    assert rig.queued_state() == "PROVISIONING" and rig.tpu.nodes() == {"run-q1-node": "CREATING"}
    for force in (True, False):
        refused(rig, "PROVISIONING", force)
    rig.tpu.advance(5400)
    assert rig.queued_state() == "ACTIVE" and rig.state("run-q1-node") == "READY"
    refused(rig, "ACTIVE", force=False)
    rig.tpu.kill("run-q1-node")
    found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1").state
    assert (found.state.name, found.state_initiator.name) == ("SUSPENDING", "SERVICE")
    assert rig.tpu.nodes() == {"run-q1-node": "DELETING"}
    refused(rig, "SUSPENDING", force=True)
    rig.tpu.advance(121)
    assert rig.queued_state() == "SUSPENDED" and rig.tpu.nodes() == {}
    with pytest.raises(refusals.TooManyRequests):  # it holds its quota
        rig.begin(spot=False)
    rig.tpu.set(delete_seconds=0)
    removed(rig, force=False)
    rig.begin(spot=False)


FAILED = [name for name in recorded.names() if "failed_data" in recorded.answer(name)]


@pytest.mark.parametrize("name", FAILED)
def test_a_recorded_failure(rig: Rig, name: str):
    rig.tpu.set(create_seconds=120, delete_seconds=60)
    rig.tpu.answer_next(name, "us-central1-a")
    rig.queue()
    assert rig.queued_state() == "PROVISIONING" and rig.tpu.nodes() == {"run-q1-node": "CREATING"}
    rig.tpu.advance(121)
    found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1").state
    assert (found.state.name, found.state_initiator.name) == ("SUSPENDING", "SERVICE")
    rig.tpu.advance(61)
    told = requests.get(f"{rig.emulator.url}/v2/{rig.place}/queuedResources/run-q1", timeout=20).json()["state"]
    values = {"zone": "us-central1-a", "region": "us-central1", "type": "v3-8", "project": "tpulm-emulator"}
    data = recorded.answer(name, **values)["failed_data"]
    assert told == {"state": "FAILED", "stateInitiator": "SERVICE", "failedData": data}
    assert rig.tpu.nodes() == {}
    rig.tpu.set_quota("v3-8", 8)
    with pytest.raises(refusals.TooManyRequests):  # it holds its quota
        rig.begin(spot=False)
    rig.tpu.set(delete_seconds=0)
    removed(rig, force=False)


def test_more_hosts_than_external_addresses(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Machine, "boot", lambda machine, script: None)  # 30 processes that nobody needs
    message = "Quota 'IN_USE_ADDRESSES' exceeded.  Limit: 8.0 in region us-west4."
    outside = tpu_v2.NetworkConfig(enable_external_ips=True)
    rig.place = rig.at("us-west4-a")
    rig.tpu.set(addresses=8)
    rig.create("inside", kind="v5litepod-64", zone="us-west4-a")
    rig.create("eight", kind="v5litepod-32", zone="us-west4-a", network_config=outside)
    with pytest.raises(refusals.ResourceExhausted) as caught:
        rig.create("ninth", kind="v5litepod-8", zone="us-west4-a", network_config=outside)
    assert caught.value.message == message
    rig.queue(node=rig.node("v5litepod-8", spot=False, network_config=outside))
    until(lambda: rig.queued_state() == "FAILED")
    found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1").state
    assert (found.failed_data.error.code, found.failed_data.error.message) == (8, message)
    rig.create("elsewhere", kind="v5litepod-8", zone="us-central1-a", network_config=outside)
    rig.tpu.kill("eight")
    rig.create("ninth", kind="v5litepod-8", zone="us-west4-a", network_config=outside)


def test_its_node_is_deleted_first_as_in_googles_samples_and_by_skypilot(rig: Rig):
    """SkyPilot sends the one nodeSpec as an object, deletes the node alone, and leaves the queued resource."""
    node = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    body = {"tpu": {"nodeSpec": {"parent": rig.place, "nodeId": "one", "node": node}}, "spot": {}}
    url = f"{rig.emulator.url}/v2/{rig.place}/queuedResources?queuedResourceId=run-q1&alt=json"
    assert requests.post(url, json=body, timeout=20).status_code == 200
    until(lambda: rig.queued_state() == "ACTIVE")
    rig.tpu.set(delete_seconds=60)
    deletion = rig.client.delete_node(name=f"{rig.place}/nodes/one")
    found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1")
    assert (found.state.state.name, found.state.state_initiator.name) == ("SUSPENDING", "USER")
    rig.tpu.advance(61)
    assert deletion.done() and rig.tpu.nodes() == {} and rig.queued_state() == "SUSPENDED"
    rig.tpu.set(delete_seconds=0.02)
    removed(rig, force=False)
    assert rig.tpu.queued_resources() == {}
