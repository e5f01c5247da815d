"""Fault injection: refusals, lost answers, dropped connections, short bodies, latency, and accounts that may not write."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cloud_emulator.errors import ACCOUNT, ApiError, EmulatorError, storage_error, suggest

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]


class FaultSettings(BaseModel):
    """Rates are probabilities. `match`, a regular expression, restricts all faults to names in which it is found.

    The name of a listing is its prefix; that of a call on a bucket is empty.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    error_rate: Rate = 0.0  # refused before anything is done
    error_status: Annotated[int, Field(ge=400, le=599)] = 503
    error_after_rate: Rate = 0.0  # done, and then refused
    drop_rate: Rate = 0.0  # the connection is closed before anything is done
    drop_after_rate: Rate = 0.0  # done, and then the connection is closed without an answer
    truncate_rate: Rate = 0.0  # a download ends early, though its headers announce all of it
    latency_seconds: Seconds = 0.0  # added to each request
    read_only: bool = False  # writes are forbidden
    fail_commits: bool = False  # writes are refused as by an overloaded service
    match: re.Pattern[str] = re.compile("")
    seconds: Seconds | None = None  # how long the faults last; None: until they are cleared
    count: Annotated[int, Field(ge=1)] | None = None  # how many are injected; None: no limit
    seed: int = 0


def validated(model: type[Any], settings: dict[str, Any]) -> Any:
    """A model of these settings. Raises EmulatorError, with the nearest name for one that does not exist."""
    try:
        return model(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            known = list(model.model_fields)
            raise EmulatorError(f"there is no setting '{name}'.{suggest(name, known)} Known: {', '.join(known)}") from None
        raise EmulatorError(f"{name}: {first['msg']}; found {first['input']!r}") from None


class Fault(NamedTuple):
    """The fault that a request meets: `refusal` in place of the answer, latency in any case."""

    kind: str = ""
    latency_seconds: float = 0.0
    refusal: ApiError | None = None


class Faults:
    """The faults in force in one API, and how many of each kind were injected; `name_of` gives the name in a request."""

    def __init__(self, name_of: Callable[[Any], str]) -> None:
        self._name_of = name_of
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
        validated_settings = validated(FaultSettings, settings)
        with self._lock:
            self._install(validated_settings)

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

    def choose(self, call: Any, permission: str, is_download: bool) -> Fault:
        with self._lock:
            settings = self._current()
            if settings.match.pattern and not settings.match.search(self._name_of(call)):
                return Fault()
            drop, error, drop_after, error_after, truncate = (self._random.random() for _ in range(5))
            failure, is_write = unavailable(settings.error_status), writes(permission)
            candidates: list[tuple[bool, str, ApiError | None]] = [
                (is_write and settings.read_only, "read_only", forbidden(permission)),
                (is_write and settings.fail_commits, "fail_commits", unavailable(503)),
                (drop < settings.drop_rate, "drop", None),
                (error < settings.error_rate, "error", failure),
                (drop_after < settings.drop_after_rate, "drop_after", None),
                (error_after < settings.error_after_rate, "error_after", failure),
                (is_download and truncate < settings.truncate_rate, "truncate", None),
            ]
            kind, refusal = next(((kind, refusal) for met, kind, refusal in candidates if met), ("", None))
            if kind:
                self._injected[kind] += 1
                self._left = None if self._left is None else self._left - 1
            if settings.latency_seconds:
                self._injected["latency"] += 1
            return Fault(kind, settings.latency_seconds, refusal)

    def is_granted(self, permission: str) -> bool:
        return not (self.settings.read_only and writes(permission))


def writes(permission: str) -> bool:
    """Whether what needs this permission, "" for none, may change something."""
    return permission.rpartition(".")[2] not in ("get", "list", "getIamPolicy", "")


def forbidden(permission: str) -> ApiError:
    resource = "object" if ".objects." in permission else "bucket"
    message = (
        f"{ACCOUNT} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return storage_error(403, message, "forbidden")


def unavailable(status: int) -> ApiError:
    """The errors that clients should retry."""
    if status == 429:
        message = "The rate of requests to the object exceeded the limit. Please reduce your request rate."
        return storage_error(429, message, "rateLimitExceeded")
    return storage_error(status, "We encountered an internal error. Please try again.", "backendError")
