"""Which host of how many this is: from options, from a pod's environment, from a TPU VM's metadata."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib import resources

import pytest

from local_server import LocalServer, send
from tpulm.errors import ConfigError, TpulmError
from tpulm.runtime.hosts import Membership, membership

VARIABLES = ("TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_SKIP_MDS_QUERY", "GCE_METADATA_HOST")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is no TPU's."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No time passes between attempts; how long it would have."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


FAILURE = json.loads((resources.files("cloud_emulator") / "recorded" / "metadata.json").read_text())["failures"]["read"]


class Metadata(LocalServer):
    """A VM's metadata server: attributes, after so many failures."""

    def __call__(self, number: str | None, endpoints: str | None, fails: int = 0) -> None:
        self.attributes = {"agent-worker-number": number, "worker-network-endpoints": endpoints}
        self.fails = fails

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        value = self.attributes.get(path.removeprefix("/computeMetadata/v1/instance/attributes/"))
        if self.fails:
            self.fails -= 1
            send(request, FAILURE["status"], FAILURE["body"].encode())
        elif value is None or request.headers["Metadata-Flavor"] != "Google":
            send(request, 404, b"<html>")
        else:
            send(request, 200, value.encode())


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    with Metadata() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        yield server


def test_options_are_taken_as_they_are(metadata: Metadata):
    metadata("0", "10.0.0.1,10.0.0.2")
    assert membership("h:8476", 3, 2) == Membership("h:8476", 3, 2)
    assert membership("h:8476", 1, 0) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("h:1", None, None), "^--num-hosts and --host-index missing: .*--coordinator"),
        (("h:1", 2, None), r"^--host-index missing"),
        (("h:1", 2, 2), "^--host-index 2 .* 2 hosts"),
        (("h:1", 2, -1), "^--host-index -1 .* 2 hosts"),
        (("h:1", 0, 0), "^--host-index 0 .* 0 hosts"),
        (("h", 2, 0), r"^--coordinator h: .*10\.0\.0\.2:8476"),
        *(((name, 2, 0), f"^--coordinator {name}: ") for name in (":8476", "h:²", "h:0", "h:65535")),
    ],
)
def test_options_that_make_no_sense(given: tuple[str | None, int | None, int | None], message: str):
    with pytest.raises(ConfigError, match=message):
        membership(*given)


def check_membership(found: Membership | str | None) -> None:
    """It is this one, or a mistake with this message."""
    with pytest.raises(ConfigError, match=found) if isinstance(found, str) else contextlib.nullcontext():
        assert membership() == found


@pytest.mark.parametrize(
    ("names", "index", "found"),
    [
        ("pod-0.svc,pod-1.svc", "1", Membership("pod-0.svc:8476", 2, 1)),
        ("", "", None),
        ("localhost,", "", None),
        *(("a,b", index, f"'{index}'") for index in ("", "2", "-1", "x", "²")),
    ],
)
def test_the_environment_of_a_pod(monkeypatch: pytest.MonkeyPatch, names: str, index: str, found: Membership | str | None):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", names)
    monkeypatch.setenv("TPU_WORKER_ID", index)
    check_membership(found)


@pytest.mark.parametrize(
    ("number", "endpoints", "found"),
    [
        ("2\n", "10.0.0.1,10.0.0.2,10.0.0.3\n", Membership("10.0.0.1:8476", 3, 2)),
        ("1", "unknown:unknown:10.0.0.1,unknown:unknown:10.0.0.2", Membership("10.0.0.1:8476", 2, 1)),
        ("0", "unknown:unknown:10.0.0.1", None),
        *((number, endpoints, None) for number, endpoints in ((None, None), (None, "10.0.0.1,10.0.0.2"), ("1", None))),
        *((number, "10.0.0.1,10.0.0.2", rf"agent-worker-number .*'{number}'") for number in ("x", "", "2", "-1")),
    ],
)
def test_the_metadata_of_a_tpu_vm(
    metadata: Metadata, number: str | None, endpoints: str | None, found: Membership | str | None
):
    metadata(number, endpoints)
    check_membership(found)


def test_metadata_is_not_asked_for_where_jax_does_not_ask(metadata: Metadata, monkeypatch: pytest.MonkeyPatch):
    metadata("0", "10.0.0.1,10.0.0.2")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert membership() is None


def test_a_server_that_fails_is_asked_again_and_is_no_sign_of_being_alone(metadata: Metadata, quick: list[float]):
    metadata("1", "10.0.0.1,10.0.0.2", 5)
    assert membership() == Membership("10.0.0.1:8476", 2, 1)
    metadata("1", "10.0.0.1,10.0.0.2", 100)
    with pytest.raises(TpulmError, match="6 times") as caught:
        membership()
    assert caught.value.exit_code == 1, "another attempt may succeed"


def test_there_is_no_such_server(monkeypatch: pytest.MonkeyPatch, quick: list[float]):
    """A machine with a device that only looks like a TPU's; one whose server does not listen is not alone."""
    assert membership() is None
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.invalid")
    assert membership() is None
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    with pytest.raises(TpulmError, match=r"127\.0\.0\.1:1"):
        membership()
