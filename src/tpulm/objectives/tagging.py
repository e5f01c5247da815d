"""Token classification, from labelled rows."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.models import bert, classifier
from tpulm.nn.transformer import Randomness
from tpulm.objectives.classification import Classification, LabelledInputs
from tpulm.objectives.losses import cross_entropy


@dataclass(frozen=True)
class TokenClassification(Classification):
    """The loss is the mean over the labelled tokens of the global batch: cross-entropy in nats.

    A row's labels are its tokens' classes: -1 for none, class + C in an entity whose ends are not token boundaries (trained on
    as the class). After them come C counts: the entities beginning with each class that have no token left. Only scoring uses
    the + C and the counts.
    """

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.sequence_length + (self.num_classes or 1),)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.sequence_length, self.num_classes or 1)

    @cached_property
    def spec(self) -> Any:
        return classifier.token_spec(self.model, vocab_size=self.vocab_size, num_outputs=self.num_classes or 1)

    def apply(self, params: Any, tokens: bert.EncoderInput, randomness: Randomness | None) -> Float[Array, "B L C"]:
        return classifier.token_logits(params, tokens, config=self.model, execution=self.execution, randomness=randomness)

    def totals(self, inputs: LabelledInputs) -> dict[str, Array]:
        return {"rows": jnp.sum(self._weights(inputs, self.sequence_length))}

    def sums(self, outputs: Float[Array, "B L C"], inputs: LabelledInputs) -> dict[str, Array]:
        length = outputs.shape[1]
        labels = jnp.maximum(inputs.labels[:, :length], 0) % (self.num_classes or 1)
        entropy = cross_entropy(outputs, labels, self._weights(inputs, length))
        return {"loss": entropy.loss, "correct": entropy.correct, "rows": entropy.weight}

    @staticmethod
    def _weights(inputs: LabelledInputs, length: int) -> Float[Array, "B L"]:
        return (inputs.labels[:, :length] >= 0).astype(jnp.float32) * inputs.weights[:, None]
