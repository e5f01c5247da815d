"""Hugging Face's config.json of an encoder, and our `ModelConfig` from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from tpulm.config import ModelConfig
from tpulm.config.layouts import LAYOUTS, layout_of
from tpulm.convert.heads import Head
from tpulm.errors import DataError, brief, suggest

# Pre-norm is the layout of Megatron's BERT: the same tensors with the norms elsewhere.
MODEL_TYPES = {("bert", "post"): "bert", ("bert", "pre"): "megatron-bert", ("electra", "post"): "electra"}
_CLASSES = {"bert": "Bert", "megatron-bert": "MegatronBert", "electra": "Electra"}
_HEADS = {
    "masked": "ForMaskedLM",
    "next_sentence": "ForPreTraining",
    "detection": "ForPreTraining",
    "classification": "ForSequenceClassification",
}
# Theirs for ours; the first of several is what we write.
ACTIVATIONS = {
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "gelu": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}
# Our setting: their key.
_FIELDS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "token_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# What these keys must say, where they stand at all, for the model to be one of ours.
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


class Described(NamedTuple):
    """What a config.json says of a model; `vocab_size` is without any padding of ours."""

    config: ModelConfig
    vocab_size: int


def to_config_json(config: ModelConfig, head: Head, *, vocab_size: int, pad_token_id: int) -> dict[str, Any]:
    """The mapping of config.json. BERT with a next-sentence head is …ForPreTraining, which …ForMaskedLM can load too."""
    model_type = MODEL_TYPES[config.architecture, config.norm_position]
    electra = {"embedding_size": config.embedding_size or config.hidden_size} if model_type == "electra" else {}
    return {
        "architectures": [_CLASSES[model_type] + _HEADS[head]],
        "model_type": model_type,
        **electra,
        "vocab_size": vocab_size,
        "pad_token_id": pad_token_id,
        "hidden_act": ACTIVATIONS[config.activation][0],
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "dtype": "float32",
        **{theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()},
    }


def from_config_json(values: Any, *, origin: str) -> Described:
    """Raises DataError naming the key, the value found and what is supported."""
    if not isinstance(values, Mapping):
        raise DataError(f"expected a JSON object, found {type(values).__name__}", location=origin)
    model_type = get(values, "model_type", origin)
    kind = next((ours for ours, theirs in MODEL_TYPES.items() if theirs == model_type), None)
    if kind is None:
        known = ", ".join(repr(layout.model_type) for layout in LAYOUTS)
        raise DataError(f"model_type {brief(model_type)} is not supported; known: {known}", location=origin)
    for key, expected in _REQUIRED.items():
        if values.get(key, expected) != expected:
            raise DataError(f"{key} is {brief(values[key])}; only {expected!r} is supported", location=origin)
    fields = {ours: get(values, theirs, origin) for ours, theirs in _FIELDS.items()}
    architecture, norm_position = kind
    fields |= {"architecture": architecture, "norm_position": norm_position}
    if architecture == "electra":
        fields["embedding_size"] = get(values, "embedding_size", origin)
    fields |= {"activation": activation_of(values, "hidden_act", origin)}
    return Described(validated(fields, _FIELDS, origin), vocabulary_size(values, origin))


# What every config.json of theirs needs, this one's and decoder_json.py's.


def activation_of(values: Mapping[str, Any], key: str, origin: str) -> str:
    """Our name of the activation that stands under `key`."""
    theirs = get(values, key, origin)
    ours = next((ours for ours, names in ACTIVATIONS.items() if theirs in names), None)
    if ours is None:
        known = [name for names in ACTIVATIONS.values() for name in names]
        raise DataError(f"{key} {brief(theirs)} is not supported; known: {', '.join(known)}", location=origin)
    return ours


def vocabulary_size(values: Mapping[str, Any], origin: str) -> int:
    size = get(values, "vocab_size", origin)
    if type(size) is not int or size < 1:
        raise DataError(f"vocab_size must be a positive whole number, not {brief(size)}", location=origin)
    return size


def validated(fields: Mapping[str, Any], keys: Mapping[str, str], origin: str) -> ModelConfig:
    """`keys` are theirs for ours, for the message."""
    try:
        config = ModelConfig.model_validate(fields)
        layout_of(config.model_dump())
    except ValidationError as error:
        raise DataError(_explain(error, keys), location=origin) from error
    except ValueError as error:
        raise DataError(str(error), location=origin) from error
    return config


def get(values: Mapping[str, Any], key: str, origin: str) -> Any:
    if key not in values:
        raise DataError(f"the key '{key}' is missing.{suggest(key, values)}", location=origin)
    return values[key]


def _explain(error: ValidationError, keys: Mapping[str, str]) -> str:
    def line(item: Any) -> str:
        ours = str(item["loc"][0]) if item["loc"] else ""
        message = item["msg"].removeprefix("Value error, ")
        return f"{keys.get(ours, ours)} is {brief(item['input'])}: {message}" if ours else message

    return "; ".join(line(item) for item in error.errors(include_url=False))
