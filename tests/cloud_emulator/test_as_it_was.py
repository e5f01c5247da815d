"""Each old behaviour of the emulator that can be brought back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import google.api_core.exceptions as refusals
import pytest
import requests
from google.cloud import tpu_v2
from rig import Rig

from cloud_emulator import Emulator, as_it_was
from cloud_emulator.errors import EmulatorError


@contextmanager
def old(*names: str) -> Iterator[Rig]:
    with Emulator(as_it_was=names) as emulator:
        rig = Rig(emulator)
        rig.tpu.set(create_seconds=0.05, delete_seconds=0.02)
        with rig.client:
            yield rig


def test_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    assert as_it_was.chosen() == frozenset()
    monkeypatch.setenv(as_it_was.VARIABLE, "metadata, zones")
    assert as_it_was.chosen() == {"metadata", "zones"} and as_it_was.chosen(["paging"]) == {"paging"}
    monkeypatch.setenv(as_it_was.VARIABLE, "all")
    assert as_it_was.chosen() == set(as_it_was.OLD)
    monkeypatch.setenv(as_it_was.VARIABLE, "zone")
    with pytest.raises(EmulatorError, match="Did you mean 'zones'"):
        Emulator()


def test_metadata_and_guest_attributes():
    with old("metadata", "guest-attributes") as rig:
        rig.create()
        root = f"http://{rig.get().network_endpoints[0].ip_address}:8479/computeMetadata/v1"
        flavor = {"Metadata-Flavor": "Google"}
        assert requests.get(f"{root}/project/project-id", headers=flavor, timeout=20).text == "tpulm-emulator"
        url = f"{root}/instance/guest-attributes/a/b"
        assert requests.put(url, data="x", headers=flavor, timeout=20).status_code == 405
        with pytest.raises(refusals.MethodNotAllowed):
            rig.client.get_guest_attributes(request={"name": f"{rig.place}/nodes/run-a1"})


def test_deletion_and_failed_data_and_addresses():
    with old("deletion", "failed-data", "addresses") as rig:
        rig.tpu.set(create_seconds=600, addresses=0)
        rig.queue(node=rig.node(spot=False, network_config=tpu_v2.NetworkConfig(enable_external_ips=True)))
        assert rig.queued_state() == "PROVISIONING"
        rig.tpu.fail_queued("run-q1", "failed-addresses")
        found = rig.client.get_queued_resource(name=f"{rig.place}/queuedResources/run-q1").state
        assert (found.state.name, found.failed_data.error.code) == ("FAILED", 13)
        rig.queue("run-q2")
        rig.client.delete_queued_resource({"name": f"{rig.place}/queuedResources/run-q2", "force": True})
        rig.tpu.advance(1)
        assert rig.tpu.queued_resources() == {"run-q1": "FAILED"}


def test_refusals_and_quota_names():
    with old("refusals", "quota-names") as rig:
        with pytest.raises(refusals.NotFound):
            rig.begin(zone="us-west3-a")
        with pytest.raises(refusals.NotFound):
            rig.begin(kind="v3-8", zone="us-west4-a")
        rig.tpu.answer_next("location-policy")
        with pytest.raises(refusals.NotFound):
            rig.begin()
        rig.tpu.set_quota("v5litepod-8", 0)
        with pytest.raises(refusals.TooManyRequests, match="'TPUV5sPreemptibleLitepodPerProject"):
            rig.begin(kind="v5litepod-16", zone="us-west4-a")


def test_zones_paging_and_operations():
    with old("zones", "paging", "operations") as rig:
        page = rig.client.list_locations({"name": "projects/tpulm-emulator"})
        zones = {location.location_id for location in page.locations}
        assert not page.next_page_token and "us-east5-b" in zones and "us-south1-ai1b" not in zones
        assert rig.begin().metadata.verb == "create"
