"""Calls of Resource Manager and IAM: the project, who there is, who may do what, and roles."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.errors import permission_denied, rpc_error
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.projects import Project, Projects, tagged

MANAGER, IAM = "cloudresourcemanager.googleapis.com", "iam.googleapis.com"
PROJECT = "/_cloudresourcemanager/{version}/projects/{project}"
ACCOUNTS = "/_iam/v1/projects/{project}/serviceAccounts"
ROLES = "/_iam/v1/projects/{project}/roles"
ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
ROLE_FIELDS = ("title", "description", "includedPermissions", "stage")


def permitted(projects: Projects, service: str, table: list[tuple[Any, ...]]) -> list[BaseRoute]:
    """Endpoints of (name, method, path, permission, answer); answers get the project, if service and permission are there."""

    def guarded(permission: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda call, project, **more: answer(call, projects.permitted(project, service, permission), **more)

    return [
        Endpoint(name, method, path, permission, guarded(permission, answer))
        for name, method, path, permission, answer in table
    ]


def policy_endpoints(
    name: str, path: str, permission: str, get: str, find: Callable[..., tuple[Project, str]]
) -> list[BaseRoute]:
    """`find(permission, **parameters)` gives the project, and what of it the policy is of; `get` is the method of reading."""

    def read(call: Call, **parameters: str) -> dict[str, Any]:
        project, of = find(f"{permission}.getIamPolicy", **parameters)
        return project.policy(of)

    def write(call: Call, **parameters: str) -> dict[str, Any]:
        project, of = find(f"{permission}.setIamPolicy", **parameters)
        return project.set_policy(of, call.content().get("policy"))

    def test(call: Call, **parameters: str) -> dict[str, Any]:
        project, _ = find("", **parameters)
        granted = [wanted for wanted in call.content().get("permissions", []) if project.is_granted(wanted)]
        return {"permissions": granted} if granted else {}

    return [
        Endpoint(f"TEST {name}", "POST", f"{path}:testIamPermissions", "", test),
        Endpoint(f"GET {name} policy", get, f"{path}:getIamPolicy", f"{permission}.getIamPolicy", read),
        Endpoint(f"SET {name} policy", "POST", f"{path}:setIamPolicy", f"{permission}.setIamPolicy", write),
    ]


class IamApi:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[BaseRoute]:
        roles = [
            ("LIST roles", "GET", ROLES, "iam.roles.list", self.list_roles),
            ("CREATE role", "POST", ROLES, "iam.roles.create", self.create_role),
            ("UNDELETE role", "POST", ROLES + "/{role}:undelete", "iam.roles.undelete", self.undelete_role),
            ("GET role", "GET", ROLES + "/{role}", "iam.roles.get", lambda call, found, role: tagged(_role(found, role))),
            ("PATCH role", "PATCH", ROLES + "/{role}", "iam.roles.update", self.patch_role),
            ("DELETE role", "DELETE", ROLES + "/{role}", "iam.roles.delete", self.delete_role),
            ("LIST accounts", "GET", ACCOUNTS, "iam.serviceAccounts.list", self.list_accounts),
            ("CREATE account", "POST", ACCOUNTS, "iam.serviceAccounts.create", self.create_account),
        ]
        get, account = "resourcemanager.projects.get", ACCOUNTS + "/{account}"
        of_project = lambda permission, project, version: (self._projects.permitted(project, MANAGER, permission), "")  # noqa: E731
        return [
            *policy_endpoints("project", PROJECT, "resourcemanager.projects", "POST", of_project),
            *permitted(self._projects, MANAGER, [("GET project", "GET", PROJECT, get, self.get_project)]),
            *policy_endpoints("account", account, "iam.serviceAccounts", "POST", self._account),
            Endpoint("GET account", "GET", account, "iam.serviceAccounts.get", self.get_account),
            Endpoint("DELETE account", "DELETE", account, "iam.serviceAccounts.delete", self.delete_account),
            Endpoint("GET predefined role", "GET", "/_iam/v1/roles/{role}", "", self.get_predefined),
            *permitted(self._projects, IAM, roles),
        ]

    def get_project(self, call: Call, found: Project, version: str) -> dict[str, Any]:
        common = {"projectId": found.name, "createTime": "2024-01-01T00:00:00Z"}
        if version == "v1":
            return common | {"projectNumber": str(found.number), "lifecycleState": "ACTIVE", "name": found.name}
        return tagged(common | {"name": f"projects/{found.number}", "state": "ACTIVE", "displayName": found.name})

    # Service accounts

    def _account(self, permission: str, project: str, account: str) -> tuple[Project, str]:
        wildcard = project == "-"
        if wildcard:  # whichever project it is in
            project = account.partition("@")[2].removesuffix(".iam.gserviceaccount.com")
        found = self._projects.permitted(project, IAM, permission)
        if account not in found.accounts:
            if wildcard:  # as the service has it
                raise permission_denied(permission or "iam.serviceAccounts.get", f"projects/-/serviceAccounts/{account}")
            raise rpc_error(404, f"Unknown service account: {account}")
        return found, account

    def list_accounts(self, call: Call, found: Project) -> dict[str, Any]:
        return {"accounts": list(found.accounts.values())} if found.accounts else {}

    def get_account(self, call: Call, project: str, account: str) -> dict[str, Any]:
        return self._account("iam.serviceAccounts.get", project, account)[0].accounts[account]

    def delete_account(self, call: Call, project: str, account: str) -> dict[str, Any]:
        del self._account("iam.serviceAccounts.delete", project, account)[0].accounts[account]
        return {}

    def create_account(self, call: Call, found: Project) -> dict[str, Any]:
        request = call.content()
        name, given = str(request.get("accountId", "")), request.get("serviceAccount", {})
        if not ACCOUNT_ID.fullmatch(name):
            rule = "6 to 30 lower-case letters, digits and hyphens, a letter first, no hyphen last"
            raise rpc_error(400, f'The account ID must be {rule}; found "{name}".')
        email = f"{name}@{found.name}.iam.gserviceaccount.com"
        if email in found.accounts:
            raise rpc_error(409, f"Service account {name} already exists within project projects/{found.name}.")
        unique = str(10**20 + zlib.crc32(email.encode()))
        made = {"name": f"projects/{found.name}/serviceAccounts/{email}", "projectId": found.name, "email": email}
        described = {key: str(value) for key, value in given.items() if key in ("displayName", "description")}
        found.accounts[email] = tagged({**made, **described, "uniqueId": unique, "oauth2ClientId": unique})
        return found.accounts[email]

    # Roles: those that are predefined, and a project's own

    def get_predefined(self, call: Call, role: str) -> dict[str, Any]:
        name, known = f"roles/{role}", recorded.load("roles")["roles"]
        if name not in known:
            raise rpc_error(404, f"The role named {name} was not found.")
        return tagged({"name": name, "title": role, "includedPermissions": known[name], "stage": "GA"})

    def list_roles(self, call: Call, found: Project) -> dict[str, Any]:
        roles = [tagged(role) for role in found.roles.values() if not role.get("deleted")]
        return {"roles": roles} if found.roles else {}

    def create_role(self, call: Call, found: Project) -> dict[str, Any]:
        request = call.content()
        role, given = str(request.get("roleId", "")), request.get("role", {})
        if not ROLE_ID.fullmatch(role):
            raise rpc_error(400, f"The role_id must match {ROLE_ID.pattern}; found '{role}'.")
        name = f"projects/{found.name}/roles/{role}"
        if name in found.roles:
            raise rpc_error(409, f"A role named {role} in projects/{found.name} already exists.")
        found.roles[name] = {"name": name, **{field: given[field] for field in ROLE_FIELDS if field in given}}
        return tagged(found.roles[name])

    def patch_role(self, call: Call, found: Project, role: str) -> dict[str, Any]:
        known, request, mask = _role(found, role), call.content(), call.query_params.get("updateMask", "")
        if request.get("etag") not in (None, "", tagged(known)["etag"]):
            raise rpc_error(409, "There were concurrent changes of the role. Please retry.", "ABORTED")
        chosen = mask.split(",") if mask else ROLE_FIELDS
        known.update({field: request[field] for field in ROLE_FIELDS if field in request and field in chosen})
        return tagged(known)

    def delete_role(self, call: Call, found: Project, role: str) -> dict[str, Any]:
        """It stays for a week, with the mark "deleted"."""
        known = _role(found, role)
        known["deleted"] = True
        return tagged(known)

    def undelete_role(self, call: Call, found: Project, role: str) -> dict[str, Any]:
        known = _role(found, role)
        known.pop("deleted", None)
        return tagged(known)


def _role(project: Project, role: str) -> dict[str, Any]:
    full = f"projects/{project.name}/roles/{role}"
    if full not in project.roles:
        raise rpc_error(404, f"The role named {full} was not found.")
    return project.roles[full]
