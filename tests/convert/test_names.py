"""The table of names covers the model, and copying by it loses nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.convert.names import names, tidy
from tpulm.convert.tensors import to_theirs
from tpulm.errors import DataError
from tpulm.models.bert import spec
from tpulm.nn.params import map_specs

MODEL_TYPES = {"post": "bert", "pre": "megatron-bert"}
VOCAB_SIZE = 57  # not a multiple of 128


def config(norm_position: Any = "post") -> ModelConfig:
    return ModelConfig(
        num_layers=2, hidden_size=12, num_heads=3, intermediate_size=20, max_positions=9, norm_position=norm_position
    )


def model(norm_position: Any, next_sentence: bool) -> tuple[Any, Any]:
    tree = spec(config(norm_position), vocab_size=VOCAB_SIZE, next_sentence=next_sentence)
    random = np.random.default_rng(0)
    return tree, map_specs(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), tree)


def exported(norm_position: Any = "post", next_sentence: bool = False) -> dict[str, np.ndarray]:
    tree, params = model(norm_position, next_sentence)
    return to_theirs(params, tree, names(MODEL_TYPES[norm_position], tree), vocab_size=VOCAB_SIZE)


def test_old_names_repeats_and_buffers_are_tidied():
    tensors = exported()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["bert.embeddings.position_ids"] = np.arange(9)[None]
    old["bert.pooler.dense.weight"], old["bert.pooler.dense.bias"] = np.zeros((12, 12)), np.zeros(12)
    kept = tidy(old, "bert", "masked", origin="here")
    assert kept.dropped == ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
    assert kept.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(kept.tensors[name], tensor)


def test_a_decoder_of_its_own_is_refused():
    tensors = exported()
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    with pytest.raises(DataError, match=r"here: cls\.predictions\.decoder\.weight .* bert\.embeddings"):
        tidy(tensors, "bert", "masked", origin="here")
