"""What a request is answered with: a success, or an error in Cloud Storage's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Answer:
    """`body` is all of the body, or, with `length` given, its pieces one after another."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterator[bytes | memoryview] = b""
    length: int | None = None


def json_answer(content: object, status: int = 200) -> Answer:
    body = json.dumps(content, ensure_ascii=False).encode()
    return Answer(status, {"Content-Type": "application/json; charset=UTF-8"}, body)


class ApiError(Exception):
    """A refusal; `reason` is the machine-readable word that Google's error lists carry."""

    def __init__(self, status: int, message: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.headers = headers or {}

    def answer(self, as_text: bool = False) -> Answer:
        """As JSON, or as the plain text in which downloads are refused."""
        if self.status == 304:
            return Answer(304, self.headers)
        if as_text:
            return Answer(self.status, {"Content-Type": "text/html; charset=UTF-8", **self.headers}, self.message.encode())
        first = {"message": self.message, "domain": "global", "reason": self.reason}
        answer = json_answer({"error": {"code": self.status, "message": self.message, "errors": [first]}}, self.status)
        answer.headers.update(self.headers)
        return answer


def invalid(message: str) -> ApiError:
    return ApiError(400, message, "invalid")


def no_such_bucket() -> ApiError:
    return ApiError(404, "The specified bucket does not exist.", "notFound")


def no_such_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, f"No such object: {bucket}/{name}", "notFound")


def condition_not_met() -> ApiError:
    return ApiError(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def not_modified() -> ApiError:
    return ApiError(304, "Not Modified", "notModified")


def unavailable(status: int = 503) -> ApiError:
    """The answers that a client is to try again after."""
    if status == 429:
        message = "The rate of requests to the object exceeded the limit. Please reduce your request rate."
        return ApiError(429, message, "rateLimitExceeded")
    return ApiError(status, "We encountered an internal error. Please try again.", "backendError")


def forbidden(permission: str) -> ApiError:
    resource = "object" if ".objects." in permission else "bucket"
    message = (
        f"emulated-account@tpulm-emulator.iam.gserviceaccount.com does not have {permission} access to the "
        f"Google Cloud Storage {resource}. Permission '{permission}' denied on resource (or it may not exist)."
    )
    return ApiError(403, message, "forbidden")
