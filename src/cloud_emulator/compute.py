"""Compute Engine, as far as tpulm looks for VMs of its own there: instances are listed, read and deleted, and planted by tests.

The shapes are those of https://cloud.google.com/compute/docs/reference/rest/v1; refusals are recorded/compute.json's.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from starlette.routing import BaseRoute

from cloud_emulator import recorded
from cloud_emulator.errors import invalid
from cloud_emulator.http import Call, Endpoint
from cloud_emulator.projects import Project
from cloud_emulator.tpu.state import State

PROJECT = "/projects/{project}"
INSTANCE = PROJECT + "/zones/{zone}/instances/{name}"


class Compute:
    """The API, below /_compute/compute/v1."""

    def __init__(self, state: State):
        self._state = state
        self._instances: dict[str, dict[str, Any]] = {}  # by path

    def add(self, name: str, zone: str, labels: Mapping[str, str] = {}, metadata: Mapping[str, str] = {}) -> None:
        """Have an e2-micro run in the first project."""
        with self._state.clock.lock:
            project = self._state.projects.default
            path = f"projects/{project}/zones/{zone}/instances/{name}"
            created = time.strftime("%Y-%m-%dT%H:%M:%S.000-00:00", time.gmtime(self._state.clock.now()))
            values = {"project": project, "zone": zone, "name": name, "resource": path, "machine": "e2-micro"}
            instance = recorded.filled(
                recorded.load("compute")["instance"], id=zlib.crc32(path.encode()), created=created, status="RUNNING", **values
            )
            instance["labels"] = dict(labels)
            instance["metadata"]["items"] = [{"key": key, "value": value} for key, value in metadata.items()]
            self._instances[path] = instance

    def instances(self) -> dict[str, str]:
        """Status by name."""
        with self._state.clock.lock:
            return {instance["name"]: instance["status"] for instance in self._instances.values()}

    def routes(self) -> list[BaseRoute]:
        table: list[tuple[str, str, str, str, Callable[..., Any]]] = [
            ("LIST all instances", "GET", PROJECT + "/aggregated/instances", "compute.instances.list", self._list),
            ("GET instance", "GET", INSTANCE, "compute.instances.get", lambda call, path, found: found),
            ("DELETE instance", "DELETE", INSTANCE, "compute.instances.delete", self._delete),
        ]
        return [
            Endpoint(name, method, path, permission, self._guarded(permission, do), api="compute")
            for name, method, path, permission, do in table
        ]

    def _guarded(self, permission: str, do: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `do`: first check project, service, permission and instance, and refuse in this API's words."""

        def guarded(call: Call, project: str, zone: str = "", name: str = "") -> Any:
            owner = self._state.projects.find(project)
            if owner is None:
                raise _refusal("not-found", resource=f"projects/{project}")
            if "compute.googleapis.com" not in owner.services:
                raise _refusal("api-off", number=owner.number)
            path = f"projects/{owner.name}" + (f"/zones/{zone}/instances/{name}" if name else "")
            if not owner.is_granted(permission):
                raise _refusal("permission", permission=permission, resource=path)
            with self._state.clock.lock:
                if not name:
                    return do(call, owner)
                if path not in self._instances:
                    raise _refusal("not-found", resource=path)
                return do(call, path, self._instances[path])

        return guarded

    def _list(self, call: Call, project: Project) -> Any:
        """The instances by zone; zones without any have a warning instead, as in Google's answer."""
        mine = [vm for path, vm in self._instances.items() if path.startswith(f"projects/{project.name}/")]
        page, token = call.page([vm for vm in mine if _fits(call, vm)], call.integer("maxResults") or 500)
        items: dict[str, Any] = {}
        for zone in sorted({*self._state.projects.catalogue.zones, *(vm["zone"].rpartition("/")[2] for vm in page)}):
            in_zone = [vm for vm in page if vm["zone"].endswith(f"/{zone}")]
            message = f"There are no results for scope 'zones/{zone}' on this page."
            warning = {"code": "NO_RESULTS_ON_PAGE", "message": message}
            items[f"zones/{zone}"] = {"instances": in_zone} if in_zone else {"warning": warning}
        more = {"nextPageToken": token} if token else {}
        return {"kind": "compute#instanceAggregatedList", "items": items, **more}

    def _delete(self, call: Call, path: str, instance: dict[str, Any]) -> dict[str, Any]:
        del self._instances[path]
        return {"kind": "compute#operation", "operationType": "delete", "targetLink": instance["selfLink"], "status": "DONE"}


def _refusal(name: str, **values: object) -> Exception:
    return recorded.refusal(name, "compute", **values)


def _fits(call: Call, instance: Mapping[str, Any]) -> bool:
    """By "labels.KEY:*"; other filters are refused, not ignored."""
    text = call.query_params.get("filter", "")
    if text and not (text.startswith("labels.") and text.endswith(":*")):
        raise invalid(f"Invalid value for field 'filter': '{text}'. The emulator knows labels.KEY:*.")
    return not text or text.removeprefix("labels.").removesuffix(":*") in instance["labels"]
