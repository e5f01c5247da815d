"""What happened, when, and to whom; and how long each node was paid for."""

from __future__ import annotations

from typing import NamedTuple

from cloud_emulator.clock import Clock


class Event(NamedTuple):
    """`at` in seconds since 1970 by the emulator's clock; `what` as in "created", "ready", "preempted", "deleted"."""

    at: float
    what: str
    name: str  # projects/p/locations/z/nodes/n, or …/queuedResources/q
    reason: str


class History:
    def __init__(self, clock: Clock):
        self._clock = clock
        self._events: list[Event] = []
        self._spent: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def add(self, what: str, name: str, reason: str = "") -> None:
        self._events.append(Event(self._clock.now(), what, name, reason))

    def begin_charging(self, name: str) -> None:
        self._since.setdefault(name, self._clock.now())

    def end_charging(self, name: str) -> None:
        if name in self._since:
            self._spent[name] = self._spent.get(name, 0.0) + self._clock.now() - self._since.pop(name)

    def events(self) -> list[Event]:
        return list(self._events)

    def node_seconds(self) -> dict[str, float]:
        """By node's name, over all nodes that had it; those that still run up to now."""
        now = self._clock.now()
        running = {name: now - since for name, since in self._since.items()}
        return {name: self._spent.get(name, 0.0) + running.get(name, 0.0) for name in {**self._spent, **running}}
