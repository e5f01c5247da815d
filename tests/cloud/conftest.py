"""The TPU API of an emulator that is quick and boots nothing, and of few zones where each would be asked again and again."""

from __future__ import annotations

import pytest
from cloud_rig import OTHER_ZONE, PROJECT, ZONE

from cloud_emulator import Emulator
from cloud_emulator.machines import Machine
from tpulm.cloud.tpu_api import TpuApi


@pytest.fixture
def api(gcs: Emulator, monkeypatch: pytest.MonkeyPatch) -> TpuApi:
    monkeypatch.setattr(Machine, "boot", lambda machine, script: None)
    gcs.tpu.set(create_seconds=0.02, delete_seconds=0.02, stop_seconds=0.02, queue_seconds=0.02)
    return TpuApi(PROJECT)


@pytest.fixture
def few_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TpuApi, "zones", lambda api: [ZONE, OTHER_ZONE, "europe-west4-b"])
