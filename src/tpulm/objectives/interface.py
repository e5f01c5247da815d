"""The interface of objectives: all that the training step, the loop and the evaluation know about one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from tpulm.config import ModelConfig, ObjectiveConfig
from tpulm.errors import ConfigError
from tpulm.models import bert
from tpulm.nn.transformer import Execution
from tpulm.objectives.rows import RowKind
from tpulm.special_tokens import SpecialTokens


@dataclass(frozen=True)
class Setup:
    """The arguments that every objective is made from; `RunConfig` refuses those that do not fit together.

    Raises ConfigError where special tokens lie outside the vocabulary.
    """

    model: ModelConfig
    objective: ObjectiveConfig
    execution: Execution
    sequence_length: int
    row_kind: RowKind
    next_sentence: bool
    vocab_size: int
    special: SpecialTokens
    evaluation: bool = False  # mask `evaluation_mask_fraction` of the tokens, so that runs are comparable

    def __post_init__(self) -> None:
        if beyond := {name: value for name, value in asdict(self.special).items() if not 0 <= value < self.vocab_size}:
            raise ConfigError(
                f"special tokens {beyond} lie outside the vocabulary of {self.vocab_size}; "
                "set a larger tokenizer.vocab_size, or use the tokenizer's own size"
            )

    def label_counts(self, inputs: Any) -> Array:
        """How often each token is a label, float32 [V]."""
        counts = jnp.zeros((self.vocab_size,), jnp.float32)  # pyright: ignore[reportUnknownMemberType]
        return counts.at[inputs.labels.ravel()].add(inputs.weights.ravel())

    def flops(self, predictions: int) -> float:
        """FLOPs of one row in an encoder or decoder: a product and its two gradients cost 2 * rows * inner * columns each."""
        forward = bert.forward_flops(
            self.model,
            sequence_length=self.sequence_length,
            predictions=predictions,
            vocab_size=self.vocab_size,
            next_sentence=self.next_sentence,
        )
        return 3.0 * forward


class Column(NamedTuple):
    """A column that rows have besides their tokens."""

    shape: tuple[int, ...]  # of one row
    dtype: Any
    of_tokens: Callable[[Any], np.ndarray] | None = None  # Tokenization -> values by token id [V], if the dataset has none


class LossAndSums(NamedTuple):
    """`loss` is a micro-batch's share of the global weighted mean; `sums` add up over micro-batches, for `metrics`."""

    loss: Array  # float32 scalar
    sums: dict[str, Array]  # float32


def ratio(sums: Mapping[str, Any], over: str, under: str) -> float:
    """The quotient of two sums; 0 if the second one is."""
    return float(sums[over]) / float(sums[under]) if float(sums[under]) else 0.0


class TrainingObjective(Protocol):
    """What a training step needs of an objective, computed on the device from rows of token ids.

    A step is `inputs = make_inputs(batch, row_keys)` for the global batch, `totals(inputs)`, then `loss` of each micro-batch
    (any split of the rows of `inputs`, all with the same totals and dropout key); losses, gradients and sums add up to those
    of the whole batch. Masks, sampling and dropout depend on a row's key and the step's key, never on how rows are split.
    """

    @property
    def spec(self) -> Any:
        """The tree of `ParamSpec`."""
        ...

    @property
    def columns(self) -> Mapping[str, Column]:
        """What `make_inputs` reads from a batch besides "tokens"."""
        ...

    def make_inputs(self, batch: Mapping[str, Array], row_keys: Array) -> Any:
        """The inputs of `loss`, a pytree of arrays whose first axis is rows; `row_keys` are typed threefry keys [B]."""
        ...

    def totals(self, inputs: Any) -> dict[str, Array]:
        """The denominators of the loss: weights summed over the given rows, float32 scalars."""
        ...

    def loss(self, params: Any, inputs: Any, totals: Mapping[str, Array], *, dropout_key: Array | None) -> LossAndSums: ...

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Means, computed on the host from sums accumulated over any number of batches; always with "loss" and "accuracy", or
        with "mlm_loss" and "mlm_accuracy" where the loss is a sum of several."""
        ...


class Objective(TrainingObjective, Protocol):
    """An objective of pretraining."""

    @property
    def flops_per_row(self) -> float:
        """FLOPs of one row's matrix products, forward and backward, without recomputation and vocabulary padding."""
        ...

    def label_counts(self, inputs: Any) -> Array:
        """How often each token is a label in `inputs`, float32 [V]: what always guessing that token would score."""
        ...
