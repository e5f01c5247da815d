"""Refusals as Google's newer APIs word them: {"error": {"code", "message", "status"}}."""

from __future__ import annotations

from typing import Any

from cloud_emulator import recorded
from cloud_emulator.answers import Answer, ApiError, json_answer

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


class RpcError(ApiError):
    """`reason` is the status word, such as NOT_FOUND; `details` are what google.rpc.Status carries beside it.

    `recorded` is the name of the recorded answer that it is, if it is one.
    """

    recorded = ""

    def __init__(self, code: int, message: str, status: str = "", details: list[dict[str, Any]] | None = None):
        super().__init__(code, message, status or STATUS.get(code, "UNKNOWN"))
        self.details = details or []

    def answer(self, as_text: bool = False) -> Answer:
        error = {"code": self.status, "message": self.message, "status": self.reason}
        return json_answer({"error": error | ({"details": self.details} if self.details else {})}, self.status)


def bad_argument(message: str) -> RpcError:
    return RpcError(400, message)


def failed_precondition(message: str) -> RpcError:
    return RpcError(400, message, "FAILED_PRECONDITION")


def recorded_refusal(name: str, file: str = "tpu", /, **values: object) -> RpcError:
    """In Google's words (`cloud_emulator.recorded`)."""
    error = recorded.answer(name, file, **values)["http"]["body"]["error"]
    made = RpcError(error["code"], error["message"], error["status"], error.get("details"))
    made.recorded = name
    return made


def not_found(name: str) -> RpcError:
    """`name` as in projects/p/locations/z/nodes/n."""
    return recorded_refusal("not-found", **_parts(name))


def exists(name: str) -> RpcError:
    return recorded_refusal("name-taken", **_parts(name))


def _parts(name: str) -> dict[str, str]:
    _, project, _, zone, resource = name.split("/", 4)
    return {"project": project, "zone": zone, "resource": resource}


def permission_denied(permission: str, resource: str) -> RpcError:
    info = error_info("IAM_PERMISSION_DENIED", {"permission": permission, "resource": resource}, "iam.googleapis.com")
    return RpcError(403, f"Permission '{permission}' denied on resource '{resource}' (or it may not exist).", details=[info])


def error_info(reason: str, metadata: dict[str, str], domain: str = "googleapis.com") -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": metadata}


def in_these_words(error: ApiError, permission: str, resource: str) -> RpcError:
    """The same refusal, where it was worded as Cloud Storage does."""
    if isinstance(error, RpcError):
        return error
    if error.status == 403:
        return permission_denied(permission, resource)
    messages = {
        400: error.message,
        429: "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service 'tpu.googleapis.com'.",
        503: "The service is currently unavailable.",
    }
    return RpcError(error.status, messages.get(error.status, "Internal error encountered."))
