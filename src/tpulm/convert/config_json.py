"""Hugging Face's config.json: our `ModelConfig` and a classifier's label map, to and from it.

Llama and EuroBERT have no key for the dropout between layers: a model read back has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from tpulm.config import ModelConfig
from tpulm.config.stock_classes import STOCK_CLASSES, stock_class_of
from tpulm.convert.heads import DECODER_HEADS, Head
from tpulm.convert.relatives import RELATIVES
from tpulm.errors import ConfigError, DataError, brief, suggest
from tpulm.models.classifier import Pooling
from tpulm.special_tokens import SpecialTokens

# Our name: theirs, of which we write the first.
ACTIVATIONS = {
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "gelu": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}
_CLASS_SUFFIXES = {
    "masked": "ForMaskedLM",
    "next_sentence": "ForPreTraining",
    "detection": "ForPreTraining",
    "classification": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "embedding": "Model",
    "spans": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "causal": "ForCausalLM",
}


class _Format(NamedTuple):
    """The config.json of one `model_type`."""

    fields: Mapping[str, str]  # our setting: their key
    required: Mapping[str, Any]  # the values that these keys, if present, must have for us to support the model
    defaults: Mapping[str, Any] = {}  # what a missing key means
    activation: str = "hidden_act"  # their key


_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
_BERT = _Format(
    fields={
        **_SIZES,
        "max_positions": "max_position_embeddings",
        "token_types": "type_vocab_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "norm_epsilon": "layer_norm_eps",
        "initializer_range": "initializer_range",
    },
    required={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    defaults={  # of transformers' BertConfig, RobertaConfig and ElectraConfig
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    },
)
_GPT2 = _Format(
    fields={
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
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    defaults={
        "n_inner": None,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
    },
    activation="activation_function",
)
_LLAMA = _Format(
    fields={
        **_SIZES,
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "rms_norm_eps",
        "biases": "mlp_bias",
        "tied_output": "tie_word_embeddings",
        "max_positions": "max_position_embeddings",
        "initializer_range": "initializer_range",
    },
    required={"pretraining_tp": 1},
    defaults={
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "mlp_bias": False,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "hidden_act": "silu",
    },
)
_MODERNBERT = _Format(
    fields={
        **_SIZES,
        "max_positions": "max_position_embeddings",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "norm_eps",
        "local_window": "local_attention",
        "initializer_range": "initializer_range",
    },
    required={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_bias": False,
        "tie_word_embeddings": True,
    },
    defaults={  # of transformers' ModernBertConfig
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "norm_eps": 1e-5,
        "local_attention": 128,
        "initializer_range": 0.02,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu",
    },
    activation="hidden_activation",
)
_FORMATS = {
    "bert": _BERT,
    "megatron-bert": _BERT,  # pre-norm: the same tensors with the norms elsewhere
    "electra": _BERT._replace(
        fields={**_BERT.fields, "embedding_size": "embedding_size"}, defaults={**_BERT.defaults, "embedding_size": 128}
    ),
    "eurobert": _LLAMA._replace(defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5}),
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "modernbert": _MODERNBERT,
}
# Model types of others, whose tokenizers tpulm may not support.
FOREIGN_ENCODERS = ("eurobert", "modernbert")
FOREIGN_TYPES = (*FOREIGN_ENCODERS, "gpt2", "llama")


class Described(NamedTuple):
    """A model as config.json describes it; `vocab_size` is without our padding, `classes` are its "architectures"."""

    config: ModelConfig
    vocab_size: int
    classes: list[str]
    groups: int  # of heads that share keys and values, in grouped-query attention; otherwise the number of heads


def model_type_of(config: ModelConfig, head: Head) -> str:
    """The `model_type` of config.json. Raises ConfigError if no class of transformers has its settings and head."""
    if config.architecture == "decoder" and head not in DECODER_HEADS:
        raise ConfigError(f"of a causal language model no class with the head '{head}' is supported; begin with an encoder")
    try:
        model_type = stock_class_of({**config.model_dump(), "next_sentence": head == "next_sentence"}).model_type
    except ValueError as error:
        raise ConfigError(f"this model cannot be exported: {error}") from error
    if model_type == "eurobert" and head in ("spans", "choice"):
        raise ConfigError(f"transformers has no EuroBert{_CLASS_SUFFIXES[head]}; begin with a BERT, an ELECTRA or a ModernBERT")
    return model_type


def class_name(model_type: str, head: Head) -> str:
    """The transformers class. BERT with a next-sentence head is …ForPreTraining, which …ForMaskedLM can load too."""
    name = next(stock.class_name for stock in STOCK_CLASSES if stock.model_type == model_type)
    prefix, separator, _ = name.partition("For")
    if not separator:  # GPT2LMHeadModel
        return name if head == "causal" else name.removesuffix("LMHeadModel") + _CLASS_SUFFIXES[head]
    return prefix + _CLASS_SUFFIXES[head]


def to_config_json(config: ModelConfig, head: Head, *, vocab_size: int, special: SpecialTokens) -> dict[str, Any]:
    """The contents of config.json.

    A causal model's [SEP] is both the token that ends a text, where `generate` stops, and the one that begins it.
    """
    model_type = model_type_of(config, head)
    form = _FORMATS[model_type]
    own = {theirs: getattr(config, ours) for ours, theirs in form.fields.items() if ours != "embedding_size"}
    activation = {form.activation: ACTIVATIONS[config.activation][0]}
    values = {"architectures": [class_name(model_type, head)], "model_type": model_type}
    if model_type == "electra":
        values["embedding_size"] = config.embedding_size or config.hidden_size
    values |= {"vocab_size": vocab_size, "pad_token_id": special.pad}
    if model_type not in FOREIGN_TYPES:
        fixed = {"position_embedding_type": "absolute", "tie_word_embeddings": True, "dtype": "float32"}
        return values | activation | fixed | own
    is_encoder = model_type in FOREIGN_ENCODERS
    values |= {"bos_token_id": special.cls if is_encoder else special.sep, "eos_token_id": special.sep}
    values |= activation | {"dtype": "float32"} | own
    if model_type == "modernbert":
        return values | {"cls_token_id": special.cls, "sep_token_id": special.sep} | _of_modernbert(config)
    if model_type == "gpt2":
        return values | {"embd_pdrop": config.dropout}
    scaling = _scaling_of(config)
    values |= {
        "attention_bias": config.biases,
        "num_key_value_heads": config.num_heads,
        "head_dim": config.hidden_size // config.num_heads,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": config.rotary_theta},
        "rope_theta": config.rotary_theta,  # this and the next: the same in the keys of transformers 4
        "rope_scaling": scaling or None,
    }
    return values | ({"mask_token_id": special.mask} if model_type == "eurobert" else {})


def from_config_json(values: Any, *, origin: str) -> Described:
    """Read a config.json. Raises DataError naming the key, the value found and what is supported."""
    if not isinstance(values, Mapping):
        raise DataError(f"expected a JSON object, found {type(values).__name__}", location=origin)
    model_type = _get(values, "model_type", origin)
    stock = next((stock for stock in STOCK_CLASSES if stock.model_type == model_type), None)
    if stock is None:
        known = ", ".join(map(repr, (*(stock.model_type for stock in STOCK_CLASSES), *RELATIVES)))
        raise DataError(f"model_type {brief(model_type)} is not supported; known: {known}", location=origin)
    form = _FORMATS[stock.model_type]
    values = {**form.defaults, **values}
    for key, expected in form.required.items():
        if values.get(key, expected) != expected:
            raise DataError(f"{key} is {brief(values[key])}; only {expected!r} is supported", location=origin)
    fields = {name: value for name, value in stock.needs.items() if name != "next_sentence"}
    fields |= {ours: _get(values, theirs, origin) for ours, theirs in form.fields.items()}
    if model_type == "gpt2" and fields["intermediate_size"] is None and type(fields["hidden_size"]) is int:
        fields["intermediate_size"] = 4 * fields["hidden_size"]
    if "biases" in form.fields:
        fields |= {"dropout": 0.0, **_rotary(values, origin)}
    if model_type == "modernbert":
        fields |= _modernbert_layers(values, fields["num_layers"], origin)
    theirs = _get(values, form.activation, origin)
    fields["activation"] = next((ours for ours, names in ACTIVATIONS.items() if theirs in names), None)
    if fields["activation"] is None:
        known = ", ".join(name for names in ACTIVATIONS.values() for name in names)
        raise DataError(f"{form.activation} {brief(theirs)} is not supported; known: {known}", location=origin)
    config = _validated(fields, form.fields, origin)
    groups = _groups(values, config, origin) if "biases" in form.fields else config.num_heads
    size, classes = _get(values, "vocab_size", origin), values.get("architectures") or []
    if type(size) is not int or size < 1:
        raise DataError(f"vocab_size must be a positive whole number, not {brief(size)}", location=origin)
    if not isinstance(classes, list) or not all(isinstance(one, str) for one in classes):
        raise DataError(f"architectures must be a list of names of classes, not {brief(classes)}", location=origin)
    return Described(config, size, classes, groups)


def _of_modernbert(config: ModelConfig) -> dict[str, Any]:
    """The layers' attention and RoPE thetas, in the keys of transformers 5, which take precedence, and of 4.48 to 4.57."""
    return {
        **_MODERNBERT.required,
        "embedding_dropout": config.dropout,
        "classifier_dropout": config.dropout,
        "classifier_activation": ACTIVATIONS[config.activation][0],
        "classifier_pooling": "cls",
        "layer_types": _layer_types(config.num_layers, config.global_every),
        "rope_parameters": {
            _GLOBAL: {"rope_type": "default", **_scaling_of(config), "rope_theta": config.rotary_theta},
            _LOCAL: {"rope_type": "default", "rope_theta": config.local_theta},
        },
        "global_attn_every_n_layers": config.global_every,
        "global_rope_theta": config.rotary_theta,
        "local_rope_theta": config.local_theta,
    }


def _scaling_of(config: ModelConfig) -> dict[str, Any]:
    """What `rope_parameters` say of it; nothing if there is none."""
    scaling = config.rotary_scaling
    return {} if scaling is None else scaling.model_dump(include={"rope_type", *_SCALED[scaling.rope_type]})


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"  # in layer_types


def _layer_types(num_layers: int, global_every: int) -> list[str]:
    return [_GLOBAL if number % global_every == 0 else _LOCAL for number in range(num_layers)]


def _modernbert_layers(values: Mapping[str, Any], num_layers: Any, origin: str) -> dict[str, Any]:
    """Which layers attend globally, and the RoPE of both kinds of layers, from either form of config.json."""
    if values.get("rope_scaling"):
        raise DataError(
            f"rope_scaling is {brief(values['rope_scaling'])}, which is of local layers, too; only a scaling of global layers "
            f"is supported, in rope_parameters under '{_GLOBAL}'",
            location=origin,
        )
    rope, every = _rope_parameters(values, origin), values.get("global_attn_every_n_layers", 3)
    if (kinds := values.get("layer_types")) is not None:
        every = next((n for n in range(1, len(kinds)) if kinds[n] == _GLOBAL), len(kinds)) if isinstance(kinds, list) else 0
        if not every or len(kinds) != num_layers or kinds != _layer_types(num_layers, every):
            raise DataError(
                f"layer_types is {brief(kinds)}; only '{_GLOBAL}' for the first of every so many layers and '{_LOCAL}' for the "
                f"others is supported, of {num_layers} layers",
                location=origin,
            )
    if values.get("classifier_activation", "gelu") != values["hidden_activation"]:
        raise DataError("classifier_activation and hidden_activation differ; only one for both is supported", location=origin)
    fields: dict[str, Any] = {"global_every": every, "depth_scaled_init": True}
    own = {
        kind: {**values, "rope_parameters": rope.get(kind), "rope_theta": values.get(older, default)}
        for kind, older, default in ((_GLOBAL, "global_rope_theta", 160_000.0), (_LOCAL, "local_rope_theta", 10_000.0))
    }
    fields["local_theta"] = _rotary(own[_LOCAL], origin, known=("default",))["rotary_theta"]
    return fields | _rotary(own[_GLOBAL], origin)


def _validated(fields: Mapping[str, Any], keys: Mapping[str, str], origin: str) -> ModelConfig:
    """The validated config; `keys` maps our names to theirs, for the message."""

    def line(item: Any) -> str:
        ours = str(item["loc"][-1]) if item["loc"] else ""
        message = item["msg"].removeprefix("Value error, ")
        return f"{keys.get(ours, ours)} is {brief(item['input'])}: {message}" if ours else message

    try:
        config = ModelConfig.model_validate(fields)
        stock_class_of(config.model_dump())
    except ValidationError as error:
        raise DataError("; ".join(map(line, error.errors(include_url=False))), location=origin) from error
    except ValueError as error:
        raise DataError(str(error), location=origin) from error
    return config


def _get(values: Mapping[str, Any], key: str, origin: str) -> Any:
    if key not in values:
        raise DataError(f"the key '{key}' is missing.{suggest(key, values)}", location=origin)
    return values[key]


def _rope_parameters(values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"  # as in transformers
    rope = values.get(key) or {}
    if not isinstance(rope, dict):
        raise DataError(f"{key} is {brief(rope)}, not an object", location=origin)
    return rope


# What each type of RoPE needs in addition to its theta.
_SCALED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def _rotary(values: Mapping[str, Any], origin: str, *, known: Sequence[str] = tuple(_SCALED)) -> dict[str, Any]:
    """The settings `rotary_theta` and `rotary_scaling`, for one of the `known` types of RoPE."""
    rope = {"original_max_position_embeddings": values.get("max_position_embeddings"), **_rope_parameters(values, origin)}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in known:
        raise DataError(f"rope_type {brief(kind)} is not supported; known: {', '.join(known)}", location=origin)
    scaling = {key: _get(rope, key, origin) for key in _SCALED[kind]}
    return {
        "rotary_theta": rope.get("rope_theta", values.get("rope_theta", 10_000.0)),
        "rotary_scaling": {"rope_type": kind, **scaling} if scaling else None,
    }


def _groups(values: Mapping[str, Any], config: ModelConfig, origin: str) -> int:
    heads, head_size = config.num_heads, config.hidden_size // config.num_heads
    if values.get("head_dim") not in (None, head_size):
        raise DataError(
            f"head_dim is {brief(values['head_dim'])}; only hidden_size / num_attention_heads ({head_size}) is supported",
            location=origin,
        )
    if values["attention_bias"] != values["mlp_bias"]:
        raise DataError("attention_bias and mlp_bias differ; only both or neither are supported", location=origin)
    groups = heads if values.get("num_key_value_heads") is None else values["num_key_value_heads"]
    if type(groups) is not int or groups < 1 or heads % groups:
        raise DataError(
            f"num_key_value_heads is {brief(groups)}, which does not divide num_attention_heads ({heads})", location=origin
        )
    return groups


# -- the labels of a classifier --


class HeadConfig(NamedTuple):
    """The class names in the order of the outputs; none for a regression, whose one output is the number itself, and for
    extractive answers and choices."""

    names: tuple[str, ...]
    several: bool = False  # multi-label: each label has a probability of its own
    pooling: Pooling | None = None  # of hidden states, into a text's vector or for a classification head; None: the first
    null: bool = False  # a question may have no answer in its text
    normalized: bool = True  # a text's vector has length 1
    prompts: tuple[tuple[str, str], ...] = ()  # by name: what to put before a text to be embedded
    prompt_name: str | None = None  # of the one put before every text
    similarity: str = "cosine"  # of vectors, for sentence-transformers

    @property
    def is_regression(self) -> bool:
        return not self.names

    @property
    def num_classes(self) -> int | None:
        """C, or None for a regression."""
        return len(self.names) or None

    @property
    def num_outputs(self) -> int:
        return len(self.names) or 1


_POOLINGS = {"eurobert": ("bos", "late"), "modernbert": ("cls", "cls")}  # of a classifier by its first token, and the default
_NULL = "handle_impossible_answer"  # named like an argument of transformers' pipelines
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}  # of an ELECTRA for choices


def head_to_json(outputs: HeadConfig, model_type: str, head: Head = "classification") -> dict[str, Any]:
    """The keys that a classifier's config.json has in addition to the encoder's."""
    if head == "embedding":
        return {}
    pooled = _POOLINGS.get(model_type) if head in ("classification", "choice") else None
    own = {} if pooled is None else {"classifier_pooling": outputs.pooling if outputs.pooling == "mean" else pooled[0]}
    if head in ("spans", "choice"):
        return own | ({_NULL: True} if outputs.null else {})
    names = outputs.names or ("LABEL_0",)
    problem = "multi_label_classification" if outputs.several else "single_label_classification"
    values: dict[str, Any] = own | {
        "problem_type": "regression" if outputs.is_regression else problem,
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if head == "tokens":
        del values["problem_type"]
    return values


def head_from_json(values: Mapping[str, Any], *, origin: str, head: Head = "classification") -> HeadConfig:
    """The labels and task. Raises DataError for labels that do not name 0 to C - 1, and an unsupported task or pooling."""
    problem = values.get("problem_type")
    several = problem == "multi_label_classification"
    if not several and problem not in (None, "regression", "single_label_classification"):
        raise DataError(
            f"problem_type {brief(problem)} is not supported; a text has one label, several labels or one number here",
            location=origin,
        )
    pooled, pooling = _POOLINGS.get(values.get("model_type", "")), None
    if head in ("classification", "choice") and pooled is not None:
        configured = values.get("classifier_pooling", pooled[1])
        if configured not in (pooled[0], "mean"):
            raise DataError(
                f"classifier_pooling is {brief(configured)}; only '{pooled[0]}' and 'mean' are supported", location=origin
            )
        pooling = "mean" if configured == "mean" else None
    if head in ("spans", "choice"):
        wrong = [key for key, only in _SUMMARY.items() if values.get(key, only) != only and head == "choice"]
        if wrong:
            raise DataError(f"{wrong[0]} must be {_SUMMARY[wrong[0]]!r}; others are not supported", location=origin)
        return HeadConfig((), pooling=pooling, null=values.get(_NULL) is True)
    named = values.get("id2label")
    if named is None:  # transformers omits two unnamed labels
        named = {"0": "LABEL_0", "1": "LABEL_1"} if problem != "regression" else {"0": "LABEL_0"}
    try:
        by_number = {int(number): str(name) for number, name in named.items()}
    except (AttributeError, ValueError, TypeError) as error:
        raise DataError(f"id2label must map numbers to names, not {brief(named)}", location=origin) from error
    if sorted(by_number) != list(range(len(by_number))) or not by_number:
        raise DataError(f"id2label must number its labels 0, 1, 2, …, not {brief(sorted(by_number))}", location=origin)
    if (len(by_number) == 1 and not several) or problem == "regression":
        if len(by_number) > 1:
            raise DataError(f"a regression has one output, not {len(by_number)}", location=origin)
        return HeadConfig((), pooling=pooling)
    return HeadConfig(tuple(by_number[number] for number in range(len(by_number))), several, pooling)
