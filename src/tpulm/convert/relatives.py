"""RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT, read as what they compute: BERTs whose files use other names.

What differs, by transformers' modeling_roberta.py and modeling_distilbert.py: RoBERTa counts positions from `pad_token_id` + 1,
so that its table begins with rows that no text reads; its classifier's first layer is what BERT calls the pooler; neither tells
segments apart. They are saved as BERTs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpulm.convert.names import rename
from tpulm.errors import DataError, brief

_ROBERTAS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
_PREFIXES = {**_ROBERTAS, "distilbert": "DistilBert"}  # of their classes
RELATIVES = tuple(_PREFIXES)
_HEAD = "cls.predictions."
_RENAMED = {  # parts of names, replaced in this order
    "roberta": {
        "roberta.": "bert.",
        "lm_head.dense.": _HEAD + "transform.dense.",
        "lm_head.layer_norm.": _HEAD + "transform.LayerNorm.",
        "lm_head.": _HEAD,
        "classifier.dense.": "bert.pooler.dense.",
        "classifier.out_proj.": "classifier.",
    },
    "distilbert": {
        "distilbert.": "bert.",
        "transformer.layer.": "encoder.layer.",
        "attention.q_lin.": "attention.self.query.",
        "attention.k_lin.": "attention.self.key.",
        "attention.v_lin.": "attention.self.value.",
        "attention.out_lin.": "attention.output.dense.",
        "sa_layer_norm.": "attention.output.LayerNorm.",
        "ffn.lin1.": "intermediate.dense.",
        "ffn.lin2.": "output.dense.",
        "output_layer_norm.": "output.LayerNorm.",
        "vocab_transform.": _HEAD + "transform.dense.",
        "vocab_layer_norm.": _HEAD + "transform.LayerNorm.",
        "vocab_projector.weight": _HEAD + "decoder.weight",
        "vocab_projector.bias": _HEAD + "bias",
    },
}
_OF_DISTILBERT = {  # keys of config.json
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
}


def as_bert_config(values: Mapping[str, Any], *, origin: str) -> Mapping[str, Any]:
    """The config.json of the BERT that computes the same; of any other model, the values as they are. Raises DataError."""
    model_type = _relative(values)
    if model_type is None:
        return values
    prefix, classes = _PREFIXES[model_type], values.get("architectures")
    changed: dict[str, Any] = {"model_type": "bert", "type_vocab_size": 1}
    if isinstance(classes, list):
        changed["architectures"] = [f"Bert{name.removeprefix(prefix)}" if isinstance(name, str) else name for name in classes]
    if model_type == "distilbert":
        changed |= {ours: values[theirs] for theirs, ours in _OF_DISTILBERT.items() if theirs in values}
        return {**values, **changed, "layer_norm_eps": 1e-12}
    positions, begin = values.get("max_position_embeddings"), _first_position(values, origin)
    if type(positions) is not int or positions <= begin:
        raise DataError(f"max_position_embeddings is {brief(positions)}; positions begin at {begin}", location=origin)
    return {**values, **changed, "max_position_embeddings": positions - begin}


def _relative(values: Mapping[str, Any]) -> str | None:
    """The model type of these values of config.json, if it is one that is read as a BERT."""
    model_type = values.get("model_type")
    return model_type if isinstance(model_type, str) and model_type in _PREFIXES else None


def as_bert_tensors(
    tensors: Mapping[str, np.ndarray], values: Mapping[str, Any], *, origin: str
) -> tuple[Mapping[str, np.ndarray], tuple[str, ...]]:
    """The tensors of that BERT, and the names of those left out: a RoBERTa's classifier does not read the pooler, whose place
    its own first layer takes. `values` are those of config.json as it is. Raises DataError for a head that BERT lacks."""
    model_type = _relative(values)
    if model_type is None:
        return tensors, ()
    if "pre_classifier.weight" in tensors:
        raise DataError(
            "pre_classifier: DistilBERT's head for labels and choices has a ReLU, which no head of BERT has; fine-tune the "
            "model that it was made of",
            location=origin,
        )
    is_roberta, activation = model_type in _ROBERTAS, values.get("hidden_act", "gelu")
    if is_roberta and "lm_head.dense.weight" in tensors and activation not in ("gelu", "gelu_python"):
        raise DataError(
            f"hidden_act is {brief(activation)}, but the head that fills masks (lm_head) has 'gelu'; only one for both is "
            "supported: load the model with transformers' AutoModel and save_pretrained() it, without the head",
            location=origin,
        )
    parts = _RENAMED["roberta" if is_roberta else "distilbert"]
    unread = ("roberta.pooler.dense.", "pooler.dense.") if "classifier.dense.weight" in tensors else ()
    dropped = tuple(name for name in tensors if name.startswith(unread))

    def named(name: str) -> str:
        for theirs, ours in parts.items():
            name = name.replace(theirs, ours)
        return name

    read = rename({name: tensor for name, tensor in tensors.items() if name not in dropped}, named, origin=origin)
    for name, tensor in list(read.items()):
        if not tensor.ndim:  # refused by its shape
            continue
        if name.endswith("embeddings.position_embeddings.weight") and is_roberta:
            read[name] = tensor[_first_position(values, origin) :]
        if name.endswith("embeddings.token_type_embeddings.weight"):
            read[name] = tensor[:1]
        if name.endswith("embeddings.word_embeddings.weight") and not is_roberta:
            read[name.replace("word_", "token_type_")] = np.zeros_like(tensor[:1])
    return read, dropped


def _first_position(values: Mapping[str, Any], origin: str) -> int:
    pad = values.get("pad_token_id", 1)
    if type(pad) is not int or pad < 0:
        raise DataError(f"pad_token_id is {brief(pad)}; it must be a token's id, as positions begin after it", location=origin)
    return pad + 1
