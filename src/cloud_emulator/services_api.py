"""Calls of Service Usage, Cloud Billing and its catalog of prices, Cloud Quotas and Secret Manager."""

from __future__ import annotations

import base64
import uuid
from typing import Any

import google_crc32c
from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.errors import rpc_error
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.iam_api import permitted, policy_endpoints
from cloud_emulator.projects import SERVICES, Project, Projects

USAGE, BILLING, QUOTAS = "serviceusage.googleapis.com", "cloudbilling.googleapis.com", "cloudquotas.googleapis.com"
SECRETS = "secretmanager.googleapis.com"
SERVICE = "/_serviceusage/v1/projects/{project}/services"
INFO = "/_cloudbilling/v1/projects/{project}/billingInfo"
SKUS = "/_cloudbilling/v1/services/{service}/skus"
INFOS = "/_cloudquotas/v1/projects/{project}/locations/global/services/{service}/quotaInfos"
SECRET = "/_secretmanager/v1/projects/{project}/secrets/{secret}"
SKUS_ON_A_PAGE = 8  # the service has tens of thousands of rows and pages of 5000


class ServicesApi:
    def __init__(self, projects: Projects):
        self._projects = projects
        self._operations: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[BaseRoute]:
        permission, assign = "serviceusage.services.", "resourcemanager.projects.createBillingAssignment"
        usage = [
            ("ENABLE services", "POST", SERVICE + ":batchEnable", permission + "enable", self.batch_enable),
            ("GET services", "GET", SERVICE + ":batchGet", permission + "get", self.batch_get),
            ("LIST services", "GET", SERVICE, permission + "list", self.list_services),
            ("ENABLE service", "POST", SERVICE + "/{service}:enable", permission + "enable", self.enable),
            ("DISABLE service", "POST", SERVICE + "/{service}:disable", permission + "disable", self.disable),
            ("GET service", "GET", SERVICE + "/{service}", permission + "get", lambda _, found, service: _of(found, service)),
        ]
        billing = [
            ("GET billing", "GET", INFO, "resourcemanager.projects.get", self.billing),
            ("SET billing", "PUT", INFO, assign, self.billing),
        ]
        quotas = [
            ("LIST quotas", "GET", INFOS, "cloudquotas.quotas.get", self.list_quotas),
            ("GET quota", "GET", INFOS + "/{quota}", "cloudquotas.quotas.get", self.get_quota),
        ]
        access = "secretmanager.versions.access"
        return [
            *permitted(self._projects, USAGE, usage),
            Endpoint("GET enabling", "GET", "/_serviceusage/v1/operations/{operation}", "", self.get_operation),
            *permitted(self._projects, BILLING, billing),
            Endpoint("LIST prices", "GET", SKUS, "", self.list_skus),
            *permitted(self._projects, QUOTAS, quotas),
            Endpoint("ACCESS secret", "GET", SECRET + "/versions/{version}:access", access, self.access),
            *policy_endpoints("secret", SECRET, "secretmanager.secrets", "GET", self._secret),
            Endpoint("GET secret", "GET", SECRET, "secretmanager.secrets.get", self.get_secret),
        ]

    # Service Usage

    def list_services(self, call: Call, found: Project) -> dict[str, Any]:
        wanted = call.query_params.get("filter", "").partition("state:")[2]
        services = [_of(found, name) for name in SERVICES]
        return {"services": [service for service in services if wanted in ("", service["state"])]}

    def batch_get(self, call: Call, found: Project) -> dict[str, Any]:
        return {"services": [_of(found, name.rpartition("/")[2]) for name in call.query_params.getlist("names")]}

    def batch_enable(self, call: Call, found: Project) -> dict[str, Any]:
        names = call.content().get("serviceIds", [])
        if not names:
            raise rpc_error(400, "The request has no service ids.")
        return self._enable(found, names, "BatchEnableServicesResponse")

    def enable(self, call: Call, found: Project, service: str) -> dict[str, Any]:
        return self._enable(found, [service], "EnableServiceResponse")

    def _enable(self, project: Project, services: list[str], response: str) -> dict[str, Any]:
        for service in services:
            _of(project, service)
        new = set(services) - project.services
        project.services |= new
        described = [_of(project, service) for service in services]
        content = {"service": described[0]} if response.startswith("Enable") else {"services": described}
        return self._done(project, bool(new), response, content)

    def disable(self, call: Call, found: Project, service: str) -> dict[str, Any]:
        new = service in found.services
        found.services.discard(service)
        return self._done(found, new, "DisableServiceResponse", {"service": _of(found, service)})

    def _done(self, project: Project, changed: bool, response: str, content: dict[str, Any]) -> dict[str, Any]:
        """An operation: told as running at first where something had to be done, and as done when asked for."""
        kind = f"type.googleapis.com/google.api.serviceusage.v1.{response}"
        name = f"operations/acat.p2-{project.number}-{uuid.uuid4()}" if changed else "operations/noop.DONE_OPERATION"
        self._operations[name] = {"name": name, "done": True, "response": {"@type": kind, **content}}
        return {"name": name} if changed else self._operations[name]

    def get_operation(self, call: Call, operation: str) -> dict[str, Any]:
        if f"operations/{operation}" not in self._operations:
            raise rpc_error(404, f"Operation operations/{operation} not found.")
        return self._operations[f"operations/{operation}"]

    # Cloud Billing and Cloud Quotas

    def billing(self, call: Call, found: Project) -> dict[str, Any]:
        if call.method == "PUT":
            found.billing = bool(call.content().get("billingAccountName"))
        account = "billingAccounts/000000-111111-222222" if found.billing else ""
        name = f"projects/{found.name}/billingInfo"
        return {"name": name, "projectId": found.name, "billingAccountName": account, "billingEnabled": found.billing}

    def list_skus(self, call: Call, service: str) -> dict[str, Any]:
        """The rows of recorded/billing.json. Open to every login; the API must be on in the caller's project."""
        self._projects.permitted(self._projects.default, BILLING)
        known = recorded.load("billing")["services"]
        if service not in known:
            raise rpc_error(404, f"Service {service} was not found.")
        size = min(call.integer("pageSize") or SKUS_ON_A_PAGE, SKUS_ON_A_PAGE)
        page, token = call.page([entry["sku"] for entry in known[service]], size)
        return {"skus": page, "nextPageToken": token}

    def list_quotas(self, call: Call, found: Project, service: str) -> dict[str, Any]:
        infos = found.quotas.infos() if service == "tpu.googleapis.com" else []
        page, token = call.page(infos, call.integer("pageSize") or len(infos))
        return {"quotaInfos": page} | ({"nextPageToken": token} if token else {})

    def get_quota(self, call: Call, found: Project, service: str, quota: str) -> dict[str, Any]:
        for info in found.quotas.infos() if service == "tpu.googleapis.com" else []:
            if info["quotaId"] == quota:
                return info
        resource = f"services/{service}/quotaInfos/{quota}"
        raise recorded.refusal("not-found", project=found.name, zone="global", resource=resource)

    # Secret Manager

    def _secret(self, permission: str, project: str, secret: str) -> tuple[Project, str]:
        resource = f"projects/{project}/secrets/{secret}"
        found = self._projects.permitted(project, SECRETS, permission, resource=resource)
        if secret not in found.secrets:
            raise rpc_error(404, f"Secret [projects/{found.number}/secrets/{secret}] not found.")
        return found, f"secrets/{secret}"

    def get_secret(self, call: Call, project: str, secret: str) -> dict[str, Any]:
        found, path = self._secret("secretmanager.secrets.get", project, secret)
        name = f"projects/{found.number}/{path}"
        return {"name": name, "replication": {"automatic": {}}, "createTime": "2024-01-01T00:00:00Z"}

    def access(self, call: Call, project: str, secret: str, version: str) -> dict[str, Any]:
        resource = f"projects/{project}/secrets/{secret}/versions/{version}"
        found = self._projects.permitted(project, SECRETS, "secretmanager.versions.access", resource=resource)
        versions, name = found.secrets.get(secret, []), f"projects/{found.number}/secrets/{secret}"
        if not versions:
            raise rpc_error(404, f"Secret [{name}] not found or has no versions.")
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= len(versions):
            raise rpc_error(404, f"Secret Version [{name}/versions/{version}] not found.")
        content = versions[number - 1]
        payload = {"data": base64.b64encode(content).decode(), "dataCrc32c": str(google_crc32c.value(content))}
        return {"name": f"{name}/versions/{number}", "payload": payload}


def _of(project: Project, name: str) -> dict[str, Any]:
    """A service, and whether it is on there."""
    if name not in SERVICES:
        raise recorded.refusal("unknown-service", "projects", service=name)
    home, state = f"projects/{project.number}", "ENABLED" if name in project.services else "DISABLED"
    config = {"name": name, "title": SERVICES[name]}
    return {"name": f"{home}/services/{name}", "config": config, "state": state, "parent": home}
