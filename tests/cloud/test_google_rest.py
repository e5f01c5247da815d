"""Google's REST services: addresses, credentials, patience, and errors in Google's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from cloud_emulator import Emulator
from local_server import LocalServer, send
from tpulm.cloud.google_rest import TPU, GoogleError, GoogleRest, address, enabled_apis, identity, is_anonymous, when_enabled
from tpulm.cloud.policies import account_path
from tpulm.errors import CloudRefused

PROJECT = "tpulm-emulator"


class Planned(LocalServer):
    """Gives the planned answers, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[int, Any]] = []

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        status, content = self.answers.pop(0)
        send(request, status, content if isinstance(content, bytes) else json.dumps(content).encode())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, Any]]]:
    """What Service Usage answers."""
    with Planned() as server:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SERVICEUSAGE", f"{server.url}/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server.answers


@pytest.fixture
def rest() -> Iterator[GoogleRest]:
    made = GoogleRest(PROJECT, wait=lambda seconds: None)
    yield made
    made.close()


def test_what_passes_is_waited_for(planned: list[tuple[int, Any]], rest: GoogleRest):
    for status in (429, 500, 503):
        planned += [(status, b"<html>busy</html>"), (status, {"error": {"message": "busy"}}), (200, {"a": "b"})]
        assert rest.get("serviceusage", "v1/x") == {"a": "b"} and planned == []


RATE = "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service 'compute.googleapis'"


def test_a_limit_of_requests_is_no_missing_permission(planned: list[tuple[int, Any]], rest: GoogleRest):
    """Compute Engine gives it 403: https://cloud.google.com/docs/quotas/troubleshoot."""
    for more in (
        {"details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}], "message": "x"},
        {"errors": [{"domain": "usageLimits", "reason": "rateLimitExceeded"}], "message": "x"},
        {"status": "PERMISSION_DENIED", "message": RATE},
        {"message": "RATE_LIMIT_EXCEEDED"},
    ):
        planned += [(403, {"error": {"code": 403, **more}}), (200, {"a": "b"})]
        assert rest.get("serviceusage", "v1/x") == {"a": "b"}
        planned.append((403, {"error": {"code": 403, **more}}))
        with pytest.raises(GoogleError) as raised:
            GoogleRest(PROJECT, patience_seconds=0.0).get("serviceusage", "v1/x")
        assert not raised.value.refused and not raised.value.is_final


def test_a_page_of_whatever_is_in_between(planned: list[tuple[int, Any]]):
    planned += [(403, b"<html>proxy</html>"), (503, {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}})]
    impatient = GoogleRest(PROJECT, patience_seconds=0.0)
    with pytest.raises(GoogleError, match="403") as raised:
        impatient.get("serviceusage", "v1/x")
    assert raised.value.refused and not raised.value.disabled_api and not raised.value.permission
    with pytest.raises(GoogleError, match="busy") as raised:
        impatient.get("serviceusage", "v1/x")
    assert (raised.value.status, raised.value.reason) == (503, "UNAVAILABLE")


def test_what_is_missing_is_named_in_the_details_or_in_the_message():
    """Answers of Cloud IAM's ErrorInfo, and of services that have none: https://cloud.google.com/apis/design/errors."""
    for message, details in (
        ("Permission 'a.b.get' denied on resource '//c/d' (or it may not exist).", {}),
        ("Denied.", {"permission": "a.b.get"}),
        ("Permission 'another' denied on x", {"permission": "a.b.get"}),
    ):
        assert GoogleError("tpu", 403, "IAM_PERMISSION_DENIED", message, details).permission == "a.b.get"
    assert (
        GoogleError("tpu", 403, "SERVICE_DISABLED", "", {"service": "iam.googleapis.com"}).disabled_api == "iam.googleapis.com"
    )
    assert GoogleError("tpu", 403, "SERVICE_DISABLED", "").disabled_api == "tpu.googleapis.com"
    assert GoogleError("tpu", 403, "PERMISSION_DENIED", "").disabled_api == ""


def test_reasons(gcs: Emulator, rest: GoogleRest):
    gcs.tpu.deny("serviceusage.services.get")
    with pytest.raises(GoogleError, match=r"serviceusage\.services\.get") as raised:
        enabled_apis(rest, [TPU])
    assert raised.value.permission == "serviceusage.services.get" and raised.value.reason == "IAM_PERMISSION_DENIED"
    gcs.tpu.disable_service("iam.googleapis.com")
    with pytest.raises(GoogleError) as raised:
        rest.get("iam", f"v1/projects/{PROJECT}/serviceAccounts/a@b.c")
    assert raised.value.disabled_api == "iam.googleapis.com"
    with pytest.raises(GoogleError, match="bucket does not exist") as raised:
        rest.get("storage", "storage/v1/b/none")
    assert raised.value.missing


def test_an_api_that_needs_a_while_to_be_on(gcs: Emulator, rest: GoogleRest):
    gcs.tpu.disable_service("iam.googleapis.com")
    seen: list[object] = []

    def act() -> None:
        seen.append(rest.find("iam", f"v1/projects/{PROJECT}/serviceAccounts/a@b.c"))

    when_enabled(act, wait=lambda seconds: gcs.tpu.enable_service("iam.googleapis.com"))
    assert seen == [None]


def test_where_an_account_is():
    for email, project in (
        ("worker@my-project.iam.gserviceaccount.com", "my-project"),
        ("worker@my-project.example.com.iam.gserviceaccount.com", "example.com:my-project"),
        ("123-compute@developer.gserviceaccount.com", "-"),
    ):
        assert account_path(email) == f"v1/projects/{project}/serviceAccounts/{email}"


def test_who_one_is(gcs: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    assert "emulator" in identity(GoogleRest(PROJECT))
    assert address("iam") == gcs.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM"].rstrip("/") and is_anonymous("iam")
    for name in gcs.environment:
        monkeypatch.delenv(name, raising=False)
    assert address("iam") == "https://iam.googleapis.com" and not is_anonymous("iam")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(CloudRefused, match="gcloud auth"):
        identity(GoogleRest(PROJECT))
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    file = tmp_path / "application_default_credentials.json"
    file.write_text(json.dumps(login | {"account": "me@example.com"}))
    assert identity(GoogleRest(PROJECT)) == "me@example.com, by gcloud's login (application-default)"
    file.rename(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    of_file = f"me@example.com, by the file {tmp_path / 'key.json'} (GOOGLE_APPLICATION_CREDENTIALS)"
    assert identity(GoogleRest(PROJECT)) == of_file


def test_nobody_answers(gcs: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "http://127.0.0.1:9/")
    with pytest.raises(GoogleError, match="127") as raised:
        GoogleRest(PROJECT, patience_seconds=0.0).get("iam", "v1/x")
    assert raised.value.status == 0 and not raised.value.refused
