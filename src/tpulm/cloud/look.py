"""What the doctor and the setup see of a project: each thing is asked for once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tpulm.cloud import apis, policies
from tpulm.cloud.google_rest import GoogleError, GoogleRest
from tpulm.cloud.identity import Identity, identity
from tpulm.cloud.settings import CloudSettings
from tpulm.cloud.tpu_api import TpuApi
from tpulm.errors import CloudRefused
from tpulm.storage.causes import words

Answer = TypeVar("Answer")
_PATIENCE_SECONDS = 20.0  # there is somebody waiting


@dataclass(frozen=True)
class Check:
    """One finding. `ok` with a remedy is a warning."""

    name: str
    ok: bool | None  # None: it could not be checked
    found: str
    remedy: str = ""  # a command, a page, or what to change in cloud.toml


def spoken(permissions: Iterable[str]) -> str:
    """ "tpu.nodes.get", "tpu.nodes.list" -> "tpu.nodes: get, list"."""
    groups: dict[str, list[str]] = {}
    for permission in permissions:
        kind, _, verb = permission.rpartition(".")
        groups.setdefault(kind, []).append(verb)
    return "; ".join(f"{kind}: {', '.join(verbs)}" for kind, verbs in groups.items())


def toml(names: Iterable[str]) -> str:
    """ "a", "b" -> ["a", "b"], for what to write into cloud.toml."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


class Look:
    """Raises GoogleError for what may not be seen."""

    def __init__(self, settings: CloudSettings, rest: GoogleRest | None = None):
        self.settings = settings
        self.rest = rest or GoogleRest(settings.project, patience_seconds=_PATIENCE_SECONDS)
        self.roles = policies.Roles(self.rest)
        self._tpu = TpuApi(settings.project)
        self._types: dict[str, set[str]] = {}
        self._buckets: dict[str, dict[str, Any]] = {}
        self._subnetworks: dict[str, dict[str, Any]] = {}

    @property
    def project(self) -> str:
        return self.settings.project

    @property
    def worker(self) -> str:
        """The VMs' account, as policies have it."""
        return f"serviceAccount:{self.settings.service_account}"

    @cached_property
    def identity(self) -> Identity:
        return identity(self.rest)

    @cached_property
    def apis(self) -> dict[str, bool]:
        """Which of those that are of use are on."""
        return apis.states(self.rest, apis.useful(self.settings))

    @cached_property
    def policy(self) -> dict[str, Any]:
        """Of the project."""
        return policies.project(self.rest).read()

    @cached_property
    def known_zones(self) -> tuple[str, ...]:
        return tuple(self._asked(self._tpu.zones))

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """Those of the settings, patterns expanded. Raises ConfigError where one fits nothing."""
        if not any(zone.endswith("*") for zone in self.settings.zones):
            return self.settings.zones
        return self.settings.expanded(self.known_zones).zones

    def types(self, zone: str) -> set[str]:
        if zone not in self._types:
            self._types[zone] = self._asked(lambda: self._tpu.types(zone))
        return self._types[zone]

    def bucket(self, name: str) -> dict[str, Any]:
        if name not in self._buckets:
            self._buckets[name] = self.rest.get("storage", f"storage/v1/b/{name}")
        return self._buckets[name]

    def subnetwork(self, region: str, path: str) -> dict[str, Any]:
        if region not in self._subnetworks:
            self._subnetworks[region] = self.rest.get("compute", f"compute/v1/{path}")
        return self._subnetworks[region]

    def account(self) -> dict[str, Any]:
        return self.rest.get("iam", policies.account_path(self.settings.service_account))

    def worker_may(self, *granting: dict[str, Any]) -> frozenset[str]:
        """What policies, one above the other, permit the VMs' account."""
        return self.roles.of(role for policy in granting for role in policies.roles_of(policy, self.worker))

    @staticmethod
    def _asked(ask: Callable[[], Answer]) -> Answer:
        """What google's client raises as what a `GoogleRest` does."""
        from google.api_core import exceptions

        try:
            return ask()
        except (exceptions.GoogleAPIError, CloudRefused, OSError) as error:
            cause = error.__cause__ if isinstance(error, CloudRefused) else error
            if isinstance(cause, exceptions.GoogleAPICallError):
                details = {str(name): str(value) for name, value in (cause.metadata or {}).items()}
                raise GoogleError("tpu", int(cause.code or 0), str(cause.reason or ""), words(cause), details) from error
            if isinstance(error, CloudRefused):
                raise
            raise GoogleError("tpu", 0, "UNAVAILABLE", f"no answer: {type(error).__name__}") from error
