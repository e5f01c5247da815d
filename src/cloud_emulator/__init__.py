"""Cloud Storage and Cloud TPU emulated on this machine, for unmodified production clients; for rehearsals and tests.

with Emulator() as emulator:
    emulator.create_bucket("runs")
    subprocess.run([...], env=os.environ | emulator.environment)
"""

from cloud_emulator.errors import EmulatorError
from cloud_emulator.faults import FaultSettings
from cloud_emulator.machines import MachineSettings
from cloud_emulator.server import Emulator, environment_for

__all__ = ["Emulator", "EmulatorError", "FaultSettings", "MachineSettings", "environment_for"]
