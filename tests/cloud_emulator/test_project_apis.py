"""The other services that setting up a project needs, over REST as google-auth's session speaks it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from rig import Rig

PROJECT = "tpulm-emulator"


Api = Callable[..., dict[str, Any]]


@pytest.fixture
def api(rig: Rig) -> Iterator[Api]:
    """Asks, and returns the JSON of the answer, or of its error."""
    with AuthorizedSession(AnonymousCredentials()) as session:

        def ask(method: str, service: str, path: str, status: int = 200, **content: Any) -> dict[str, Any]:
            root = rig.emulator.environment[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}"]
            answer = session.request(method, root.rstrip("/") + "/" + path, json=content or None, timeout=20)
            assert answer.status_code == status, answer.text
            return answer.json() if status == 200 else answer.json()["error"]

        yield ask


@pytest.mark.parametrize(
    ("service", "path", "read"),
    [
        ("CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}", "POST"),
        ("SECRETMANAGER", f"v1/projects/{PROJECT}/secrets/token", "GET"),
        ("IAM", f"v1/projects/{PROJECT}/serviceAccounts/vm@{PROJECT}.iam.gserviceaccount.com", "POST"),
    ],
)
def test_policies(api: Api, rig: Rig, service: str, path: str, read: str):
    rig.tpu.add_secret("token", "x")
    rig.tpu.projects.known().accounts[f"vm@{PROJECT}.iam.gserviceaccount.com"] = {}
    rig.tpu.deny("tpu.*")
    granted = api("POST", service, f"{path}:testIamPermissions", permissions=["tpu.nodes.create", "storage.buckets.get"])
    assert granted == {"permissions": ["storage.buckets.get"]}
    policy = api(read, service, f"{path}:getIamPolicy")
    policy["bindings"] = [{"role": "roles/tpu.admin", "members": ["user:a@b.c"]}]
    kept = api("POST", service, f"{path}:setIamPolicy", policy=policy)
    assert api(read, service, f"{path}:getIamPolicy") == kept
    assert kept["bindings"] == policy["bindings"] and kept["etag"] != policy["etag"]
    refused = api("POST", service, f"{path}:setIamPolicy", 409, policy=policy)
    assert refused["status"] == "ABORTED" and "concurrent policy changes" in refused["message"]
    binding = {"role": "roles/tpu.admin", "members": [f"serviceAccount:none@{PROJECT}.iam.gserviceaccount.com"]}
    assert "none@" in api("POST", service, f"{path}:setIamPolicy", 400, policy={"bindings": [binding]})["message"]
    binding["members"] = ["serviceAccount:none@another-one.iam.gserviceaccount.com"]
    api("POST", service, f"{path}:setIamPolicy", policy={"bindings": [binding]})


def test_accounts_and_roles(api: Api, rig: Rig):
    path, domain = f"v1/projects/{PROJECT}/serviceAccounts", f"{PROJECT}.iam.gserviceaccount.com"
    made = api("POST", "IAM", path, accountId="tpulm-vm", serviceAccount={"displayName": "VMs"})
    assert made["email"] == f"tpulm-vm@{domain}" and made["displayName"] == "VMs"
    assert api("GET", "IAM", f"{path}/tpulm-vm@{domain}") == made
    assert "already exists" in api("POST", "IAM", path, 409, accountId="tpulm-vm")["message"]
    api("GET", "IAM", f"{path}/other@{domain}", 404)
    api("GET", "IAM", f"v1/projects/-/serviceAccounts/other@{domain}", 403)

    assert "tpu.nodes.delete" in api("GET", "IAM", "v1/roles/tpu.admin")["includedPermissions"]
    path = f"v1/projects/{PROJECT}/roles"
    api("GET", "IAM", f"{path}/mine", 404)
    role = {"title": "mine", "includedPermissions": ["tpu.nodes.get"]}
    made = api("POST", "IAM", path, roleId="mine", role=role)
    changed = {"title": "other", "includedPermissions": ["tpu.nodes.list"], "etag": made["etag"]}
    patched = api("PATCH", "IAM", f"{path}/mine?updateMask=includedPermissions", **changed)
    assert (patched["title"], patched["includedPermissions"]) == ("mine", ["tpu.nodes.list"])
    assert api("PATCH", "IAM", f"{path}/mine", 409, **changed)["status"] == "ABORTED"
    rig.tpu.projects.known().roles[made["name"]]["deleted"] = True  # for a week its name stays taken
    assert "already exists" in api("POST", "IAM", path, 409, roleId="mine", role=role)["message"]
    assert "deleted" not in api("POST", "IAM", f"{path}/mine:undelete")


def test_quotas(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/locations/global/services/tpu.googleapis.com/quotaInfos"
    rig.tpu.set_quota("v5litepod", 0, location="us-west4", spot=True)
    rig.tpu.set_quota("v5litepod-8", -1, location="us-west4-a", spot=False)
    infos = {info["quotaId"]: info["dimensionsInfos"] for info in api("GET", "CLOUDQUOTAS", path)["quotaInfos"]}
    first, rest = infos["TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI"]
    assert first == {"dimensions": {"region": "us-west4"}, "details": {}, "applicableLocations": ["us-west4"]}, "zero"
    assert int(rest["details"]["value"]) > 1000 and "us-west4" not in rest["applicableLocations"]
    assert "dimensions" not in rest, "the default of these locations"
    assert infos["TPUV5sPreemptibleLitepodServingPerProjectPerRegionForTPUAPI"][0] == first
    assert infos["TPUV5sLitepodServingPerProjectPerZoneForTPUAPI"][0]["details"] == {"value": "-1"}
    assert "TPUV3sPodPerProjectPerZoneForTPUAPI" in infos
    page = api("GET", "CLOUDQUOTAS", f"{path}?pageSize=5")
    assert len(page["quotaInfos"]) == 5 and page["nextPageToken"] == "5"


def test_secrets(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/secrets/token"
    api("GET", "SECRETMANAGER", path, 404)
    assert "not found or has no versions" in api("GET", "SECRETMANAGER", f"{path}/versions/latest:access", 404)["message"]
    rig.tpu.add_secret("token", "old")
    rig.tpu.add_secret("token", "new")
    assert api("GET", "SECRETMANAGER", path)["name"].endswith("/secrets/token")
    found = api("GET", "SECRETMANAGER", f"{path}/versions/latest:access")
    assert base64.b64decode(found["payload"]["data"]) == b"new" and found["name"].endswith("/versions/2")
