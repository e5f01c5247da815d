"""A client of Google Cloud's REST APIs, over google-auth's session.

gcloud's environment variables can override the endpoints. Over plain HTTP, as to an emulator, no credentials are sent.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tpulm.cloud.provider import is_rate_limit
from tpulm.cloud.settings import CloudSettings
from tpulm.errors import CloudRefused
from tpulm.storage.causes import expired, is_transient, message_of, needing_extra, no_login

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from requests import Response, Session

Service = Literal[
    "tpu",
    "serviceusage",
    "compute",
    "cloudresourcemanager",
    "cloudbilling",
    "iam",
    "cloudquotas",
    "secretmanager",
    "storage",
    "openidconnect",
]
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TIMEOUT_SECONDS = (10.0, 60.0)  # to connect, and between bytes of an answer
PATIENCE_SECONDS = 60.0  # to keep retrying
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0


@dataclass(eq=False)
class GoogleError(Exception):
    """An error returned by a service; `message` is Google's own text."""

    service: str
    status: int  # of HTTP; 0: no answer
    reason: str  # "SERVICE_DISABLED", "IAM_PERMISSION_DENIED", else the status in words: "NOT_FOUND"
    message: str
    details: Mapping[str, str] = field(default_factory=dict)  # of its ErrorInfo: "permission", "service"

    def __str__(self) -> str:
        return self.message

    @property
    def missing(self) -> bool:
        return self.status == 404

    @property
    def refused(self) -> bool:
        return self.status in (401, 403) and not self.limits_rate

    @property
    def limits_rate(self) -> bool:
        """Whether requests come too fast, which some services answer with 403: cloud.google.com/docs/quotas/troubleshoot."""
        named = self.reason in ("rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED")
        return named or (self.status == 403 and is_rate_limit(self.message))

    @property
    def is_transient(self) -> bool:
        """Whether a retry may soon succeed. The TPU API's 429 mostly means a quota of chips, which lasts."""
        if self.status == 429:
            return self.service != "tpu" or is_rate_limit(self.message)
        return self.limits_rate or self.status in (0, 500, 502, 503, 504)

    @property
    def is_final(self) -> bool:
        """Whether a retry is useless."""
        return 400 <= self.status < 500 and self.status not in (408, 409, 429) and not self.limits_rate

    @property
    def disabled_api(self) -> str:
        """The API that has to be enabled first, such as "iam.googleapis.com"; "" for any other error."""
        return self.details.get("service", f"{self.service}.googleapis.com") if self.reason == "SERVICE_DISABLED" else ""

    @property
    def permission(self) -> str:
        """The missing one, if the service names it, in the details of the error or in its message."""
        match = re.match(r"Permission '([\w.]+)' denied on ", self.message)
        return self.details.get("permission", match[1] if match else "")


class GoogleRest:
    """Raises GoogleError for any error answer, and CloudRefused without credentials."""

    def __init__(self, project: str, *, patience_seconds: float = PATIENCE_SECONDS, wait: Callable[[float], None] = time.sleep):
        self.project = project
        self.patience_seconds = patience_seconds
        self._wait = wait
        self._lock = threading.Lock()
        self._sessions: dict[bool, Session] = {}

    def get(self, service: Service, path: str, **query: Any) -> dict[str, Any]:
        return self.request("GET", service, path, query=query)

    def find(self, service: Service, path: str, **query: Any) -> dict[str, Any] | None:
        """Like `get`, but None for a 404."""
        try:
            return self.get(service, path, **query)
        except GoogleError as error:
            if error.missing:
                return None
            raise

    def pages(self, service: Service, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        while True:
            page = self.get(service, path, **query)
            yield page
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def post(self, service: Service, path: str, body: Mapping[str, Any], **query: Any) -> dict[str, Any]:
        return self.request("POST", service, path, body=body, query=query)

    def request(
        self,
        method: str,
        service: Service,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON of the answer; transient errors are retried with exponential backoff and jitter."""
        url = f"{address(service)}/{path}"
        give_up_at = time.monotonic() + self.patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = self._session(service).request(
                    method, url, params=query or None, json=body, timeout=TIMEOUT_SECONDS, allow_redirects=False
                )
                if answer.ok:
                    return answer.json() if answer.content else {}
                error = _error(service, answer)
            except Exception as raised:
                error = self._unanswered(service, raised)
            if error.status == 401:
                self.close()
            if not error.is_transient or time.monotonic() + pause > give_up_at:
                raise error
            self._wait(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    @cached_property
    def credentials(self) -> Credentials:
        """Application Default Credentials, with the project as quota project. Raises CloudRefused if there are none."""
        with needing_extra("Google Cloud needs more packages", "cloud"):
            import google.auth
            from google.auth import exceptions
        try:
            default, _ = google.auth.default(scopes=[SCOPE], quota_project_id=self.project)
        except exceptions.DefaultCredentialsError as error:
            raise CloudRefused(no_login()) from error
        return default

    def close(self) -> None:
        """Have the next request read the credentials anew: somebody may have logged in again."""
        self.__dict__.pop("credentials", None)
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _unanswered(self, service: Service, raised: Exception) -> GoogleError:
        """A missing answer as an error. Raises what no retry can fix."""
        import requests
        from google.auth import exceptions

        if isinstance(raised, exceptions.RefreshError):
            if is_transient(raised):
                message = f"this VM's metadata server gives no token now: {message_of(raised)}"
                return GoogleError(service, 0, "UNAVAILABLE", message)
            self.close()
            raise CloudRefused(expired(str(raised))) from raised
        if isinstance(raised, (requests.RequestException, exceptions.TransportError)):
            return GoogleError(service, 0, "UNAVAILABLE", f"no answer from {address(service)}: {type(raised).__name__}")
        raise raised

    def _session(self, service: Service) -> Session:
        with needing_extra("Google Cloud needs more packages", "cloud"):
            from google.auth.credentials import AnonymousCredentials
            from google.auth.transport.requests import AuthorizedSession
        anonymous = is_anonymous(service)
        with self._lock:
            if anonymous not in self._sessions:
                login = AnonymousCredentials() if anonymous else self.credentials
                self._sessions[anonymous] = AuthorizedSession(login, max_refresh_attempts=0 if anonymous else 2)
            return self._sessions[anonymous]


def address(service: Service) -> str:
    """A service's base URL, without a trailing slash."""
    name = "STORAGE_EMULATOR_HOST" if service == "storage" else f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"
    return (os.environ.get(name) or f"https://{service}.googleapis.com").rstrip("/")


def is_anonymous(service: Service) -> bool:
    return address(service).startswith("http://")


def _error(service: str, answer: Response) -> GoogleError:
    try:
        error = answer.json()["error"]
        message = str(error.get("message") or "").strip()
        reason = str(error.get("status") or next((item["reason"] for item in error.get("errors", ())), ""))
        for detail in error.get("details", ()):
            if str(detail.get("@type", "")).endswith("google.rpc.ErrorInfo"):
                metadata = {str(name): str(value) for name, value in detail.get("metadata", {}).items()}
                return GoogleError(service, answer.status_code, str(detail.get("reason") or reason), message, metadata)
    except (ValueError, KeyError, TypeError, AttributeError):  # such as a proxy's page
        message, reason = f"HTTP status {answer.status_code} from {service}.googleapis.com", ""
    return GoogleError(service, answer.status_code, reason, message)


def moment(text: str | None) -> float | None:
    """Seconds since 1970 of "2026-11-23T04:05:06.789-08:00"; None if invalid."""
    with contextlib.suppress(ValueError, TypeError):
        return datetime.datetime.fromisoformat(text or "").timestamp()
    return None


def identity(rest: GoogleRest) -> str:
    """The caller's address, if it is known, and where the credentials are from. Raises CloudRefused without any."""
    if is_anonymous("serviceusage"):
        return "anonymous (emulator)"
    credentials = rest.credentials
    named = (getattr(credentials, name, None) for name in ("service_account_email", "signer_email", "account"))
    email = next((name for name in named if isinstance(name, str) and "@" in name), "")
    if not email:
        with contextlib.suppress(GoogleError):  # gcloud's login may read its own address
            email = str(rest.get("openidconnect", "v1/userinfo").get("email", ""))
    source = "gcloud's login (application-default)"
    if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        source = f"the file {file} (GOOGLE_APPLICATION_CREDENTIALS)"
    elif type(credentials).__module__.startswith("google.auth.compute_engine."):
        source = "this machine's service account, from the metadata server"
    elif type(credentials).__module__.startswith("google.auth.impersonated_credentials"):
        source = "gcloud's login, as a service account"
    return f"{email}, by {source}" if email else source


TPU = "tpu.googleapis.com"
# Compute Engine has the network that TPU VMs are in.
_NEEDED = (TPU, "compute.googleapis.com", "storage.googleapis.com", "iam.googleapis.com", "cloudresourcemanager.googleapis.com")
FOR_READING = ("cloudbilling.googleapis.com", "cloudquotas.googleapis.com")  # both are free
_SECONDS = 600.0  # for which enabling may take
_SETTLE_SECONDS = 180.0  # until an enabled API answers everywhere


def needed_apis(settings: CloudSettings) -> tuple[str, ...]:
    """The APIs that runs in the cloud and their setup need."""
    return (*_NEEDED, *(["secretmanager.googleapis.com"] if settings.secret_names else []))


def enabled_apis(rest: GoogleRest, apis: Iterable[str]) -> dict[str, bool]:
    """API -> whether it is enabled."""
    names = list(apis)
    path = f"v1/projects/{rest.project}/services"
    answer = rest.get("serviceusage", f"{path}:batchGet", names=[f"projects/{rest.project}/services/{name}" for name in names])
    on = {item["config"]["name"] for item in answer.get("services", ()) if item.get("state") == "ENABLED"}
    return {name: name in on for name in names}


def enable_apis(rest: GoogleRest, apis: Iterable[str]) -> None:
    """Enable all of the APIs or none, and wait until that is done. Raises CloudRefused after ten minutes."""
    body = {"serviceIds": list(apis)}
    operation = rest.post("serviceusage", f"v1/projects/{rest.project}/services:batchEnable", body)
    give_up_at = time.monotonic() + _SECONDS
    pause = 0.2
    while not operation.get("done"):
        if time.monotonic() > give_up_at:
            raise CloudRefused(
                f"Google has been turning on {', '.join(body['serviceIds'])} for ten minutes; run this again later"
            )
        time.sleep(pause)
        pause = min(5.0, 2 * pause)
        operation = rest.get("serviceusage", f"v1/{operation['name']}")
    if failed := operation.get("error"):
        raise GoogleError("serviceusage", 400, str(failed.get("code", "")), str(failed.get("message", "")))


def when_enabled(act: Callable[[], object], *, wait: Callable[[float], None] = time.sleep) -> None:
    """Call `act`, and retry while an API that was just enabled still answers that it is disabled."""
    give_up_at = time.monotonic() + _SETTLE_SECONDS
    while True:
        try:
            act()
            return
        except GoogleError as error:
            if not error.disabled_api or time.monotonic() > give_up_at:
                raise
        wait(5.0)
