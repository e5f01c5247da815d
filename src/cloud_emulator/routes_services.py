"""Calls of Service Usage, Cloud Billing and Cloud Quotas."""

from __future__ import annotations

import uuid
from typing import Any

from cloud_emulator.answers import Answer, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.projects import SERVICES, Project, Projects
from cloud_emulator.router import Route
from cloud_emulator.rpc import RpcError, bad_argument, not_found

USAGE, BILLING, QUOTAS = "serviceusage.googleapis.com", "cloudbilling.googleapis.com", "cloudquotas.googleapis.com"
SERVICE = "_serviceusage/v1/projects/{project}/services"
INFOS = "_cloudquotas/v1/projects/{project}/locations/global/services/{service}/quotaInfos"
INFO = "_cloudbilling/v1/projects/{project}/billingInfo"


class ServiceRoutes:
    def __init__(self, projects: Projects):
        self._projects = projects
        self._operations: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[Route]:
        table = [
            ("ENABLE services", "POST", f"{SERVICE}:batchEnable", "serviceusage.services.enable", self.batch_enable),
            ("GET services", "GET", f"{SERVICE}:batchGet", "serviceusage.services.get", self.batch_get),
            ("LIST services", "GET", SERVICE, "serviceusage.services.list", self.list_services),
            ("ENABLE service", "POST", SERVICE + "/{service}:enable", "serviceusage.services.enable", self.enable),
            ("DISABLE service", "POST", SERVICE + "/{service}:disable", "serviceusage.services.disable", self.disable),
            ("GET service", "GET", SERVICE + "/{service}", "serviceusage.services.get", self.get_service),
            ("GET enabling", "GET", "_serviceusage/v1/operations/{operation}", "", self.get_operation),
            ("GET billing", "GET", INFO, "resourcemanager.projects.get", self.get_billing),
            ("SET billing", "PUT", INFO, "resourcemanager.projects.createBillingAssignment", self.set_billing),
            ("LIST quotas", "GET", INFOS, "cloudquotas.quotas.get", self.list_quotas),
            ("GET quota", "GET", INFOS + "/{quota}", "cloudquotas.quotas.get", self.get_quota),
        ]
        return [Route(kind, method, path, permission, answer) for kind, method, path, permission, answer in table]

    # Service Usage

    def _service(self, project: Project, name: str) -> dict[str, Any]:
        if name not in SERVICES:
            raise RpcError(
                403,
                f"Not found or permission denied for service(s): {name}.",
                details=[{"@type": "type.googleapis.com/google.rpc.PreconditionFailure"}],
            )
        return {
            "name": f"projects/{project.number}/services/{name}",
            "config": {"name": name, "title": SERVICES[name]},
            "state": "ENABLED" if name in project.services else "DISABLED",
            "parent": f"projects/{project.number}",
        }

    def get_service(self, call: Call, project: str, service: str) -> Answer:
        return json_answer(self._service(self._projects.permitted(project, USAGE, "serviceusage.services.get"), service))

    def list_services(self, call: Call, project: str) -> Answer:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.list")
        wanted = call.query.get("filter", "").partition("state:")[2]
        services = [self._service(found, name) for name in SERVICES]
        return json_answer({"services": [service for service in services if wanted in ("", service["state"])]})

    def batch_get(self, call: Call, project: str) -> Answer:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.get")
        names = [name.rpartition("/")[2] for name in call.all_of("names")]
        return json_answer({"services": [self._service(found, name) for name in names]})

    def batch_enable(self, call: Call, project: str) -> Answer:
        names = call.json().get("serviceIds", [])
        if not names:
            raise bad_argument("The request has no service ids.")
        return self._enable(project, names, "BatchEnableServicesResponse")

    def enable(self, call: Call, project: str, service: str) -> Answer:
        return self._enable(project, [service], "EnableServiceResponse")

    def _enable(self, name: str, services: list[str], response: str) -> Answer:
        project = self._projects.permitted(name, USAGE, "serviceusage.services.enable")
        for service in services:
            self._service(project, service)
        new = set(services) - project.services
        project.services |= new
        described = [self._service(project, service) for service in services]
        content = {"service": described[0]} if response.startswith("Enable") else {"services": described}
        return json_answer(self._done(project, bool(new), response, content))

    def disable(self, call: Call, project: str, service: str) -> Answer:
        found = self._projects.permitted(project, USAGE, "serviceusage.services.disable")
        new = service in found.services
        found.services.discard(service)
        return json_answer(self._done(found, new, "DisableServiceResponse", {"service": self._service(found, service)}))

    def _done(self, project: Project, changed: bool, response: str, content: dict[str, Any]) -> dict[str, Any]:
        """An operation: told as running at first where something had to be done, and as done when asked for."""
        kind = f"type.googleapis.com/google.api.serviceusage.v1.{response}"
        name = f"operations/acat.p2-{project.number}-{uuid.uuid4()}" if changed else "operations/noop.DONE_OPERATION"
        self._operations[name] = {"name": name, "done": True, "response": {"@type": kind, **content}}
        return {"name": name} if changed else self._operations[name]

    def get_operation(self, call: Call, operation: str) -> Answer:
        if f"operations/{operation}" not in self._operations:
            raise RpcError(404, f"Operation operations/{operation} not found.")
        return json_answer(self._operations[f"operations/{operation}"])

    # Cloud Billing

    def get_billing(self, call: Call, project: str) -> Answer:
        return json_answer(_billing(self._projects.permitted(project, BILLING, "resourcemanager.projects.get")))

    def set_billing(self, call: Call, project: str) -> Answer:
        permission = "resourcemanager.projects.createBillingAssignment"
        found = self._projects.permitted(project, BILLING, permission)
        found.billing = bool(call.json().get("billingAccountName"))
        return json_answer(_billing(found))

    # Cloud Quotas

    def _infos(self, project: str, service: str) -> list[dict[str, Any]]:
        found = self._projects.permitted(project, QUOTAS, "cloudquotas.quotas.get")
        return found.quotas.infos(found.number) if service == "tpu.googleapis.com" else []

    def list_quotas(self, call: Call, project: str, service: str) -> Answer:
        infos = self._infos(project, service)
        token, size = call.query.get("pageToken", ""), call.whole_number("pageSize") or len(infos) or 1
        if token and not token.isdecimal():
            raise bad_argument("The page token is invalid.")
        end = int(token or 0) + size
        content: dict[str, Any] = {"quotaInfos": infos[int(token or 0) : end]}
        return json_answer(content | ({"nextPageToken": str(end)} if end < len(infos) else {}))

    def get_quota(self, call: Call, project: str, service: str, quota: str) -> Answer:
        for info in self._infos(project, service):
            if info["quotaId"] == quota:
                return json_answer(info)
        raise not_found(f"projects/{project}/locations/global/services/{service}/quotaInfos/{quota}")


def _billing(project: Project) -> dict[str, Any]:
    account = "billingAccounts/000000-111111-222222" if project.billing else ""
    return {
        "name": f"projects/{project.name}/billingInfo",
        "projectId": project.name,
        "billingAccountName": account,
        "billingEnabled": project.billing,
    }
