"""The other services that setting up a project needs, over REST as google-auth's session speaks it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from rig import Rig

PROJECT = "tpulm-emulator"


class Api:
    def __init__(self, rig: Rig):
        self._environment = rig.emulator.environment
        self.session = AuthorizedSession(AnonymousCredentials())

    def __call__(self, method: str, service: str, path: str, status: int = 200, **content: Any) -> dict[str, Any]:
        """The JSON of the answer, or of its error."""
        root = self._environment[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}"]
        answer = self.session.request(method, root.rstrip("/") + "/" + path, json=content or None, timeout=20)
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]


@pytest.fixture
def api(rig: Rig) -> Any:
    made = Api(rig)
    yield made
    made.session.close()


def test_services(api: Api, rig: Rig):
    services = f"v1/projects/{PROJECT}/services"
    assert api("GET", "SERVICEUSAGE", f"{services}/tpu.googleapis.com")["state"] == "ENABLED"
    rig.tpu.disable_service("tpu.googleapis.com")
    assert api("GET", "SERVICEUSAGE", f"{services}/tpu.googleapis.com")["state"] == "DISABLED"
    enabled = api("GET", "SERVICEUSAGE", f"{services}?filter=state:ENABLED")["services"]
    assert "tpu.googleapis.com" not in [service["config"]["name"] for service in enabled]
    operation = api("POST", "SERVICEUSAGE", f"{services}:batchEnable", serviceIds=["tpu.googleapis.com", "iam.googleapis.com"])
    done = api("GET", "SERVICEUSAGE", f"v1/{operation['name']}")
    assert done["done"] and [service["state"] for service in done["response"]["services"]] == ["ENABLED", "ENABLED"]
    assert api("POST", "SERVICEUSAGE", f"{services}/tpu.googleapis.com:enable")["done"], "there was nothing to do"
    assert "permission denied for service" in api("GET", "SERVICEUSAGE", f"{services}/none.googleapis.com", 403)["message"]
    assert api("GET", "SERVICEUSAGE", "v1/projects/another-one/services", 403)["status"] == "PERMISSION_DENIED"


def test_the_project_and_its_policy(api: Api, rig: Rig):
    found = api("GET", "CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}")
    assert found["projectId"] == PROJECT and found["state"] == "ACTIVE"
    number = found["name"].removeprefix("projects/")
    assert api("GET", "CLOUDRESOURCEMANAGER", f"v1/projects/{number}")["projectNumber"] == number
    assert api("GET", "CLOUDRESOURCEMANAGER", "v3/projects/another-one", 403)["code"] == 403

    rig.tpu.deny("tpu.*")
    wanted = ["tpu.nodes.create", "storage.buckets.get"]
    granted = api("POST", "CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}:testIamPermissions", permissions=wanted)
    assert granted == {"permissions": ["storage.buckets.get"]}

    policy = api("POST", "CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}:getIamPolicy")
    policy["bindings"].append({"role": "roles/tpu.admin", "members": ["user:a@b.c"]})
    kept = api("POST", "CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}:setIamPolicy", policy=policy)
    assert kept["bindings"] == policy["bindings"] and kept["etag"] != policy["etag"]
    refused = api("POST", "CLOUDRESOURCEMANAGER", f"v3/projects/{PROJECT}:setIamPolicy", 409, policy=policy)
    assert refused["status"] == "ABORTED" and "concurrent policy changes" in refused["message"]


def test_billing(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/billingInfo"
    assert api("GET", "CLOUDBILLING", path)["billingEnabled"] is True
    rig.tpu.set_billing(False)
    assert api("GET", "CLOUDBILLING", path)["billingAccountName"] == ""
    api("PUT", "CLOUDBILLING", path, billingAccountName="billingAccounts/0")
    assert api("GET", "CLOUDBILLING", path)["billingEnabled"] is True
    rig.tpu.deny("resourcemanager.projects.get")
    api("GET", "CLOUDBILLING", path, 403)


def test_service_accounts(api: Api):
    path = f"v1/projects/{PROJECT}/serviceAccounts"
    assert api("GET", "IAM", path) == {}
    made = api("POST", "IAM", path, accountId="tpulm-vm", serviceAccount={"displayName": "VMs"})
    email = f"tpulm-vm@{PROJECT}.iam.gserviceaccount.com"
    assert made["email"] == email and made["displayName"] == "VMs"
    assert api("GET", "IAM", f"{path}/{email}") == api("GET", "IAM", f"v1/projects/-/serviceAccounts/{email}") == made
    assert api("GET", "IAM", path)["accounts"] == [made]
    assert "already exists" in api("POST", "IAM", path, 409, accountId="tpulm-vm")["message"]
    assert "6 to 30" in api("POST", "IAM", path, 400, accountId="x")["message"]
    api("GET", "IAM", f"{path}/other@{PROJECT}.iam.gserviceaccount.com", 404)
    api("GET", "IAM", f"v1/projects/-/serviceAccounts/other@{PROJECT}.iam.gserviceaccount.com", 403)
    policy = {"bindings": [{"role": "roles/iam.serviceAccountUser", "members": ["user:a@b.c"]}]}
    api("POST", "IAM", f"{path}/{email}:setIamPolicy", policy=policy)
    granted = api("POST", "IAM", f"v1/projects/-/serviceAccounts/{email}:testIamPermissions", permissions=["a.b.c"])
    assert granted == {"permissions": ["a.b.c"]}
    assert api("POST", "IAM", f"{path}/{email}:getIamPolicy")["bindings"] == policy["bindings"]
    api("DELETE", "IAM", f"{path}/{email}")
    api("GET", "IAM", f"{path}/{email}", 404)


def test_policies_know_the_projects_accounts(api: Api):
    binding = {"role": "roles/tpu.admin", "members": [f"serviceAccount:none@{PROJECT}.iam.gserviceaccount.com"]}
    path = f"v3/projects/{PROJECT}:setIamPolicy"
    assert "none@" in api("POST", "CLOUDRESOURCEMANAGER", path, 400, policy={"bindings": [binding]})["message"]
    binding["members"] = ["serviceAccount:none@another-one.iam.gserviceaccount.com"]
    api("POST", "CLOUDRESOURCEMANAGER", path, policy={"bindings": [binding]})


def test_roles(api: Api):
    assert "tpu.nodes.delete" in api("GET", "IAM", "v1/roles/tpu.admin")["includedPermissions"]
    api("GET", "IAM", "v1/roles/none", 404)
    path = f"v1/projects/{PROJECT}/roles"
    assert api("GET", "IAM", path) == {}
    role = {"title": "mine", "includedPermissions": ["tpu.nodes.get"], "unknown": 1}
    made = api("POST", "IAM", path, roleId="mine", role=role)
    assert (made["name"], made["includedPermissions"]) == (f"projects/{PROJECT}/roles/mine", ["tpu.nodes.get"])
    assert "unknown" not in made and api("GET", "IAM", path)["roles"] == [made]
    assert "already exists" in api("POST", "IAM", path, 409, roleId="mine", role=role)["message"]
    assert "role_id" in api("POST", "IAM", path, 400, roleId="a role", role=role)["message"]
    changed = {"title": "other", "includedPermissions": ["tpu.nodes.list"], "etag": made["etag"]}
    patched = api("PATCH", "IAM", f"{path}/mine?updateMask=includedPermissions", **changed)
    assert (patched["title"], patched["includedPermissions"]) == ("mine", ["tpu.nodes.list"])
    assert api("PATCH", "IAM", f"{path}/mine", 409, **changed)["status"] == "ABORTED"
    assert api("DELETE", "IAM", f"{path}/mine")["deleted"] and api("GET", "IAM", f"{path}/mine")["deleted"]
    api("POST", "IAM", path, 409, roleId="mine", role=role)
    assert "deleted" not in api("POST", "IAM", f"{path}/mine:undelete")
    api("GET", "IAM", f"{path}/none", 404)


def test_quotas(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/locations/global/services/tpu.googleapis.com/quotaInfos"
    rig.tpu.set_quota("v5litepod", 0, location="us-west4", spot=True)
    infos = {info["quotaId"]: info for info in api("GET", "CLOUDQUOTAS", path)["quotaInfos"]}
    info = infos["TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI"]
    first, rest = info["dimensionsInfos"]
    assert first == {"dimensions": {"region": "us-west4"}, "details": {}, "applicableLocations": ["us-west4"]}, "zero"
    assert int(rest["details"]["value"]) > 1000 and "us-west4" not in rest["applicableLocations"]
    assert "dimensions" not in rest, "the default of these locations"
    serving = infos["TPUV5sPreemptibleLitepodServingPerProjectPerRegionForTPUAPI"]
    assert serving["dimensionsInfos"][0] == first
    rig.tpu.set_quota("v5litepod-8", -1, location="us-west4-a", spot=False)
    serving = api("GET", "CLOUDQUOTAS", f"{path}/TPUV5sLitepodServingPerProjectPerZoneForTPUAPI")
    assert serving["dimensionsInfos"][0]["details"] == {"value": "-1"}
    assert "TPUV3sPodPerProjectPerZoneForTPUAPI" in infos
    assert api("GET", "CLOUDQUOTAS", f"{path}/{info['quotaId']}") == info
    api("GET", "CLOUDQUOTAS", f"{path}/none", 404)
    page = api("GET", "CLOUDQUOTAS", f"{path}?pageSize=5")
    assert len(page["quotaInfos"]) == 5 and page["nextPageToken"] == "5"


def test_secrets(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/secrets/token/versions"
    assert "not found or has no versions" in api("GET", "SECRETMANAGER", f"{path}/latest:access", 404)["message"]
    rig.tpu.add_secret("token", "old")
    rig.tpu.add_secret("token", "new")
    found = api("GET", "SECRETMANAGER", f"{path}/latest:access")
    assert base64.b64decode(found["payload"]["data"]) == b"new" and found["name"].endswith("/versions/2")
    assert base64.b64decode(api("GET", "SECRETMANAGER", f"{path}/1:access")["payload"]["data"]) == b"old"
    api("GET", "SECRETMANAGER", f"{path}/3:access", 404)


def test_who_may_read_a_secret(api: Api, rig: Rig):
    path = f"v1/projects/{PROJECT}/secrets/token"
    api("GET", "SECRETMANAGER", path, 404)
    rig.tpu.add_secret("token", "x")
    assert api("GET", "SECRETMANAGER", path)["name"].endswith("/secrets/token")
    policy = api("GET", "SECRETMANAGER", f"{path}:getIamPolicy")
    policy["bindings"] = [{"role": "roles/secretmanager.secretAccessor", "members": ["user:a@b.c"]}]
    kept = api("POST", "SECRETMANAGER", f"{path}:setIamPolicy", policy=policy)
    assert api("GET", "SECRETMANAGER", f"{path}:getIamPolicy") == kept and kept["bindings"] == policy["bindings"]
    assert api("POST", "SECRETMANAGER", f"{path}:setIamPolicy", 409, policy=policy)["status"] == "ABORTED"
    rig.tpu.deny("secretmanager.versions.access")
    wanted = ["secretmanager.versions.access", "secretmanager.secrets.get"]
    assert api("POST", "SECRETMANAGER", f"{path}:testIamPermissions", permissions=wanted)["permissions"] == wanted[1:]


def test_a_service_that_is_off_says_how_to_turn_it_on(api: Api, rig: Rig):
    rig.tpu.disable_service("secretmanager.googleapis.com")
    refused = api("GET", "SECRETMANAGER", f"v1/projects/{PROJECT}/secrets/a/versions/latest:access", 403)
    assert refused["details"][0]["reason"] == "SERVICE_DISABLED" and "Enable it by visiting" in refused["message"]
