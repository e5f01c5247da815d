"""A pretrained model as the beginning of a classifier: its encoder, and what of its head can be used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from tpulm.convert.answers import Answers
from tpulm.convert.heads import Model
from tpulm.errors import ConfigError
from tpulm.models.bert import Bert
from tpulm.models.classifier import ClassificationHead, SequenceClassifier
from tpulm.models.decoder import Decoder
from tpulm.nn.params import initialize

_HEAD_SEED = 0x6865_6164  # so that a head's values differ from those of anything else drawn from the same seed


def begin_classifier(
    params: Model, spec: SequenceClassifier, *, answers: Answers | None, wanted: Answers, seed: int
) -> SequenceClassifier:
    """The encoder of `params` under a head of `spec` (both for the same model settings): float32 numpy.

    The head is drawn from the seed, but for BERT's pooler where next-sentence prediction has trained it, the dense layer of a
    classifier, and all of the latter's head where its labels (`answers`) are the ones `wanted`. Raises ConfigError for a
    causal model.
    """
    if isinstance(params, Decoder):
        raise ConfigError(
            "this is a causal language model, whose states see only what lies before them: classification needs an encoder "
            "(bert or electra)"
        )
    key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), _HEAD_SEED)
    head: ClassificationHead = jax.device_get(initialize(spec.classification_head, key))
    if isinstance(params, Bert) and params.next_sentence is not None:
        head = replace(head, dense=_with_bias(params.next_sentence.pooler, head.dense))
    elif isinstance(params, SequenceClassifier):
        found = params.classification_head
        head = found if answers == wanted else replace(head, dense=found.dense)
    return SequenceClassifier(params.embeddings, params.projection, params.layers, params.final_norm, head)


def random_classifier(spec: SequenceClassifier, *, seed: int) -> SequenceClassifier:
    """All of it drawn from the seed: what a pretrained one is compared with."""
    return jax.device_get(initialize(spec, jax.random.key(seed, impl="threefry2x32")))


def _with_bias(dense: Any, like: Any) -> Any:
    return dense if dense.bias is not None else replace(dense, bias=np.zeros_like(like.bias))
