"""The TPU API of an emulator that is quick."""

from __future__ import annotations

import pytest
from cloud_rig import PROJECT

from cloud_emulator import Emulator
from tpulm.cloud.tpu_api import TpuApi


@pytest.fixture
def api(gcs: Emulator) -> TpuApi:
    gcs.tpu.set(create_seconds=0.02, delete_seconds=0.02, stop_seconds=0.02, queue_seconds=0.02)
    return TpuApi(PROJECT)
