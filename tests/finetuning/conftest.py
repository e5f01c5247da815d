"""Encoders to begin with, and a model fine-tuned for each task, each made once a worker; none may be changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from task_examples import examples_of

import tpulm
from encoders import built

QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 16, "learning_rate": 5e-3, "max_length": 16, "dropout": 0.0}
OWN: dict[str, dict[str, Any]] = {
    "multilabel": {"epochs": 6},
    "qa": {"learning_rate": 1e-2},
    "choice": {"learning_rate": 1e-2},
    "embed": {"epochs": 5},
}


@pytest.fixture(scope="session")
def encoder() -> Path:
    return built("bert")


@pytest.fixture(scope="session")
def taught(encoder: Path) -> Callable[[str], tpulm.Classifier]:
    """A function (task) -> what 320 of its examples teach."""

    @cache
    def teach(task: str) -> tpulm.Classifier:
        classifier = tpulm.Classifier(encoder, task=task, **QUICK | OWN.get(task, {}))
        return classifier.fit(examples_of(task, 320), examples_of(task, 64, seed=1))

    return teach
