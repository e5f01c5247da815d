"""Training objectives: batch preparation, losses and metrics behind one interface (`interface`), registered by name.

Registered, for pretraining: `mlm`, `rtd` and `clm`, with `masking` and `rows`. `classification` has the losses of
fine-tuning, which tasks name themselves (`tpulm.finetuning`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpulm.config import DEFAULT_OBJECTIVES, OBJECTIVES, ModelConfig
from tpulm.objectives.clm import CausalLanguageModel
from tpulm.objectives.interface import Column, Objective, Setup, TrainingObjective
from tpulm.objectives.mlm import MaskedLanguageModel, NextTokenOfEncoder
from tpulm.objectives.rtd import ReplacedTokenDetection

__all__ = ["Column", "Objective", "Setup", "TrainingObjective", "make", "register"]


def _next_token(*, model: ModelConfig, **setup: Any) -> Objective:
    return (CausalLanguageModel if model.architecture == "decoder" else NextTokenOfEncoder)(model=model, **setup)


_REGISTRY: dict[str, Callable[..., Objective]] = {"mlm": MaskedLanguageModel, "rtd": ReplacedTokenDetection, "clm": _next_token}


def register(name: str, make: Callable[..., Objective]) -> None:
    """Let `train.objective.name = name` select the objective that `make` returns; it takes the fields of `Setup` by name."""
    OBJECTIVES.add(name)
    _REGISTRY[name] = make


def make(setup: Setup) -> Objective:
    """The objective of a run. Raises ConfigError where special tokens lie outside the vocabulary."""
    return _REGISTRY[setup.objective.name or DEFAULT_OBJECTIVES[setup.model.architecture]](**vars(setup))
