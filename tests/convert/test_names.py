"""The table of names covers the model, and copying by it loses nothing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from tpulm.config import ModelConfig
from tpulm.convert.names import head_in, names, tidy
from tpulm.convert.tensors import from_theirs, to_theirs
from tpulm.errors import DataError
from tpulm.models.bert import spec
from tpulm.nn.params import map_specs, named_leaves

MODEL_TYPES = {"post": "bert", "pre": "megatron-bert"}
VOCAB_SIZE = 57  # not a multiple of 128
KINDS = [("post", False), ("post", True), ("pre", False), ("pre", True)]


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


def imported(tensors: Any, norm_position: Any = "post", next_sentence: bool = False) -> Any:
    tree = spec(config(norm_position), vocab_size=VOCAB_SIZE, next_sentence=next_sentence)
    table = names(MODEL_TYPES[norm_position], tree)
    return from_theirs(tensors, tree, table, vocab_size=VOCAB_SIZE, origin="model.safetensors")


@pytest.mark.parametrize(("norm_position", "next_sentence"), KINDS)
def test_each_parameter_has_one_name_on_either_side(norm_position, next_sentence):
    tree = spec(config(norm_position), vocab_size=VOCAB_SIZE, next_sentence=next_sentence)
    table = names(MODEL_TYPES[norm_position], tree)
    assert sorted(row.ours for row in table) == sorted(named_leaves(tree))
    assert len({row.theirs for row in table}) == len(table)


@pytest.mark.parametrize(("norm_position", "next_sentence"), KINDS)
def test_there_and_back_is_the_same_but_for_the_padding(norm_position, next_sentence):
    tree, params = model(norm_position, next_sentence)
    tensors = exported(norm_position, next_sentence)
    assert all(tensor.flags.c_contiguous and tensor.dtype == np.float32 for tensor in tensors.values())
    back = imported(tensors, norm_position, next_sentence)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    for name, leaf_spec in named_leaves(tree).items():
        before, after = named_leaves(params)[name], named_leaves(back)[name]
        if leaf_spec.axes[0] == "vocab":
            assert after.shape == before.shape
            np.testing.assert_array_equal(after[VOCAB_SIZE:], 0)
            before, after = before[:VOCAB_SIZE], after[:VOCAB_SIZE]
        np.testing.assert_array_equal(after, before, err_msg=name)


def test_heads_lie_beside_each_other_in_their_rows():
    _, params = model("post", False)
    weight = exported()["bert.encoder.layer.1.attention.self.key.weight"]
    np.testing.assert_array_equal(weight[4 * 2 + 3], params.layers.attention.key.kernel[1, :, 2, 3])
    merge = exported()["bert.encoder.layer.1.attention.output.dense.weight"]
    np.testing.assert_array_equal(merge[:, 4 * 2 + 3], params.layers.attention.output.kernel[1, 2, 3])


def test_every_misfit_is_listed():
    tensors = exported()
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    tensors["bert.encoder.layer.2.output.dense.bias"] = np.zeros(12, np.float32)
    tensors["bert.embeddings.position_embeddings.weight"] = np.zeros((10, 12), np.float32)
    with pytest.raises(DataError) as raised:
        imported(tensors)
    message = str(raised.value)
    assert message.startswith("model.safetensors: ")
    assert "missing: bert.encoder.layer.1.output.dense.bias [12]" in message
    assert "unknown: bert.encoder.layer.2.output.dense.bias [12]. Did you mean" in message
    assert "shape: bert.embeddings.position_embeddings.weight is [10, 12], config.json says [9, 12]" in message
    assert "3 of" in message


def test_a_vocabulary_larger_than_the_config_says_is_refused():
    tensors = exported()
    tensors["bert.embeddings.word_embeddings.weight"] = np.zeros((VOCAB_SIZE + 1, 12), np.float32)
    with pytest.raises(DataError, match=r"word_embeddings\.weight is \[58, 12\], config\.json says \[57, 12\]"):
        imported(tensors)


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
    kept = tidy(old, "bert", origin="here")
    assert kept.dropped == ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
    assert kept.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(kept.tensors[name], tensor)


def test_the_pooler_stays_with_its_classifier():
    tensors = exported(next_sentence=True)
    assert head_in(tensors) == "next_sentence"
    assert tidy(tensors, "bert", origin="here").tensors.keys() == tensors.keys()
    assert head_in(exported()) == "masked"


def test_a_decoder_of_its_own_is_refused():
    tensors = exported()
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    with pytest.raises(DataError, match=r"here: cls\.predictions\.decoder\.weight differs from bert\.embeddings"):
        tidy(tensors, "bert", origin="here")
