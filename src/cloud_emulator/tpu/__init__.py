"""The Cloud TPU API v2 on this machine; imported when it is first asked for, since google-cloud-tpu's types take a while."""

from cloud_emulator.tpu.behaviour import Behaviour
from cloud_emulator.tpu.control import Tpu
from cloud_emulator.tpu.history import Event

__all__ = ["Behaviour", "Event", "Tpu"]
