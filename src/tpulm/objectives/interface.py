"""What an objective offers to the trainer: the only things the training step, the loop and the evaluation know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from jax import Array

from tpulm.config import ModelConfig, ObjectiveConfig
from tpulm.nn.transformer import Execution
from tpulm.special_tokens import SpecialTokens


@dataclass(frozen=True)
class Setup:
    """What every objective is made from."""

    model: ModelConfig
    objective: ObjectiveConfig
    execution: Execution
    sequence_length: int
    row_kind: Literal["segments", "packed", "causal"]
    next_sentence: bool
    vocab_size: int
    special: SpecialTokens
    evaluation: bool = False  # with the masked share `evaluation_mask_fraction`, so that runs compare


class Column(NamedTuple):
    """What rows have beside their tokens."""

    shape: tuple[int, ...]  # of one row
    dtype: Any
    of_tokens: Callable[[Any], np.ndarray] | None = None  # of a Tokenization, [V]: by id, where the dataset does not have it


class LossAndSums(NamedTuple):
    """`loss` is this part's share of the global weighted mean; `sums` add up over parts, and `metrics` reads them."""

    loss: Array  # float32 scalar
    sums: dict[str, Array]  # float32


class Objective(Protocol):
    """Everything is computed from rows of token ids, on the device.

    A step is: `inputs = prepare(batch, row_keys)` for the global batch, `totals(inputs)`, then `loss` of each micro-batch (any
    split of the rows of `inputs`, all with the same totals and the same dropout key): losses, gradients and sums add up to
    those of the whole batch. Masks, sampling and dropout depend on a row's key and the step's key, never on how rows are split.
    """

    @property
    def spec(self) -> Any:
        """The tree of `ParamSpec`."""
        ...

    @property
    def columns(self) -> Mapping[str, Column]:
        """What `prepare` finds in a batch beside "tokens"."""
        ...

    @property
    def flops_per_row(self) -> float:
        """FLOPs of one row's matrix products, forward and backward; recomputation and padding of the vocabulary not counted."""
        ...

    def prepare(self, batch: Mapping[str, Array], row_keys: Array) -> Any:
        """Inputs, a pytree of arrays whose first axis is the rows; `row_keys` are typed threefry keys [B]."""
        ...

    def totals(self, inputs: Any) -> dict[str, Array]:
        """The denominators: weights summed over the rows given, float32 scalars."""
        ...

    def loss(self, params: Any, inputs: Any, totals: Mapping[str, Array], *, dropout_key: Array | None) -> LossAndSums: ...

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """On the host: means from sums accumulated over any number of batches; always with "loss" and "accuracy", or with
        "mlm_loss" and "mlm_accuracy" where the loss is a sum of several."""
        ...

    def label_counts(self, inputs: Any) -> Array:
        """How often each token of the vocabulary is a label in `inputs`, float32 [V]: what always guessing one would score."""
        ...
