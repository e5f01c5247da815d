"""The encoder to begin with, made once a worker; it may not be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoders import built


@pytest.fixture(scope="session")
def encoder() -> Path:
    return built("bert")
