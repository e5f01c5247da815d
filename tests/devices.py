"""Devices of a test: eight where it is marked `devices`, else perhaps one."""

from __future__ import annotations

from typing import Any

import jax


def first(count: int) -> list[Any]:
    found = jax.devices()[:count]
    assert len(found) == count, f"{count} devices are needed, so mark this test: @pytest.mark.devices"
    return found
