"""The vectors of texts, whose cosines say how alike the texts are in meaning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.convert.huggingface import READS, LoadedModel, load_model
from tpulm.errors import ConfigError
from tpulm.models.decoder import Decoder
from tpulm.models.embedding import without_head
from tpulm.objectives.embedding import Embedding
from tpulm.predict.classify import Outputs, check_texts, listed


class Embedder:
    """An encoder on the devices. One that was not fine-tuned for embeddings is mean-pooled, like `embed` by default.

    Raises ConfigError for a causal model.
    """

    def __init__(self, model: LoadedModel):
        if isinstance(model.params, Decoder):
            raise ConfigError("this is a causal language model, and embeddings need an encoder (bert, modernbert or electra)")
        self.is_tuned = model.head == "embedding"
        self.max_length = model.max_length or model.config.max_positions  # tokens of a text
        pooling = None if model.head_config is None else model.head_config.pooling
        settings = FinetuneConfig(task="embed", pooling=pooling, max_length=self.max_length)
        settings = settings.for_architecture(model.config.architecture, model.config.max_positions)
        self._outputs = Outputs(model, settings, num_classes=None, objective=Embedding)
        self._params = self._outputs.place(without_head(model.params))
        self.cut = 0  # texts truncated so far

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [N, D], vectors of length 1. Raises DataError for a text that is blank or not a string."""
        check_texts(texts, "text")
        rows = self._outputs.rows(texts)
        self.cut += rows.cut
        return self._outputs.of(self._params, rows)[:, 0]


def embed(model: LoadedModel | str | PurePath, texts: str | Sequence[str]) -> np.ndarray:
    """float32 [N, D]: a vector of length 1 for each text, so that `vectors @ vectors.T` are cosines.

    Raises like `Embedder`, and DataError for a text that is blank or not a string.
    """
    model = model if isinstance(model, LoadedModel) else load_model(model, preferred=READS)
    return Embedder(model)(listed(texts))
