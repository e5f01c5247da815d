"""The devices of a test."""

from __future__ import annotations

from typing import Any

import jax


def first(count: int) -> list[Any]:
    found = jax.devices()[:count]
    assert len(found) == count, f"{count} devices are needed"
    return found
