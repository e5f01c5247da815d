"""Hugging Face's config.json of GPT-2, Llama and EuroBERT, and our `ModelConfig` from it.

Neither Llama nor EuroBERT has a place for the dropout between layers: a model read back has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpulm.config import ModelConfig
from tpulm.config.layouts import LAYOUTS
from tpulm.convert.config_json import ACTIVATIONS, Described, activation_of, get, validated, vocabulary_size
from tpulm.errors import DataError, brief
from tpulm.tokenization.special import SpecialTokens

_SHARED = {"max_positions": "max_position_embeddings", "initializer_range": "initializer_range"}
_LLAMA = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "attention_dropout": "attention_dropout",
    "norm_epsilon": "rms_norm_eps",
    "biases": "mlp_bias",
    "tied_output": "tie_word_embeddings",
    **_SHARED,
}
# Our setting: their key.
_FIELDS = {
    "gpt2": {
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_positions": "n_positions",
        "dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "norm_epsilon": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
        "tied_output": "tie_word_embeddings",
    },
    "llama": _LLAMA,
    "eurobert": _LLAMA,
}
_ACTIVATION = {"gpt2": "activation_function", "llama": "hidden_act", "eurobert": "hidden_act"}
# What their configuration takes a missing key for.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_inner": None,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
    },
    "llama": {
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "mlp_bias": False,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "hidden_act": "silu",
    },
}
_DEFAULTS["eurobert"] = _DEFAULTS["llama"] | {"rms_norm_eps": 1e-5}
# What these keys must say, where they stand at all, for the model to be one of ours.
_REQUIRED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    "llama": {"pretraining_tp": 1, "rope_scaling": None},
    "eurobert": {"pretraining_tp": 1, "rope_scaling": None},
}
MODEL_TYPES = tuple(_FIELDS)
ENCODERS = ("eurobert",)  # of these


def to_json(config: ModelConfig, model_type: str, *, vocab_size: int, special: SpecialTokens) -> dict[str, Any]:
    """The mapping of config.json.

    A causal model's [SEP] is both the token that ends a text, where `generate` stops, and the one a text begins with.
    """
    layout = next(layout for layout in LAYOUTS if layout.model_type == model_type)
    values = {
        "architectures": [layout.class_name],
        "model_type": model_type,
        "vocab_size": vocab_size,
        "pad_token_id": special.pad,
        "bos_token_id": special.cls if model_type == "eurobert" else special.sep,
        "eos_token_id": special.sep,
        _ACTIVATION[model_type]: ACTIVATIONS[config.activation][0],
        "dtype": "float32",
        **{theirs: getattr(config, ours) for ours, theirs in _FIELDS[model_type].items()},
    }
    if model_type == "gpt2":
        return values | {"embd_pdrop": config.dropout}
    values |= {
        "attention_bias": config.biases,
        "num_key_value_heads": config.num_heads,
        "head_dim": config.hidden_size // config.num_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_theta},
    }
    return values | ({"mask_token_id": special.mask} if model_type == "eurobert" else {})


def from_json(values: Mapping[str, Any], *, origin: str) -> Described:
    """Raises DataError naming the key, the value found and what is supported."""
    model_type = values["model_type"]
    values = {**_DEFAULTS[model_type], **values}
    for key, expected in _REQUIRED[model_type].items():
        if values.get(key, expected) != expected:
            raise DataError(f"{key} is {brief(values[key])}; only {expected!r} is supported", location=origin)
    fields = {ours: get(values, theirs, origin) for ours, theirs in _FIELDS[model_type].items()}
    if model_type == "gpt2":
        if fields["intermediate_size"] is None and type(fields["hidden_size"]) is int:
            fields["intermediate_size"] = 4 * fields["hidden_size"]
    else:
        fields |= {"dropout": 0.0, "rotary_theta": _rotary_theta(values, origin)}
    layout = next(layout for layout in LAYOUTS if layout.model_type == model_type)
    fixed = {name: value for name, value in layout.needs.items() if name != "next_sentence"}
    fields["activation"] = activation_of(values, _ACTIVATION[model_type], origin)
    config = validated({**fixed, **fields}, _FIELDS[model_type], origin)
    if model_type != "gpt2":
        _check_heads(values, config, origin)
    return Described(config, vocabulary_size(values, origin))


def _rotary_theta(values: Mapping[str, Any], origin: str) -> float:
    rope = values.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise DataError(f"rope_parameters is {brief(rope)}, not an object", location=origin)
    if rope.get("rope_type", "default") != "default":
        raise DataError(f"rope_type {brief(rope['rope_type'])} is not supported; only 'default' is", location=origin)
    return rope.get("rope_theta", values.get("rope_theta", 10_000.0))


def _check_heads(values: Mapping[str, Any], config: ModelConfig, origin: str) -> None:
    heads, size = config.num_heads, config.hidden_size
    if values.get("num_key_value_heads") not in (None, heads):
        raise DataError(
            f"num_key_value_heads is {brief(values['num_key_value_heads'])}; only num_attention_heads ({heads}) is supported",
            location=origin,
        )
    if values.get("head_dim") not in (None, size // heads):
        raise DataError(
            f"head_dim is {brief(values['head_dim'])}; only hidden_size / num_attention_heads is supported", location=origin
        )
    if values["attention_bias"] != values["mlp_bias"]:
        raise DataError("attention_bias and mlp_bias differ; only both or neither are supported", location=origin)
