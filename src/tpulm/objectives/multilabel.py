"""Multi-label classification of texts, from labelled rows."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from tpulm.objectives.classification import Classification, LabelledInputs


@dataclass(frozen=True)
class MultiLabelClassification(Classification):
    """The loss is the mean over the real rows of the global batch and over the labels: binary cross-entropy in nats.

    A row's labels are 0 or 1 for each class. "correct" counts rows with all labels right.
    """

    label_dtype = jnp.float32

    @property
    def label_shape(self) -> tuple[int, ...]:
        return (self.num_classes or 1,)

    def sums(self, outputs: Float[Array, "B C"], inputs: LabelledInputs) -> dict[str, Array]:
        entropy = jax.nn.softplus(outputs) - outputs * inputs.labels
        correct = jnp.all((outputs > 0.0) == (inputs.labels > 0.0), axis=1).astype(jnp.float32)
        return {
            "loss": jnp.sum(jnp.mean(entropy, axis=1) * inputs.weights),
            "correct": jnp.sum(correct * inputs.weights),
            "rows": jnp.sum(inputs.weights),
        }
