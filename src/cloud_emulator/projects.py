"""Projects: services, billing, permissions, quota, service accounts and secrets, and what is refused for lack of one."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import Any

from cloud_emulator.errors import EmulatorError
from cloud_emulator.quotas import Quotas
from cloud_emulator.rpc import RpcError, error_info, permission_denied, recorded_refusal

SERVICES = {
    "tpu.googleapis.com": "Cloud TPU API",
    "compute.googleapis.com": "Compute Engine API",
    "storage.googleapis.com": "Cloud Storage API",
    "storage-api.googleapis.com": "Google Cloud Storage JSON API",
    "serviceusage.googleapis.com": "Service Usage API",
    "cloudresourcemanager.googleapis.com": "Cloud Resource Manager API",
    "cloudbilling.googleapis.com": "Cloud Billing API",
    "iam.googleapis.com": "Identity and Access Management (IAM) API",
    "cloudquotas.googleapis.com": "Cloud Quotas API",
    "secretmanager.googleapis.com": "Secret Manager API",
    "logging.googleapis.com": "Cloud Logging API",
}
PROJECT_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")


@dataclass
class Project:
    """`denied` are permissions nobody has here; one that ends in ".*" stands for all that begin so."""

    name: str
    number: int
    services: set[str] = field(default_factory=lambda: set(SERVICES))
    billing: bool = True
    denied: set[str] = field(default_factory=set)
    quotas: Quotas = field(default_factory=Quotas)
    accounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)  # by what they are of; "" is the project itself
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)  # its own ones, by full names
    secrets: dict[str, list[bytes]] = field(default_factory=dict)

    @property
    def default_account(self) -> str:
        return f"{self.number}-compute@developer.gserviceaccount.com"

    def numbered(self, name: str) -> str:
        """A resource's name with the project's number, as some answers have it."""
        return name.replace(f"projects/{self.name}/", f"projects/{self.number}/", 1)

    def is_granted(self, permission: str) -> bool:
        return not any(
            permission == denied or (denied.endswith(".*") and permission.startswith(denied[:-1])) for denied in self.denied
        )


class Projects:
    """`as_it_was` are the old behaviours that are wanted back."""

    def __init__(self, first: str, as_it_was: frozenset[str] = frozenset()):
        self.default = first
        self.as_it_was = as_it_was
        self._projects: dict[str, Project] = {}
        self.add(first)

    def add(self, name: str) -> Project:
        if not PROJECT_ID.fullmatch(name):
            raise EmulatorError(
                f"'{name}' is no name for a project: it has 6 to 30 lower-case letters, digits and hyphens, begins with a "
                "letter, and does not end with a hyphen"
            )
        number = 100_000_000_000 + zlib.crc32(name.encode())
        return self._projects.setdefault(name, Project(name, number, quotas=Quotas(self.as_it_was)))

    def known(self, name: str | None = None) -> Project:
        """For those who set things up; `name` None is the first project. Raises EmulatorError."""
        if (name or self.default) not in self._projects:
            raise EmulatorError(f"there is no project '{name}'; known: {', '.join(self._projects)}")
        return self._projects[name or self.default]

    def find(self, name: str) -> Project | None:
        """By id or number."""
        return next((project for project in self._projects.values() if name in (project.name, str(project.number))), None)

    def permitted(self, name: str, service: str, permission: str = "", *, resource: str = "", billed: bool = False) -> Project:
        """The project, for a call that needs all this. Raises RpcError (403) as the service does for what is missing."""
        project = self.find(name)
        if project is None:
            details = [error_info("CONSUMER_INVALID", {"consumer": f"projects/{name}", "service": service})]
            raise RpcError(403, f"Permission denied on resource project {name}.", details=details)
        if service not in project.services:
            title = SERVICES.get(service, service)
            raise recorded_refusal("api-off", number=project.number, service=service, title=title)
        if billed and not project.billing:
            raise recorded_refusal("billing-off", project=project.name, number=project.number, service=service)
        if permission and not project.is_granted(permission):
            raise permission_denied(permission, resource or f"projects/{project.name}")
        return project
