"""The emulator's own calls: faults and counts. No fault ever touches these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from cloud_emulator.answers import Answer, invalid, json_answer
from cloud_emulator.calls import Call
from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import Faults
from cloud_emulator.router import Route
from cloud_emulator.store import Store

PREFIX = "_control"


class ControlRoutes:
    def __init__(self, store: Store, faults: Faults, requests: Callable[[], dict[str, int]]):
        self._store = store
        self._faults = faults
        self._requests = requests

    def routes(self) -> list[Route]:
        return [
            Route("control", "POST", f"{PREFIX}/faults", "", self.set_faults),
            Route("control", "DELETE", f"{PREFIX}/faults", "", self.clear_faults),
            Route("control", "GET", f"{PREFIX}/status", "", self.status),
        ]

    def set_faults(self, call: Call) -> Answer:
        try:
            self._faults.set(**call.json())
        except EmulatorError as error:
            raise invalid(str(error)) from None
        return self.status(call)

    def clear_faults(self, call: Call) -> Answer:
        self._faults.clear()
        return self.status(call)

    def status(self, call: Call) -> Answer:
        with self._store.lock:
            buckets = {
                bucket.name: {
                    "location": bucket.fields["location"],
                    "objects": len(bucket.objects),
                    "bytes": sum(stored.size for stored in bucket.objects.values()),
                }
                for bucket in self._store.buckets()
            }
        content = {
            "faults": dataclasses.asdict(self._faults.settings),
            "injected": self._faults.injected,
            "requests": self._requests(),
            "buckets": buckets,
        }
        return json_answer(content)
