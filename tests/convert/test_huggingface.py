"""Folders that transformers loads with the same answers, and that come back as they were."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from outputs import assert_same_leaves, ours, rows, theirs

from tpulm import storage, tokenization
from tpulm.config import RunConfig
from tpulm.convert.huggingface import load_model
from tpulm.convert.model_card import CardFacts
from tpulm.errors import ConfigError, DataError, TpulmError
from tpulm.nn.params import named_leaves

KINDS = [("post", False, "gelu"), ("post", True, "relu"), ("pre", False, "gelu_tanh"), ("pre", True, "gelu")]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]  # as much as the tests below need


@pytest.fixture
def exported(make_small, tmp_path) -> Path:
    return make_small().save(tmp_path / "export")


# -- the same answers -------------------------------------------------------------------------------------------------------


HEAD = {
    "cls.predictions.bias",
    *(f"cls.predictions.transform.{part}.{leaf}" for part in ("dense", "LayerNorm") for leaf in ("weight", "bias")),
}
POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
PAIR_HEAD = {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}


@pytest.mark.parametrize(("norm_position", "next_sentence", "activation"), KINDS)
def test_logits_are_those_of_transformers(torch, transformers, make_small, tmp_path, norm_position, next_sentence, activation):
    """Which finds every weight, and no other."""
    small = make_small(norm_position=norm_position, activation=activation, next_sentence=next_sentence)
    folder = small.save(tmp_path / "export")
    batch = rows(small.tokenizer.vocab_size)

    def loaded(loader: Any, missing: set[str], unexpected: set[str]) -> Any:
        model, info = loader.from_pretrained(folder, output_loading_info=True)
        assert (info["mismatched_keys"], info["missing_keys"], info["unexpected_keys"]) == (set(), missing, unexpected)
        return model

    unused = {f"bert.{name}" for name in POOLER} | PAIR_HEAD if next_sentence else set()
    their_model = loaded(transformers.AutoModelForMaskedLM, set(), unused)
    model = load_model(folder)
    words, real = ours(model, **batch), batch["real"]
    inputs = {"input_ids": batch["ids"], "attention_mask": real, "token_type_ids": batch["types"]}
    assert np.abs(words).max() > 3.0  # or an error of 1e-4 would say little
    expected = theirs(torch, their_model.eval(), **inputs).logits.numpy()
    np.testing.assert_allclose(words[real], expected[real], atol=1e-4, rtol=0)
    # A pooler that was never trained cannot be given.
    loaded(transformers.AutoModel, set() if next_sentence else POOLER, HEAD | PAIR_HEAD if next_sentence else HEAD)
    assert (model.head == "next_sentence") == next_sentence
    if next_sentence:
        loaded(transformers.AutoModelForPreTraining, set(), set())


def test_what_transformers_saves_comes_back(torch, transformers, make_small, exported, tmp_path):
    transformers.AutoModelForMaskedLM.from_pretrained(exported).to(torch.bfloat16).save_pretrained(tmp_path / "again")
    for name in ("tokenizer.json", "vocab.txt"):
        storage.write_atomic(tmp_path / "again" / name, storage.read_bytes(exported / name))
    before, after = load_model(exported), load_model(tmp_path / "again")
    assert after.config == before.config
    for name, leaf in named_leaves(after.params).items():
        assert leaf.dtype == np.float32
        np.testing.assert_allclose(leaf, named_leaves(before.params)[name], rtol=2**-8, err_msg=name)


# -- what is written --------------------------------------------------------------------------------------------------------


def test_the_folder_holds_a_model_and_nothing_else(make_small, tmp_path):
    small = make_small(next_sentence=True)
    facts = CardFacts(config=RunConfig(), vocab_size=small.tokenizer.vocab_size, mask_token="[MASK]", steps=1)
    folder = small.save(tmp_path / "export", card=facts)
    expected = {path.name for path in small.tokenizer_folder.iterdir()} - {"manifest.json"}
    assert {path.name for path in folder.iterdir()} == expected | {"config.json", "model.safetensors", "README.md"}
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert "cls.predictions.decoder.weight" not in file.keys()  # noqa: SIM118  (not a mapping)
        shape = file.get_slice("bert.embeddings.word_embeddings.weight").get_shape()
    described = json.loads((folder / "config.json").read_text())
    assert shape == [small.tokenizer.vocab_size, 24]
    assert described["vocab_size"] == small.tokenizer.vocab_size
    assert "transformers_version" not in described
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_the_same_model_gives_the_same_bytes_from_any_device(make_small, tmp_path):
    small = make_small()
    first = small.save(tmp_path / "a")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def spread(leaf: np.ndarray) -> jax.Array:
        axis = next((i for i, size in enumerate(leaf.shape) if size % 2 == 0), None)
        parts = [None] * leaf.ndim if axis is None else ["x" if i == axis else None for i in range(leaf.ndim)]
        return jax.device_put(leaf, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts)))

    second = small._replace(params=jax.tree.map(spread, small.params)).save(tmp_path / "b")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_an_export_replaces_the_one_before_as_a_whole(make_small, exported):
    (exported / "stale.txt").write_text("from an earlier export")
    make_small(num_layers=1).save(exported)
    assert load_model(exported).config.num_layers == 1
    assert not (exported / "stale.txt").exists()


def test_broken_numbers_are_not_exported(make_small, exported):
    small = make_small()
    small.params.layers.up.bias[1, 2] = np.nan
    before = (exported / "model.safetensors").read_bytes()
    with pytest.raises(TpulmError, match="layers/up/bias"):
        small.save(exported)
    assert (exported / "model.safetensors").read_bytes() == before


# -- what is read -----------------------------------------------------------------------------------------------------------


def test_a_work_folder_stands_for_its_export(exported, tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert load_model(tmp_path).config == load_model(exported).config
    exported.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"tpulm export {tmp_path}"):
        load_model(tmp_path)


def test_what_is_no_model_is_refused(exported, tmp_path):
    for name in ("empty", "foreign", "pickled"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "sentencepiece.bpe.model").touch()
    (tmp_path / "pickled" / "pytorch_model.bin").touch()
    for path, message in (
        (tmp_path / "nothere", "nothere"),
        (exported / "model.safetensors", r"a file; .*config\.json and model\.safetensors"),
        (tmp_path / "empty", r"config\.json, model\.safetensors, tokenizer\.json or vocab\.txt"),
        (tmp_path / "foreign", r"sentencepiece\.bpe\.model .*AutoTokenizer"),
        (tmp_path / "pickled", r"pytorch_model\.bin"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_model(path)


def test_old_names_repeats_and_buffers_are_tidied(exported):
    """But a decoder's matrix that is not that of the embeddings is refused."""
    file, before = exported / "model.safetensors", load_model(exported)
    tensors = safetensors.numpy.load_file(file)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["bert.embeddings.position_ids"] = np.arange(20)[None]
    old["bert.pooler.dense.weight"], old["bert.pooler.dense.bias"] = np.zeros((24, 24)), np.zeros(24)
    safetensors.numpy.save_file(old, file)
    after = load_model(exported)
    assert set(after.dropped) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert_same_leaves(after.params, before.params)
    old["cls.predictions.decoder.weight"] += 1
    safetensors.numpy.save_file(old, file)
    with pytest.raises(DataError, match=r"cls\.predictions\.decoder\.weight .* bert\.embeddings"):
        load_model(exported)


def test_a_damaged_file_is_refused(exported):
    path = exported / "model.safetensors"
    whole = path.read_bytes()
    for broken in (whole[:100], struct.pack("<Q", 1 << 40) + whole[8:], whole[:8] + b"}" + whole[9:], whole[:-5], b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"model\.safetensors: .*safetensors file"):
            load_model(exported)


@pytest.mark.parametrize(("settings", "expected"), [({}, "the cafe"), ({"do_lower_case": False}, "The [UNK]")])
def test_a_bare_vocabulary_is_read_as_transformers_would(exported, settings, expected):
    (exported / "tokenizer.json").unlink()
    words = [*VOCABULARY, "The", "cafe"]
    storage.write_atomic(exported / "vocab.txt", "\n".join(words) + "\n")
    storage.write_json(exported / "tokenizer_config.json", settings)
    tokenizer = load_model(exported).tokenization
    assert [tokenizer.token(i) for i in tokenizer.encode_one("The Café", special_tokens=False)] == expected.split()


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(exported, tmp_path):
    words = [*VOCABULARY, *(f"word{number}" for number in range(70 - len(VOCABULARY)))]
    storage.write_atomic(tmp_path / "vocab.txt", "\n".join(words) + "\n")
    storage.write_atomic(exported / "tokenizer.json", tokenization.load(tmp_path / "vocab.txt").canonical_json)
    with pytest.raises(DataError, match=r"export: .* 70 .* 60"):
        load_model(exported)


def test_a_broken_description_is_refused(exported):
    """It came with the weights, and is not to be deleted: nothing can make it anew."""
    for name, change, message in (
        ("config.json", '{"model_type": ', "not valid JSON.*export the model again"),
        ("tokenizer_config.json", "[]", "not a JSON object.*export the model again"),
        ("config.json", '"hidden_dropout_prob": Infinity', "Infinity"),
        ("config.json", '"x": ' + "[" * 5_000 + "]" * 5_000, "nested"),
        ("tokenizer_config.json", '"do_lower_case": null', "do_lower_case: "),
        ("tokenizer_config.json", '"strip_accents": "x"', "strip_accents: "),
        ("special_tokens_map.json", '"mask_token": {"content": 5}', r"mask_token\.content: "),
    ):
        file = exported / name
        whole = file.read_text()
        if change.startswith('"'):
            values = json.loads(whole)
            values.pop(change.split('"')[1], None)
            file.write_text(f"{json.dumps(values).removesuffix('}')}, {change}}}")
        else:
            file.write_text(change)
        with pytest.raises(DataError, match=f"{re.escape(str(file))}.*{message}"):
            load_model(exported)
        file.write_text(whole)


def test_weights_that_are_no_numbers_are_refused(exported):
    tensors = safetensors.numpy.load_file(exported / "model.safetensors")
    tensors["bert.embeddings.LayerNorm.bias"][3] = tensors["bert.encoder.layer.1.output.LayerNorm.bias"][2] = float("nan")
    safetensors.numpy.save_file(tensors, exported / "model.safetensors")
    with pytest.raises(DataError, match=r"bert\.embeddings\.LayerNorm\.bias, \S+layer\.1\.output\.LayerNorm\.bias$"):
        load_model(exported)
