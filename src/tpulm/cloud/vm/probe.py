"""Writes the facts that `tpulm cloud smoke` checks to the bucket, then deletes the VM. For Python 3.8 and newer."""

import json
import platform
import socket
import time
from pathlib import Path

from agent import POLL_SECONDS, Agent
from services import log, logged

PATHS = (
    "instance/name",
    "instance/zone",
    "instance/preempted",
    "instance/maintenance-event",
    "instance/scheduling/preemptible",
    "instance/machine-type",
    "project/project-id",
    "project/numeric-project-id",
    "instance/attributes/accelerator-type",
    "instance/attributes/agent-worker-number",
    "instance/attributes/worker-network-endpoints",
    "instance/attributes/tpu-env",
    "instance/attributes/tpulm-project",
    "instance/attributes/tpulm-zone",
    "instance/attributes/tpulm-node",
)
VISIBLE_POLLS = 6  # before the deletion, so that others can still read the guest attributes


def run(agent):
    """Write the facts; whatever happens, the VM deletes itself."""
    with logged():
        log("writing facts about this VM, which then deletes itself")
        facts = {
            "metadata": {path: agent.metadata.get(path, patience=10) for path in PATHS},
            "hostname": socket.gethostname(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "devices": sorted(str(path) for name in ("accel*", "vfio/*") for path in Path("/dev").glob(name)),
        }
        agent.bucket.put("smoke/facts.json", json.dumps(facts, indent=1).encode())
        agent.log_path.write_text("this line came from the VM\n")
        agent.fetch_secrets()  # there are none, but no log is uploaded before that is known
        agent.upload_log(last=True)
        agent.report("probed")
        time.sleep(VISIBLE_POLLS * POLL_SECONDS)
    while True:
        with logged():
            agent.delete_self()
        time.sleep(10 * POLL_SECONDS)


if __name__ == "__main__":
    run(Agent())
