"""Nodes as Google's own client meets them: their life, and every refusal."""

from __future__ import annotations

import re
from typing import Any

import google.api_core.exceptions as refusals
import pytest
import requests
from google.cloud import tpu_v2
from rig import POLL, Rig

from cloud_emulator import recorded


def test_from_creation_to_gone(rig: Rig):
    rig.tpu.set(create_seconds=60, delete_seconds=30)
    creation = rig.begin("run-a1", "v5litepod-16", "us-west4-a", labels={"run": "abc"})
    name = f"{rig.at('us-west4-a')}/nodes/run-a1"
    told = requests.get(f"{rig.emulator.url}/v2/{creation.operation.name}", timeout=20).json()
    assert re.fullmatch(r".*/operations/operation-\d{13}-[0-9a-f]{13}-[0-9a-f]{8}-[0-9a-f]{8}", told["name"])
    kind = "type.googleapis.com/google.cloud.common.OperationMetadata"
    metadata = {"@type": kind, "apiVersion": "v2", "cancelRequested": False, "target": name, "verb": "create"}
    assert told["metadata"].pop("createTime") and told["metadata"] == metadata
    assert not creation.done() and told["done"] is False
    assert rig.client.get_node(name=name).state.name == "CREATING"
    rig.tpu.advance(61)
    node = creation.result(timeout=20, polling=POLL)
    assert (node.name, node.state.name, node.health.name) == (name, "READY", "HEALTHY")
    assert node.accelerator_config.topology == "4x4" and node.accelerator_config.type_.name == "V5LITE_POD"
    assert len(node.network_endpoints) == 4 and len({end.ip_address for end in node.network_endpoints}) == 4
    assert node.labels == {"run": "abc"} and node.scheduling_config.spot and node.id and node.create_time
    assert [found.name for found in rig.client.list_nodes(parent=rig.at("us-west4-a"))] == [name]
    assert not list(rig.client.list_nodes(parent=rig.place))

    deletion = rig.client.delete_node(name=name)
    assert rig.client.get_node(name=name).state.name == "DELETING"
    with pytest.raises(refusals.BadRequest, match="DELETING"):
        rig.client.delete_node(name=name)
    rig.tpu.advance(31)
    assert deletion.result(timeout=20, polling=POLL) is not None
    with pytest.raises(refusals.NotFound, match=r"'projects/.*/run-a1'"):
        rig.client.get_node(name=name)
    assert [event.what for event in rig.tpu.history()] == ["created", "ready", "deleting", "deleted"]
    assert rig.tpu.node_seconds()[name] == pytest.approx(31, abs=3)


def test_what_is_refused(rig: Rig):
    cases: list[tuple[tuple[str, ...], dict[str, Any], type[Exception], str]] = [
        (("run-a1", "v3-8", "moon-a"), {}, refusals.Forbidden, "'locations/moon-a'"),
        (("run-a1", "v3-8", "us-west3-a"), {}, refusals.BadRequest, '"us-west3-a"'),
        (("run-a1", "v3-8", "us-west4-a"), {}, refusals.BadRequest, "v3-8 .*us-west4-a"),
        (("run-a1", "v3-9"), {}, refusals.BadRequest, '"v3-9"'),
        (("run-a1", "v3-8"), {"runtime_version": "tpu-vm-9"}, refusals.BadRequest, '"tpu-vm-9"'),
        (("Run_1", "v3-8"), {}, refusals.BadRequest, '"Run_1"'),
        (("run-a1", "v3-8"), {"labels": {"Run": "x"}}, refusals.BadRequest, '"Run"'),
        (("run-a1", "v3-8"), {"labels": {"run": "X.y"}}, refusals.BadRequest, '"X.y"'),
        (("run-a1", "v3-8"), {"metadata": {"a": "x" * 300_000}}, refusals.BadRequest, "262144"),
    ]
    for arguments, fields, refusal, message in cases:
        with pytest.raises(refusal, match=message):
            rig.begin(*arguments, **fields)
    assert rig.tpu.nodes() == {}


def test_the_project_and_what_it_lacks_and_names_that_are_taken(rig: Rig):
    with pytest.raises(refusals.Forbidden, match="project another"):
        list(rig.client.list_nodes(parent="projects/another-one/locations/us-central1-a"))
    tpu, service = rig.tpu, "tpu.googleapis.com"
    for spoil, mend, message in (
        (lambda: tpu.deny("tpu.nodes.create"), tpu.allow, r"'tpu\.nodes\.create'"),
        (lambda: tpu.deny("iam.serviceAccounts.actAs"), tpu.allow, r"account '\d+-compute@"),
        (lambda: tpu.set_billing(False), lambda: tpu.set_billing(True), "billing"),
        (lambda: tpu.disable_service(service), lambda: tpu.enable_service(service), r"project \d+"),
    ):
        spoil()
        with pytest.raises(refusals.Forbidden, match=message) as caught:
            rig.begin()
        mend()
    assert caught.value.reason == "SERVICE_DISABLED"
    with pytest.raises(refusals.Forbidden, match="account 'vm@"):  # there is none
        rig.begin(service_account={"email": "vm@tpulm-emulator.iam.gserviceaccount.com"})
    rig.create()
    with pytest.raises(refusals.Conflict, match="nodes/run-a1"):
        rig.begin()
    rig.tpu.kill("run-a1")
    with pytest.raises(refusals.Conflict):
        rig.begin()
    rig.delete()
    rig.create()


def test_quota(rig: Rig):
    rig.tpu.set_quota("v3-8", 8, spot=True, location="us-central1")
    rig.create()
    rig.create("other", spot=False)
    with pytest.raises(refusals.TooManyRequests, match="'TPUV3sPreemptiblePerProjectPerRegionForTPUAPI'"):
        rig.begin("run-a2")
    rig.tpu.kill("run-a1")
    with pytest.raises(refusals.TooManyRequests):  # a preempted node still counts
        rig.begin("run-a2")
    rig.delete()
    rig.create("run-a2")


def test_quota_of_small_v5e(rig: Rig):
    """As published: with the default of 4 a v5litepod-8 is refused and a v5litepod-4 accepted."""
    rig.tpu.set_quota("v5litepod-4", 4)
    rig.tpu.set_quota("v5litepod-4", 4, location="us-central1-a")
    with pytest.raises(refusals.TooManyRequests) as caught:
        rig.begin(kind="v5litepod-8", spot=False)
    region, zone = (
        recorded.answer("quota", quota=f"TPUV5sLitepodServingPerProjectPer{per}ForTPUAPI", limit=4, place=place, number=number)
        for number in [rig.tpu.projects.known().number]
        for per, place in (("Region", "region us-central1"), ("Zone", "zone us-central1-a"))
    )
    region["http"]["body"]["error"]["details"][0]["violations"] += zone["http"]["body"]["error"]["details"][0]["violations"]
    told = caught.value.response
    assert told is not None and told.json() == region["http"]["body"], "both limits are reported together"
    rig.create(kind="v5litepod-4", spot=False)
    rig.create("large", kind="v5litepod-16", zone="us-central1-a", spot=False)  # of another quota


def test_operations_are_cancelled_as_far_as_possible(rig: Rig):
    """A cancelled creation leaves no node; a deletion is carried out. The discovery document: "success is not guaranteed"."""
    rig.tpu.set(create_seconds=60, delete_seconds=30)
    creation = rig.begin()
    url = f"{rig.emulator.url}/v2/{creation.operation.name}"
    assert requests.post(f"{url}:cancel", json={}, timeout=20).json() == {}
    with pytest.raises(refusals.Cancelled, match=recorded.answer("cancelled")["operation"]["error"]["message"]):
        creation.result(timeout=20, polling=POLL)
    told = requests.get(url, timeout=20).json()
    assert told["error"]["code"] == 1 and told["metadata"]["cancelRequested"] and told["metadata"]["endTime"]
    assert rig.tpu.nodes() == {}
    kept = rig.begin()
    rig.tpu.advance(61)
    deletion = rig.client.delete_node(name=f"{rig.place}/nodes/run-a1")
    for operation in (kept, deletion):
        rig.client.cancel_operation({"name": operation.operation.name})
    assert rig.state() == "DELETING" and kept.result(timeout=20, polling=POLL).name.endswith("run-a1")
    rig.tpu.advance(31)
    assert deletion.result(timeout=20, polling=POLL) is not None and rig.tpu.nodes() == {}
    with pytest.raises(refusals.NotFound):
        rig.client.cancel_operation({"name": f"{rig.place}/operations/none"})


@pytest.mark.parametrize("api", ["v2", "v2alpha1"])
def test_what_google_api_python_client_and_skypilot_send(rig: Rig, api: str):
    """Both read `done` of a running operation; SkyPilot sets labels, and sends a whole node back to add a tag."""
    url = f"{rig.emulator.url}/{api}"
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base", "labels": {"ray-cluster-name": "one"}}
    rig.tpu.set(create_seconds=60)
    creation = requests.post(f"{url}/{rig.place}/nodes?nodeId=one&alt=json", json=body, timeout=20).json()
    assert creation["done"] is False and requests.get(f"{url}/{creation['name']}?alt=json", timeout=20).json()["done"] is False

    def patch(mask: str, fields: dict[str, Any]) -> requests.Response:
        return requests.patch(f"{url}/{rig.place}/nodes/one?updateMask={mask}&alt=json", json=fields, timeout=20)

    assert "update is not supported while in state CREATING" in patch("labels", body).json()["error"]["message"]
    rig.tpu.advance(61)
    assert patch("labels", {"labels": {"a": "b"}}).json()["metadata"]["verb"] == "update"
    node = requests.get(f"{url}/{rig.place}/nodes/one?alt=json", timeout=20).json()
    assert node["labels"] == {"a": "b"} and "tags" not in node
    assert patch("tags", node | {"tags": ["open"], "labels": {}}).status_code == 200
    node = requests.get(f"{url}/{rig.place}/nodes/one?alt=json", timeout=20).json()
    assert node["tags"] == ["open"] and node["labels"] == {"a": "b"}
    assert patch("metadata", {"metadata": {"key": "value"}}).status_code == 200
    assert rig.tpu.machine("one").metadata.get("instance/attributes/key") == "value"
    for mask, fields in (("runtimeVersion", node), ("labels", {"labels": {"A": "b"}}), ("labels", {"acceleratorKind": "v3-8"})):
        assert patch(mask, fields).json()["error"]["status"] == "INVALID_ARGUMENT"
    assert requests.patch(f"{url}/{rig.place}/nodes/two?updateMask=labels", json={}, timeout=20).status_code == 404


def test_dstack_attaches_a_disk(rig: Rig):
    rig.create()
    node = rig.get()
    node.data_disks.append(tpu_v2.AttachedDisk(source_disk="projects/tpulm-emulator/zones/us-central1-a/disks/one"))
    rig.client.update_node(tpu_v2.UpdateNodeRequest(node=node, update_mask="dataDisks")).result(timeout=20, polling=POLL)
    assert [disk.source_disk.rpartition("/")[2] for disk in rig.get().data_disks] == ["one"]
    rig.tpu.kill("run-a1")
    with pytest.raises(refusals.BadRequest, match="PREEMPTED"):
        rig.client.update_node(tpu_v2.UpdateNodeRequest(node=node, update_mask="labels"))
