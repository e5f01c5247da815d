"""Faults to order: refusals, lost answers, dropped connections, short bodies, latency, and accounts that may not write.

What happens to a request is a pure function of the settings, the request and a few random numbers.
"""

from __future__ import annotations

import dataclasses
import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from cloud_emulator.answers import ApiError, forbidden, unavailable
from cloud_emulator.errors import EmulatorError, suggest


@dataclass(frozen=True)
class FaultSettings:
    """Rates are probabilities in [0, 1]. `match`, a regular expression, confines all faults to names it is found in.

    A listing goes by its prefix, and calls on buckets by the empty name.
    """

    error_rate: float = 0.0  # refused before anything is done
    error_status: int = 503
    error_after_rate: float = 0.0  # done, and then refused
    drop_rate: float = 0.0  # the connection is closed before anything is done
    drop_after_rate: float = 0.0  # done, and then the connection is closed without an answer
    truncate_rate: float = 0.0  # a download ends early, though its headers announce all of it
    latency_seconds: float = 0.0  # added to each request
    read_only: bool = False  # writes are forbidden
    fail_commits: bool = False  # writes are refused as by an overloaded service
    match: str = ""
    seconds: float | None = None  # how long the faults last; None: until they are cleared
    count: int | None = None  # how many there are; None: no end
    seed: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if field.name.endswith("_rate") and not (number and 0 <= value <= 1):
                raise EmulatorError(f"{field.name} is a probability between 0 and 1; found {value!r}")
            if field.name in ("latency_seconds", "seconds") and value is not None and not (number and value >= 0):
                raise EmulatorError(f"{field.name} is a number of seconds, 0 or more; found {value!r}")
            if field.name in ("read_only", "fail_commits") and not isinstance(value, bool):
                raise EmulatorError(f"{field.name} is true or false; found {value!r}")
        if self.count is not None and (isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1):
            raise EmulatorError(f"count is a whole number, 1 or more; found {self.count!r}")
        if isinstance(self.error_status, bool) or not isinstance(self.error_status, int) or not 400 <= self.error_status < 600:
            raise EmulatorError(f"error_status is an HTTP status from 400 to 599; found {self.error_status!r}")
        try:
            re.compile(self.match)
        except (re.error, TypeError) as error:
            raise EmulatorError(
                f"match is a regular expression for names of objects; {self.match!r} is not one: {error}"
            ) from None


class Request(NamedTuple):
    """What is known of a request before it is carried out."""

    name: str
    permission: str
    writes: bool
    downloads: bool


class Rolls(NamedTuple):
    """Random numbers in [0, 1), one a kind of fault."""

    error: float
    error_after: float
    drop: float
    drop_after: float
    truncate: float


class Verdict(NamedTuple):
    """`kind` is what the fault is counted under, "" for none; at most one of the rest is set."""

    kind: str = ""
    refusal: ApiError | None = None  # instead of doing it
    refusal_after: ApiError | None = None  # instead of the answer
    drop: bool = False
    drop_after: bool = False
    truncate: bool = False


def decide(settings: FaultSettings, request: Request, rolls: Rolls) -> Verdict:
    """What becomes of a request; latency is added in any case."""
    if request.writes and settings.read_only:
        return Verdict("read_only", refusal=forbidden(request.permission))
    if request.writes and settings.fail_commits:
        return Verdict("fail_commits", refusal=unavailable(503))
    if rolls.drop < settings.drop_rate:
        return Verdict("drop", drop=True)
    if rolls.error < settings.error_rate:
        return Verdict("error", refusal=unavailable(settings.error_status))
    if rolls.drop_after < settings.drop_after_rate:
        return Verdict("drop_after", drop_after=True)
    if rolls.error_after < settings.error_after_rate:
        return Verdict("error_after", refusal_after=unavailable(settings.error_status))
    if request.downloads and rolls.truncate < settings.truncate_rate:
        return Verdict("truncate", truncate=True)
    return Verdict()


class Faults:
    """The faults in force, and how many of each kind were injected."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._injected: Counter[str] = Counter()
        self._install(FaultSettings())

    def _install(self, settings: FaultSettings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._left = settings.count
        self._ends_at = None if settings.seconds is None else time.monotonic() + settings.seconds

    def set(self, **settings: Any) -> None:
        """Replace the faults in force; what is not named is off. The names are those of `FaultSettings`."""
        known = [field.name for field in dataclasses.fields(FaultSettings)]
        for name in settings:
            if name not in known:
                raise EmulatorError(f"there is no fault '{name}'.{suggest(name, known)} Known: {', '.join(known)}")
        made = FaultSettings(**settings)
        with self._lock:
            self._install(made)

    def clear(self) -> None:
        self.set()

    @property
    def settings(self) -> FaultSettings:
        with self._lock:
            return self._current()

    def _current(self) -> FaultSettings:
        if self._left == 0 or (self._ends_at is not None and time.monotonic() >= self._ends_at):
            self._install(FaultSettings())
        return self._settings

    @property
    def injected(self) -> dict[str, int]:
        with self._lock:
            return dict(self._injected)

    def verdict(self, request: Request) -> tuple[Verdict, float]:
        """What becomes of a request, and by how many seconds it is delayed."""
        with self._lock:
            settings = self._current()
            if not re.search(settings.match, request.name):
                return Verdict(), 0.0
            verdict = decide(settings, request, Rolls(*(self._random.random() for _ in Rolls._fields)))
            if verdict.kind:
                self._injected[verdict.kind] += 1
                self._left = None if self._left is None else self._left - 1
            if settings.latency_seconds:
                self._injected["latency"] += 1
            return verdict, settings.latency_seconds

    def is_granted(self, permission: str) -> bool:
        return not self.settings.read_only or permission.rpartition(".")[2] in ("get", "list", "getIamPolicy")
