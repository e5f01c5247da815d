"""Encoders to begin with, each built once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from encoders import build_encoder


@pytest.fixture(scope="session")
def make_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function (kind) -> folder of a model with random weights."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = build_encoder(kind, tmp_path_factory.mktemp("encoder"))
        return made[kind]

    return make


@pytest.fixture(scope="session")
def encoder(make_encoder: Callable[[str], Path]) -> Path:
    return make_encoder("bert")
