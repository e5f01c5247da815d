"""The service without its sockets: a call in, an answer out."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from tpulm.emulator import control
from tpulm.emulator.answers import Answer, unavailable
from tpulm.emulator.batch import BatchRoutes
from tpulm.emulator.calls import Call
from tpulm.emulator.control import ControlRoutes
from tpulm.emulator.faults import Faults, Request, Verdict
from tpulm.emulator.iam import IamRoutes
from tpulm.emulator.router import Match, Router
from tpulm.emulator.routes_buckets import BucketRoutes
from tpulm.emulator.routes_downloads import KIND as DOWNLOAD
from tpulm.emulator.routes_downloads import DownloadRoutes
from tpulm.emulator.routes_objects import ObjectRoutes
from tpulm.emulator.routes_uploads import UploadRoutes
from tpulm.emulator.store import Store
from tpulm.emulator.uploads import Sessions


class Service:
    """Thread-safe: calls may be answered from any number of threads."""

    def __init__(self, folder: Path | None = None):
        self.store = Store(folder)
        self.faults = Faults()
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
                *downloads.xml_routes(),
            ]
        )

    def requests(self) -> dict[str, int]:
        """How many calls of each kind came; those within a batch count beside it, those to /_control/ not at all."""
        with self._lock:
            return dict(self._counts)

    def match(self, call: Call) -> Match:
        match = self._router.match(call)
        if call.segments[0] != control.PREFIX:
            with self._lock:
                self._counts[match.route.kind] += 1
        return match

    def verdict(self, call: Call, match: Match) -> tuple[Verdict, float]:
        """What the faults in force do to a call, and its delay in seconds."""
        if call.segments[0] == control.PREFIX:
            return Verdict(), 0.0
        name = self._name_in(call, match) if self.faults.settings.match else ""  # it may mean parsing a large body
        return self.faults.verdict(Request(name, match.route.permission, match.route.writes, match.route.kind == DOWNLOAD))

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
