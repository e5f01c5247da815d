"""Training objectives: batch preparation, losses and metrics behind one interface (`interface`), registered by name.

Registered, for pretraining: `mlm`, `rtd` and `clm`, with `masking` and `rows`. The others are the losses of fine-tuning,
which tasks name themselves (`tpulm.finetuning`): `classification`, `choice`, `multilabel`, `tagging`, `spans`, `embedding`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tpulm.config import OBJECTIVES, ModelConfig, ObjectiveConfig
from tpulm.nn.transformer import Execution
from tpulm.objectives.clm import CausalLanguageModel
from tpulm.objectives.interface import Column, LossAndSums, Objective, Setup
from tpulm.objectives.mlm import MaskedLanguageModel, NextTokenOfEncoder
from tpulm.objectives.rtd import ReplacedTokenDetection
from tpulm.special_tokens import SpecialTokens

__all__ = ["Column", "LossAndSums", "Objective", "Setup", "SpecialTokens", "make", "register"]

_DEFAULTS = {"bert": "mlm", "modernbert": "mlm", "electra": "rtd", "decoder": "clm"}  # by model.architecture


def _next_token(*, model: ModelConfig, **setup: Any) -> Objective:
    return (CausalLanguageModel if model.architecture == "decoder" else NextTokenOfEncoder)(model=model, **setup)


_REGISTRY: dict[str, Callable[..., Objective]] = {"mlm": MaskedLanguageModel, "rtd": ReplacedTokenDetection, "clm": _next_token}


def register(name: str, make: Callable[..., Objective]) -> None:
    """Let `train.objective.name = name` select the objective that `make` returns; it takes the fields of `Setup` by name."""
    OBJECTIVES.add(name)
    _REGISTRY[name] = make


def make(
    model: ModelConfig,
    objective: ObjectiveConfig,
    execution: Execution,
    *,
    sequence_length: int,
    row_kind: Literal["segments", "packed", "causal"],
    next_sentence: bool,
    vocab_size: int,
    special: SpecialTokens,
    evaluation: bool = False,
) -> Objective:
    """The objective of a run; the arguments are those of `Setup`. Raises ConfigError when rows, vocabulary and model do not
    fit together."""
    return _REGISTRY[objective.name or _DEFAULTS[model.architecture]](
        model=model,
        objective=objective,
        execution=execution,
        sequence_length=sequence_length,
        row_kind=row_kind,
        next_sentence=next_sentence,
        vocab_size=vocab_size,
        special=special,
        evaluation=evaluation,
    )
