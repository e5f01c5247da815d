"""Runs the trainer on one worker of a TPU VM, and reports to the bucket. A standalone program for Python 3.8 and newer.

    metadata    which run, which attempt, which worker; whether this VM is being preempted
    the bucket  job.json says whether this attempt still counts and whether to stop; heartbeats, logs and outcomes go there

The trainer is a child process. It gets SIGTERM when the VM is being preempted or when it should stop, and is killed when the
attempt no longer counts, or when it makes no steps; its threads' stacks are collected before that. When the trainer has ended,
the VM waits to be deleted; if nobody deletes it, or its time is up, it deletes itself.
"""

import base64
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
import traceback
from pathlib import Path

from hang import HangDetector, stacks
from install import STEP_SECONDS, environment
from services import HOME, PATIENCE_SECONDS, Bucket, Metadata, Unreachable, die_with_parent, kill, log, logged

TPU = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://tpu.googleapis.com").rstrip("/")
SECRETS = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com").rstrip("/")

POLL_SECONDS = float(os.environ.get("TPULM_LOOK_SECONDS", "5"))  # between looks at metadata, trainer and job
LOG_SECONDS = 15.0  # between uploads of the log
LOG_BYTES = 4 << 20  # uploaded of the log's end
SELF_DELETE_SECONDS = float(os.environ.get("TPULM_SELF_DELETE_SECONDS", "900"))  # after the trainer ended
GRACE_SECONDS = 240.0  # for the trainer after SIGTERM
SPARE_WAIT_SECONDS = SELF_DELETE_SECONDS / 3  # for which a VM that came up next to another waits, since only one is kept
SPARE_SECONDS = 600.0  # for which such a VM may be billed: boot, wait and deletion
GONE_SECONDS = 300.0  # without a job in the bucket, until this attempt no longer counts
SECRET_BYTES = 100 << 10  # of one value: an environment holds little more
CHIP_LOCK = Path("/tmp/libtpu_lockfile")  # of a trainer that was killed: libtpu refuses to start while it is there
PID_PATH = HOME / "agent.pid"  # for shutdown.sh, until the trainer has ended
SHUT_DOWN, PREEMPTED = "this VM is being shut down", "this VM is being preempted"
UNREADABLE = (Unreachable, ValueError, KeyError, TypeError)  # such as a half-written object


class Misconfigured(Exception):
    """An error that only the user can fix; carries a message and an exit code."""


class StopRequested(Exception):
    """Asked to stop before there was a trainer; carries the outcome."""


class Agent:
    def __init__(self):
        self.metadata = Metadata()
        attribute = self.metadata.attribute
        self.workdir = (attribute("tpulm-workdir") or "").rstrip("/")
        self.attempt = int(attribute("tpulm-attempt") or 0)
        self.valid_until = float(attribute("tpulm-valid-until") or 0)
        self.first_boot_time = first_boot_time()
        self.worker = int(attribute("agent-worker-number") or 0)
        self.bucket = Bucket(self.workdir, self.metadata)
        self.folder = f"cloud/attempts/{self.attempt}/"
        self.log_path = HOME / f"attempt-{self.attempt}.log"
        self.trainer = None  # type: subprocess.Popen | None
        self.progress_path = HOME / f"attempt-{self.attempt}.progress"
        self.stacks_path = HOME / f"attempt-{self.attempt}.stacks"
        self.watch = HangDetector(self.progress_path)
        self.reported = ""  # last, to the metadata server
        self.notice = ""  # why this VM will soon be gone
        self.asked_at = None  # when the trainer was asked to stop
        self.gone_since = None  # when the job was first missing
        self.secrets = None  # until they are fetched
        self._logged = (0.0, -1)

    def listen(self):
        """Have SIGTERM and the metadata server's notice reach the trainer at once, whatever this process waits for."""
        signal.signal(signal.SIGTERM, lambda number, frame: self.forward_notice(SHUT_DOWN))
        threading.Thread(target=self.await_preemption, daemon=True).start()
        PID_PATH.write_text(str(os.getpid()))

    def forward_notice(self, why):
        self.notice = self.notice or why
        if self.trainer is not None and self.asked_at is None:
            self.asked_at = time.time()
            self.trainer.send_signal(signal.SIGTERM)

    def await_preemption(self):
        for query in itertools.cycle(("", "?wait_for_change=true&timeout_sec=40")):
            if self.metadata.is_preempted(query):
                self.forward_notice(PREEMPTED)
                return
            time.sleep(1.0 if query else 0.0)

    def run(self):
        """Whatever happens, the VM deletes itself in the end: there may be nobody else to do it."""
        log(f"attempt {self.attempt} of {self.workdir}, worker {self.worker}")
        outcome = None
        try:
            self.report("starting")
            self.wait_while_spare()
            if self.counts() and self.bucket.get(self.folder + f"end-{self.worker}.json") is None:
                self.beat("starting")
                outcome = self.train()
            if outcome is None:  # nobody needs this VM
                self.valid_until = time.time()
        except Misconfigured as error:
            outcome = {"exit_code": error.args[1], "failure": "ConfigError", "message": error.args[0]}
        except Exception as error:
            log(traceback.format_exc())
            outcome = {"exit_code": 1, "failure": None, "message": f"the agent failed: {type(error).__name__}: {error}"}
        if self.trainer is not None and self.trainer.poll() is None:
            self.trainer.kill()
        with logged():
            self.upload_log(last=True)
        going_off = self.notice == SHUT_DOWN and outcome is not None and outcome["exit_code"] != 0
        if outcome is not None and not going_off:
            with logged():
                self.end(outcome)
        with contextlib.suppress(OSError):
            PID_PATH.unlink()
        if going_off:  # preempted, or to come back after maintenance: what ended this way says nothing of the attempt
            time.sleep(60)
        else:
            self.wait_to_be_deleted()

    # -- the trainer --------------------------------------------------------------------------------------------------

    def train(self):
        """Run the trainer; returns how it ended, or None if the attempt no longer counts."""
        try:
            python = environment(self.poll_while_installing)
            secrets = self.fetch_secrets()
        except StopRequested as stopped:
            return stopped.args[0]
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            return {"exit_code": 1, "failure": None, "message": f"cannot prepare the VM: {error}"}
        run_file = self.workdir + "/cloud/run.json"
        command = [python, "-m", "tpulm", "run", run_file, "--workdir", self.workdir]
        log("starting " + " ".join(command))
        for path in (self.progress_path, self.stacks_path, CHIP_LOCK):  # of an earlier trainer
            with contextlib.suppress(OSError):
                path.unlink()
        watched = {"TPULM_PROGRESS_FILE": str(self.progress_path), "TPULM_STACKS_FILE": str(self.stacks_path)}
        watched["TPULM_JOIN_SECONDS"] = str(STEP_SECONDS)  # other hosts may install for so long
        self.watch = HangDetector(self.progress_path, float(self.metadata.attribute("tpulm-hang-seconds") or 0))
        with self.log_path.open("ab") as log_file:
            self.trainer = subprocess.Popen(
                command,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(os.environ, **secrets, **watched),
                preexec_fn=die_with_parent,
            )
        while self.trainer.poll() is None:
            if not self.poll("training"):
                kill(self.trainer)
                log(f"attempt {self.attempt} does not count any more: its trainer was killed")
                return None
            if self.asked_at is not None and time.time() - self.asked_at > GRACE_SECONDS and not kill(self.trainer):
                return {"exit_code": -9, "failure": None, "message": "the trainer cannot be killed"}
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.trainer.wait(POLL_SECONDS)
            if self.asked_at is None and (seconds := self.watch.check()) is not None and self.trainer.poll() is None:
                return self.end_hung(seconds)
        self.watch.check()
        return self.outcome(self.trainer.returncode)

    def end_hung(self, seconds):
        """Kill the trainer; returns its outcome."""
        assert self.trainer is not None
        why, name = self.watch.why(seconds), self.folder + f"stacks-{self.worker}.txt"
        log(f"the trainer hangs: {why}")
        content = self.redacted(stacks(self.trainer, self.stacks_path))
        kill(self.trainer)
        try:
            self.bucket.put(name, content.encode())
            why += f"; its threads' stacks are in {self.workdir}/{name}"
        except Unreachable as error:
            why += f"; its threads' stacks could not be kept: {error}"
        return {"exit_code": 1, "failure": "Hung", "message": why}

    def poll(self, state):
        """Look at everything once; returns whether the attempt still counts: True if the bucket does not answer."""
        if self.notice:
            self.ask_to_stop(self.notice)
        if self.valid_until and time.time() > self.valid_until:
            self.ask_to_stop("this VM's time is up")
        counts = True
        with logged(*UNREADABLE):  # first, as a bucket may be readable alone, or gone
            counts = self.follow(self.job(patience=10))
        with logged(*UNREADABLE):
            self.beat(state, patience=10)
            self.upload_log()
        return counts

    def poll_while_installing(self):
        """`poll`, during an installation, which may take long. Raises StopRequested if the attempt no longer counts."""
        if not self.poll("installing"):
            raise StopRequested(None)

    def follow(self, job):
        """Do what the job says; returns whether this attempt still counts."""
        if job is None:
            self.gone_since = self.gone_since or time.time()
            return time.time() - self.gone_since < GONE_SECONDS
        self.gone_since = None
        if not self.counts(job):
            return False
        self.keep_to_budget(job)
        if job["wanted"] != "running" or job["node"]["asked_because"] not in (None, "done"):
            self.ask_to_stop("it was asked for")
        return True

    def keep_to_budget(self, job):
        """End this VM before the budget is used up: nobody may supervise, and it may have waited in a queue for hours."""
        price = job.get("prices", {}).get(job["node"]["zone"])
        if job.get("budget") is not None and price:
            remaining = job["budget"] - sum(attempt["dollars"] for attempt in job["attempts"])
            for spare in job.get("spare", ()):  # one of which may have been the attempt that counted, before this VM came
                seconds = max(0.0, self.first_boot_time - (spare.get("ready_at") or self.first_boot_time)) + SPARE_SECONDS
                remaining -= job["prices"].get(spare["zone"], price) * seconds / 3600
            ends = self.first_boot_time + remaining / price * 3600 - 2 * GRACE_SECONDS  # it was billed before it booted, too
            self.valid_until = min(filter(None, [self.valid_until, max(1.0, ends)]))

    def ask_to_stop(self, why):
        if self.trainer is None:
            raise StopRequested({"exit_code": 75, "failure": None, "message": why})
        if self.asked_at is None:
            self.asked_at = time.time()
            self.trainer.send_signal(signal.SIGTERM)
            log("asked the trainer to save and stop: " + why)

    def outcome(self, code):
        """The trainer's outcome, from its failure record or the last line that it printed."""
        result = {"exit_code": code, "failure": None, "message": ""}
        if code in (0, 75):
            return result
        lines = self.log_end().splitlines()
        result["message"] = "last output line: " + lines[-1][-500:] if lines else ""
        assert self.trainer is not None
        of_trainer = re.compile(rf"failures/[0-9]+-[0-9]+-{self.trainer.pid}(-host[0-9]+)?\.json$")
        with logged(*UNREADABLE):  # the exit code says the most
            records = sorted(name for name in self.bucket.names("failures/") if of_trainer.search(name))
            for name in records[-1:]:
                record = json.loads(self.bucket.get(name) or b"{}")
                result.update(failure=str(record["kind"]), message=self.redacted(str(record["message"])))
        return result

    def fetch_secrets(self):
        """Variable -> value, from Secret Manager or the bucket; values are never in metadata or on a command line."""
        named, secrets = json.loads(self.metadata.attribute("tpulm-secrets") or "{}"), {}
        for variable, source in named.items():
            value = self.secret(source)
            if value is None:
                raise Misconfigured(f"the secret {source} for {variable} is not there, or this VM's account may not read it", 4)
            if len(value) > SECRET_BYTES or b"\0" in value:
                raise Misconfigured(f"the secret {source} for {variable} is no text of at most {SECRET_BYTES >> 10} KiB", 2)
            try:
                secrets[variable] = value.decode().strip()
            except UnicodeDecodeError as error:
                raise Misconfigured(f"the secret {source} for {variable} is not UTF-8 text", 2) from error
        shown = {form for value in secrets.values() for form in forms(value)}
        self.secrets = sorted(shown, key=len, reverse=True)
        return secrets

    def secret(self, source):
        """The bytes of a secret; None if it does not exist, or this VM's account may not read it."""
        if source.startswith("gs://"):
            root, _, name = source.rpartition("/")
            return Bucket(root, self.metadata).get(name, unless_refused=True)
        status, body = self.metadata.signed(f"{SECRETS}/v1/{source}:access")
        return base64.b64decode(json.loads(body)["payload"]["data"]) if status == 200 else None

    # -- the bucket ---------------------------------------------------------------------------------------------------

    def job(self, patience=PATIENCE_SECONDS):
        content = self.bucket.get("cloud/job.json", patience)
        return None if content is None else json.loads(content)

    def counts(self, job=None):
        """Whether this attempt is the newest one, and not given up."""
        job = job or self.job()
        node = None if job is None else job["node"]
        return node is not None and node["attempt"] == self.attempt and node["ending"] is None

    def wait_while_spare(self):
        """Wait for a while if this node is a spare one: of nodes queued in several zones, the supervisor keeps the first."""
        until = time.time() + SPARE_WAIT_SECONDS
        while time.time() < until:
            job = self.job() or {}
            if not any(spare["attempt"] == self.attempt and spare["ending"] is None for spare in job.get("spare", ())):
                return
            self.beat("waiting for its turn")
            time.sleep(POLL_SECONDS)

    def beat(self, state, patience=PATIENCE_SECONDS):
        self.report(state)
        beat = {"time": time.time(), "state": state, "step": self.watch.step, "stage": self.watch.stage}
        self.bucket.put(self.folder + f"beat-{self.worker}.json", json.dumps(beat).encode(), patience)

    def report(self, state):
        """Report how far the boot came, as a guest attribute."""
        if state != self.reported:
            self.reported = state
            self.metadata.set_guest_attribute("boot", state)

    def end(self, outcome):
        outcome = dict(outcome, step=self.watch.step)
        log(f"the trainer has ended: {outcome}")
        if outcome["exit_code"] not in (0, 75):
            self.report(f"failed: {outcome['message']}"[:200])
        self.bucket.put(self.folder + f"end-{self.worker}.json", json.dumps(outcome).encode())

    def upload_log(self, last=False):
        if self.secrets is None:  # a log from before a reboot cannot be redacted yet
            return
        try:
            size = self.log_path.stat().st_size
        except OSError:
            return
        soon = last or self.asked_at is not None  # there may be no later upload
        if size == self._logged[1] or not (soon or time.time() - self._logged[0] > LOG_SECONDS):
            return
        content = self.log_end().encode()
        self._logged = time.time(), self._logged[1]
        self.bucket.put(self.folder + f"log-{self.worker}.txt", content, patience=30 if last else 10)
        self._logged = time.time(), size  # only now: what could not be written is tried again

    def log_end(self):
        """The last LOG_BYTES that the trainer printed, or a little less, without secrets."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - LOG_BYTES - SECRET_BYTES))  # so that no secret is cut in two
                text = self.redacted(log.read().decode("utf-8", "replace"))
        except OSError:
            return ""
        return text.encode()[-LOG_BYTES:].decode("utf-8", "ignore")

    def redacted(self, text):
        for secret in self.secrets or ():
            text = text.replace(secret, "[redacted]")
        return text

    # -- the end ------------------------------------------------------------------------------------------------------

    def wait_to_be_deleted(self):
        """Nothing runs here any more. The supervisor deletes the node; if none does, the node deletes itself."""
        until = time.time() + SELF_DELETE_SECONDS
        if self.valid_until:
            until = min(until, max(self.valid_until, time.time() + 60))
        while time.time() < until:
            time.sleep(POLL_SECONDS)
        while True:
            with logged():
                self.delete_self()
            time.sleep(60)

    def delete_self(self):
        """Delete the queued resource of this node's name, if there is one, and the node."""
        project, zone, name = self.metadata.node()
        for path in (f"queuedResources/{name}?force=true", f"nodes/{name}"):
            with logged():  # each for itself: only the node is billed
                status, body = self.metadata.signed(f"{TPU}/v2/projects/{project}/locations/{zone}/{path}", "DELETE")
                log("deleting {}: HTTP {} {}".format(path, status, body[:200] if status >= 400 else ""))


def first_boot_time():
    """When this VM first booted, in seconds since 1970."""
    path = HOME / "born"
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    HOME.mkdir(parents=True, exist_ok=True)
    path.write_text(str(time.time()))
    return time.time()


def forms(secret):
    """The forms in which a secret may be printed; its short lines are left out, as they would redact too much."""
    lines = [line.strip() for line in secret.splitlines() if len(line.strip()) >= 8]
    return [form for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], *lines) if form]


if __name__ == "__main__":
    agent = Agent()
    agent.listen()
    agent.run()
