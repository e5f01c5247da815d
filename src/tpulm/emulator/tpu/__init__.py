"""The Cloud TPU API v2 on this machine; imported when it is first asked for, since google-cloud-tpu's types take a while."""

from tpulm.emulator.tpu.behaviour import Behaviour
from tpulm.emulator.tpu.control import Tpu
from tpulm.emulator.tpu.history import Event

__all__ = ["Behaviour", "Event", "Tpu"]
