"""An emulator with TPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig import Rig

from cloud_emulator import Emulator


@pytest.fixture
def rig(emulator: Emulator) -> Iterator[Rig]:
    made = Rig(emulator)
    made.tpu.set(create_seconds=0.05, delete_seconds=0.02)
    with made.client:
        yield made
