"""The devices of a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


def first(count: int) -> list[Any]:
    found = jax.devices()[:count]
    assert len(found) == count, f"{count} devices are needed"
    return found


@dataclass(frozen=True)
class Client:
    runtime_type: str = "compile_only_runtime"  # nothing is checked on devices that are not attached


@dataclass(frozen=True)
class Device:
    """As much of one as a mesh and the choice of kernels need."""

    id: int
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = ""
    compute_capability: str = "9.0"
    client: Client = Client()
