"""Faults, each kind as the real clients meet it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import google.api_core.exceptions as refusals
import pytest
import requests
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from cloud_emulator import Emulator
from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import FaultSettings

# google-cloud-storage leaves the connection of a refused download to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

SOON = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.05).with_timeout(20)


def test_settings_that_make_no_sense(gcs: Emulator):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"error_rat": 0.1}, "'error_rate'"),
        ({"error_rate": 5}, "error_rate: "),
        ({"error_status": 200}, "error_status: "),
        ({"match": "("}, "match: "),
        ({"latency_seconds": -1}, "latency_seconds: "),
        ({"read_only": "yes"}, "read_only: "),
        ({"count": 0}, "count: "),
    ]
    for settings, message in cases:
        with pytest.raises(EmulatorError, match=message):
            gcs.faults.set(**settings)
        answer = requests.post(f"{gcs.url}/_control/faults", json=settings, timeout=30)
        assert answer.status_code == 400 and gcs.faults.settings == FaultSettings()


def test_faults_over_http(gcs: Emulator):
    status = requests.post(f"{gcs.url}/_control/faults", json={"error_rate": 1, "error_status": 429}, timeout=30).json()
    assert status["faults"]["error_status"] == 429
    refused = requests.get(f"{gcs.url}/storage/v1/b/runs", timeout=30)
    assert refused.status_code == 429 and refused.json()["error"]["errors"][0]["reason"] == "rateLimitExceeded"
    status = requests.get(f"{gcs.url}/_control/status", timeout=30).json()
    assert status["injected"] == {"error": 1} and status["requests"] == {"GET bucket": 1}
    assert status["buckets"] == {"runs": {"location": "US-CENTRAL1", "objects": 0, "bytes": 0}}
    requests.delete(f"{gcs.url}/_control/faults", timeout=30)
    assert requests.get(f"{gcs.url}/storage/v1/b/runs", timeout=30).status_code == 200


def test_the_same_seed_gives_the_same_faults(gcs: Emulator):
    def statuses(seed: int) -> list[int]:
        gcs.faults.set(error_rate=0.5, seed=seed)
        return [requests.get(f"{gcs.url}/storage/v1/b/runs", timeout=30).status_code for _ in range(20)]

    assert statuses(1) == statuses(1) != statuses(2)


def test_faults_end_by_themselves(gcs: Emulator):
    gcs.faults.set(error_rate=1, seconds=0.2)
    started = time.monotonic()
    while requests.get(f"{gcs.url}/storage/v1/b/runs", timeout=30).status_code == 503:
        time.sleep(0.01)
    assert time.monotonic() - started > 0.1 and gcs.faults.settings == FaultSettings()
    gcs.faults.set(error_rate=1, count=2)
    assert [requests.get(f"{gcs.url}/storage/v1/b/runs", timeout=30).status_code for _ in range(3)] == [503, 503, 200]


@pytest.fixture
def bucket(gcs: Emulator) -> Iterator[Any]:  # the client's annotations deny what its documentation allows: retry=None
    with closing(storage.Client()) as client:
        client.bucket("runs").blob("x").upload_from_string(b"content")
        yield client.bucket("runs")


def test_a_lost_answer_and_requests_that_wait_side_by_side(gcs: Emulator, bucket: Any):
    gcs.faults.set(drop_after_rate=1, count=1, match="^lock$")
    with pytest.raises(refusals.PreconditionFailed):  # the client's second request finds what its first one made
        bucket.blob("lock").upload_from_string(b"mine", if_generation_match=0, retry=SOON)
    assert bucket.blob("lock").download_as_bytes() == b"mine" and gcs.faults.injected == {"drop_after": 1}
    gcs.faults.set(latency_seconds=1.0)
    started = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: bucket.blob("x").reload(), range(16)))
    assert 1.0 <= time.monotonic() - started < 16.0


def test_some_names_only(gcs: Emulator, bucket: Any):
    gcs.faults.set(fail_commits=True, match=r"^checkpoints/.*commit")
    bucket.blob("checkpoints/1/array").upload_from_string(b"", retry=None)
    bucket.blob("commit").upload_from_string(b"", retry=None)
    for chunk_size in (None, 256 * 1024):
        with pytest.raises(refusals.ServiceUnavailable):
            bucket.blob("checkpoints/1/commit", chunk_size=chunk_size).upload_from_string(b"", retry=None)
    with pytest.raises(refusals.ServiceUnavailable):
        bucket.copy_blob(bucket.blob("x"), bucket, "checkpoints/commit", retry=None)
    assert not bucket.blob("checkpoints/1/commit").exists()
    with pytest.raises(refusals.ServiceUnavailable), bucket.client.batch():
        bucket.blob("x").delete()
        bucket.blob("checkpoints/commit").delete()
    assert [blob.name for blob in bucket.list_blobs()] == ["checkpoints/1/array", "commit"]


def test_what_a_client_that_went_away_had_sent_is_carried_out(gcs: Emulator):
    gcs.faults.set(latency_seconds=0.3)
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{gcs.url}/upload/storage/v1/b/runs/o?uploadType=media&name=late", data=b"x", timeout=0.05)
    assert gcs.object_names("runs") == []
    with pytest.raises(TimeoutError):
        gcs.wait_until_idle(0.01)
    gcs.wait_until_idle()
    assert gcs.object_names("runs") == ["late"]
