"""Projects: services, billing, permissions, quota, service accounts and secrets, and refusals for lack of one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import Any, Literal, NamedTuple

from cloud_emulator import recorded
from cloud_emulator.catalogue import Accelerator, Catalogue, region_of
from cloud_emulator.errors import EmulatorError, error_info, permission_denied, rpc_error, suggest

SERVICES: dict[str, str] = recorded.load("projects")["services"]  # titles by name
PROJECT_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
DEFAULT_LIMIT = 16_384  # enough for any type

Per = Literal["Region", "Zone"]


class Project:
    """`denied` are permissions that nobody has here; one that ends in ".*" stands for all with that prefix."""

    def __init__(self, name: str, catalogue: Catalogue):
        self.name = name
        self.number = 100_000_000_000 + zlib.crc32(name.encode())
        self.services = set(SERVICES)
        self.billing = True
        self.denied: set[str] = set()
        self.quotas = Quotas(self.number, catalogue)
        self.accounts: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}  # by resource; "" is the project itself
        self.roles: dict[str, dict[str, Any]] = {}  # custom ones, by full name
        self.secrets: dict[str, list[bytes]] = {}
        self.networks: dict[str, list[dict[str, Any]]] = {"default": recorded.load("projects")["firewalls"]}  # with their rules

    @property
    def default_account(self) -> str:
        return f"{self.number}-compute@developer.gserviceaccount.com"

    def has_account(self, email: str) -> bool:
        """Whether an account may exist: those of other projects are not known."""
        return not email.endswith(f"@{self.name}.iam.gserviceaccount.com") or email in self.accounts

    def numbered(self, name: str) -> str:
        """A resource's name with the project's number, as some answers have it."""
        return name.replace(f"projects/{self.name}/", f"projects/{self.number}/", 1)

    def is_granted(self, permission: str) -> bool:
        return not any(
            permission == denied or (denied.endswith(".*") and permission.startswith(denied[:-1])) for denied in self.denied
        )

    def policy(self, of: str) -> dict[str, Any]:
        return tagged(self.policies.get(of, {"version": 1, "bindings": []}))

    def set_policy(self, of: str, policy: object) -> dict[str, Any]:
        """Compare-and-swap on the etag. Policies are not enforced: only `denied` is."""
        if not isinstance(policy, dict):
            raise rpc_error(400, "The request has no policy.")
        if policy.get("etag") not in (None, "", self.policy(of)["etag"]):
            raise recorded.refusal("concurrent-policy", "projects")
        for binding in policy.get("bindings", []):
            for member in binding.get("members", []):
                kind, _, email = member.partition(":")
                if kind == "serviceAccount" and not self.has_account(email):
                    raise rpc_error(400, f"Service account {email} does not exist.")
        self.policies[of] = {"version": policy.get("version", 1), "bindings": policy.get("bindings", [])}
        return self.policy(of)


def tagged(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its etag."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return {**content, "etag": base64.b64encode(digest[:8]).decode()}


class Projects:
    def __init__(self, first: str, catalogue: Catalogue):
        self.default = first
        self.catalogue = catalogue
        self._projects: dict[str, Project] = {}
        self.add(first)

    def add(self, name: str) -> None:
        if not PROJECT_ID.fullmatch(name):
            raise EmulatorError(
                f"'{name}' is no name for a project: it has 6 to 30 lower-case letters, digits and hyphens, begins with a "
                "letter, and does not end with a hyphen"
            )
        self._projects.setdefault(name, Project(name, self.catalogue))

    def known(self, name: str | None = None) -> Project:
        """The project of an order; `name` None is the first. Raises EmulatorError."""
        if (name or self.default) not in self._projects:
            raise EmulatorError(f"there is no project '{name}'; known: {', '.join(self._projects)}")
        return self._projects[name or self.default]

    def find(self, name: str) -> Project | None:
        """By id or number."""
        return next((project for project in self._projects.values() if name in (project.name, str(project.number))), None)

    def permitted(self, name: str, service: str, permission: str = "", *, resource: str = "", billed: bool = False) -> Project:
        """The project, if it has what a call needs. Raises ApiError (403), as the service does, for what is missing."""
        project = self.find(name)
        if project is None:
            details = [error_info("CONSUMER_INVALID", {"consumer": f"projects/{name}", "service": service})]
            raise rpc_error(403, f"Permission denied on resource project {name}.", details=details)
        if service not in project.services:
            title = SERVICES.get(service, service)
            raise recorded.refusal("api-off", number=project.number, service=service, title=title)
        if billed and not project.billing:
            raise recorded.refusal("billing-off", project=project.name, number=project.number, service=service)
        if permission and not project.is_granted(permission):
            raise permission_denied(permission, resource or f"projects/{project.name}")
        return project


class Demand(NamedTuple):
    """What one slice takes of a quota."""

    accelerator: Accelerator
    spot: bool
    zone: str


class Quotas:
    """A project's TPU quotas: limits by quota, region and zone, under Google's names."""

    def __init__(self, number: int, catalogue: Catalogue):
        self._number = number
        self._catalogue = catalogue
        self._limits: dict[tuple[str, str], int] = {}  # by stem, and region or zone

    def set(self, accelerator: str, limit: int, location: str | None = None, spot: bool | None = None) -> None:
        """`accelerator` is a type, or "v5litepod" for all of them; `location` a region or zone, None all regions.

        `spot` True is the preemptible quota, False the other, None both. -1 is no limit.
        """
        types = self._catalogue.types
        chosen = [item for item in types if accelerator in (item.name, item.name.rpartition("-")[0])]
        if not chosen:
            hint = suggest(accelerator, [item.name for item in types])
            raise EmulatorError(f"'{accelerator}' is no accelerator type of the TPU API.{hint}")
        known = [*self._catalogue.regions, *self._catalogue.zones]
        if location is not None and location not in known:
            raise EmulatorError(f"'{location}' is no region or zone with TPUs.{suggest(location, known)}")
        for stem in {_stem(item, kind) for item in chosen for kind in (False, True) if spot in (None, kind)}:
            for place in self._catalogue.regions if location is None else [location]:
                self._limits[stem, place] = limit

    def check(self, requested: Demand, held: list[Demand]) -> None:
        """Raises ApiError if the region's or the zone's limit would be exceeded."""
        stem, region = _stem(requested.accelerator, requested.spot), region_of(requested.zone)
        same = [demand for demand in [*held, requested] if _stem(demand.accelerator, demand.spot) == stem]
        used: list[tuple[Per, str, int]] = [
            ("Region", region, sum(demand.accelerator.number for demand in same if region_of(demand.zone) == region)),
            ("Zone", requested.zone, sum(demand.accelerator.number for demand in same if demand.zone == requested.zone)),
        ]
        refusals = []
        for per, place, amount in used:
            if 0 <= (limit := self._limits.get((stem, place), DEFAULT_LIMIT)) < amount:
                values = {"quota": _quota_id(stem, per), "limit": limit, "place": f"{per.lower()} {place}"}
                refusals.append(recorded.refusal("quota", number=self._number, **values))
        if refusals:  # reported together
            violations = [refusal.error["details"][0]["violations"][0] for refusal in refusals]
            refusals[0].error["details"][0]["violations"] = violations
            raise refusals[0]

    def infos(self) -> list[dict[str, Any]]:
        """The quotas as the Cloud Quotas API lists them."""
        stems = sorted({_stem(accelerator, spot) for accelerator in self._catalogue.types for spot in (False, True)})
        where: list[tuple[Per, list[str]]] = [("Region", self._catalogue.regions), ("Zone", list(self._catalogue.zones))]
        return [self._info(stem, per, locations) for stem in stems for per, locations in where]

    def _info(self, stem: str, per: Per, locations: list[str]) -> dict[str, Any]:
        own = [place for place in locations if (stem, place) in self._limits]
        others = [place for place in locations if place not in own]
        details: list[dict[str, Any]] = []
        for place in own:  # zero is left out, as in all of Google's JSON
            value = {"value": str(limit)} if (limit := self._limits[stem, place]) else {}
            details.append({"dimensions": {per.lower(): place}, "details": value, "applicableLocations": [place]})
        if others:  # an entry without dimensions is the default of its locations
            details.append({"details": {"value": str(DEFAULT_LIMIT)}, "applicableLocations": others})
        values = {"number": self._number, "id": _quota_id(stem, per), "stem": stem, "metric": stem.lower(), "per": per.lower()}
        return recorded.filled(recorded.load("projects")["quota_info"], **values) | {"dimensionsInfos": details}


def _stem(accelerator: Accelerator, spot: bool) -> str:
    several = accelerator.hosts > 1
    values = {"spot": "Preemptible" if spot else "", "pod": "Pod" if several else "", "serving": "" if several else "Serving"}
    return accelerator.quota.format(**values)


def _quota_id(stem: str, per: Per) -> str:
    return f"{stem}PerProjectPer{per}ForTPUAPI"
