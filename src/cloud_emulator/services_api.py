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
from cloud_emulator.iam_api import tested
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
        assign = "resourcemanager.projects.createBillingAssignment"
        table: list[tuple[Any, ...]] = [
            ("ENABLE services", "POST", SERVICE + ":batchEnable", "serviceusage.services.enable", self.batch_enable),
            ("GET services", "GET", SERVICE + ":batchGet", "serviceusage.services.get", self.batch_get),
            ("LIST services", "GET", SERVICE, "serviceusage.services.list", self.list_services),
            ("ENABLE service", "POST", SERVICE + "/{service}:enable", "serviceusage.services.enable", self.enable),
            ("DISABLE service", "POST", SERVICE + "/{service}:disable", "serviceusage.services.disable", self.disable),
            ("GET service", "GET", SERVICE + "/{service}", "serviceusage.services.get", self.get_service),
            ("GET enabling", "GET", "/_serviceusage/v1/operations/{operation}", "", self.get_operation),
            ("GET billing", "GET", INFO, "resourcemanager.projects.get", self.get_billing),
            ("SET billing", "PUT", INFO, assign, self.set_billing),
            ("LIST prices", "GET", SKUS, "", self.list_skus),
            ("LIST quotas", "GET", INFOS, "cloudquotas.quotas.get", self.list_quotas),
            ("GET quota", "GET", INFOS + "/{quota}", "cloudquotas.quotas.get", self.get_quota),
            ("ACCESS secret", "GET", SECRET + "/versions/{version}:access", "secretmanager.versions.access", self.access),
            ("GET secret policy", "GET", SECRET + ":getIamPolicy", "secretmanager.secrets.getIamPolicy", self.get_policy),
            ("SET secret policy", "POST", SECRET + ":setIamPolicy", "secretmanager.secrets.setIamPolicy", self.set_policy),
            ("TEST secret", "POST", SECRET + ":testIamPermissions", "", self.test_secret),
            ("GET secret", "GET", SECRET, "secretmanager.secrets.get", self.get_secret),
        ]
        return [Endpoint(*row) for row in table]

    # Service Usage

    def get_service(self, call: Call, project: str, service: str) -> dict[str, Any]:
        return _service(self._projects.permitted(project, USAGE, "serviceusage.services.get"), service)

    def list_services(self, call: Call, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.list")
        wanted = call.query_params.get("filter", "").partition("state:")[2]
        services = [_service(found, name) for name in SERVICES]
        return {"services": [service for service in services if wanted in ("", service["state"])]}

    def batch_get(self, call: Call, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.get")
        return {"services": [_service(found, name.rpartition("/")[2]) for name in call.query_params.getlist("names")]}

    def batch_enable(self, call: Call, project: str) -> dict[str, Any]:
        names = call.content().get("serviceIds", [])
        if not names:
            raise rpc_error(400, "The request has no service ids.")
        return self._enable(project, names, "BatchEnableServicesResponse")

    def enable(self, call: Call, project: str, service: str) -> dict[str, Any]:
        return self._enable(project, [service], "EnableServiceResponse")

    def _enable(self, name: str, services: list[str], response: str) -> dict[str, Any]:
        project = self._projects.permitted(name, USAGE, "serviceusage.services.enable")
        for service in services:
            _service(project, service)
        new = set(services) - project.services
        project.services |= new
        described = [_service(project, service) for service in services]
        content = {"service": described[0]} if response.startswith("Enable") else {"services": described}
        return self._done(project, bool(new), response, content)

    def disable(self, call: Call, project: str, service: str) -> dict[str, Any]:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.disable")
        new = service in found.services
        found.services.discard(service)
        return self._done(found, new, "DisableServiceResponse", {"service": _service(found, service)})

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

    # Cloud Billing

    def get_billing(self, call: Call, project: str) -> dict[str, Any]:
        return _billing(self._projects.permitted(project, BILLING, "resourcemanager.projects.get"))

    def set_billing(self, call: Call, project: str) -> dict[str, Any]:
        found = self._projects.permitted(project, BILLING, "resourcemanager.projects.createBillingAssignment")
        found.billing = bool(call.content().get("billingAccountName"))
        return _billing(found)

    def list_skus(self, call: Call, service: str) -> dict[str, Any]:
        """The rows of recorded/billing.json. Open to every login; the API must be on in the caller's project."""
        self._projects.permitted(self._projects.default, BILLING)
        known = recorded.load("billing")["services"]
        if service not in known:
            raise rpc_error(404, f"Service {service} was not found.")
        size = min(call.integer("pageSize") or SKUS_ON_A_PAGE, SKUS_ON_A_PAGE)
        page, token = call.page([entry["sku"] for entry in known[service]], size)
        return {"skus": page, "nextPageToken": token}

    # Cloud Quotas

    def _infos(self, project: str, service: str) -> list[dict[str, Any]]:
        found = self._projects.permitted(project, QUOTAS, "cloudquotas.quotas.get")
        return found.quotas.infos() if service == "tpu.googleapis.com" else []

    def list_quotas(self, call: Call, project: str, service: str) -> dict[str, Any]:
        infos = self._infos(project, service)
        page, token = call.page(infos, call.integer("pageSize") or len(infos))
        return {"quotaInfos": page} | ({"nextPageToken": token} if token else {})

    def get_quota(self, call: Call, project: str, service: str, quota: str) -> dict[str, Any]:
        for info in self._infos(project, service):
            if info["quotaId"] == quota:
                return info
        raise recorded.refusal("not-found", project=project, zone="global", resource=f"services/{service}/quotaInfos/{quota}")

    # Secret Manager

    def _secret(self, project: str, secret: str, permission: str) -> Project:
        resource = f"projects/{project}/secrets/{secret}"
        found = self._projects.permitted(project, SECRETS, permission, resource=resource)
        if secret not in found.secrets:
            raise rpc_error(404, f"Secret [projects/{found.number}/secrets/{secret}] not found.")
        return found

    def get_secret(self, call: Call, project: str, secret: str) -> dict[str, Any]:
        found = self._secret(project, secret, "secretmanager.secrets.get")
        name = f"projects/{found.number}/secrets/{secret}"
        return {"name": name, "replication": {"automatic": {}}, "createTime": "2024-01-01T00:00:00Z"}

    def get_policy(self, call: Call, project: str, secret: str) -> dict[str, Any]:
        return self._secret(project, secret, "secretmanager.secrets.getIamPolicy").policy(f"secrets/{secret}")

    def set_policy(self, call: Call, project: str, secret: str) -> dict[str, Any]:
        found = self._secret(project, secret, "secretmanager.secrets.setIamPolicy")
        return found.set_policy(f"secrets/{secret}", call.content().get("policy"))

    def test_secret(self, call: Call, project: str, secret: str) -> dict[str, Any]:
        return tested(self._secret(project, secret, ""), call)

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


def _service(project: Project, name: str) -> dict[str, Any]:
    if name not in SERVICES:
        raise recorded.refusal("unknown-service", "projects", service=name)
    return {
        "name": f"projects/{project.number}/services/{name}",
        "config": {"name": name, "title": SERVICES[name]},
        "state": "ENABLED" if name in project.services else "DISABLED",
        "parent": f"projects/{project.number}",
    }


def _billing(project: Project) -> dict[str, Any]:
    return {
        "name": f"projects/{project.name}/billingInfo",
        "projectId": project.name,
        "billingAccountName": "billingAccounts/000000-111111-222222" if project.billing else "",
        "billingEnabled": project.billing,
    }
