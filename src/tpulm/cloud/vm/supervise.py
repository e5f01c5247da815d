"""Keeps `tpulm cloud attach` running on its own VM until the run is over, then deletes the VM. For Python 3.8 and newer.

    metadata    which run
    the bucket  job.json says whether the run is over; reports go to cloud/supervisor/log.txt and beat.json

Should all of this fail, Compute Engine itself deletes the VM when its maxRunDuration is over.
"""

import json
import os
import subprocess
import time

from install import environment
from services import HOME, Bucket, Metadata, Unreachable, delete, die_with_parent, logged, say

COMPUTE = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "https://compute.googleapis.com").rstrip("/")

LOOK_SECONDS = float(os.environ.get("TPULM_LOOK_SECONDS", "5"))
LOG_SECONDS = 3 * LOOK_SECONDS  # between uploads of the log
BEAT_SECONDS = 12 * LOOK_SECONDS
LOG_BYTES = 1 << 20  # uploaded of the log's end
GONE_SECONDS = 300.0  # without a job in the bucket, until the run counts as over
LONGEST_PAUSE_SECONDS = 300.0  # before a failed supervisor is restarted


class Keeper:
    def __init__(self):
        self.metadata = Metadata()
        self.workdir = (self.metadata.attribute("tpulm-workdir") or "").rstrip("/")
        self.bucket = Bucket(self.workdir + "/cloud", self.metadata)
        self.log_path = HOME / "supervisor.log"
        self.gone_since = None  # when the job was first missing
        self.process = None  # the supervisor's process id
        self._logged = (0.0, -1)
        self._beaten = (0.0, "")

    def run(self):
        """Supervise, then delete this VM; a run that is launched again before it is gone is supervised again."""
        while True:
            self.supervise()
            self.tell("the run is over: this VM deletes itself")
            self.beat("over")
            self.upload_log(last=True)
            with logged():
                self.delete_self()
            time.sleep(60)

    def supervise(self):
        """Run the supervisor until the run is over, whatever happens."""
        python, pause = None, LOOK_SECONDS
        while not self.is_over():
            begun = time.time()
            try:
                python = python or environment(lambda: self.beat("installing"), "supervisor.txt")
                self.attach(python)
            except (OSError, subprocess.SubprocessError, RuntimeError, Unreachable) as error:
                self.tell(f"{type(error).__name__}: {error}")
            self.upload_log(last=True)
            if time.time() - begun > 60:
                pause = LOOK_SECONDS
            if not self.is_over():
                self.tell(f"the supervisor is started again in {pause:.0f} s")
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def attach(self, python):
        with self.log_path.open("ab") as log:
            child = subprocess.Popen(
                [python, "-m", "tpulm", "cloud", "attach", "--workdir", self.workdir, "--here"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
        self.process = child.pid
        while True:
            try:
                child.wait(LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                self.beat("supervising")
                self.upload_log()
        self.process = None
        self.tell(f"the supervisor has ended with exit code {child.returncode}")

    def is_over(self):
        """False if the bucket does not answer."""
        try:
            content = self.bucket.get("job.json")
            if content is None:
                self.gone_since = self.gone_since or time.time()
                return time.time() - self.gone_since > GONE_SECONDS
            self.gone_since, job = None, json.loads(content)
            return job["status"] != "active" and job["node"] is None and not job.get("spare")
        except (Unreachable, ValueError, KeyError, TypeError) as error:
            self.tell(f"{type(error).__name__}: {error}")
            return False

    # -- the bucket ---------------------------------------------------------------------------------------------------

    def tell(self, line):
        say(line)
        with self.log_path.open("a") as log:
            log.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + line + "\n")

    def beat(self, state):
        if state == self._beaten[1] and time.time() - self._beaten[0] < BEAT_SECONDS:
            return
        self._beaten = time.time(), state
        beat = {"time": time.time(), "state": state, "process": self.process}
        self.put("beat.json", json.dumps(beat).encode())

    def upload_log(self, last=False):
        size = self.log_path.stat().st_size if self.log_path.exists() else 0
        if size == self._logged[1] or not (last or time.time() - self._logged[0] > LOG_SECONDS):
            return
        self._logged = time.time(), size
        with self.log_path.open("rb") as log:
            log.seek(max(0, size - LOG_BYTES))
            self.put("log.txt", log.read())

    def put(self, name, content):
        with logged(Unreachable):
            self.bucket.put("supervisor/" + name, content, patience=30)

    # -- the end ------------------------------------------------------------------------------------------------------

    def delete_self(self):
        """Unlike a TPU VM, this one is in the user's own project, under its own name."""
        zone = (self.metadata.get("instance/zone") or "").rpartition("/")[2]
        place = "{}/compute/v1/projects/{}/zones/{}".format(COMPUTE, self.metadata.get("project/project-id"), zone)
        delete(self.metadata, place, "instances/{}".format(self.metadata.get("instance/name")))


if __name__ == "__main__":
    Keeper().run()
