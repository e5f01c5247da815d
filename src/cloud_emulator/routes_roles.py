"""Calls of IAM on roles: those that are predefined, and a project's own."""

from __future__ import annotations

import re
from typing import Any

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.policies import etag
from cloud_emulator.projects import Project, Projects
from cloud_emulator.roles import PREDEFINED
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError, bad_argument

SERVICE = "iam.googleapis.com"
ROLES = "_iam/v1/projects/{project}/roles"
ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
FIELDS = ("title", "description", "includedPermissions", "stage")


class RoleRoutes:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[Route]:
        table = [
            ("GET predefined role", "GET", "_iam/v1/roles/{role}", "", self.get_predefined),
            ("LIST roles", "GET", ROLES, "iam.roles.list", self.list_roles),
            ("CREATE role", "POST", ROLES, "iam.roles.create", self.create),
            ("UNDELETE role", "POST", ROLES + "/{role}:undelete", "iam.roles.undelete", self.undelete),
            ("GET role", "GET", ROLES + "/{role}", "iam.roles.get", self.get),
            ("PATCH role", "PATCH", ROLES + "/{role}", "iam.roles.update", self.patch),
            ("DELETE role", "DELETE", ROLES + "/{role}", "iam.roles.delete", self.delete),
        ]
        return [Route(kind, method, path, permission, answer) for kind, method, path, permission, answer in table]

    def _role(self, name: str, role: str, permission: str) -> tuple[Project, dict[str, Any]]:
        project = self._projects.permitted(name, SERVICE, permission)
        full = f"projects/{project.name}/roles/{role}"
        if full not in project.roles:
            raise RpcError(404, f"The role named {full} was not found.")
        return project, project.roles[full]

    def get_predefined(self, call: Call, role: str) -> Answer:
        name = f"roles/{role}"
        if name not in PREDEFINED:
            raise RpcError(404, f"The role named {name} was not found.")
        return json_answer(_tagged({"name": name, "title": role, "includedPermissions": PREDEFINED[name], "stage": "GA"}))

    def list_roles(self, call: Call, project: str) -> Answer:
        roles = self._projects.permitted(project, SERVICE, "iam.roles.list").roles
        return json_answer({"roles": [_tagged(role) for role in roles.values() if not role.get("deleted")]} if roles else {})

    def create(self, call: Call, project: str) -> Answer:
        found = self._projects.permitted(project, SERVICE, "iam.roles.create")
        request = call.json()
        role = str(request.get("roleId", ""))
        if not ROLE_ID.fullmatch(role):
            raise bad_argument(f"The role_id must match {ROLE_ID.pattern}; found '{role}'.")
        name = f"projects/{found.name}/roles/{role}"
        if name in found.roles:
            raise RpcError(409, f"A role named {role} in projects/{found.name} already exists.")
        given = request.get("role", {})
        found.roles[name] = {"name": name, **{field: given[field] for field in FIELDS if field in given}}
        return json_answer(_tagged(found.roles[name]))

    def get(self, call: Call, project: str, role: str) -> Answer:
        return json_answer(_tagged(self._role(project, role, "iam.roles.get")[1]))

    def patch(self, call: Call, project: str, role: str) -> Answer:
        _, found = self._role(project, role, "iam.roles.update")
        request = call.json()
        if request.get("etag") not in (None, "", _tagged(found)["etag"]):
            raise RpcError(409, "There were concurrent changes of the role. Please retry.", "ABORTED")
        mask = call.query.get("updateMask", "")
        found.update(
            {field: request[field] for field in FIELDS if field in request and field in (mask.split(",") if mask else FIELDS)}
        )
        return json_answer(_tagged(found))

    def delete(self, call: Call, project: str, role: str) -> Answer:
        """It stays for a week, with the mark "deleted"."""
        _, found = self._role(project, role, "iam.roles.delete")
        found["deleted"] = True
        return json_answer(_tagged(found))

    def undelete(self, call: Call, project: str, role: str) -> Answer:
        _, found = self._role(project, role, "iam.roles.undelete")
        found.pop("deleted", None)
        return json_answer(_tagged(found))


def _tagged(role: dict[str, Any]) -> dict[str, Any]:
    return {**role, "etag": etag(role)}
