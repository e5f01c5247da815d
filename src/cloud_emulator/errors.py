"""Error answers of the emulated services, in the two formats of Google's APIs, and errors in using the emulator."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

Item = TypeVar("Item")

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
ACCOUNT = "emulated-account@tpulm-emulator.iam.gserviceaccount.com"  # the caller that refusals name


class EmulatorError(ValueError):
    """A setting, an order or a name is invalid, or a package is missing; the message says which, and what to do."""


def suggest(name: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" (with the leading space) when a known name is near, else ""."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def named(kind: str, name: str, known: dict[str, Item]) -> Item:
    """The resource with this id, or with this full name if several have the id. Raises EmulatorError."""
    matches = [key for key in known if name in (key, key.rpartition("/")[2])]
    if len(matches) != 1:
        ids = [shortest(key, known) for key in known]
        reason = f"several {kind}s are named" if matches else f"there is no {kind}"
        raise EmulatorError(f"{reason} '{name}'.{suggest(name, ids)} Known: {', '.join(ids) or 'none'}")
    return known[matches[0]]


def shortest(name: str, all_names: Collection[str]) -> str:
    node_id = name.rpartition("/")[2]
    return name if sum(other.endswith(f"/{node_id}") for other in all_names) > 1 else node_id


class ApiError(Exception):
    """`error` is the value of "error" in the body."""

    def __init__(self, status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None):
        super().__init__(error["message"])
        self.status = status
        self.error = error
        self.headers = headers or {}


def storage_error(status: int, message: str, reason: str, headers: Mapping[str, str] | None = None) -> ApiError:
    """In the format of Cloud Storage; `reason` is a word such as "notFound"."""
    first = {"message": message, "domain": "global", "reason": reason}
    return ApiError(status, {"code": status, "message": message, "errors": [first]}, headers)


def rpc_error(code: int, message: str, status: str = "", details: list[dict[str, Any]] | None = None) -> ApiError:
    """In the format of Google's newer APIs, a google.rpc.Status; `status` is a word such as NOT_FOUND."""
    error = {"code": code, "message": message, "status": status or STATUS.get(code, "UNKNOWN")}
    return ApiError(code, error | ({"details": details} if details else {}))


def as_rpc_error(error: ApiError, permission: str, resource: str) -> ApiError:
    """The same error in the newer format."""
    if "errors" not in error.error:
        return error
    if error.status == 403:
        return permission_denied(permission, resource)
    messages = {
        400: str(error),
        429: "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'tpu.googleapis.com'.",
        503: "The service is currently unavailable.",
    }
    return rpc_error(error.status, messages.get(error.status, "Internal error encountered."))


def invalid(message: str) -> ApiError:
    return storage_error(400, message, "invalid")


def permission_denied(permission: str, resource: str) -> ApiError:
    info = error_info("IAM_PERMISSION_DENIED", {"permission": permission, "resource": resource}, "iam.googleapis.com")
    return rpc_error(403, f"Permission '{permission}' denied on resource '{resource}' (or it may not exist).", details=[info])


def error_info(reason: str, metadata: dict[str, str], domain: str = "googleapis.com") -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": metadata}
