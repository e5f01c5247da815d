"""The layouts of GPT-2, Llama, EuroBERT and ModernBERT: transformers computes our numbers; its folders come back unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from outputs import EXECUTION, assert_same_leaves, found_whole, ours, rows, theirs

from tpulm import storage
from tpulm.config import RunConfig
from tpulm.config.stock_classes import STOCK_CLASSES
from tpulm.convert.huggingface import load_model
from tpulm.errors import ConfigError, DataError
from tpulm.models import bert
from tpulm.nn.params import initialize

GPT2 = {"architecture": "decoder", "norm_position": "pre", "norm_epsilon": 1e-5}
LLAMA_LIKE = {"norm_position": "pre", "norm": "rms", "norm_epsilon": 1e-5, "biases": False, "feed_forward": "gated"}
LLAMA_LIKE |= {"activation": "silu", "positions": "rotary", "dropout": 0.0}
LLAMA = {"architecture": "decoder", **LLAMA_LIKE}
OF_12 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OF_12 |= {"original_max_position_embeddings": 12}
EUROBERT = {**LLAMA_LIKE, "token_types": 0, "masked_head": "plain"}
MODERNBERT = {"architecture": "modernbert", "local_window": 8}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2, untied, relu": {**GPT2, "tied_output": False, "activation": "relu", "dropout": 0.2},
    "llama": LLAMA,
    "llama, untied, biases": {**LLAMA, "tied_output": False, "biases": True, "rotary_theta": 500.0},
    "llama, scaled": {**LLAMA, "rotary_theta": 100.0, "rotary_scaling": OF_12},
    "eurobert": EUROBERT,
    "eurobert, untied, biases": {**EUROBERT, "tied_output": False, "biases": True, "activation": "gelu"},
    "modernbert": {**MODERNBERT, "num_layers": 6},
    "modernbert, three layers": {**MODERNBERT, "num_layers": 3},
    "modernbert, linear": {**MODERNBERT, "num_layers": 4, "rotary_scaling": {"rope_type": "linear", "factor": 4.0}},
    "modernbert, llama3": {**MODERNBERT, "num_layers": 4, "rotary_theta": 100.0, "rotary_scaling": OF_12},
    "modernbert, every layer global": {**MODERNBERT, "global_every": 1, "activation": "silu", "rotary_theta": 500.0},
}
ENCODERS = ("eurobert", "modernbert")


def their_model(transformers: Any, folder: Path) -> Any:
    causal = json.loads((folder / "config.json").read_text())["model_type"] not in ENCODERS
    return found_whole(transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM, folder)


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_and_saves_the_same(torch, transformers, make_small, tmp_path, name):
    """By the class that config.json names; and ids by AutoTokenizer, whose other inputs the class takes."""
    exported = make_small(**MODELS[name]).save(tmp_path / "export")
    model, described = load_model(exported), json.loads((exported / "config.json").read_text())
    ids, real, _ = rows(model.vocab_size).values()
    network = their_model(transformers, exported)
    stock = next(stock for stock in STOCK_CLASSES if stock.model_type == described["model_type"])
    assert described["architectures"] == [stock.class_name] == [type(network).__name__]
    expected = theirs(torch, network, input_ids=ids, attention_mask=real).logits.numpy()
    found = ours(model, ids, real)
    assert np.abs(found).max() > 3.0  # or an error of 1e-4 would say little
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4, rtol=0)

    tokenizer, special = transformers.AutoTokenizer.from_pretrained(exported), model.tokenization.special
    encoded = tokenizer("the old cat sees a [MASK], and Zebras.")
    assert set(encoded) == {"input_ids", "attention_mask"} and tokenizer.model_max_length == 20
    assert encoded["input_ids"] == model.tokenization.encode_one("the old cat sees a [MASK], and Zebras.")
    frame = (encoded["input_ids"][0], encoded["input_ids"][-1] == special.sep)
    if model.config.architecture == "decoder":
        assert frame == (special.sep, False)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.padding_side) == (special.sep, special.sep, "left")
    else:
        assert frame == (special.cls, True)
    assert tokenizer.pad_token_id == special.pad

    network.save_pretrained(tmp_path / "theirs")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        storage.write_atomic(tmp_path / "theirs" / file, storage.read_bytes(exported / file))
    again = load_model(tmp_path / "theirs")
    assert again.config == model.config
    assert_same_leaves(again.params, model.params)


# -- what is refused --------------------------------------------------------------------------------------------------------


def test_settings_that_fit_no_class_are_refused_when_the_run_begins_and_at_export(make_small, tmp_path):
    for settings, message in (
        ({**GPT2, "norm": "rms"}, "GPT2LMHeadModel, needs norm = 'layer'"),
        ({**LLAMA, "positions": "learned"}, "LlamaForCausalLM, needs positions = 'rotary'"),
        ({**EUROBERT, "token_types": 2}, "EuroBertForMaskedLM, needs token_types = 0"),
        ({"tied_output": False}, "BertForMaskedLM, needs tied_output = true"),
        ({"token_types": 0}, "BertForMaskedLM, needs token_types = at least 1"),
    ):
        small = make_small(**settings)
        with pytest.raises(ConfigError, match=f"class of transformers.*{message}"):
            small.save(tmp_path / "export")
        kind = "causal" if small.config.architecture == "decoder" else "packed"
        with pytest.raises(ValueError, match="class of transformers"):
            RunConfig.model_validate({"model": settings, "data": {"rows": kind}})
    with pytest.raises(ValueError, match=r"EuroBertForMaskedLM.*next_sentence = false"):
        RunConfig.model_validate({"model": {**EUROBERT, "token_types": 2}, "data": {"next_sentence": True}})


def test_what_is_not_ours_is_refused(make_small, tmp_path):
    for name, changes, message in (
        ("llama", {"num_key_value_heads": 2}, "num_key_value_heads is 2"),
        ("llama", {"num_key_value_heads": 1}, "k_proj.weight is [24, 24]"),
        ("llama", {"attention_bias": True}, "attention_bias and mlp_bias"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor is 0.5"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "'low_freq_factor'"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "which is of local layers, too"),
        ("modernbert", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "known: default"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ("gpt2", {"n_embd": "wide"}, "n_embd is 'wide'"),
        ("gpt2", {"n_layer": 3}, "missing: transformer.h.2.attn.c_attn.weight[0] [24, 24]"),
    ):
        folder = make_small(**MODELS[name]).save(tmp_path / "export")
        storage.write_json(folder / "config.json", {**json.loads((folder / "config.json").read_text()), **changes})
        with pytest.raises(DataError, match=re.escape(message)):
            load_model(folder)


def test_of_llama_an_output_of_its_own_is_refused_and_an_older_theta_read(make_small, tmp_path):
    small = make_small(**LLAMA | {"rotary_theta": 500.0})
    folder = small.save(tmp_path / "export")
    described = json.loads((folder / "config.json").read_text())
    described["rope_theta"] = described.pop("rope_parameters")["rope_theta"]
    storage.write_json(folder / "config.json", described)
    assert load_model(folder).config == small.config
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    storage.write_atomic(folder / "model.safetensors", safetensors.numpy.save(tensors))
    with pytest.raises(DataError, match=r"lm_head\.weight .* model\.embed_tokens\.weight"):
        load_model(folder)


def modernbert(make_small, folder: Path, *, scale: float = 1.0, **settings: Any) -> Path:
    """`scale`: of all parameters; the smaller, the less do rounding errors grow from layer to layer."""
    small = make_small(**{**MODERNBERT, "num_layers": 4, "max_positions": 8192, **settings})
    return small._replace(params=jax.tree.map(lambda leaf: scale * leaf, small.params)).save(folder)


def modernbert_logits(torch, transformers, folder: Path, ids: np.ndarray) -> np.ndarray:
    return theirs(torch, their_model(transformers, folder), input_ids=ids).logits.numpy()


@pytest.mark.parametrize("length", [96, pytest.param(2048, marks=pytest.mark.slow)])
def test_windows_computed_by_blocks_are_those_of_transformers(torch, transformers, make_small, tmp_path, length):
    folder = modernbert(make_small, tmp_path / "model", local_window=16 if length < 100 else 128, scale=0.7)
    model = load_model(folder)
    ids = np.random.default_rng(5).integers(5, model.vocab_size, (1, length)).astype(np.int32)
    expected = modernbert_logits(torch, transformers, folder, ids)
    np.testing.assert_allclose(ours(model, ids, ids != 0), expected, atol=1e-4, rtol=0)


def test_texts_packed_in_a_row_are_as_each_alone(torch, transformers, make_small, tmp_path):
    folder = modernbert(make_small, tmp_path / "model")
    model = load_model(folder)
    row = np.random.default_rng(6).integers(5, model.vocab_size, (1, 64)).astype(np.int32)
    segments = np.repeat([0, 1, 2], [21, 30, 13])[None]
    positions = np.concatenate([np.arange(21), np.arange(30), np.arange(13)])[None]
    tokens = bert.EncoderInput(jnp.asarray(row), jnp.asarray(segments), None, jnp.asarray(positions))
    params: Any = model.params
    hidden = bert.encode(params, tokens, config=model.config, execution=EXECUTION, randomness=None)
    found = bert.masked_logits(params, hidden, config=model.config, execution=EXECUTION, vocab_size=model.vocab_size)
    for start, end in ((0, 21), (21, 51), (51, 64)):
        expected = modernbert_logits(torch, transformers, folder, row[:, start:end])
        np.testing.assert_allclose(found[:, start:end, : model.vocab_size], expected, atol=1e-4, rtol=0)


def test_first_weights_spread_as_those_of_transformers(torch, transformers, make_small, tmp_path):
    """Full-Megatron: what is added to the residual stream begins smaller by sqrt(2 num_layers), and so does the masked head."""
    sizes = {"num_layers": 8, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "initializer_range": 0.05}
    small = make_small(**MODERNBERT, **sizes)
    spec = bert.spec(small.config, vocab_size=small.tokenizer.vocab_size, next_sentence=False)
    folder = small._replace(params=initialize(spec, jax.random.key(0))).save(tmp_path / "model")
    written = safetensors.numpy.load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    fresh = type(their_model(transformers, folder))(transformers.AutoConfig.from_pretrained(folder)).state_dict()
    matrices = [name for name, values in written.items() if values.ndim == 2]
    assert len(matrices) > 4 * sizes["num_layers"]
    for name in matrices:
        assert np.std(written[name]) == pytest.approx(float(fresh[name].std()), rel=0.05), name


def test_either_form_of_config_json_says_what_layers_see(make_small, tmp_path):
    """transformers 5 writes layer_types and rope_parameters; 4.48 to 4.57 wrote and read the three numbers."""
    folder = modernbert(make_small, tmp_path / "model", global_every=2, rotary_theta=9_000.0, local_theta=700.0)
    values, config = json.loads((folder / "config.json").read_text()), load_model(folder).config
    assert values["layer_types"] == ["full_attention", "sliding_attention"] * 2
    for form in (("layer_types", "rope_parameters"), ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")):
        storage.write_json(folder / "config.json", {name: value for name, value in values.items() if name not in form})
        assert load_model(folder).config == config
    strange = {"layer_types": ["sliding_attention", "full_attention"] * 2}, {"rope_parameters": "default"}
    for change, message in zip(strange, (r"layer_types is .*'full_attention'", "rope_parameters is 'default'"), strict=True):
        storage.write_json(folder / "config.json", values | change)
        with pytest.raises(DataError, match=message):
            load_model(folder)
