"""The emulated cloud: its services, and the application that answers for them."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount

from cloud_emulator.catalogue import Catalogue
from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import Faults
from cloud_emulator.http import Admission, Call, Endpoint, Lazy, failed, not_routed
from cloud_emulator.iam_api import IamApi
from cloud_emulator.machines.hosting import Machines
from cloud_emulator.projects import Projects
from cloud_emulator.services_api import ServicesApi
from cloud_emulator.storage.api import StorageApi
from cloud_emulator.storage.store import Store

if TYPE_CHECKING:
    from cloud_emulator.tpu.control import Tpu

# Each API is served below a name that no bucket has, but for the TPU API, which is at the root beside Cloud Storage.
APIS = ("SERVICEUSAGE", "CLOUDRESOURCEMANAGER", "CLOUDBILLING", "IAM", "CLOUDQUOTAS", "SECRETMANAGER", "COMPUTE")


def endpoints(url: str) -> dict[str, str]:
    """gcloud's own variables; the addresses end with a slash, as it needs them."""
    variable = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
    return {f"{variable}TPU": f"{url}/", **{variable + name: f"{url}/_{name.lower()}/" for name in APIS}}


class Cloud:
    """All that there is: buckets, projects, faults and, once it is asked for, the TPU API and Compute Engine."""

    def __init__(self, folder: Path | None, project: str, catalogue: Catalogue, machines: Machines):
        self.projects = Projects(project, catalogue)
        self.store = Store(folder)
        self.requests: Counter[str] = Counter()  # answered calls by their names, those within a batch beside it
        self._storage = StorageApi(self.store, lambda permission: self.faults.is_granted(permission))
        self.faults = Faults(self._storage.name_of)
        self._tpu_faults = Faults(_tpu_name)
        self._machines = machines
        self._tpu: Tpu | None = None
        self._lock = threading.Lock()
        self._closed = False

    def tpu(self) -> Tpu:
        """Made when it is first asked for: google-cloud-tpu's types take a while to load."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this emulator was stopped")
            if self._tpu is None:
                try:
                    from cloud_emulator.tpu.control import Tpu
                except ModuleNotFoundError as error:
                    raise EmulatorError(f"emulated TPUs need {error.name}: pip install google-cloud-tpu") from None
                self._tpu = Tpu(self.projects, self._machines, self._tpu_faults)
            return self._tpu

    def close(self) -> None:
        """After the last call: ends all machines, and leaves the folder to another emulator."""
        with self._lock:
            self._closed = True
            if self._tpu is not None:
                self._tpu.close()
                self._tpu = None
        self.store.close()

    def application(self, token: str) -> Starlette:
        made = Starlette(
            routes=[
                Endpoint("", "POST", "/_control/faults", "", self._set_faults, api="control"),
                Endpoint("", "DELETE", "/_control/faults", "", self._set_faults, api="control"),
                Endpoint("", "GET", "/_control/status", "", self._status, api="control"),
                Mount("/_control/tpu", Lazy(lambda: self.tpu().routes())),
                Mount("/v2", Lazy(self._tpu_routes)),
                Mount("/_compute/compute/v1", Lazy(self._compute_routes)),
                *IamApi(self.projects).routes(),
                *ServicesApi(self.projects).routes(),
                *self._storage.routes(),
                *self._storage.xml_routes(),  # last: they take any path
            ],
            middleware=[Middleware(Admission, token=token)],
            exception_handlers={HTTPException: not_routed, Exception: failed},
        )
        made.router.redirect_slashes = False
        made.state.requests = self.requests
        made.state.faults = {"storage": self.faults, "tpu": self._tpu_faults}
        return made

    def _tpu_routes(self) -> list[BaseRoute]:
        tpu = self.tpu()
        from cloud_emulator.tpu.api import TpuApi

        return TpuApi(tpu).routes()

    def _compute_routes(self) -> list[BaseRoute]:
        tpu = self.tpu()
        from cloud_emulator.compute import ComputeApi

        return ComputeApi(tpu.compute, tpu.state).routes()

    # The emulator's own calls; no fault ever touches these

    def _set_faults(self, call: Call) -> dict[str, Any]:
        self.faults.set(**call.content())
        return self._status(call)

    def _status(self, call: Call) -> dict[str, Any]:
        with self.store.lock:
            buckets = {
                bucket.name: {
                    "location": bucket.fields["location"],
                    "objects": len(bucket.objects),
                    "bytes": sum(stored.size for stored in bucket.objects.values()),
                }
                for bucket in self.store.buckets()
            }
        return {
            "faults": self.faults.settings.model_dump(),
            "injected": self.faults.injected,
            "requests": dict(self.requests),
            "buckets": buckets,
        }


def _tpu_name(call: Call) -> str:
    """What a call of the TPU API is about, the name of what it creates included."""
    path = unquote(call.scope["path"].partition("/v2/")[2])
    created = call.query_params.get("nodeId") or call.query_params.get("queuedResourceId")
    return f"{path}/{created}" if created else path
