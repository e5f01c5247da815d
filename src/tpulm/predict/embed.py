"""The vectors of texts, whose cosines say how alike the texts are in meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath

import numpy as np

from tpulm.config import FinetuneConfig
from tpulm.convert.config_json import HeadConfig
from tpulm.convert.huggingface import READS, LoadedModel, load_model
from tpulm.errors import ConfigError
from tpulm.models.classifier import without_head
from tpulm.objectives.classification import Embedding
from tpulm.predict.classify import Outputs, check_texts, listed, make_objective


class Embedder:
    """An encoder on the devices. One that was not fine-tuned for embeddings is mean-pooled, like `embed` by default. A model's
    default prompt is put before every text; `prompts` are its others.

    Raises ConfigError for a causal model.
    """

    def __init__(self, model: LoadedModel):
        if model.config.architecture == "decoder":
            raise ConfigError("this is a causal language model, and embeddings need an encoder (bert, modernbert or electra)")
        own = model.head_config if model.head == "embedding" else None
        self.is_tuned, own = own is not None, own or HeadConfig((), pooling="mean")
        self.prompts = {name: text for name, text in own.prompts if name != own.prompt_name}
        self._prompt = dict(own.prompts).get(own.prompt_name or "", "")
        self.max_length = model.max_length or model.config.max_positions  # tokens of a text
        settings = FinetuneConfig(task="embed", pooling=own.pooling, max_length=self.max_length)
        settings = settings.for_model(model.config)
        objective = make_objective(partial(Embedding, normalized=own.normalized), model, settings, num_classes=None)
        self._outputs = Outputs(objective, settings.hardware, model.tokenization)
        self._params = self._outputs.place(without_head(model.params))
        self.cut = 0  # texts truncated so far

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [N, D], in general of length 1. Raises DataError for a text that is blank or not a string."""
        check_texts(texts, "text")
        rows = self._outputs.rows([self._prompt + text for text in texts])
        self.cut += rows.cut
        return self._outputs.of(self._params, rows)[:, 0]


def embed(model: LoadedModel | str | PurePath, texts: str | Sequence[str]) -> np.ndarray:
    """float32 [N, D]: a vector for each text, so that `vectors @ vectors.T` are cosines: of length 1, unless the model is one
    of sentence-transformers that has no Normalize.

    Raises like `Embedder`, and DataError for a text that is blank or not a string.
    """
    model = model if isinstance(model, LoadedModel) else load_model(model, preferred=READS)
    return Embedder(model)(listed(texts))
