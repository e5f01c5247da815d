"""Calls of Resource Manager and IAM: who there is, and who may do what."""

from __future__ import annotations

import re
import zlib
from typing import Any

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.policies import etag, policy_of, set_policy, tested
from cloud_emulator.projects import Project, Projects
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError, bad_argument, permission_denied

MANAGER, IAM = "cloudresourcemanager.googleapis.com", "iam.googleapis.com"
PROJECT = "_cloudresourcemanager/{version}/projects/{project}"
ACCOUNTS = "_iam/v1/projects/{project}/serviceAccounts"
ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")


class IdentityRoutes:
    def __init__(self, projects: Projects):
        self._projects = projects

    def routes(self) -> list[Route]:
        table = [
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
        ]
        return [Route(kind, method, path, permission, answer) for kind, method, path, permission, answer in table]

    # Resource Manager

    def get_project(self, call: Call, version: str, project: str) -> Answer:
        found = self._projects.permitted(project, MANAGER, "resourcemanager.projects.get")
        created = {"createTime": "2024-01-01T00:00:00Z"}
        if version == "v1":
            first = {
                "projectNumber": str(found.number),
                "projectId": found.name,
                "lifecycleState": "ACTIVE",
                "name": found.name,
            }
            return json_answer(first | created)
        first = {"name": f"projects/{found.number}", "projectId": found.name, "state": "ACTIVE", "displayName": found.name}
        return json_answer(first | created | {"etag": etag(first)})

    def test(self, call: Call, version: str, project: str) -> Answer:
        found = self._projects.permitted(project, MANAGER)
        return json_answer(tested(found, call))

    def get_policy(self, call: Call, version: str, project: str) -> Answer:
        found = self._projects.permitted(project, MANAGER, "resourcemanager.projects.getIamPolicy")
        return json_answer(policy_of(found, ""))

    def set_policy(self, call: Call, version: str, project: str) -> Answer:
        found = self._projects.permitted(project, MANAGER, "resourcemanager.projects.setIamPolicy")
        return json_answer(set_policy(found, "", call))

    # IAM

    def _account(self, name: str, account: str, permission: str) -> tuple[Project, dict[str, Any]]:
        wildcard = name == "-"
        if wildcard:  # whichever project it is in
            name = account.partition("@")[2].removesuffix(".iam.gserviceaccount.com")
        project = self._projects.permitted(name, IAM, permission)
        if account not in project.accounts:
            if wildcard:  # as the service has it
                raise permission_denied(permission or "iam.serviceAccounts.get", f"projects/-/serviceAccounts/{account}")
            raise RpcError(404, f"Unknown service account: {account}")
        return project, project.accounts[account]

    def list_accounts(self, call: Call, project: str) -> Answer:
        accounts = self._projects.permitted(project, IAM, "iam.serviceAccounts.list").accounts
        return json_answer({"accounts": list(accounts.values())} if accounts else {})

    def get_account(self, call: Call, project: str, account: str) -> Answer:
        return json_answer(self._account(project, account, "iam.serviceAccounts.get")[1])

    def create_account(self, call: Call, project: str) -> Answer:
        found = self._projects.permitted(project, IAM, "iam.serviceAccounts.create")
        request = call.json()
        name = str(request.get("accountId", ""))
        if not ACCOUNT_ID.fullmatch(name):
            raise bad_argument(
                "The account ID must be 6 to 30 lower-case letters, digits and hyphens, a letter first, no hyphen last; found "
                f'"{name}".'
            )
        email = f"{name}@{found.name}.iam.gserviceaccount.com"
        if email in found.accounts:
            raise RpcError(409, f"Service account {name} already exists within project projects/{found.name}.")
        unique = str(10**20 + zlib.crc32(email.encode()))
        fields = {
            key: str(value) for key, value in request.get("serviceAccount", {}).items() if key in ("displayName", "description")
        }
        made = {
            "name": f"projects/{found.name}/serviceAccounts/{email}",
            "projectId": found.name,
            "uniqueId": unique,
            "email": email,
            **fields,
            "etag": etag(email),
            "oauth2ClientId": unique,
        }
        found.accounts[email] = made
        return json_answer(made)

    def delete_account(self, call: Call, project: str, account: str) -> Answer:
        found, _ = self._account(project, account, "iam.serviceAccounts.delete")
        del found.accounts[account]
        return json_answer({})

    def test_account(self, call: Call, project: str, account: str) -> Answer:
        return json_answer(tested(self._account(project, account, "")[0], call))

    def get_account_policy(self, call: Call, project: str, account: str) -> Answer:
        found, _ = self._account(project, account, "iam.serviceAccounts.getIamPolicy")
        return json_answer(policy_of(found, account))

    def set_account_policy(self, call: Call, project: str, account: str) -> Answer:
        found, _ = self._account(project, account, "iam.serviceAccounts.setIamPolicy")
        return json_answer(set_policy(found, account, call))
