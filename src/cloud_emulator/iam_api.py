"""Calls of Resource Manager and IAM: the project, who there is, who may do what, and roles."""

from __future__ import annotations

import re
import zlib
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


class IamApi:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[Any, ...]] = [
            ("TEST project", "POST", PROJECT + ":testIamPermissions", "", self.test),
            ("GET project policy", "POST", PROJECT + ":getIamPolicy", "resourcemanager.projects.getIamPolicy", self.get_policy),
            ("SET project policy", "POST", PROJECT + ":setIamPolicy", "resourcemanager.projects.setIamPolicy", self.set_policy),
            ("GET project", "GET", PROJECT, "resourcemanager.projects.get", self.get_project),
            ("LIST accounts", "GET", ACCOUNTS, "iam.serviceAccounts.list", self.list_accounts),
            ("CREATE account", "POST", ACCOUNTS, "iam.serviceAccounts.create", self.create_account),
            ("TEST account", "POST", ACCOUNTS + "/{account}:testIamPermissions", "", self.test_account),
            ("GET account policy", "POST", ACCOUNTS + "/{account}:getIamPolicy", "", self.get_account_policy),
            ("SET account policy", "POST", ACCOUNTS + "/{account}:setIamPolicy", "", self.set_account_policy),
            ("GET account", "GET", ACCOUNTS + "/{account}", "iam.serviceAccounts.get", self.get_account),
            ("DELETE account", "DELETE", ACCOUNTS + "/{account}", "iam.serviceAccounts.delete", self.delete_account),
            ("GET predefined role", "GET", "/_iam/v1/roles/{role}", "", self.get_predefined),
            ("LIST roles", "GET", ROLES, "iam.roles.list", self.list_roles),
            ("CREATE role", "POST", ROLES, "iam.roles.create", self.create_role),
            ("UNDELETE role", "POST", ROLES + "/{role}:undelete", "iam.roles.undelete", self.undelete_role),
            ("GET role", "GET", ROLES + "/{role}", "iam.roles.get", self.get_role),
            ("PATCH role", "PATCH", ROLES + "/{role}", "iam.roles.update", self.patch_role),
            ("DELETE role", "DELETE", ROLES + "/{role}", "iam.roles.delete", self.delete_role),
        ]
        return [Endpoint(*row) for row in table]

    # Resource Manager

    def get_project(self, call: Call, version: str, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, MANAGER, "resourcemanager.projects.get")
        common = {"projectId": found.name, "createTime": "2024-01-01T00:00:00Z"}
        if version == "v1":
            return common | {"projectNumber": str(found.number), "lifecycleState": "ACTIVE", "name": found.name}
        return tagged(common | {"name": f"projects/{found.number}", "state": "ACTIVE", "displayName": found.name})

    def test(self, call: Call, version: str, project: str) -> dict[str, Any]:
        return tested(self._projects.permitted(project, MANAGER), call)

    def get_policy(self, call: Call, version: str, project: str) -> dict[str, Any]:
        return self._projects.permitted(project, MANAGER, "resourcemanager.projects.getIamPolicy").policy("")

    def set_policy(self, call: Call, version: str, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, MANAGER, "resourcemanager.projects.setIamPolicy")
        return found.set_policy("", call.content().get("policy"))

    # Service accounts

    def _account(self, name: str, account: str, permission: str) -> Project:
        wildcard = name == "-"
        if wildcard:  # whichever project it is in
            name = account.partition("@")[2].removesuffix(".iam.gserviceaccount.com")
        project = self._projects.permitted(name, IAM, permission)
        if account not in project.accounts:
            if wildcard:  # as the service has it
                raise permission_denied(permission or "iam.serviceAccounts.get", f"projects/-/serviceAccounts/{account}")
            raise rpc_error(404, f"Unknown service account: {account}")
        return project

    def list_accounts(self, call: Call, project: str) -> dict[str, Any]:
        accounts = self._projects.permitted(project, IAM, "iam.serviceAccounts.list").accounts
        return {"accounts": list(accounts.values())} if accounts else {}

    def get_account(self, call: Call, project: str, account: str) -> dict[str, Any]:
        return self._account(project, account, "iam.serviceAccounts.get").accounts[account]

    def create_account(self, call: Call, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, IAM, "iam.serviceAccounts.create")
        request = call.content()
        name = str(request.get("accountId", ""))
        if not ACCOUNT_ID.fullmatch(name):
            rule = "6 to 30 lower-case letters, digits and hyphens, a letter first, no hyphen last"
            raise rpc_error(400, f'The account ID must be {rule}; found "{name}".')
        email = f"{name}@{found.name}.iam.gserviceaccount.com"
        if email in found.accounts:
            raise rpc_error(409, f"Service account {name} already exists within project projects/{found.name}.")
        unique = str(10**20 + zlib.crc32(email.encode()))
        given = request.get("serviceAccount", {})
        made = {
            "name": f"projects/{found.name}/serviceAccounts/{email}",
            "projectId": found.name,
            "uniqueId": unique,
            "email": email,
            **{key: str(value) for key, value in given.items() if key in ("displayName", "description")},
            "oauth2ClientId": unique,
        }
        found.accounts[email] = tagged(made)
        return found.accounts[email]

    def delete_account(self, call: Call, project: str, account: str) -> dict[str, Any]:
        del self._account(project, account, "iam.serviceAccounts.delete").accounts[account]
        return {}

    def test_account(self, call: Call, project: str, account: str) -> dict[str, Any]:
        return tested(self._account(project, account, ""), call)

    def get_account_policy(self, call: Call, project: str, account: str) -> dict[str, Any]:
        return self._account(project, account, "iam.serviceAccounts.getIamPolicy").policy(account)

    def set_account_policy(self, call: Call, project: str, account: str) -> dict[str, Any]:
        found = self._account(project, account, "iam.serviceAccounts.setIamPolicy")
        return found.set_policy(account, call.content().get("policy"))

    # Roles: those that are predefined, and a project's own

    def _role(self, name: str, role: str, permission: str) -> dict[str, Any]:
        project = self._projects.permitted(name, IAM, permission)
        full = f"projects/{project.name}/roles/{role}"
        if full not in project.roles:
            raise rpc_error(404, f"The role named {full} was not found.")
        return project.roles[full]

    def get_predefined(self, call: Call, role: str) -> dict[str, Any]:
        name, known = f"roles/{role}", recorded.load("roles")["roles"]
        if name not in known:
            raise rpc_error(404, f"The role named {name} was not found.")
        return tagged({"name": name, "title": role, "includedPermissions": known[name], "stage": "GA"})

    def list_roles(self, call: Call, project: str) -> dict[str, Any]:
        roles = self._projects.permitted(project, IAM, "iam.roles.list").roles
        return {"roles": [tagged(role) for role in roles.values() if not role.get("deleted")]} if roles else {}

    def create_role(self, call: Call, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, IAM, "iam.roles.create")
        request = call.content()
        role, given = str(request.get("roleId", "")), request.get("role", {})
        if not ROLE_ID.fullmatch(role):
            raise rpc_error(400, f"The role_id must match {ROLE_ID.pattern}; found '{role}'.")
        name = f"projects/{found.name}/roles/{role}"
        if name in found.roles:
            raise rpc_error(409, f"A role named {role} in projects/{found.name} already exists.")
        found.roles[name] = {"name": name, **{field: given[field] for field in ROLE_FIELDS if field in given}}
        return tagged(found.roles[name])

    def get_role(self, call: Call, project: str, role: str) -> dict[str, Any]:
        return tagged(self._role(project, role, "iam.roles.get"))

    def patch_role(self, call: Call, project: str, role: str) -> dict[str, Any]:
        found = self._role(project, role, "iam.roles.update")
        request, mask = call.content(), call.query_params.get("updateMask", "")
        if request.get("etag") not in (None, "", tagged(found)["etag"]):
            raise rpc_error(409, "There were concurrent changes of the role. Please retry.", "ABORTED")
        chosen = mask.split(",") if mask else ROLE_FIELDS
        found.update({field: request[field] for field in ROLE_FIELDS if field in request and field in chosen})
        return tagged(found)

    def delete_role(self, call: Call, project: str, role: str) -> dict[str, Any]:
        """It stays for a week, with the mark "deleted"."""
        found = self._role(project, role, "iam.roles.delete")
        found["deleted"] = True
        return tagged(found)

    def undelete_role(self, call: Call, project: str, role: str) -> dict[str, Any]:
        found = self._role(project, role, "iam.roles.undelete")
        found.pop("deleted", None)
        return tagged(found)


def tested(project: Project, call: Call) -> dict[str, Any]:
    """The answer to testIamPermissions."""
    granted = [permission for permission in call.content().get("permissions", []) if project.is_granted(permission)]
    return {"permissions": granted} if granted else {}
