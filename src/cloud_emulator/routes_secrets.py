"""Calls of Secret Manager: what there is, who may read it, and reading it."""

from __future__ import annotations

import base64

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.hashes import hashes_of
from cloud_emulator.policies import policy_of, set_policy, tested
from cloud_emulator.projects import Project, Projects
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError

SERVICE = "secretmanager.googleapis.com"
SECRET = "_secretmanager/v1/projects/{project}/secrets/{secret}"


class SecretRoutes:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[Route]:
        access = SECRET + "/versions/{version}:access"
        table = [
            ("ACCESS secret", "GET", access, "secretmanager.versions.access", self.access),
            ("GET secret policy", "GET", SECRET + ":getIamPolicy", "secretmanager.secrets.getIamPolicy", self.get_policy),
            ("SET secret policy", "POST", SECRET + ":setIamPolicy", "secretmanager.secrets.setIamPolicy", self.set_policy),
            ("TEST secret", "POST", SECRET + ":testIamPermissions", "", self.test),
            ("GET secret", "GET", SECRET, "secretmanager.secrets.get", self.get),
        ]
        return [Route(kind, method, path, permission, answer) for kind, method, path, permission, answer in table]

    def _secret(self, project: str, secret: str, permission: str) -> Project:
        resource = f"projects/{project}/secrets/{secret}"
        found = self._projects.permitted(project, SERVICE, permission, resource=resource)
        if secret not in found.secrets:
            raise RpcError(404, f"Secret [projects/{found.number}/secrets/{secret}] not found.")
        return found

    def get(self, call: Call, project: str, secret: str) -> Answer:
        found = self._secret(project, secret, "secretmanager.secrets.get")
        name = f"projects/{found.number}/secrets/{secret}"
        return json_answer({"name": name, "replication": {"automatic": {}}, "createTime": "2024-01-01T00:00:00Z"})

    def get_policy(self, call: Call, project: str, secret: str) -> Answer:
        return json_answer(policy_of(self._secret(project, secret, "secretmanager.secrets.getIamPolicy"), f"secrets/{secret}"))

    def set_policy(self, call: Call, project: str, secret: str) -> Answer:
        found = self._secret(project, secret, "secretmanager.secrets.setIamPolicy")
        return json_answer(set_policy(found, f"secrets/{secret}", call))

    def test(self, call: Call, project: str, secret: str) -> Answer:
        return json_answer(tested(self._secret(project, secret, ""), call))

    def access(self, call: Call, project: str, secret: str, version: str) -> Answer:
        resource = f"projects/{project}/secrets/{secret}/versions/{version}"
        found = self._projects.permitted(project, SERVICE, "secretmanager.versions.access", resource=resource)
        versions = found.secrets.get(secret, [])
        if not versions:
            raise RpcError(404, f"Secret [projects/{found.number}/secrets/{secret}] not found or has no versions.")
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= len(versions):
            raise RpcError(404, f"Secret Version [projects/{found.number}/secrets/{secret}/versions/{version}] not found.")
        content = versions[number - 1]
        crc32c = int.from_bytes(base64.b64decode(hashes_of(content).crc32c), "big")
        payload = {"data": base64.b64encode(content).decode(), "dataCrc32c": str(crc32c)}
        return json_answer({"name": f"projects/{found.number}/secrets/{secret}/versions/{number}", "payload": payload})
