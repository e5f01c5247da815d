"""The services that an agent uses: the metadata server, Cloud Storage, and others over HTTP. For Python 3.8 and newer."""

import contextlib
import ctypes
import http.client
import json
import os
import random
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

METADATA = "http://{}/computeMetadata/v1/".format(os.environ.get("GCE_METADATA_HOST", "metadata.google.internal"))
STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")

HOME = Path(os.environ.get("HOME") or "/root") / "tpulm"
PATIENCE_SECONDS = 120  # before a request counts as failed
TOKEN_SECONDS = 240  # for which a token is used
KILL_SECONDS = 60.0  # until a killed process is gone; in an uninterruptible call it may never be
PR_SET_PDEATHSIG = 1


class Unreachable(Exception):
    """A service that did not answer for PATIENCE_SECONDS, or refused to."""


def request(url, method="GET", data=None, headers=None, patience=PATIENCE_SECONDS):
    """(status, body, headers) of the answer; server errors and missing answers are retried. Raises Unreachable."""
    until, pause = time.time() + patience, 0.5
    while True:
        try:
            http_request = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
            with urllib.request.urlopen(http_request, timeout=min(60.0, patience + 1.0)) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429) and error.code < 500:
                return error.code, error.read(), error.headers
            reason = f"HTTP {error.code}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(error)
        if time.time() + pause > until:
            raise Unreachable("{} {}: {}".format(method, url.split("?")[0], reason))
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, 15)


class Metadata:
    """A client of this VM's metadata server."""

    def get(self, path, patience=PATIENCE_SECONDS):
        status, body, _ = request(METADATA + path, headers={"Metadata-Flavor": "Google"}, patience=patience)
        return body.decode().strip() if status == 200 else None

    def attribute(self, name):
        return self.get("instance/attributes/" + name)

    def node(self):
        """(project, zone, name) of the TPU node that this VM belongs to.

        The VM itself is in one of Google's projects, under another name; our own metadata names the node, else tpu-env, as in
        MaxText's multihost_job.py.
        """
        env = dict(re.findall(r"^(\w+): '(.*)'$", self.attribute("tpu-env") or "", re.MULTILINE))
        project = self.attribute("tpulm-project") or env.get("CONSUMER_PROJECT_ID") or self.get("project/project-id")
        zone = self.attribute("tpulm-zone") or env.get("ZONE") or (self.get("instance/zone") or "").rpartition("/")[2]
        return project, zone, self.attribute("tpulm-node") or env.get("NODE_ID")

    def set_guest_attribute(self, key, value):
        """Set a guest attribute, which the node's getGuestAttributes shows, if the server accepts it."""
        with contextlib.suppress(Unreachable):
            headers = {"Metadata-Flavor": "Google"}
            request(METADATA + "instance/guest-attributes/tpulm/" + key, "PUT", value.encode(), headers, patience=1)

    def is_preempted(self, query=""):
        try:
            return self.get("instance/preempted" + query, patience=45) == "TRUE"
        except Unreachable:
            return False

    def token(self):
        return json.loads(self.get("instance/service-accounts/default/token") or "{}").get("access_token", "")

    def signed(self, url, method="GET"):
        """(status, body) of a request to one of Google's services, as this VM's account."""
        status, body, _ = request(url, method, headers={"Authorization": "Bearer " + self.token()})
        return status, body


class Bucket:
    """Objects below gs://bucket/prefix."""

    def __init__(self, root, metadata):
        bucket, _, prefix = root[len("gs://") :].partition("/")
        self._bucket, self._prefix, self._metadata = bucket, prefix.strip("/"), metadata
        self._token, self._token_until = "", 0.0

    def get(self, name, patience=PATIENCE_SECONDS, unless_refused=False):
        """The object's content; None where it does not exist or, with `unless_refused`, may not be read."""
        url = f"{STORAGE}/storage/v1/b/{self._bucket}/o/{self._quoted(name)}?alt=media"
        status, body = self._request(url, patience=patience)
        if status == 404 or (unless_refused and status in (401, 403)):
            return None
        return self._checked("read " + name, status, body)

    def put(self, name, data, patience=PATIENCE_SECONDS):
        url = f"{STORAGE}/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={self._quoted(name)}"
        self._checked("write " + name, *self._request(url, "POST", data, patience))

    def names(self, beginning):
        """The names of objects, below the prefix."""
        listed, page = [], ""
        while True:
            query = {"prefix": self._full(beginning), "fields": "items(name),nextPageToken", "pageToken": page}
            url = f"{STORAGE}/storage/v1/b/{self._bucket}/o?{urllib.parse.urlencode(query)}"
            answer = json.loads(self._checked("list " + beginning, *self._request(url)))
            listed += [item["name"][len(self._full("")) :] for item in answer.get("items", [])]
            page = answer.get("nextPageToken")
            if not page:
                return listed

    def _checked(self, what, status, body):
        if status != 200:
            raise Unreachable("cannot {}: HTTP {}: {}".format(what, status, body[:300].decode("utf-8", "replace")))
        return body

    def _full(self, name):
        return f"{self._prefix}/{name}" if self._prefix else name

    def _quoted(self, name):
        return urllib.parse.quote(self._full(name), safe="")

    def _request(self, url, method="GET", data=None, patience=PATIENCE_SECONDS):
        """(status, body); retried with a new token after a 401."""
        fresh = False
        while True:
            if fresh or time.time() > self._token_until:
                self._token, self._token_until, fresh = self._metadata.token(), time.time() + TOKEN_SECONDS, True
            headers = {"Authorization": "Bearer " + self._token, "Content-Type": "application/octet-stream"}
            status, body, _ = request(url, method, data, headers, patience)
            if status != 401 or fresh:
                return status, body
            fresh = True


def die_with_parent():
    """Have this new process killed when its parent ends, which would not know of it once restarted."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill(process):
    """Kill a process; returns whether it is gone."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)
    return process.poll() is not None


@contextlib.contextmanager
def logged(*kinds):
    """Print errors of the block, of any kind by default, and suppress them."""
    kinds = kinds or (Exception,)
    try:
        yield
    except kinds as error:
        log(f"{type(error).__name__}: {error}")


def log(line):
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + line, flush=True)
