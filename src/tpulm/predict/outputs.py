"""The outputs of a classifier for texts, on all devices there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.convert.huggingface import LoadedModel
from tpulm.labelled.batches import fixed_lengths
from tpulm.labelled.rows import Rows, encode_rows
from tpulm.objectives import SpecialIds
from tpulm.train.forward import Forward
from tpulm.train.mesh import make_mesh, parameter_shardings, place
from tpulm.train.tuning import classification


class Outputs:
    """`config` is filled in (`FinetuneConfig.for_architecture`)."""

    def __init__(self, model: LoadedModel, config: FinetuneConfig, *, num_classes: int | None):
        assert config.max_length is not None
        devices = jax.devices()
        self.objective = classification(
            model.config,
            config,
            num_classes=num_classes,
            vocab_size=model.vocab_size,
            special=special_ids(model),
            devices=devices,
        )
        self._mesh = make_mesh(config.hardware, devices)
        self._forward = Forward(self.objective, self._mesh, fixed_lengths(config.max_length))
        self._tokenization, self._max_length = model.tokenization, config.max_length

    def rows(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Rows:
        return encode_rows(self._tokenization, texts, pairs, max_length=self._max_length)

    def place(self, params: Any) -> Any:
        """Parameters on the devices, as `of` takes them."""
        return jax.tree.map(place, params, parameter_shardings(self.objective.spec, self._mesh))

    def of(self, params: Any, rows: Rows, *, advance: Callable[[float], None] = lambda rows: None) -> np.ndarray:
        """float32 [N, C]: logits, or of a regression the number."""
        return self._forward(params, rows, advance=advance)


def special_ids(model: LoadedModel) -> SpecialIds:
    return SpecialIds(*model.tokenization.special.in_order)


def log_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Log-softmax over C, in float64."""
    shifted = outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
