"""Buckets, their policies, batches and the rest of the service."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from cloud_emulator import Emulator
from cloud_emulator.errors import EmulatorError


def test_a_bucket_from_beginning_to_end(gcs: Emulator):
    buckets = f"{gcs.url}/storage/v1/b"
    request = {"name": "second", "location": "us-central1", "storageClass": "NEARLINE", "labels": {"a": "b"}}
    made = requests.post(buckets, json=request, timeout=30).json()
    assert (made["location"], made["locationType"], made["storageClass"]) == ("US-CENTRAL1", "region", "NEARLINE")
    assert made["softDeletePolicy"]["retentionDurationSeconds"] == "604800", "as the service has it unless told otherwise"
    again = requests.post(buckets, json=request, timeout=30)
    assert again.status_code == 409 and "you already own it" in again.json()["error"]["message"]
    assert [item["name"] for item in requests.get(buckets, timeout=30).json()["items"]] == ["runs", "second"]
    patched = requests.patch(f"{buckets}/second", json={"labels": {"a": None, "c": "d"}, "location": "EU"}, timeout=30).json()
    assert (patched["labels"], patched["location"], patched["metageneration"]) == ({"c": "d"}, "US-CENTRAL1", "2")
    put = f"{gcs.url}/upload/storage/v1/b/second/o?uploadType=media&name=x"
    assert requests.post(put, data=b"", timeout=30).json()["storageClass"] == "NEARLINE"
    assert requests.delete(f"{buckets}/second", timeout=30).status_code == 409
    requests.delete(f"{buckets}/second/o/x", timeout=30)
    assert requests.delete(f"{buckets}/second", timeout=30).status_code == 204
    assert requests.get(f"{buckets}/second", timeout=30).status_code == 404


@pytest.mark.parametrize("name", ["ab", "Upper", "-x-", "a..b", "a" * 64, "a b", ""])
def test_names_that_buckets_cannot_have(gcs: Emulator, name: str):
    answer = requests.post(f"{gcs.url}/storage/v1/b", json={"name": name}, timeout=30)
    assert answer.status_code == 400 and "Invalid bucket name" in answer.json()["error"]["message"]
    with pytest.raises(EmulatorError, match="Invalid bucket name"):
        gcs.create_bucket(name)


def test_the_policy_of_a_bucket(gcs: Emulator):
    policy = f"{gcs.url}/storage/v1/b/runs/iam"
    old = requests.get(policy, timeout=30).json()
    binding = {"role": "roles/storage.objectAdmin", "members": ["serviceAccount:a@b"]}
    new = requests.put(policy, json={**old, "bindings": [binding]}, timeout=30).json()
    assert new["bindings"] == [binding] and new["etag"] != old["etag"]
    assert requests.put(policy, json=old, timeout=30).status_code == 412, "somebody else's change is not lost"
    tested = requests.get(
        f"{policy}/testPermissions?permissions=storage.objects.get&permissions=storage.objects.create", timeout=30
    )
    assert tested.json()["permissions"] == ["storage.objects.get", "storage.objects.create"]
    gcs.faults.set(read_only=True)
    tested = requests.get(
        f"{policy}/testPermissions?permissions=storage.objects.get&permissions=storage.objects.create", timeout=30
    )
    assert tested.json()["permissions"] == ["storage.objects.get"]


def test_a_port_that_is_taken(gcs: Emulator):
    with pytest.raises(OSError, match="in use"):
        Emulator(port=urlsplit(gcs.url).port or 0).start()


def test_a_folder_belongs_to_one_emulator(tmp_path: Path):
    with Emulator(tmp_path), pytest.raises(EmulatorError, match="another emulator"):
        Emulator(tmp_path)
    Emulator(tmp_path).stop()
