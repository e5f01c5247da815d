"""The service without its sockets: a call in, an answer out."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cloud_emulator import control, endpoints, routes_tpu
from cloud_emulator.answers import Answer, unavailable
from cloud_emulator.batch import BatchRoutes
from cloud_emulator.calls import Call
from cloud_emulator.control import ControlRoutes
from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import Faults, Request, Verdict
from cloud_emulator.iam import IamRoutes
from cloud_emulator.machines.machine import MachineSettings
from cloud_emulator.projects import Projects
from cloud_emulator.router import Match, Router
from cloud_emulator.routes_billing import BillingRoutes
from cloud_emulator.routes_buckets import BucketRoutes
from cloud_emulator.routes_compute import ComputeRoutes
from cloud_emulator.routes_downloads import KIND as DOWNLOAD
from cloud_emulator.routes_downloads import DownloadRoutes
from cloud_emulator.routes_identity import IdentityRoutes
from cloud_emulator.routes_objects import ObjectRoutes
from cloud_emulator.routes_roles import RoleRoutes
from cloud_emulator.routes_secrets import SecretRoutes
from cloud_emulator.routes_services import ServiceRoutes
from cloud_emulator.routes_tpu import TpuRoutes
from cloud_emulator.routes_tpu_control import TpuControlRoutes
from cloud_emulator.routes_uploads import UploadRoutes
from cloud_emulator.rpc import in_these_words
from cloud_emulator.store import Store
from cloud_emulator.uploads import Sessions

if TYPE_CHECKING:
    from cloud_emulator.tpu.control import Tpu
    from cloud_emulator.tpu.world import World


class Service:
    """Thread-safe: calls may be answered from any number of threads."""

    def __init__(
        self,
        folder: Path | None = None,
        project: str = "tpulm-emulator",
        machines: MachineSettings | None = None,
        environment: Callable[[], Mapping[str, str]] = dict,
        as_it_was: frozenset[str] = frozenset(),
    ):
        self.projects = Projects(project, as_it_was)
        self.store = Store(folder)
        self.faults = Faults()
        self._tpu_faults = Faults()
        self._machines = machines or MachineSettings()
        self._environment = environment
        self._world: World | None = None
        self._world_lock = threading.Lock()
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._uploads = UploadRoutes(self.store, Sessions(self.store))
        downloads = DownloadRoutes(self.store)
        self._router = Router(
            [
                *ControlRoutes(self.store, self.faults, self.requests).routes(),
                *downloads.routes(),
                *ObjectRoutes(self.store).routes(),
                *self._uploads.routes(),
                *BucketRoutes(self.store).routes(),
                *IamRoutes(self.store, self.faults.is_granted).routes(),
                *BatchRoutes(self._inner).routes(),
                *TpuControlRoutes(self.tpu).routes(),
                *TpuRoutes(self.projects, self.world).routes(),
                *ComputeRoutes(self.projects, lambda: self.world().compute).routes(),
                *ServiceRoutes(self.projects).routes(),
                *BillingRoutes(self.projects).routes(),
                *IdentityRoutes(self.projects).routes(),
                *RoleRoutes(self.projects).routes(),
                *SecretRoutes(self.projects).routes(),
                *downloads.xml_routes(),  # last: they take any path
            ]
        )

    def world(self) -> World:
        """The state of the TPU API and of Compute Engine, made when it is first asked for: its types take a while to load."""
        with self._world_lock:
            if self._closed:
                raise RuntimeError("this emulator was stopped")
            if self._world is None:
                try:
                    from cloud_emulator.tpu.world import World
                except ModuleNotFoundError as error:
                    raise EmulatorError(f"emulated TPUs need {error.name}: pip install google-cloud-tpu") from None
                self._world = World(self.projects, self._tpu_faults, self._machines, self._environment)
            return self._world

    def tpu(self) -> Tpu:
        world = self.world()
        from cloud_emulator.tpu.control import Tpu

        return Tpu(world)

    def close(self) -> None:
        """After the last call: ends all machines, and leaves the folder to another emulator."""
        with self._world_lock:
            self._closed = True
            if self._world is not None:
                self._world.close()
                self._world = None
        self.store.close()

    def requests(self) -> dict[str, int]:
        """How many calls of each kind came; those within a batch count beside it, those to /_control/ not at all."""
        with self._lock:
            return dict(self._counts)

    def match(self, call: Call) -> Match:
        if call.segments[0] in endpoints.PREFIXES and call.segments[1:2] == ("",):  # an endpoint with a slash at its end
            call = dataclasses.replace(call, segments=(call.segments[0], *call.segments[2:]))
        match = self._router.match(call)
        if call.segments[0] != control.PREFIX:
            with self._lock:
                self._counts[match.route.kind] += 1
        return match

    def verdict(self, call: Call, match: Match) -> tuple[Verdict, float]:
        """What the faults in force do to a call, and its delay in seconds."""
        if call.segments[0] == control.PREFIX or call.segments[0] in endpoints.PREFIXES:
            return Verdict(), 0.0
        if call.segments[0] == routes_tpu.PREFIX:
            return self._tpu_verdict(call, match)
        name = self._name_in(call, match) if self.faults.settings.match else ""  # it may mean parsing a large body
        return self.faults.verdict(Request(name, match.route.permission, match.route.writes, match.route.kind == DOWNLOAD))

    def _tpu_verdict(self, call: Call, match: Match) -> tuple[Verdict, float]:
        name = "/".join(call.segments[1:])
        created = call.query.get("nodeId") or call.query.get("queuedResourceId")
        name = f"{name}/{created}" if created else name
        verdict, delay_seconds = self._tpu_faults.verdict(Request(name, match.route.permission, match.route.writes, False))
        refusals = {
            field: in_these_words(refusal, match.route.permission, name)
            for field in ("refusal", "refusal_after")
            if (refusal := getattr(verdict, field)) is not None
        }
        return verdict._replace(**refusals), delay_seconds

    def _name_in(self, call: Call, match: Match) -> str:
        if call.segments[0] == "upload":
            return self._uploads.name_in(call)
        parameters = match.parameters
        return parameters.get("to") or parameters.get("name") or call.query.get("prefix", "")

    def _inner(self, call: Call) -> Answer:
        """One call of a batch. It can be refused, but has no connection of its own to be dropped."""
        match = self.match(call)
        verdict, _ = self.verdict(call, match)
        if verdict.refusal or verdict.drop:
            return (verdict.refusal or unavailable()).answer()
        answer = match.answer(call)
        if verdict.refusal_after or verdict.drop_after:
            return (verdict.refusal_after or unavailable()).answer()
        return answer
