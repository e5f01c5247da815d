"""Objects over plain HTTP: what the service answers, whichever client asks."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest
import requests

from cloud_emulator import Emulator

ODD_NAME = "a/b c+ü%.txt"


class Http:
    """A few lines of Cloud Storage client, without retries and without opinions."""

    def __init__(self, emulator: Emulator):
        self.url = emulator.url

    def put(self, name: str, content: bytes, **arguments: Any) -> requests.Response:
        url = f"{self.url}/upload/storage/v1/b/runs/o"
        return requests.post(url, params={"uploadType": "media", "name": name, **arguments}, data=content, timeout=30)

    def of(self, name: str, *further: str) -> str:
        return "/".join([f"{self.url}/storage/v1/b/runs/o", quote(name, safe=""), *further])

    def get(self, name: str, headers: dict[str, str] | None = None, **arguments: Any) -> requests.Response:
        return requests.get(self.of(name), params={"alt": "media", **arguments}, headers=headers, timeout=30)


@pytest.fixture
def http(gcs: Emulator) -> Http:
    return Http(gcs)


def test_an_object_and_its_resource(http: Http):
    made = http.put(ODD_NAME, b"hello", ifGenerationMatch=0).json()
    assert made["name"] == ODD_NAME and made["bucket"] == "runs" and made["size"] == "5"
    assert made["md5Hash"] == "XUFAKrxLKna5cZ2REBfFkg==" and made["crc32c"] == "mnG7TA=="
    assert requests.get(http.of(ODD_NAME), timeout=30).json() == made
    assert requests.get(made["mediaLink"], timeout=30).content == b"hello"
    assert requests.get(f"{http.url}/runs/{quote(ODD_NAME)}", timeout=30).content == b"hello"


def test_downloads_tell_what_they_send(http: Http):
    made = http.put("x", b"0123456789").json()
    answer = http.get("x")
    assert answer.content == b"0123456789" and answer.status_code == 200
    assert answer.headers["x-goog-generation"] == made["generation"] and answer.headers["x-goog-metageneration"] == "1"
    assert answer.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    assert answer.headers["x-goog-stored-content-length"] == "10" and answer.headers["ETag"] == made["etag"]


@pytest.mark.parametrize(
    ("asked", "content", "span"),
    [
        ("bytes=0-3", b"0123", "0-3"),
        ("bytes=7-", b"789", "7-9"),
        ("bytes=-2", b"89", "8-9"),
        ("bytes=8-100", b"89", "8-9"),
        ("bytes=-100", b"0123456789", "0-9"),
    ],
)
def test_ranges(http: Http, asked: str, content: bytes, span: str):
    http.put("x", b"0123456789")
    answer = http.get("x", {"Range": asked})
    assert (answer.status_code, answer.content) == (206, content)
    assert answer.headers["Content-Range"] == f"bytes {span}/10"


@pytest.mark.parametrize(("size", "asked"), [(10, "bytes=10-"), (10, "bytes=10-12"), (0, "bytes=0-0"), (0, "bytes=-1")])
def test_ranges_outside_of_an_object(http: Http, size: int, asked: str):
    http.put("x", b"." * size)
    answer = http.get("x", {"Range": asked})
    assert answer.status_code == 416 and answer.headers["Content-Range"] == f"bytes */{size}"


def test_what_is_not_there(http: Http):
    missing = requests.get(http.of("no"), timeout=30)
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "No such object: runs/no"
    assert missing.json()["error"]["errors"][0]["reason"] == "notFound"
    assert http.get("no").text == "No such object: runs/no"
    nowhere = requests.get(f"{http.url}/storage/v1/b/elsewhere/o", timeout=30)
    assert nowhere.json()["error"]["message"] == "The specified bucket does not exist."
    assert requests.post(http.of("x"), timeout=30).status_code == 405
    assert requests.get(f"{http.url}/storage/v1/b/runs/o?pageToken=%25", timeout=30).status_code == 400
    unknown = requests.get(f"{http.url}/storage/v1/b/runs/acl", timeout=30)
    assert unknown.status_code == 404 and "the emulator has no GET /storage/v1/b/runs/acl" in unknown.text


def test_heads(http: Http):
    http.put("x", b"0123456789")
    answer = requests.head(f"{http.url}/runs/x", timeout=30)
    assert (answer.status_code, answer.headers["Content-Length"], answer.content) == (200, "10", b"")
    assert requests.head(f"{http.url}/runs/y", timeout=30).status_code == 404


def test_preconditions_on_an_upload(http: Http):
    assert http.put("x", b"", ifGenerationMatch=5).status_code == 412
    assert http.put("x", b"", ifGenerationNotMatch=0).status_code == 412
    first = http.put("x", b"1", ifGenerationMatch=0).json()["generation"]
    refused = http.put("x", b"2", ifGenerationMatch=0)
    assert refused.status_code == 412 and refused.json()["error"]["errors"][0]["reason"] == "conditionNotMet"
    second = http.put("x", b"2", ifGenerationMatch=first).json()["generation"]
    assert http.put("x", b"3", ifGenerationMatch=first).status_code == 412, "a stale generation"
    assert http.put("x", b"3", ifMetagenerationMatch=2).status_code == 412
    assert http.put("x", b"3", ifGenerationNotMatch=second).status_code == 412
    assert http.get("x").content == b"2"


def test_preconditions_on_reads(http: Http):
    generation = http.put("x", b"1").json()["generation"]
    assert http.get("x", ifGenerationNotMatch=generation).status_code == 304
    assert http.get("x", ifGenerationMatch=generation).content == b"1"
    assert http.get("x", ifGenerationMatch=1).status_code == 412
    assert http.get("x", generation=generation).content == b"1"
    assert http.get("x", generation=1).status_code == 404
    assert requests.get(http.of("x"), params={"ifMetagenerationNotMatch": 1}, timeout=30).status_code == 304
    assert http.get("x", ifGenerationMatch="soon").status_code == 400


def test_preconditions_on_deletes_and_patches(http: Http):
    generation = http.put("x", b"1").json()["generation"]
    assert requests.delete(http.of("x"), params={"ifGenerationMatch": 1}, timeout=30).status_code == 412
    assert requests.patch(http.of("x"), params={"ifMetagenerationMatch": 2}, json={}, timeout=30).status_code == 412
    patched = requests.patch(
        http.of("x"), params={"ifMetagenerationMatch": 1}, json={"metadata": {"a": "1"}}, timeout=30
    ).json()
    assert patched["metadata"] == {"a": "1"} and patched["metageneration"] == "2" and patched["generation"] == generation
    changes = {"metadata": {"a": None, "b": "2"}, "contentType": "text/plain"}
    patched = requests.patch(http.of("x"), json=changes, timeout=30).json()
    assert patched["metadata"] == {"b": "2"} and patched["contentType"] == "text/plain" and patched["metageneration"] == "3"
    assert requests.delete(http.of("x"), params={"ifGenerationMatch": generation}, timeout=30).status_code == 204
    assert requests.delete(http.of("x"), timeout=30).status_code == 404


def test_of_sixteen_that_create_at_once_one_does(http: Http):
    gate = threading.Barrier(16)
    statuses: Counter[int] = Counter()

    def create(number: int) -> None:
        gate.wait()
        statuses[http.put("lock", b"%d" % number, ifGenerationMatch=0).status_code] += 1

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == {200: 1, 412: 15}


def test_copies_and_moves(http: Http):
    generation = http.put("a/1", b"one").json()["generation"]
    requests.patch(http.of("a/1"), json={"metadata": {"k": "v"}}, timeout=30)
    copied = requests.post(http.of("a/1", "copyTo", "b", "runs", "o", "b%2F1"), timeout=30).json()
    assert copied["name"] == "b/1" and copied["metadata"] == {"k": "v"} and copied["generation"] != generation
    rewritten = requests.post(http.of("a/1", "rewriteTo", "b", "runs", "o", "c"), timeout=30).json()
    assert rewritten["done"] is True and rewritten["resource"]["name"] == "c" and rewritten["totalBytesRewritten"] == "3"
    stale = requests.post(http.of("a/1", "moveTo", "o", "d"), params={"ifSourceGenerationMatch": 1}, timeout=30)
    taken = requests.post(http.of("a/1", "moveTo", "o", "c"), params={"ifGenerationMatch": 0}, timeout=30)
    assert (stale.status_code, taken.status_code) == (412, 412)
    assert requests.post(http.of("a/1", "moveTo", "o", "d"), timeout=30).json()["name"] == "d"
    assert http.get("d").content == b"one" and http.get("a/1").status_code == 404


@pytest.mark.parametrize("name", ["", "x" * 1025, "a\nb", "..", "."])
def test_names_that_objects_cannot_have(http: Http, name: str):
    assert http.put(name, b"").status_code == 400


def test_a_folder_outlives_the_emulator(tmp_path):
    with Emulator(tmp_path / "kept") as emulator:
        emulator.create_bucket("runs", location="europe-west4")
        http = Http(emulator)
        made = http.put(ODD_NAME, b"hello").json()
        http.put("gone", b"")
        requests.delete(http.of("gone"), timeout=30)
        http.put("twice", b"1")
        http.put("twice", b"2")
        requests.post(http.of("twice", "copyTo", "b", "runs", "o", "copy"), timeout=30)
    with Emulator(str(tmp_path / "kept")) as emulator:
        http = Http(emulator)
        again = requests.get(http.of(ODD_NAME), timeout=30).json()
        changed = {key for key in made if made[key] != again[key]}
        assert changed <= {"selfLink", "mediaLink"}, "all but the port"
        assert http.get(ODD_NAME).content == b"hello" and http.get("twice").content == b"2" == http.get("copy").content
        listed = requests.get(f"{http.url}/storage/v1/b/runs/o", timeout=30).json()["items"]
        assert [item["name"] for item in listed] == [ODD_NAME, "copy", "twice"]
        assert requests.get(f"{http.url}/storage/v1/b/runs", timeout=30).json()["location"] == "EUROPE-WEST4"
        assert int(http.put(ODD_NAME, b"new").json()["generation"]) > int(made["generation"])
    assert len(list((tmp_path / "kept" / "runs" / "bodies").iterdir())) == 3, "bodies of what is gone are gone"
