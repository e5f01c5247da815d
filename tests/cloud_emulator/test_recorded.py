"""Every recorded answer of Google, as Google's own client gets it from the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import google.api_core.exceptions as refusals
import pytest
import requests
from google.cloud import tpu_v2
from rig import ZONE, Rig

from cloud_emulator import recorded
from cloud_emulator.errors import EmulatorError
from cloud_emulator.machines import Machine
from waiting import until

HTTP = [name for name in recorded.names() if "http" in recorded.answer(name)]
OPERATIONS = [name for name in recorded.names() if "operation" in recorded.answer(name)]


def told(rig: Rig, **more: object) -> dict[str, object]:
    """What the placeholders stand for in a request of `rig`."""
    known = rig.tpu.projects.known()
    return {"project": known.name, "number": known.number, "zone": ZONE, "type": "v3-8", "resource": "nodes/run-a1", **more}


@pytest.mark.parametrize("name", HTTP)
def test_a_refusal(rig: Rig, name: str):
    requests_of: dict[str, Callable[[], Any]] = {
        "": lambda: list(rig.client.list_nodes(parent=rig.place)),
        "GET": rig.get,
        "CREATE": rig.begin,
        "DELETE queued": lambda: rig.client.delete_queued_resource({"name": f"{rig.place}/queuedResources/run-q1"}),
    }
    wanted = recorded.answer(name).get("requests", "CREATE")
    permission = {"": "tpu.nodes.list", "CREATE": "tpu.nodes.create"}.get(wanted, "")
    resource = {"CREATE": "nodes/run-a1", "GET": "nodes/run-a1"}.get(wanted, "queuedResources/run-q1")
    rig.tpu.answer_next(name, count=None)
    with pytest.raises(refusals.GoogleAPICallError) as caught:
        requests_of[wanted]()
    expected = recorded.answer(name, **told(rig, permission=permission, resource=resource))["http"]
    assert {"grade", "source"} <= recorded.answer(name).keys() and "{" not in expected["body"]["error"]["message"]
    assert caught.value.code == expected["status"] and caught.value.response is not None
    assert caught.value.response.json() == expected["body"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_fails(rig: Rig, name: str):
    error = recorded.answer(name, **told(rig))["operation"]["error"]
    rig.tpu.answer_next(name, ZONE)
    rig.create("elsewhere", zone="us-central1-b")
    begin = rig.begin if recorded.answer(name).get("requests") is None else rig.begin_queued
    operation = begin().operation.name
    rig.tpu.advance(1)
    found = requests.get(f"{rig.emulator.url}/v2/{operation}", timeout=20).json()
    assert found["done"] and found["error"] == error
    assert rig.tpu.nodes() == {"elsewhere": "READY"} and rig.tpu.queued_resources() == {}


def test_orders_by_zone_and_until_they_are_taken_back(rig: Rig):
    rig.tpu.answer_next("location-policy", ZONE, count=None)
    for _ in range(2):
        with pytest.raises(refusals.Forbidden, match="'locations/us-central1-a'"):
            rig.begin()
    rig.create("elsewhere", zone="us-central1-b")
    rig.tpu.take_back("location-policy")
    rig.create()
    rig.tpu.answer_next("not-found", count=1)
    with pytest.raises(refusals.NotFound):
        rig.get()
    assert rig.state() == "READY"
    with pytest.raises(EmulatorError, match="'location-policy'"):
        rig.tpu.answer_next("location-polcy")
    with pytest.raises(EmulatorError, match="'us-central1-a'"):
        rig.tpu.answer_next("quota", "us-centrl1-a")
    with pytest.raises(EmulatorError, match="count"):
        rig.tpu.answer_next("quota", count=0)


def test_metadata_of_a_vm(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """The tpu-env of a v4-256 on demand, as its owner published it: every recorded key, with these values."""
    monkeypatch.setattr(Machine, "boot", lambda machine, script: None)  # 32 processes that nobody needs
    rig.begin(kind="v4-256", zone="us-central2-b", spot=False)
    until(lambda: rig.tpu.nodes()["run-a1"] == "READY")
    node = rig.client.get_node(name=f"{rig.at('us-central2-b')}/nodes/run-a1")
    env: dict[str, str] = {}
    root = f"http://{node.network_endpoints[1].ip_address}:8479/computeMetadata/v1"
    for path, entry in recorded.load("metadata")["keys"].items():
        found = requests.get(f"{root}/{path}", headers={"Metadata-Flavor": "Google"}, timeout=20).text
        form = ".*".join(re.escape(part) for part in re.split(r"\{\w+\}", entry["value"]))
        if path.endswith("worker-network-endpoints"):
            addresses = [end.ip_address for end in node.network_endpoints]
            assert [each.split(":")[2] for each in found.split(",")] == addresses and len(addresses) == 32
        else:
            assert re.fullmatch(form, found), path
        if path.endswith("tpu-env"):
            env = dict(line.split(": ") for line in found.splitlines())
    published = {"ACCELERATOR_TYPE": "v4-256", "TYPE": "V4", "ZONE": "us-central2-b", "PREEMPTIBLE": "false"}
    published |= {"TOPOLOGY": "4x4x8", "CHIPS_PER_HOST_BOUNDS": "2,2,1", "HOST_BOUNDS": "2,2,8"}
    published |= {"TPU_TOPOLOGY_WRAP": "true,true,true", "ENABLE_ICI_RESILIENCY": "true"}
    published |= {"RUNTIME_VERSION": "gcr.io/cloud-tpu-v2-images/fake_tensorflow:latest"}
    assert {key: env[key].strip("'") for key in published} == published


def test_a_ready_node(rig: Rig):
    """As k8s-config-connector's golden log has it: no false values, and what Google fills in."""
    outside = tpu_v2.NetworkConfig(enable_external_ips=True, network="default")
    rig.create(kind="v5p-8", spot=False, network_config=outside)
    node = requests.get(f"{rig.emulator.url}/v2/{rig.place}/nodes/run-a1", timeout=20).json()
    project = "projects/tpulm-emulator"
    assert node["networkEndpoints"][0].pop("accessConfig")["externalIp"] and node["networkEndpoints"][0].pop("ipAddress")
    assert node.pop("cidrBlock") and node.pop("createTime") and int(node.pop("id"))
    account = node.pop("serviceAccount")
    assert account["email"] == f"{rig.tpu.projects.known().number}-compute@developer.gserviceaccount.com"
    assert len(account["scope"]) == 6
    network = {"enableExternalIps": True, "network": f"{project}/global/networks/default"}
    network["subnetwork"] = f"{project}/regions/us-central1/subnetworks/default"
    expected: dict[str, Any] = {"name": f"{rig.place}/nodes/run-a1", "apiVersion": "V2", "state": "READY", "health": "HEALTHY"}
    expected |= {"acceleratorConfig": {"topology": "2x2x1", "type": "V5P"}, "acceleratorType": "v5p-8"}
    expected |= {"networkConfig": network, "networkEndpoints": [{"port": 8470}], "runtimeVersion": "v2-alpha-tpuv5"}
    assert node == {**expected, "schedulingConfig": {}, "shieldedInstanceConfig": {}}
    rig.create("inside", kind="v5p-8", spot=False)
    ends = requests.get(f"{rig.emulator.url}/v2/{rig.place}/nodes/inside", timeout=20).json()["networkEndpoints"]
    assert ends[0]["accessConfig"] == {}
