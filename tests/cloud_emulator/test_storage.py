"""Cloud Storage over plain HTTP: what the service answers, whichever client asks."""

from __future__ import annotations

import itertools
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from cloud_emulator import Emulator
from cloud_emulator.errors import EmulatorError
from cloud_emulator.storage.api import QUANTUM_BYTES
from waiting import until

ODD_NAME = "a/b c+ü%.txt"
UPLOAD = "/upload/storage/v1/b/runs/o?uploadType=media"


class Http:
    """A few lines of Cloud Storage client, without retries and without opinions."""

    def __init__(self, emulator: Emulator):
        self.url, self.uploads = emulator.url, f"{emulator.url}/upload/storage/v1/b/runs/o"

    def put(self, name: str, content: bytes, **arguments: Any) -> requests.Response:
        return requests.post(self.uploads, params={"uploadType": "media", "name": name, **arguments}, data=content, timeout=30)

    def multipart(self, body: bytes, boundary: str = "B", **headers: str) -> requests.Response:
        headers = {"Content-Type": f"multipart/related; boundary={boundary}", **headers}
        return requests.post(self.uploads, params={"uploadType": "multipart"}, data=body, headers=headers, timeout=30)

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
    assert 1.7e15 < int(made["generation"]) < 4e15, "microseconds"
    assert requests.get(http.of(ODD_NAME), timeout=30).json() == made
    assert requests.get(made["mediaLink"], timeout=30).content == b"hello"
    head = requests.head(f"{http.url}/runs/{quote(ODD_NAME)}", timeout=30)
    for answer in (http.get(ODD_NAME), requests.get(f"{http.url}/runs/{quote(ODD_NAME)}", timeout=30), head):
        assert answer.content == (b"" if answer is head else b"hello") and answer.headers["Content-Length"] == "5"
        assert answer.headers["x-goog-generation"] == made["generation"] and answer.headers["x-goog-metageneration"] == "1"
        assert answer.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
        assert answer.headers["x-goog-stored-content-length"] == "5" and answer.headers["ETag"] == made["etag"]
    layout = requests.get(f"{http.url}/storage/v1/b/runs/storageLayout", timeout=30).json()
    assert layout["location"] == "US-CENTRAL1" and layout["hierarchicalNamespace"] == {"enabled": False}


def test_ranges(http: Http):
    http.put("x", b"0123456789")
    http.put("empty", b"")
    for asked, span in {"0-3": "0-3", "7-": "7-9", "-2": "8-9", "8-100": "8-9", "-100": "0-9"}.items():
        answer = http.get("x", {"Range": f"bytes={asked}"})
        first, last = map(int, span.split("-"))
        assert (answer.status_code, answer.headers["Content-Range"]) == (206, f"bytes {span}/10")
        assert answer.content == b"0123456789"[first : last + 1]
    for name, size in (("x", 10), ("empty", 0)):
        whole = http.get(name, {"Range": "bytes=-"})  # malformed, and so not heeded (RFC 9110, section 14.2)
        assert (whole.status_code, len(whole.content), "Content-Range" in whole.headers) == (200, size, False)
    for name, asked in (("x", "10-"), ("x", "10-12"), ("empty", "0-0"), ("empty", "-1")):
        answer = http.get(name, {"Range": f"bytes={asked}"})
        assert answer.status_code == 416 and answer.headers["Content-Range"] == f"bytes */{10 if name == 'x' else 0}"


def test_what_is_not_there(http: Http):
    missing = requests.get(http.of("no"), timeout=30)
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "No such object: runs/no"
    assert missing.json()["error"]["errors"][0]["reason"] == "notFound"
    assert http.get("no").text == "No such object: runs/no"
    assert requests.head(f"{http.url}/runs/no", timeout=30).status_code == 404
    nowhere = requests.get(f"{http.url}/storage/v1/b/elsewhere/o", timeout=30)
    assert nowhere.json()["error"]["message"] == "The specified bucket does not exist."
    assert requests.post(http.of("x"), timeout=30).status_code == 405
    assert requests.get(f"{http.url}/storage/v1/b/runs/o?pageToken=%25", timeout=30).status_code == 400
    unknown = requests.get(f"{http.url}/storage/v1/b/runs/acl", timeout=30)
    assert unknown.status_code == 404 and "the emulator has no GET /storage/v1/b/runs/acl" in unknown.text


@pytest.mark.parametrize(
    ("verb", "name", "conditions", "status"),
    [
        ("POST", "x", {"ifGenerationMatch": 0}, 412),
        ("POST", "x", {"ifGenerationMatch": 5}, 412),
        ("POST", "x", {"ifGenerationMatch": "CURRENT"}, 200),
        ("POST", "x", {"ifGenerationNotMatch": "CURRENT"}, 412),
        ("POST", "x", {"ifMetagenerationMatch": 2}, 412),
        ("POST", "absent", {"ifGenerationMatch": 5}, 412),
        ("POST", "absent", {"ifGenerationNotMatch": 0}, 412),
        ("POST", "absent", {"ifGenerationMatch": 0}, 200),
        ("GET", "x", {"ifGenerationNotMatch": "CURRENT"}, 304),
        ("GET", "x", {"ifGenerationMatch": "CURRENT"}, 200),
        ("GET", "x", {"ifGenerationMatch": 1}, 412),
        ("GET", "x", {"ifGenerationMatch": "soon"}, 400),
        ("GET", "x", {"ifMetagenerationNotMatch": 1}, 304),
        ("GET", "x", {"generation": "CURRENT"}, 200),
        ("GET", "x", {"generation": 1}, 404),
        ("PATCH", "x", {"ifMetagenerationMatch": 2}, 412),
        ("PATCH", "x", {"ifMetagenerationMatch": 1}, 200),
        ("DELETE", "x", {"ifGenerationMatch": 1}, 412),
        ("DELETE", "x", {"ifGenerationMatch": "CURRENT"}, 204),
        ("DELETE", "absent", {}, 404),
    ],
)
def test_preconditions(http: Http, verb: str, name: str, conditions: dict[str, Any], status: int):
    generation = http.put("x", b"1").json()["generation"]
    asked = {key: generation if value == "CURRENT" else value for key, value in conditions.items()}
    if verb == "POST":
        answer = http.put(name, b"2", **asked)
    else:
        answer = requests.request(verb, http.of(name), params=asked, json={} if verb == "PATCH" else None, timeout=30)
    assert answer.status_code == status
    assert status != 412 or answer.json()["error"]["errors"][0]["reason"] == "conditionNotMet"
    written = b"2" if verb == "POST" and status == 200 else b"1"
    assert http.get(name).content == written or name == "absent" or verb == "DELETE"
    assert http.get("x").status_code == (404 if status == 204 else 200)


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


def test_a_damaged_record_leaves_the_others(tmp_path: Path):
    with Emulator(tmp_path) as emulator:
        emulator.create_bucket("runs")
        Http(emulator).put("x", b"1")
        (record,) = (tmp_path / "runs" / "objects").iterdir()
        Http(emulator).put("y", b"2")
    record.write_bytes(b"")
    for _ in range(2):
        with Emulator(tmp_path) as emulator:
            assert Http(emulator).get("y").content == b"2" and Http(emulator).get("x").status_code == 404
    assert len(list((tmp_path / "runs" / "bodies").iterdir())) == 2, "what may be mended by hand is kept"


ODD_REQUESTS: list[tuple[str, str, bytes | None]] = [
    ("GET", "/storage/v1/b/runs/o?pageToken=%C3%A9", None),
    ("GET", "/v2/projects/tpulm-emulator/locations?pageToken=" + "9" * 5001, None),
    ("PATCH", "/storage/v1/b/runs/o/x", b'{"metadata": {"a": NaN}}'),
    ("PATCH", "/storage/v1/b/runs/o/x", b'{"metadata": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    ("PATCH", "/storage/v1/b/runs/o/x", rb'{"contentType": "a\r\nb: c"}'),
    ("PATCH", "/storage/v1/b/runs", b"[]"),
    ("POST", "/storage/v1/b/runs/o/x/compose", b'{"sourceObjects": [5]}'),
    ("PUT", "/storage/v1/b/runs/iam", b'{"bindings": [{"members": [5]}]}'),
    ("POST", "/_control/tpu/advance", b'{"seconds": 1e308}'),
    *(("POST", f"{UPLOAD}&name={quote(name)}", b"") for name in ("", "x" * 1025, "a\nb", "..")),
    *(("POST", "/storage/v1/b", b'{"name": "%b"}' % name) for name in (b"ab", b"Upper", b"-x-", b"a..b", b"a" * 64)),
]


def test_odd_requests_are_refused_and_change_nothing(http: Http):
    """400 is Google's answer to what it cannot read; RFC 8259 has no NaN, and RFC 9110 no line breaks in values of headers."""
    made = http.put("x", b"1").json()
    for method, path, body in ODD_REQUESTS:
        refused = requests.request(method, http.url + path, data=body, timeout=30)
        assert refused.status_code == 400 and refused.json()["error"]["code"] == 400, (path, refused.text)
        assert requests.get(f"{http.url}/storage/v1/b/runs/o", timeout=30).json()["items"] == [made], path


def test_an_error_of_the_emulator_itself_is_500(http: Http, monkeypatch: pytest.MonkeyPatch):
    """RFC 9110: 4xx says that the client erred. A client retries 500, and would take 400 for its own fault."""
    monkeypatch.setattr("cloud_emulator.storage.store.merged", lambda old, changes: old["none"])
    http.put("x", b"1")
    assert requests.patch(http.of("x"), json={"contentType": "text/plain"}, timeout=30).status_code == 500


CONTENT = os.urandom(3 * QUANTUM_BYTES + 5)
TOTAL = len(CONTENT)


class Session:
    """A resumable upload of `name`, by hand."""

    def __init__(self, http: Http, name: str = "x", about: dict | None = None, **arguments: object):
        parameters = {"uploadType": "resumable", "name": name, **arguments}
        self.begun = requests.post(http.uploads, params=parameters, json=about or {}, timeout=30)
        self.url = self.begun.headers.get("Location", "")

    def send(self, start: int, stop: int, total: int | str = TOTAL) -> requests.Response:
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{total}"}
        return requests.put(self.url, data=CONTENT[start:stop], headers=headers, timeout=30)

    def ask(self, total: int | str = "*") -> requests.Response:
        return requests.put(self.url, headers={"Content-Range": f"bytes */{total}"}, timeout=30)


def test_the_state_of_an_upload(http: Http):
    session = Session(http)
    assert session.ask().status_code == 308 and "Range" not in session.ask().headers
    session.send(0, QUANTUM_BYTES + 1000, total="*")
    assert session.ask().headers["Range"] == f"bytes=0-{QUANTUM_BYTES - 1}", "what is kept is a multiple of 256 KiB"
    assert http.get("x").status_code == 404
    assert session.ask(QUANTUM_BYTES).json()["size"] == str(QUANTUM_BYTES), "its size was told at the end"
    assert Session(http, "empty").ask(0).json()["size"] == "0"
    whole = Session(http, "whole", about={"contentType": "text/plain", "metadata": {"a": "b"}})
    made = whole.send(0, TOTAL).json()
    assert (made["size"], made["contentType"], made["metadata"]) == (str(TOTAL), "text/plain", {"a": "b"})
    assert whole.ask().json() == made and http.get("whole").content == CONTENT, "a finished session repeats its answer"
    assert requests.put(whole.url + "x", data=b"", timeout=30).status_code == 404, "there is no such session"


def test_chunks_that_overlap_and_chunks_that_leave_a_gap(http: Http):
    session = Session(http)
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 503
    session.send(0, 2 * QUANTUM_BYTES)
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 200
    assert http.get("x").content == CONTENT


def test_a_connection_that_breaks_in_the_middle(http: Http):
    session = Session(http)
    target = urlsplit(session.url)
    about = f"Host: {target.netloc}\r\nContent-Length: {TOTAL}\r\nContent-Range: bytes 0-{TOTAL - 1}/{TOTAL}"
    head = f"PUT {target.path}?{target.query} HTTP/1.1\r\n{about}\r\n\r\n".encode()
    with socket.create_connection((target.hostname or "", target.port or 0)) as connection:
        connection.sendall(head + CONTENT[: 2 * QUANTUM_BYTES + 77])
    until(lambda: session.ask().headers.get("Range"))
    assert session.ask().headers["Range"] == f"bytes=0-{2 * QUANTUM_BYTES - 1}"
    assert session.send(2 * QUANTUM_BYTES, TOTAL).status_code == 200
    assert http.get("x").content == CONTENT


def test_preconditions_hold_when_the_upload_ends(http: Http):
    session = Session(http, ifGenerationMatch=0)
    session.send(0, QUANTUM_BYTES)
    other = Session(http, ifGenerationMatch=0)
    assert other.send(0, TOTAL).status_code == 200
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 412
    assert Session(http, ifGenerationMatch=0).begun.status_code == 412


@pytest.mark.parametrize(
    ("about", "headers", "status"),
    [
        ({"md5Hash": "XUFAKrxLKna5cZ2REBfFkg==", "crc32c": "mnG7TA=="}, {}, 200),
        ({"md5Hash": "AAAAAAAAAAAAAAAAAAAAAA=="}, {}, 400),
        ({"crc32c": "AAAAAA=="}, {}, 400),
        ({}, {"x-goog-hash": "crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg=="}, 200),
        ({}, {"x-goog-hash": "crc32c=AAAAAA=="}, 400),
        ({}, {"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}, 400),
    ],
)
def test_hashes_are_verified(http: Http, about: dict, headers: dict, status: int):
    described = json.dumps({"name": "m", **about})
    body = f"--B\r\nContent-Type: application/json\r\n\r\n{described}\r\n--B\r\n\r\nhello\r\n--B--".encode()
    assert http.multipart(body, **headers).status_code == status
    begun = Session(http, "r", about)
    assert requests.put(begun.url, data=b"hello", headers=headers, timeout=30).status_code == status
    assert [http.get(name).status_code for name in "mr"] == [200 if status == 200 else 404] * 2


def test_multipart_bodies_carry_any_bytes(http: Http):
    head = [b"--B", b"Content-Type: application/json", b"", b'{"name": "x"}', b"--B", b"Content-Type: a/b", b""]
    contents = (b"", b"\r", b"\n", b"\r\n", b"x\r\n--B\r\ny", b"--B--", bytes(range(256)))
    for content, ending in itertools.product(contents, (b"\r\n", b"\n")):
        made = http.multipart(ending.join([*head, content, b"--B--"]), boundary='"B"')
        assert made.status_code == 200 and made.json()["contentType"] == "a/b"
        assert http.get("x").content == content
    for body in (b"", b"--B\r\n", b"--B\r\nA: b\r\n\r\n{}\r\n--B--", b"--B\r\n\r\nnot json\r\n--B\r\n\r\nx\r\n--B--"):
        assert http.multipart(body).status_code == 400, body


def test_a_folder_belongs_to_one_emulator(tmp_path: Path):
    with Emulator(tmp_path) as emulator:
        with pytest.raises(EmulatorError, match=str(tmp_path)):
            Emulator(tmp_path)
        with pytest.raises(EmulatorError, match="'Upper'"):
            emulator.create_bucket("Upper")
        with pytest.raises(OSError, match="in use"):
            Emulator(port=urlsplit(emulator.url).port or 0).start()
    Emulator(tmp_path).stop()
