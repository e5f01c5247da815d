"""What a model is trained to do: batches, losses and metrics, behind one interface."""

from __future__ import annotations

from typing import Literal

from tpulm.config import ModelConfig, ObjectiveConfig
from tpulm.nn.transformer import Execution
from tpulm.objectives.clm import CausalLanguageModel
from tpulm.objectives.interface import LossAndSums, Objective, SpecialIds
from tpulm.objectives.masking import masking_law
from tpulm.objectives.mlm import MaskedLanguageModel
from tpulm.objectives.rtd import ReplacedTokenDetection

__all__ = ["LossAndSums", "Objective", "SpecialIds", "make"]


def make(
    model: ModelConfig,
    objective: ObjectiveConfig,
    execution: Execution,
    *,
    sequence_length: int,
    row_kind: Literal["segments", "packed", "causal"],
    next_sentence: bool,
    vocab_size: int,
    special: SpecialIds,
    evaluation: bool = False,
) -> Objective:
    """The objective of a run; with `evaluation`, the masked share is `evaluation_mask_fraction`, so that runs compare.

    Raises ConfigError when rows, vocabulary and model do not fit together.
    """
    if model.architecture == "decoder":
        return CausalLanguageModel(
            model=model,
            execution=execution,
            sequence_length=sequence_length,
            row_kind=row_kind,
            vocab_size=vocab_size,
            special=special,
        )
    kind = ReplacedTokenDetection if model.architecture == "electra" else MaskedLanguageModel
    return kind(
        model=model,
        objective=objective,
        execution=execution,
        sequence_length=sequence_length,
        row_kind=row_kind,
        next_sentence=next_sentence,
        vocab_size=vocab_size,
        special=special,
        law=masking_law(
            model.architecture,
            objective,
            sequence_length=sequence_length,
            vocab_size=vocab_size,
            special=special,
            evaluation=evaluation,
        ),
    )
