"""Keeps one worker of a TPU VM busy with a run, and tells the bucket how it goes. A program of its own, for Python 3.8 on.

    metadata    which run, which attempt, which worker; whether this VM is being preempted
    the bucket  job.json says whether this attempt still counts and whether it should stop; beats, logs and ends go there

The trainer is a child process. It gets SIGTERM when the VM is being preempted or when somebody wants it to stop, and is killed
when the attempt does not count any more. When the trainer has ended the VM waits to be deleted; nobody doing so, or its time
being up, it deletes itself.
"""

import base64
import contextlib
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("HOME") or "/root") / "tpulm"
METADATA = "http://{}/computeMetadata/v1/".format(os.environ.get("GCE_METADATA_HOST", "metadata.google.internal"))
STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
TPU = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://tpu.googleapis.com").rstrip("/")
SECRETS = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com").rstrip("/")

PATIENCE_SECONDS = 120  # with the bucket, before a request counts as failed
LOOK_SECONDS = float(os.environ.get("TPULM_LOOK_SECONDS", "5"))  # between looks at metadata, trainer and job
LOG_SECONDS = 15.0  # between uploads of the log
LOG_BYTES = 4 << 20  # of its end that are uploaded
SELF_DELETE_SECONDS = float(os.environ.get("TPULM_SELF_DELETE_SECONDS", "900"))  # after the trainer ended
GRACE_SECONDS = 240.0  # that a trainer has after SIGTERM


class Unreachable(Exception):
    """A service that did not answer for PATIENCE_SECONDS."""


def request(url, method="GET", data=None, headers=None, patience=PATIENCE_SECONDS):
    """(status, body, headers): of any answer that is no server error; those, and none, are tried again."""
    until, pause = time.time() + patience, 0.5
    while True:
        try:
            asked = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
            with urllib.request.urlopen(asked, timeout=60) as answer:
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
    """Of this VM."""

    def get(self, path, patience=PATIENCE_SECONDS):
        status, body, _ = request(METADATA + path, headers={"Metadata-Flavor": "Google"}, patience=patience)
        return body.decode().strip() if status == 200 else None

    def attribute(self, name):
        return self.get("instance/attributes/" + name)

    def is_preempted(self):
        try:
            return self.get("instance/preempted", patience=1) == "TRUE"
        except Unreachable:
            return False

    def token(self):
        return json.loads(self.get("instance/service-accounts/default/token") or "{}").get("access_token", "")


class Bucket:
    """Objects below gs://bucket/prefix."""

    def __init__(self, root, metadata):
        bucket, _, prefix = root[len("gs://") :].partition("/")
        self._bucket, self._prefix, self._metadata = bucket, prefix.strip("/"), metadata
        self._token, self._token_until = "", 0.0

    def get(self, name, patience=PATIENCE_SECONDS):
        """The object's content, or None where there is none."""
        url = f"{STORAGE}/storage/v1/b/{self._bucket}/o/{self._quoted(name)}?alt=media"
        status, body, _ = request(url, headers=self._headers(), patience=patience)
        if status == 404:
            return None
        if status != 200:
            raise Unreachable("cannot read {}: HTTP {}: {}".format(name, status, body[:300].decode("utf-8", "replace")))
        return body

    def put(self, name, data, patience=PATIENCE_SECONDS):
        url = f"{STORAGE}/upload/storage/v1/b/{self._bucket}/o?uploadType=media&name={self._quoted(name)}"
        headers = dict(self._headers(), **{"Content-Type": "application/octet-stream"})
        status, body, _ = request(url, "POST", data, headers, patience)
        if status != 200:
            raise Unreachable("cannot write {}: HTTP {}: {}".format(name, status, body[:300].decode("utf-8", "replace")))

    def names(self, beginning):
        """Below the prefix."""
        parameters = urllib.parse.urlencode({"prefix": self._full(beginning), "fields": "items(name)"})
        url = f"{STORAGE}/storage/v1/b/{self._bucket}/o?{parameters}"
        _, body, _ = request(url, headers=self._headers())
        cut = len(self._full(""))
        return [item["name"][cut:] for item in json.loads(body or b"{}").get("items", [])]

    def _full(self, name):
        return f"{self._prefix}/{name}" if self._prefix else name

    def _quoted(self, name):
        return urllib.parse.quote(self._full(name), safe="")

    def _headers(self):
        if time.time() > self._token_until:
            self._token, self._token_until = self._metadata.token(), time.time() + 240
        return {"Authorization": "Bearer " + self._token}


class Agent:
    def __init__(self):
        self.metadata = Metadata()
        attribute = self.metadata.attribute
        self.workdir = (attribute("tpulm-workdir") or "").rstrip("/")
        self.attempt = int(attribute("tpulm-attempt") or 0)
        self.valid_until = float(attribute("tpulm-valid-until") or 0)
        self.worker = int(attribute("agent-worker-number") or 0)
        self.bucket = Bucket(self.workdir, self.metadata)
        self.folder = f"cloud/attempts/{self.attempt}/"
        self.log_path = HOME / f"attempt-{self.attempt}.log"
        self.trainer = None  # type: subprocess.Popen | None
        self.asked_at = None  # when the trainer was asked to stop
        self.secrets = []
        self._logged = (0.0, -1)

    def run(self):
        say(f"attempt {self.attempt} of {self.workdir}, worker {self.worker}")
        if self.counts() and self.bucket.get(self.folder + f"end-{self.worker}.json") is None:
            self.beat("starting")
            try:
                outcome = self.train()
            except Unreachable as error:
                outcome = {"exit_code": 1, "failure": None, "message": str(error)}
            self.upload_log(last=True)
            if outcome is not None:
                self.end(outcome)
        self.wait_to_be_deleted()

    # -- the trainer --------------------------------------------------------------------------------------------------

    def train(self):
        """How the trainer ended; None where the attempt does not count any more."""
        try:
            python = environment()
            secrets = self.fetch_secrets()
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            return {"exit_code": 1, "failure": None, "message": f"cannot prepare the VM: {error}"}
        run_file = self.workdir + "/cloud/run.json"
        command = [python, "-m", "tpulm", "run", run_file, "--workdir", self.workdir]
        say("starting " + " ".join(command))
        with self.log_path.open("ab") as log:
            self.trainer = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=dict(os.environ, **secrets)
            )
        while self.trainer.poll() is None:
            if not self.look():
                self.trainer.kill()
                self.trainer.wait()
                say(f"attempt {self.attempt} does not count any more: its trainer was killed")
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.trainer.wait(LOOK_SECONDS)
        return self.outcome(self.trainer.returncode)

    def look(self):
        """One look at everything; whether the attempt still counts. A bucket that does not answer changes nothing."""
        assert self.trainer is not None
        if self.metadata.is_preempted():
            self.ask_to_stop("this VM is being preempted")
        if self.valid_until and time.time() > self.valid_until:
            self.ask_to_stop("this VM's time is up")
        if self.asked_at is not None and time.time() - self.asked_at > GRACE_SECONDS:
            self.trainer.kill()
        try:
            self.beat("training", patience=10)
            self.upload_log()
            job = self.job(patience=10)
            if job is not None:
                if not self.counts(job):
                    return False
                if job["wanted"] != "running" or job["node"]["asked_because"] not in (None, "done"):
                    self.ask_to_stop("it was asked for")
        except Unreachable as error:
            say(str(error))
        return True

    def ask_to_stop(self, why):
        assert self.trainer is not None
        if self.asked_at is None:
            say("asking the trainer to save and stop: " + why)
            self.asked_at = time.time()
            self.trainer.send_signal(signal.SIGTERM)

    def outcome(self, code):
        """With the failure record that the trainer left, if it did."""
        found = {"exit_code": code, "failure": None, "message": ""}
        if code in (0, 75):
            return found
        assert self.trainer is not None
        of_trainer = re.compile(rf"failures/[0-9]+-[0-9]+-{self.trainer.pid}(-host[0-9]+)?\.json$")
        records = sorted(name for name in self.bucket.names("failures/") if of_trainer.search(name))
        if records:
            record = json.loads(self.bucket.get(records[-1]) or b"{}")
            found.update(failure=record.get("kind"), message=self.redacted(str(record.get("message", ""))))
        return found

    def fetch_secrets(self):
        """Variable -> value, from Secret Manager or the bucket; never in metadata or on a command line."""
        named, found = json.loads(self.metadata.attribute("tpulm-secrets") or "{}"), {}
        for variable, source in named.items():
            if source.startswith("gs://"):
                root, _, name = source.rpartition("/")
                value = Bucket(root, self.metadata).get(name)
            else:
                headers = {"Authorization": "Bearer " + self.metadata.token()}
                status, body, _ = request(f"{SECRETS}/v1/{source}:access", headers=headers)
                value = base64.b64decode(json.loads(body)["payload"]["data"]) if status == 200 else None
            if value is None:
                raise RuntimeError(f"the secret {source} for {variable} cannot be read")
            found[variable] = value.decode().strip()
        self.secrets = [value for value in found.values() if value]
        return found

    # -- what the bucket is told --------------------------------------------------------------------------------------

    def job(self, patience=PATIENCE_SECONDS):
        content = self.bucket.get("cloud/job.json", patience)
        return None if content is None else json.loads(content)

    def counts(self, job=None):
        """Whether this attempt is the newest one, and not given up."""
        job = job or self.job()
        node = None if job is None else job["node"]
        return node is not None and node["attempt"] == self.attempt and node["ending"] is None

    def beat(self, state, patience=PATIENCE_SECONDS):
        beat = {"time": time.time(), "state": state}
        self.bucket.put(self.folder + f"beat-{self.worker}.json", json.dumps(beat).encode(), patience)

    def end(self, outcome):
        say(f"the trainer has ended: {outcome}")
        self.bucket.put(self.folder + f"end-{self.worker}.json", json.dumps(outcome).encode())

    def upload_log(self, last=False):
        try:
            size = self.log_path.stat().st_size
        except OSError:
            return
        if size == self._logged[1] or not (last or time.time() - self._logged[0] > LOG_SECONDS):
            return
        with self.log_path.open("rb") as log:
            log.seek(max(0, size - LOG_BYTES))
            content = self.redacted(log.read().decode("utf-8", "replace"))
        self._logged = time.time(), size
        self.bucket.put(self.folder + f"log-{self.worker}.txt", content.encode(), patience=30)

    def redacted(self, text):
        for secret in self.secrets:
            text = text.replace(secret, "[redacted]")
        return text

    # -- the end ------------------------------------------------------------------------------------------------------

    def wait_to_be_deleted(self):
        """Nothing runs here any more. The supervisor deletes the node; if none does, the node deletes itself."""
        until = time.time() + SELF_DELETE_SECONDS
        if self.valid_until:
            until = min(until, max(self.valid_until, time.time() + 60))
        while time.time() < until:
            time.sleep(LOOK_SECONDS)
        while True:
            self.delete_self()
            time.sleep(60)

    def delete_self(self):
        """The queued resource of this node's name, if there is one, and the node."""
        zone = (self.metadata.get("instance/zone") or "").rpartition("/")[2]
        place = "{}/v2/projects/{}/locations/{}".format(TPU, self.metadata.get("project/project-id"), zone)
        name = self.metadata.attribute("tpulm-node")
        headers = {"Authorization": "Bearer " + self.metadata.token()}
        for path in ("queuedResources/{}?force=true", "nodes/{}"):
            status, body, _ = request(f"{place}/{path.format(name)}", "DELETE", headers=headers)
            say("deleting {}: HTTP {} {}".format(path.format(name), status, body[:200] if status >= 400 else ""))


def environment():
    """An interpreter that has the bundle's tpulm: the VM's own, if it does, else one made from the bundle."""
    bundle = json.loads((HERE / "bundle.json").read_text())
    own = HERE / "env" / "bin" / "python"
    for python in (str(own), bundle["python"], sys.executable):
        if python and digest_of(python) == bundle["digest"]:
            return python
    say("installing tpulm")
    base, source = bundle["python_version"], []
    if (HERE / "wheels").is_dir():
        base = str(HERE / "interpreter" / "bin" / ("python" + base))
        source = ["--offline", "--no-index", "--find-links", str(HERE / "wheels")]
    install = [str(HERE / "uv"), "pip", "install", "--quiet", "--python", str(own)]
    run([str(HERE / "uv"), "venv", "--quiet", "--clear", "--python", base, *source[:1], str(HERE / "env")])
    run([*install, *source, "-r", str(HERE / "pins.txt")])
    run([*install, *source[:1], "--no-deps", str(HERE / bundle["wheel"])])
    if digest_of(own) != bundle["digest"]:
        raise RuntimeError("what was installed is not the tpulm that was launched")
    return str(own)


def run(command):
    """Raises RuntimeError with the end of what it said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError("{}: exit code {}: {}".format(" ".join(command[:3]), done.returncode, done.stdout[-1000:]))


def digest_of(python):
    """Of the tpulm that an interpreter has; None where it has none."""
    try:
        done = subprocess.run([python, HERE / "digest.py"], capture_output=True, text=True, timeout=300)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def say(line):
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + line, flush=True)


if __name__ == "__main__":
    Agent().run()
