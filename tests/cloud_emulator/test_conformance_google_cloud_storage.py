"""google-cloud-storage, unmodified, against the emulator."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import google.api_core.exceptions as refusals
import pytest
from google.cloud import storage

from cloud_emulator import Emulator

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the client's own, where a request was refused
CHUNK = 256 * 1024


@pytest.fixture
def bucket(gcs: Emulator) -> Iterator[Any]:
    with closing(storage.Client()) as client:
        yield client.bucket("runs")


@pytest.mark.parametrize("size", [0, CHUNK, 5 * CHUNK + 17])
def test_resumable_uploads_and_downloads_in_chunks(gcs: Emulator, bucket: Any, size: int):
    content = bytes(i % 251 for i in range(size))
    bucket.blob("x", chunk_size=CHUNK).upload_from_file(io.BytesIO(content), checksum="crc32c")
    bucket.blob("y", chunk_size=CHUNK).upload_from_file(io.BytesIO(content), size=size, checksum="md5")
    assert gcs.requests["PUT chunk"] > size // CHUNK
    assert bucket.blob("x").download_as_bytes(checksum="md5") == content
    assert bucket.blob("y", chunk_size=CHUNK).download_as_bytes() == content


def test_listing_in_pages_and_with_a_delimiter(bucket: Any):
    names = [f"a/{i:02d}" for i in range(25)] + ["b", "c/1", "c/d/2"]
    for name in names:
        bucket.blob(name).upload_from_string(b"")
    assert [blob.name for blob in bucket.list_blobs(page_size=10)] == sorted(names)
    assert list(bucket.list_blobs(prefix="zzz")) == []
    assert [blob.name for blob in bucket.list_blobs(prefix="a/", max_results=3)] == names[:3]
    listing = bucket.list_blobs(delimiter="/", page_size=1)
    assert [blob.name for blob in listing] == ["b"] and listing.prefixes == {"a/", "c/"}
    assert [blob.name for blob in bucket.list_blobs(start_offset="a/23", end_offset="c")] == ["a/23", "a/24", "b"]
    assert [blob.name for blob in bucket.list_blobs(match_glob="c/**")] == ["c/1", "c/d/2"]


def test_batches(gcs: Emulator, bucket: Any):
    for i in range(20):
        bucket.blob(f"x/ü {i}").upload_from_string(b"")
    blobs = list(bucket.list_blobs())
    for start in (0, 10):
        with bucket.client.batch():
            for blob in blobs[start : start + 10]:
                blob.delete()
    assert list(bucket.list_blobs()) == [] and gcs.requests["POST batch"] == 2
    bucket.blob("y").upload_from_string(b"")
    with pytest.raises(refusals.NotFound), bucket.client.batch():
        bucket.blob("y").delete()
        bucket.blob("never there").delete()
    assert not bucket.blob("y").exists(), "one refusal in a batch undoes none of its other calls"


def test_buckets(bucket: Any):
    client = bucket.client
    assert not client.bucket("second").exists() and client.lookup_bucket("second") is None
    made = client.create_bucket("second", location="europe-west4")
    assert (made.location, made.location_type, made.storage_class) == ("EUROPE-WEST4", "region", "STANDARD")
    with pytest.raises(refusals.Conflict):
        client.create_bucket("second")
    made.labels = {"purpose": "rehearsal"}
    made.patch()
    seen = client.get_bucket("second")
    assert seen.labels == {"purpose": "rehearsal"} and seen.location == "EUROPE-WEST4" and seen.metageneration == 2
    assert seen.soft_delete_policy.retention_duration_seconds == 604800, "as the service has it unless told otherwise"
    assert [found.name for found in client.list_buckets()] == ["runs", "second"]
    made.blob("x").upload_from_string(b"")
    with pytest.raises(refusals.Conflict):
        made.delete()
    made.delete(force=True)
    assert not made.exists()
    with pytest.raises(refusals.NotFound, match="specified bucket"):
        list(client.list_blobs("second"))


def test_policies(bucket: Any):
    policy = bucket.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectAdmin", "members": {"serviceAccount:worker@p"}})
    bucket.set_iam_policy(policy)
    with pytest.raises(refusals.PreconditionFailed):
        bucket.set_iam_policy(policy)
    assert bucket.get_iam_policy().bindings[0]["members"] == {"serviceAccount:worker@p"}
    wanted = ["storage.objects.create", "storage.buckets.get"]
    assert bucket.test_iam_permissions(wanted) == wanted
