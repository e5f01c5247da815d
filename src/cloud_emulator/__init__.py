"""Cloud Storage and Cloud TPU emulated on this machine, for unmodified production clients; for rehearsals and tests.

A request goes from `server` through `http`, which asks whether it is allowed and whether it is to fail (`faults`), to
`storage`, `tpu` or `project_apis`; they answer from a state and a `clock`. `recorded` has Google's answers as data, `machines`
runs the VMs, each with its `metadata` and an `init_process`; `projects` has permissions and quotas. `rehearsal`, which alone
knows tpulm, plays the life of a run.

with Emulator() as emulator:
    emulator.create_bucket("runs")
    subprocess.run([...], env=os.environ | emulator.environment)
"""

from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import FaultSettings
from cloud_emulator.machines import MachineSettings
from cloud_emulator.server import Emulator, environment_for

__all__ = ["Emulator", "EmulatorError", "FaultSettings", "MachineSettings", "environment_for"]
