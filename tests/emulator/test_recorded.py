"""Every recorded answer of Google, as Google's own client gets it from the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import google.api_core.exceptions as refusals
import pytest
import requests
from rig import ZONE, Rig

from tpulm.emulator import recorded
from tpulm.errors import ConfigError

HTTP = [name for name in recorded.names() if "http" in recorded.answer(name)]
OPERATIONS = [name for name in recorded.names() if "operation" in recorded.answer(name)]
FAILED = [name for name in recorded.names() if "failed_data" in recorded.answer(name)]


def told(rig: Rig, **more: object) -> dict[str, object]:
    """What the placeholders stand for in a request of `rig`."""
    known = rig.tpu.projects.known()
    return {"project": known.name, "number": known.number, "zone": ZONE, "type": "v3-8", "resource": "nodes/run-a1", **more}


def asked(rig: Rig, wanted: str) -> Callable[[], Any]:
    """A request of the kind that an answer is for."""
    queued = f"{rig.place}/queuedResources/run-q1"
    return {
        "": lambda: list(rig.client.list_nodes(parent=rig.place)),
        "GET": rig.get,
        "CREATE": rig.begin,
        "DELETE queued": lambda: rig.client.delete_queued_resource({"name": queued}),
    }[wanted]


@pytest.mark.parametrize("name", HTTP)
def test_a_refusal(rig: Rig, name: str):
    wanted = recorded.answer(name).get("requests", "CREATE")
    permission = {"": "tpu.nodes.list", "CREATE": "tpu.nodes.create"}.get(wanted, "")
    resource = {"CREATE": "nodes/run-a1", "GET": "nodes/run-a1"}.get(wanted, "queuedResources/run-q1")
    rig.tpu.answer_next(name, count=None)
    with pytest.raises(refusals.GoogleAPICallError) as caught:
        asked(rig, wanted)()
    expected = recorded.answer(name, **told(rig, permission=permission, resource=resource))["http"]
    assert "{" not in expected["body"]["error"]["message"]
    assert caught.value.code == expected["status"] and caught.value.response is not None
    assert caught.value.response.json() == expected["body"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_fails(rig: Rig, name: str):
    error = recorded.answer(name, **told(rig))["operation"]["error"]
    rig.tpu.answer_next(name, ZONE)
    rig.create("elsewhere", zone="us-central1-b")
    begin = rig.begin if recorded.answer(name).get("requests") is None else rig.begin_queued
    operation = begin().operation.name
    rig.tpu.advance(1)
    found = requests.get(f"{rig.emulator.url}/v2/{operation}", timeout=20).json()
    assert found["done"] and found["error"] == error
    assert rig.tpu.nodes() == {"elsewhere": "READY"} and rig.tpu.queued_resources() == {}


def test_orders_by_zone_and_until_they_are_taken_back(rig: Rig):
    rig.tpu.answer_next("location-policy", ZONE, count=None)
    for _ in range(2):
        with pytest.raises(refusals.Forbidden, match="Permission denied on 'locations/us-central1-a'"):
            rig.begin()
    rig.create("elsewhere", zone="us-central1-b")
    rig.tpu.take_back("location-policy")
    rig.create()
    rig.tpu.answer_next("not-found", count=1)
    with pytest.raises(refusals.NotFound):
        rig.get()
    assert rig.state() == "READY"
    with pytest.raises(ConfigError, match="Did you mean 'location-policy'"):
        rig.tpu.answer_next("location-polcy")
    with pytest.raises(ConfigError, match="Did you mean 'us-central1-a'"):
        rig.tpu.answer_next("quota", "us-centrl1-a")
    with pytest.raises(ConfigError, match="1 or more"):
        rig.tpu.answer_next("quota", count=0)


def test_a_token_that_expired_is_renewed_by_the_client(rig: Rig):
    rig.create()
    rig.tpu.answer_next("unauthenticated", requests="GET node")
    assert rig.state() == "READY"
    rig.tpu.answer_next("unauthenticated", count=3)  # the client asks three times
    with pytest.raises(refusals.Unauthorized, match="invalid authentication credentials"):
        rig.get()
    assert rig.state() == "READY"


def test_orders_over_http(rig: Rig):
    control = f"{rig.emulator.url}/_control/tpu"
    status = requests.post(f"{control}/answer_next", json={"name": "internal", "zone": ZONE}, timeout=20).json()
    assert status["orders"] == [{"name": "internal", "requests": "CREATE node", "zone": ZONE, "left": 1}]
    with pytest.raises(refusals.InternalServerError, match="an internal error has occurred"):
        rig.create()
    requests.post(f"{control}/answer_next", json={"name": "internal"}, timeout=20)
    assert requests.post(f"{control}/take_back", json={}, timeout=20).json()["orders"] == []
    rig.create()


def test_placeholders():
    assert recorded.answer("location-unauthorized", zone="moon-a")["http"]["body"]["error"]["message"].startswith(
        "Location moon-a"
    )
    assert recorded.answer("session-over", "credentials")["http"]["body"]["error_subtype"] == "invalid_rapt"
    assert "instance/name" in recorded.metadata()["keys"]
    assert all("grade" in recorded.answer(name) and "source" in recorded.answer(name) for name in recorded.names())
