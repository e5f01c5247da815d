"""Uploads over plain HTTP: in parts, resumed after breaks, verified."""

from __future__ import annotations

import json
import os
import socket
import time
from urllib.parse import urlsplit

import pytest
import requests

from cloud_emulator import Emulator
from cloud_emulator.storage.api import QUANTUM_BYTES

CONTENT = os.urandom(3 * QUANTUM_BYTES + 5)
TOTAL = len(CONTENT)


class Session:
    """A resumable upload of `name`, by hand."""

    def __init__(self, emulator: Emulator, name: str = "x", about: dict | None = None, **arguments: object):
        url = f"{emulator.url}/upload/storage/v1/b/runs/o"
        parameters = {"uploadType": "resumable", "name": name, **arguments}
        self.begun = requests.post(url, params=parameters, json=about or {}, timeout=30)
        self.url = self.begun.headers.get("Location", "")

    def send(self, start: int, stop: int, total: int | str = TOTAL, headers: dict | None = None) -> requests.Response:
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{total}", **(headers or {})}
        return requests.put(self.url, data=CONTENT[start:stop], headers=headers, timeout=30)

    def ask(self, total: int | str = "*") -> requests.Response:
        return requests.put(self.url, headers={"Content-Range": f"bytes */{total}"}, timeout=30)


def content_of(emulator: Emulator, name: str = "x") -> bytes:
    return requests.get(f"{emulator.url}/storage/v1/b/runs/o/{name}", params={"alt": "media"}, timeout=30).content


def test_a_resumable_upload_in_chunks(gcs: Emulator):
    session = Session(gcs, about={"contentType": "text/plain", "metadata": {"a": "b"}})
    assert session.begun.status_code == 200
    first = session.send(0, QUANTUM_BYTES)
    assert (first.status_code, first.headers["Range"]) == (308, f"bytes=0-{QUANTUM_BYTES - 1}")
    last = session.send(QUANTUM_BYTES, TOTAL)
    assert last.status_code == 200 and last.json()["size"] == str(TOTAL)
    assert last.json()["contentType"] == "text/plain" and last.json()["metadata"] == {"a": "b"}
    assert content_of(gcs) == CONTENT
    assert session.ask().json() == last.json(), "a finished session repeats its answer"


def test_the_state_of_an_upload(gcs: Emulator):
    session = Session(gcs)
    assert session.ask().status_code == 308 and "Range" not in session.ask().headers
    session.send(0, QUANTUM_BYTES + 1000, total="*")
    assert session.ask().headers["Range"] == f"bytes=0-{QUANTUM_BYTES - 1}", "what is kept is a multiple of 256 KiB"
    assert requests.get(f"{gcs.url}/storage/v1/b/runs/o/x", timeout=30).status_code == 404


def test_chunks_that_overlap_and_chunks_that_leave_a_gap(gcs: Emulator):
    session = Session(gcs)
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 503
    session.send(0, 2 * QUANTUM_BYTES)
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 200
    assert content_of(gcs) == CONTENT


def test_a_size_told_at_the_end(gcs: Emulator):
    session = Session(gcs)
    session.send(0, QUANTUM_BYTES, total="*")
    assert session.ask(QUANTUM_BYTES).json()["size"] == str(QUANTUM_BYTES)
    empty = Session(gcs, "empty")
    assert empty.ask(0).json()["size"] == "0"


def test_a_connection_that_breaks_in_the_middle(gcs: Emulator):
    session = Session(gcs)
    target = urlsplit(session.url)
    lines = [
        f"PUT {target.path}?{target.query} HTTP/1.1",
        f"Host: {target.netloc}",
        f"Content-Length: {TOTAL}",
        f"Content-Range: bytes 0-{TOTAL - 1}/{TOTAL}",
    ]
    head = "\r\n".join([*lines, "", ""]).encode()
    with socket.create_connection((target.hostname or "", target.port or 0)) as connection:
        connection.sendall(head + CONTENT[: 2 * QUANTUM_BYTES + 77])
    for _ in range(100):
        if session.ask().headers.get("Range"):
            break
        time.sleep(0.01)
    assert session.ask().headers["Range"] == f"bytes=0-{2 * QUANTUM_BYTES - 1}"
    assert session.send(2 * QUANTUM_BYTES, TOTAL).status_code == 200
    assert content_of(gcs) == CONTENT


def test_cancelling(gcs: Emulator):
    session = Session(gcs)
    session.send(0, QUANTUM_BYTES)
    assert requests.delete(session.url, timeout=30).status_code == 499
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 499
    assert requests.put(session.url + "x", data=b"", timeout=30).status_code == 404


def test_preconditions_hold_when_the_upload_ends(gcs: Emulator):
    session = Session(gcs, ifGenerationMatch=0)
    session.send(0, QUANTUM_BYTES)
    other = Session(gcs, ifGenerationMatch=0)
    assert other.send(0, TOTAL).status_code == 200
    assert session.send(QUANTUM_BYTES, TOTAL).status_code == 412
    assert Session(gcs, ifGenerationMatch=0).begun.status_code == 412


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
def test_hashes_are_verified(gcs: Emulator, about: dict, headers: dict, status: int):
    url = f"{gcs.url}/upload/storage/v1/b/runs/o"
    described = json.dumps({"name": "m", **about})
    body = f"--B\r\nContent-Type: application/json\r\n\r\n{described}\r\n--B\r\n\r\nhello\r\n--B--".encode()
    headers = {"Content-Type": "multipart/related; boundary=B", **headers}
    assert requests.post(url, params={"uploadType": "multipart"}, data=body, headers=headers, timeout=30).status_code == status
    begun = requests.post(url, params={"uploadType": "resumable", "name": "r"}, json=about, timeout=30)
    headers.pop("Content-Type")
    assert requests.put(begun.headers["Location"], data=b"hello", headers=headers, timeout=30).status_code == status
    there = [requests.get(f"{gcs.url}/storage/v1/b/runs/o/{name}", timeout=30).status_code for name in "mr"]
    assert there == ([200, 200] if status == 200 else [404, 404])


@pytest.mark.parametrize("ending", [b"\r\n", b"\n"])
@pytest.mark.parametrize("content", [b"", b"\r", b"\n", b"\r\n", b"x\r\n--B\r\ny", b"--B--", bytes(range(256))])
def test_multipart_bodies_carry_any_bytes(gcs: Emulator, ending: bytes, content: bytes):
    lines = [
        b"--B",
        b"Content-Type: application/json",
        b"",
        b'{"name": "x"}',
        b"--B",
        b"Content-Type: a/b",
        b"",
        content,
        b"--B--",
    ]
    url = f"{gcs.url}/upload/storage/v1/b/runs/o?uploadType=multipart"
    headers = {"Content-Type": 'multipart/related; boundary="B"'}
    made = requests.post(url, data=ending.join(lines), headers=headers, timeout=30)
    assert made.status_code == 200 and made.json()["contentType"] == "a/b"
    assert content_of(gcs) == content


@pytest.mark.parametrize(
    "body", [b"", b"--B\r\n", b"--B\r\nA: b\r\n\r\n{}\r\n--B--", b"--B\r\n\r\nnot json\r\n--B\r\n\r\nx\r\n--B--"]
)
def test_multipart_bodies_that_are_none(gcs: Emulator, body: bytes):
    url = f"{gcs.url}/upload/storage/v1/b/runs/o?uploadType=multipart"
    headers = {"Content-Type": "multipart/related; boundary=B"}
    assert requests.post(url, data=body, headers=headers, timeout=30).status_code == 400
