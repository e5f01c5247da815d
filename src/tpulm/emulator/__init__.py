"""Cloud Storage and Cloud TPU on this machine, spoken to by the unmodified production clients; for rehearsals and tests.

with Emulator() as emulator:
    emulator.create_bucket("runs")
    subprocess.run([...], env=os.environ | emulator.environment)
"""

from tpulm.emulator.faults import FaultSettings
from tpulm.emulator.machines.machine import MachineSettings
from tpulm.emulator.server import Emulator

__all__ = ["Emulator", "FaultSettings", "MachineSettings"]
