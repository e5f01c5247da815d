"""Resource Manager, IAM, Service Usage, Cloud Billing and its catalog of prices, Cloud Quotas and Secret Manager."""

from __future__ import annotations

import base64
import re
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import google_crc32c
from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.errors import permission_denied, rpc_error
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.projects import SERVICES, Project, Projects, tagged

# The first part of a path is the service's name.
GLOBAL = "/_compute/compute/v1/projects/{project}/global"
PROJECT = "/_cloudresourcemanager/v3/projects/{project}"
ACCOUNTS = "/_iam/v1/projects/{project}/serviceAccounts"
ACCOUNT = ACCOUNTS + "/{account}"
ROLES = "/_iam/v1/projects/{project}/roles"
ROLE = ROLES + "/{role}"
SERVICES_OF = "/_serviceusage/v1/projects/{project}/services"
INFO = "/_cloudbilling/v1/projects/{project}/billingInfo"
INFOS = "/_cloudquotas/v1/projects/{project}/locations/global/services/{service}/quotaInfos"
SECRET = "/_secretmanager/v1/projects/{project}/secrets/{secret}"
SECRET_VERSION = SECRET + "/versions/{version}:access"
SKUS_ON_A_PAGE = 8  # the service has tens of thousands of rows and pages of 5000
ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
ROLE_FIELDS = ("title", "description", "includedPermissions", "stage")


class ProjectApis:
    def __init__(self, projects: Projects):
        self._projects = projects
        self._operations: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[BaseRoute]:
        """Answers get the call, the project, whose service and permission are checked, and the path's other parameters."""
        table: list[tuple[str, str, str, str, Callable[..., Any]]] = [
            *_policies("project", PROJECT, "resourcemanager.projects", "POST", lambda call, found: ""),
            ("GET project", "GET", PROJECT, "resourcemanager.projects.get", self.get_project),
            *_policies("account", ACCOUNT, "iam.serviceAccounts", "POST", _account),
            ("GET account", "GET", ACCOUNT, "iam.serviceAccounts.get", self.get_account),
            ("CREATE account", "POST", ACCOUNTS, "iam.serviceAccounts.create", self.create_account),
            ("CREATE role", "POST", ROLES, "iam.roles.create", self.create_role),
            ("UNDELETE role", "POST", ROLE + ":undelete", "iam.roles.undelete", self.undelete_role),
            ("GET role", "GET", ROLE, "iam.roles.get", lambda call, found, role: tagged(_role(found, role))),
            ("PATCH role", "PATCH", ROLE, "iam.roles.update", self.patch_role),
            ("ENABLE services", "POST", SERVICES_OF + ":batchEnable", "serviceusage.services.enable", self.enable),
            ("GET services", "GET", SERVICES_OF + ":batchGet", "serviceusage.services.get", self.get_services),
            ("GET network", "GET", GLOBAL + "/networks/{network}", "compute.networks.get", self.get_network),
            ("LIST firewalls", "GET", GLOBAL + "/firewalls", "compute.firewalls.list", self.list_firewalls),
            ("GET billing", "GET", INFO, "resourcemanager.projects.get", self.billing),
            ("LIST quotas", "GET", INFOS, "cloudquotas.quotas.get", self.list_quotas),
            ("ACCESS secret", "GET", SECRET_VERSION, "secretmanager.versions.access", self.access),
            *_policies("secret", SECRET, "secretmanager.secrets", "GET", _secret),
            ("GET secret", "GET", SECRET, "secretmanager.secrets.get", self.get_secret),
        ]
        return [
            Endpoint("GET predefined role", "GET", "/_iam/v1/roles/{role}", "", self.get_predefined),
            Endpoint("GET enabling", "GET", "/_serviceusage/v1/operations/{operation}", "", self.get_operation),
            Endpoint("LIST prices", "GET", "/_cloudbilling/v1/services/{service}/skus", "", self.list_skus),
            *(Endpoint(*row[:4], self._permitted(*row[2:])) for row in table),
        ]

    def _permitted(self, path: str, permission: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        service = path.split("/")[1].removeprefix("_")

        def permitted(call: Call, project: str, **more: str) -> Any:
            if project == "-":  # the project that the account is in
                project = more["account"].partition("@")[2].removesuffix(".iam.gserviceaccount.com")
            parts = [project, *(f"{kind}s/{more[kind]}" for kind in ("secret", "version") if kind in more)]
            resource = "projects/" + "/".join(parts)
            owner = self._projects.permitted(project, f"{service}.googleapis.com", permission, resource=resource)
            return answer(call, owner, **more)

        return permitted

    def get_project(self, call: Call, project: Project) -> dict[str, Any]:
        described = {"projectId": project.name, "createTime": "2024-01-01T00:00:00Z", "displayName": project.name}
        return tagged({**described, "name": f"projects/{project.number}", "state": "ACTIVE"})

    def get_network(self, call: Call, project: Project, network: str) -> dict[str, Any]:
        if network not in project.networks:
            raise rpc_error(404, f"The resource 'projects/{project.name}/global/networks/{network}' was not found")
        return {"kind": "compute#network", "name": network, "autoCreateSubnetworks": True}

    def list_firewalls(self, call: Call, project: Project) -> dict[str, Any]:
        values = {"project": project.name}
        rules = [
            recorded.filled(rule, network=network, **values) for network, rules in project.networks.items() for rule in rules
        ]
        return {"kind": "compute#firewallList", "items": rules}

    # Service accounts

    def get_account(self, call: Call, project: Project, account: str) -> dict[str, Any]:
        return project.accounts[_account(call, project, account)]

    def create_account(self, call: Call, project: Project) -> dict[str, Any]:
        request = call.content()
        name, fields = str(request.get("accountId", "")), request.get("serviceAccount", {})
        if not ACCOUNT_ID.fullmatch(name):
            rule = "6 to 30 lower-case letters, digits and hyphens, a letter first, no hyphen last"
            raise rpc_error(400, f'The account ID must be {rule}; found "{name}".')
        email = f"{name}@{project.name}.iam.gserviceaccount.com"
        if email in project.accounts:
            raise rpc_error(409, f"Service account {name} already exists within project projects/{project.name}.")
        unique = str(10**20 + zlib.crc32(email.encode()))
        account = {"name": f"projects/{project.name}/serviceAccounts/{email}", "projectId": project.name, "email": email}
        described = {key: str(value) for key, value in fields.items() if key in ("displayName", "description")}
        project.accounts[email] = tagged({**account, **described, "uniqueId": unique, "oauth2ClientId": unique})
        return project.accounts[email]

    # Roles: those that are predefined, and a project's own

    def get_predefined(self, call: Call, role: str) -> dict[str, Any]:
        name, known = f"roles/{role}", recorded.load("roles")["roles"]
        if name not in known:
            raise rpc_error(404, f"The role named {name} was not found.")
        return tagged({"name": name, "title": role, "includedPermissions": known[name], "stage": "GA"})

    def create_role(self, call: Call, project: Project) -> dict[str, Any]:
        request = call.content()
        role, fields = str(request.get("roleId", "")), request.get("role", {})
        if not ROLE_ID.fullmatch(role):
            raise rpc_error(400, f"The role_id must match {ROLE_ID.pattern}; found '{role}'.")
        name = f"projects/{project.name}/roles/{role}"
        if name in project.roles:
            raise rpc_error(409, f"A role named {role} in projects/{project.name} already exists.")
        project.roles[name] = {"name": name, **{field: fields[field] for field in ROLE_FIELDS if field in fields}}
        return tagged(project.roles[name])

    def patch_role(self, call: Call, project: Project, role: str) -> dict[str, Any]:
        known, request, mask = _role(project, role), call.content(), call.query_params.get("updateMask", "")
        if request.get("etag") not in (None, "", tagged(known)["etag"]):
            raise rpc_error(409, "There were concurrent changes of the role. Please retry.", "ABORTED")
        chosen = mask.split(",") if mask else ROLE_FIELDS
        known.update({field: request[field] for field in ROLE_FIELDS if field in request and field in chosen})
        return tagged(known)

    def undelete_role(self, call: Call, project: Project, role: str) -> dict[str, Any]:
        _role(project, role).pop("deleted", None)
        return tagged(_role(project, role))

    # Service Usage

    def get_services(self, call: Call, project: Project) -> dict[str, Any]:
        return {"services": [_service(project, name.rpartition("/")[2]) for name in call.query_params.getlist("names")]}

    def enable(self, call: Call, project: Project) -> dict[str, Any]:
        """An operation: running at first if a service was off, and done when it is read."""
        names = call.content().get("serviceIds", [])
        if not names:
            raise rpc_error(400, "The request has no service ids.")
        for name in names:
            _service(project, name)
        changed = set(names) - project.services
        project.services |= changed
        kind = "type.googleapis.com/google.api.serviceusage.v1.BatchEnableServicesResponse"
        response = {"@type": kind, "services": [_service(project, name) for name in names]}
        name = f"operations/acat.p2-{project.number}-{uuid.uuid4()}" if changed else "operations/noop.DONE_OPERATION"
        self._operations[name] = {"name": name, "done": True, "response": response}
        return {"name": name} if changed else self._operations[name]

    def get_operation(self, call: Call, operation: str) -> dict[str, Any]:
        if f"operations/{operation}" not in self._operations:
            raise rpc_error(404, f"Operation operations/{operation} not found.")
        return self._operations[f"operations/{operation}"]

    # Cloud Billing and Cloud Quotas

    def billing(self, call: Call, project: Project) -> dict[str, Any]:
        account = "billingAccounts/000000-111111-222222" if project.billing else ""
        name = f"projects/{project.name}/billingInfo"
        return {"name": name, "projectId": project.name, "billingAccountName": account, "billingEnabled": project.billing}

    def list_skus(self, call: Call, service: str) -> dict[str, Any]:
        """The rows of recorded/billing.json. Open to every caller; the API must be on in the caller's project."""
        self._projects.permitted(self._projects.default, "cloudbilling.googleapis.com")
        known = recorded.load("billing")["services"]
        if service not in known:
            raise rpc_error(404, f"Service {service} was not found.")
        size = min(call.integer("pageSize") or SKUS_ON_A_PAGE, SKUS_ON_A_PAGE)
        page, token = call.page([entry["sku"] for entry in known[service]], size)
        return {"skus": page, "nextPageToken": token}

    def list_quotas(self, call: Call, project: Project, service: str) -> dict[str, Any]:
        infos = project.quotas.infos() if service == "tpu.googleapis.com" else []
        page, token = call.page(infos, call.integer("pageSize") or len(infos))
        return {"quotaInfos": page} | ({"nextPageToken": token} if token else {})

    # Secret Manager

    def get_secret(self, call: Call, project: Project, secret: str) -> dict[str, Any]:
        name = f"projects/{project.number}/{_secret(call, project, secret)}"
        return {"name": name, "replication": {"automatic": {}}, "createTime": "2024-01-01T00:00:00Z"}

    def access(self, call: Call, project: Project, secret: str, version: str) -> dict[str, Any]:
        versions, name = project.secrets.get(secret, []), f"projects/{project.number}/secrets/{secret}"
        if not versions:
            raise rpc_error(404, f"Secret [{name}] not found or has no versions.")
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= len(versions):
            raise rpc_error(404, f"Secret Version [{name}/versions/{version}] not found.")
        content = versions[number - 1]
        payload = {"data": base64.b64encode(content).decode(), "dataCrc32c": str(google_crc32c.value(content))}
        return {"name": f"{name}/versions/{number}", "payload": payload}


def _policies(name: str, path: str, permission: str, get: str, key: Callable[..., str]) -> list[tuple[Any, ...]]:
    """Methods on the policy of `key(call, project, …)`, which raises ApiError if there is none; `get` is the verb to read."""

    def read(call: Call, project: Project, **more: str) -> dict[str, Any]:
        return project.policy(key(call, project, **more))

    def write(call: Call, project: Project, **more: str) -> dict[str, Any]:
        return project.set_policy(key(call, project, **more), call.content().get("policy"))

    def test(call: Call, project: Project, **more: str) -> dict[str, Any]:
        key(call, project, **more)
        granted = [permission for permission in call.content().get("permissions", []) if project.is_granted(permission)]
        return {"permissions": granted} if granted else {}

    return [
        (f"TEST {name}", "POST", f"{path}:testIamPermissions", "", test),
        (f"GET {name} policy", get, f"{path}:getIamPolicy", f"{permission}.getIamPolicy", read),
        (f"SET {name} policy", "POST", f"{path}:setIamPolicy", f"{permission}.setIamPolicy", write),
    ]


def _account(call: Call, project: Project, account: str) -> str:
    if account not in project.accounts:
        if call.path_params["project"] == "-":  # as the service does
            raise permission_denied("iam.serviceAccounts.get", f"projects/-/serviceAccounts/{account}")
        raise rpc_error(404, f"Unknown service account: {account}")
    return account


def _secret(call: Call, project: Project, secret: str) -> str:
    if secret not in project.secrets:
        raise rpc_error(404, f"Secret [projects/{project.number}/secrets/{secret}] not found.")
    return f"secrets/{secret}"


def _role(project: Project, role: str) -> dict[str, Any]:
    full = f"projects/{project.name}/roles/{role}"
    if full not in project.roles:
        raise rpc_error(404, f"The role named {full} was not found.")
    return project.roles[full]


def _service(project: Project, name: str) -> dict[str, Any]:
    """A service, and whether it is on in the project."""
    if name not in SERVICES:
        raise recorded.refusal("unknown-service", "projects", service=name)
    home, state = f"projects/{project.number}", "ENABLED" if name in project.services else "DISABLED"
    config = {"name": name, "title": SERVICES[name]}
    return {"name": f"{home}/services/{name}", "config": config, "state": state, "parent": home}
