"""What `tpulm cloud smoke` wants to know of a VM, written to the bucket; then the VM deletes itself. For Python 3.8 on."""

import json
import platform
import socket
import time
from pathlib import Path

from agent import LOOK_SECONDS, Agent
from services import logged, say

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
SEEN_SECONDS = 6  # of the agent's looks: long enough for others to read the guest attributes of a node that is going


def run(agent):
    """Whatever happens, the VM deletes itself."""
    with logged():
        say("this VM is looked at, and deletes itself")
        found = {
            "metadata": {path: agent.metadata.get(path, patience=10) for path in PATHS},
            "hostname": socket.gethostname(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "devices": sorted(str(path) for name in ("accel*", "vfio/*") for path in Path("/dev").glob(name)),
        }
        agent.bucket.put("smoke/facts.json", json.dumps(found, indent=1).encode())
        agent.log_path.write_text("this line came from the VM\n")
        agent.fetch_secrets()  # it has none, but no log is uploaded before that is known
        agent.upload_log(last=True)
        agent.tell("probed")
        time.sleep(SEEN_SECONDS * LOOK_SECONDS)
    while True:
        with logged():
            agent.delete_self()
        time.sleep(10 * LOOK_SECONDS)


if __name__ == "__main__":
    run(Agent())
