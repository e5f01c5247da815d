"""The part of Compute Engine that a supervisor's VM needs, asked over plain HTTP as its reference has it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from rig import eventually

from cloud_emulator import Emulator, recorded

ZONE, PROJECT = "us-central1-a", "tpulm-emulator"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as made:
        yield made


def ask(emulator: Emulator, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    url = f"{emulator.environment['CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE']}compute/v1/projects/{PROJECT}/{path}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def vm(name: str = "helper", script: str = "", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/e2-micro",
        "labels": {"tpulm-run": "toy"},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": "global/images/family/debian-12"}}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "metadata": {"items": [{"key": "startup-script", "value": script}] if script else []},
        "scheduling": {"maxRunDuration": {"seconds": 7200}, "instanceTerminationAction": "DELETE"},
        **changes,
    }


def insert(emulator: Emulator, zone: str = ZONE, **changes: Any) -> dict[str, Any]:
    """The operation once it is done."""
    status, operation = ask(emulator, "POST", f"zones/{zone}/instances", vm(**changes))
    assert (status, operation["kind"], operation["operationType"]) == (200, "compute#operation", "insert")
    return ask(emulator, "POST", f"zones/{zone}/operations/{operation['name']}/wait")[1]


def test_an_instance_is_read_back_as_google_does(emulator: Emulator) -> None:
    done = insert(emulator)
    assert (done["status"], done["progress"], "error" in done) == ("DONE", 100, False)
    _, found = ask(emulator, "GET", f"zones/{ZONE}/instances/helper")
    assert found["status"] == "RUNNING"
    assert found["scheduling"]["maxRunDuration"] == {"seconds": "7200"}, "64 bits are a text"
    ends = found["resourceStatus"]["scheduling"]["terminationTimestamp"]
    assert time.strftime("%Y-%m-%dT%H", time.gmtime(time.time() + 7200)) in ends
    assert found["machineType"].endswith(f"/zones/{ZONE}/machineTypes/e2-micro")
    _, listed = ask(emulator, "GET", "aggregated/instances?filter=labels.tpulm-run:*")
    assert [item["name"] for item in listed["items"][f"zones/{ZONE}"]["instances"]] == ["helper"]
    assert listed["items"]["zones/us-central1-b"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    assert "items" not in ask(emulator, "GET", f"zones/{ZONE}/instances?filter=labels.other:*")[1]
    _, region = ask(emulator, "GET", "regions/us-central1")
    assert {"metric": "IN_USE_ADDRESSES", "limit": 64.0, "usage": 1.0} in region["quotas"]


def test_the_startup_script_runs_with_the_metadata_of_the_users_project(emulator: Emulator) -> None:
    asked = 'curl -s -H "Metadata-Flavor: Google" http://$GCE_METADATA_HOST/computeMetadata/v1'
    insert(
        emulator, script=f"{asked}/instance/name; echo; {asked}/project/project-id; echo; {asked}/instance/zone; echo; sleep 99"
    )
    eventually(lambda: "/zones/" in emulator.compute.machine("helper").console())
    name, project, zone = emulator.compute.machine("helper").console().split()[:3]
    assert (name, project) == ("helper", PROJECT), "unlike a TPU VM's"
    assert zone.endswith(f"/zones/{ZONE}")
    processes = emulator.compute.machine("helper").processes()
    status, operation = ask(emulator, "DELETE", f"zones/{ZONE}/instances/helper")
    assert (status, operation["operationType"]) == (200, "delete")
    eventually(lambda: not emulator.compute.instances())
    assert processes
    eventually(lambda: not [number for number in processes if _runs(number)])


def _runs(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b") ")[2][:1] != b"Z"
    except OSError:
        return False


def test_an_instance_whose_time_is_up_is_deleted_by_nobody_of_ours(emulator: Emulator) -> None:
    insert(emulator)
    emulator.tpu.advance(7000)
    assert emulator.compute.instances() == {"helper": "RUNNING"}
    emulator.tpu.advance(300)
    assert emulator.compute.instances() == {}


@pytest.mark.parametrize("name", ["stock-out", "quota-in-operation"])
def test_an_insertion_fails_in_its_operation(emulator: Emulator, name: str) -> None:
    emulator.compute.answer_next(name, ZONE)
    done = insert(emulator)
    known = recorded.answer(name, "compute")["operation"]
    assert done["error"]["errors"][0]["code"] == known["error"]["errors"][0]["code"]
    assert (done["status"], done["httpErrorStatusCode"]) == ("DONE", known["httpErrorStatusCode"])
    assert "{" not in done["error"]["errors"][0]["message"]
    assert emulator.compute.instances() == {}
    assert "error" not in insert(emulator), "once"


def test_an_instance_runs_as_an_account_that_is_there(emulator: Emulator) -> None:
    missing = {"email": f"nobody@{PROJECT}.iam.gserviceaccount.com"}
    assert insert(emulator, serviceAccounts=[missing])["error"]["errors"][0]["code"] == "EXTERNAL_RESOURCE_NOT_FOUND"


def test_requests_are_refused_in_the_words_of_compute_engine(emulator: Emulator) -> None:
    emulator.compute.answer_next("quota")
    status, refused = ask(emulator, "POST", f"zones/{ZONE}/instances", vm())
    assert (status, refused["error"]["errors"][0]["reason"]) == (403, "quotaExceeded")
    assert refused["error"]["message"] == "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."
    status, refused = ask(emulator, "GET", f"zones/{ZONE}/instances/helper")
    where = f"projects/{PROJECT}/zones/{ZONE}/instances/helper"
    assert (status, refused["error"]["message"]) == (404, f"The resource '{where}' was not found")
    insert(emulator)
    assert ask(emulator, "POST", f"zones/{ZONE}/instances", vm())[0] == 409
    emulator.tpu.deny("compute.instances.create")
    status, refused = ask(emulator, "POST", f"zones/{ZONE}/instances", vm())
    assert (status, refused["error"]["message"]) == (403, f"Required 'compute.instances.create' permission for '{where}'")
    emulator.tpu.deny("iam.serviceAccounts.actAs")
    emulator.tpu.allow("compute.instances.create")
    status, refused = ask(emulator, "POST", f"zones/{ZONE}/instances", vm("other"))
    assert (status, "does not have access to service account" in refused["error"]["message"]) == (400, True)
    emulator.tpu.disable_service("compute.googleapis.com")
    assert ask(emulator, "GET", "regions/us-central1")[1]["error"]["details"][0]["reason"] == "SERVICE_DISABLED"


def test_a_quota_is_used_up(emulator: Emulator) -> None:
    emulator.tpu.set(addresses=1)
    insert(emulator)
    status, refused = ask(emulator, "POST", f"zones/{ZONE}/instances", vm("second"))
    assert status == 403
    assert refused["error"]["message"].startswith("Quota 'IN_USE_ADDRESSES' exceeded.  Limit: 1.0 in region")
    assert "error" not in insert(emulator, name="third", networkInterfaces=[{"network": "global/networks/default"}])


def test_what_google_would_not_take_is_refused(emulator: Emulator) -> None:
    for wrong in (
        {"name": "Helper"},
        {"machineType": f"zones/{ZONE}/machineTypes/e2-nano"},
        {"disks": []},
        {"networkInterfaces": []},
        {"scheduling": {"maxRunDuration": {"seconds": 7200}}},
        {"scheduling": {"maxRunDuration": {"seconds": 121 * 86_400}, "instanceTerminationAction": "DELETE"}},
    ):
        assert ask(emulator, "POST", f"zones/{ZONE}/instances", {**vm(), **wrong})[0] == 400, wrong
    assert ask(emulator, "POST", "zones/moon-1-a/instances", vm())[0] == 404


def test_networks_and_subnetworks(emulator: Emulator) -> None:
    from cloud_emulator.compute import Network

    _, found = ask(emulator, "GET", "global/networks/default")
    assert found["autoCreateSubnetworks"] is True
    _, found = ask(emulator, "GET", "regions/us-central1/subnetworks/default")
    assert (found["privateIpGoogleAccess"], found["network"].rpartition("/")[2]) == (False, "default")
    assert ask(emulator, "GET", "global/networks/other")[0] == 404
    emulator.compute.networks["own"] = Network(auto=False, private_access=True, subnetworks={"us-central1": "tpus"})
    assert ask(emulator, "GET", "regions/us-central1/subnetworks/tpus")[1]["privateIpGoogleAccess"] is True
    assert ask(emulator, "GET", "regions/us-east1/subnetworks/tpus")[0] == 404
