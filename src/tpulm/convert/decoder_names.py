"""Names of the models that are built as Llama is, and of GPT-2: two-column tables as in names.py.

GPT-2 keeps queries, keys and values in one tensor, whose thirds are written here as "…c_attn.weight[0]", [1] and [2].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpulm.convert.names import Kept, Name
from tpulm.errors import DataError
from tpulm.nn.params import named_leaves

_ATTENTION = "model.layers.{layer}.self_attn."
_LAYER = "model.layers.{layer}."
_LLAMA = (
    Name("embeddings/tokens", "model.embed_tokens.weight"),
    *(
        row
        for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
        for row in (
            Name(f"layers/attention/{ours}/kernel", f"{_ATTENTION}{theirs}.weight", "dense"),
            Name(f"layers/attention/{ours}/bias", f"{_ATTENTION}{theirs}.bias", "flat"),
        )
    ),
    Name("layers/attention/output/kernel", _ATTENTION + "o_proj.weight", "merge"),
    Name("layers/attention/output/bias", _ATTENTION + "o_proj.bias"),
    Name("layers/attention_norm/scale", _LAYER + "input_layernorm.weight"),
    Name("layers/gate/kernel", _LAYER + "mlp.gate_proj.weight", "dense"),
    Name("layers/gate/bias", _LAYER + "mlp.gate_proj.bias"),
    Name("layers/up/kernel", _LAYER + "mlp.up_proj.weight", "dense"),
    Name("layers/up/bias", _LAYER + "mlp.up_proj.bias"),
    Name("layers/down/kernel", _LAYER + "mlp.down_proj.weight", "dense"),
    Name("layers/down/bias", _LAYER + "mlp.down_proj.bias"),
    Name("layers/feed_forward_norm/scale", _LAYER + "post_attention_layernorm.weight"),
    Name("final_norm/scale", "model.norm.weight"),
    Name("output", "lm_head.weight"),  # LlamaForCausalLM
    Name("masked_head/output", "lm_head.weight"),  # EuroBertForMaskedLM
    Name("masked_head/output_bias", "lm_head.bias"),
    Name("classification_head/dense/kernel", "dense.weight", "dense"),  # EuroBertForSequenceClassification
    Name("classification_head/dense/bias", "dense.bias"),
    Name("classification_head/output/kernel", "classifier.weight", "dense"),
    Name("classification_head/output/bias", "classifier.bias"),
)
_BLOCK = "transformer.h.{layer}."
_GPT2 = (
    Name("embeddings/tokens", "transformer.wte.weight"),
    Name("embeddings/positions", "transformer.wpe.weight"),
    *(
        row
        for third, ours in enumerate(("query", "key", "value"))
        for row in (
            Name(f"layers/attention/{ours}/kernel", f"{_BLOCK}attn.c_attn.weight[{third}]", "conv"),
            Name(f"layers/attention/{ours}/bias", f"{_BLOCK}attn.c_attn.bias[{third}]", "flat"),
        )
    ),
    Name("layers/attention/output/kernel", _BLOCK + "attn.c_proj.weight", "conv merge"),
    Name("layers/attention/output/bias", _BLOCK + "attn.c_proj.bias"),
    Name("layers/attention_norm/scale", _BLOCK + "ln_1.weight"),
    Name("layers/attention_norm/bias", _BLOCK + "ln_1.bias"),
    Name("layers/up/kernel", _BLOCK + "mlp.c_fc.weight"),
    Name("layers/up/bias", _BLOCK + "mlp.c_fc.bias"),
    Name("layers/down/kernel", _BLOCK + "mlp.c_proj.weight"),
    Name("layers/down/bias", _BLOCK + "mlp.c_proj.bias"),
    Name("layers/feed_forward_norm/scale", _BLOCK + "ln_2.weight"),
    Name("layers/feed_forward_norm/bias", _BLOCK + "ln_2.bias"),
    Name("final_norm/scale", "transformer.ln_f.weight"),
    Name("final_norm/bias", "transformer.ln_f.bias"),
    Name("output", "lm_head.weight"),
)
_TABLES = {"gpt2": _GPT2, "llama": _LLAMA, "eurobert": _LLAMA}
_EMBEDDINGS = {"gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight", "eurobert": "model.embed_tokens.weight"}
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # ends of names that old files have, and no weights
_FUSED = (".c_attn.weight", ".c_attn.bias")
_BARE = ("wte.", "wpe.", "h.", "ln_f.")


def table_of(model_type: str, spec: Any) -> tuple[Name, ...]:
    """The rows for the parameters that a model has: without biases, or tied, it has not all of them."""
    ours = named_leaves(spec)
    return tuple(row for row in _TABLES[model_type] if row.ours in ours)


def fuse(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Their tensors as they are stored: thirds "name[0]", "name[1]", "name[2]" joined along the last axis."""
    fused: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if not name.endswith("]"):
            fused[name] = tensor
        elif name.endswith("[0]"):
            whole = name.removesuffix("[0]")
            fused[whole] = np.concatenate([tensors[f"{whole}[{third}]"] for third in range(3)], axis=-1)
    return fused


def untie(tensors: Mapping[str, np.ndarray], model_type: str, *, tied: bool, origin: str) -> Kept:
    """Tensors as the table names them: fused ones cut in three, buffers left out, and where tied the output too.

    Raises DataError where a tied output is another table than the embeddings.
    """
    if model_type == "gpt2":  # saved as the bare GPT2Model, as the first ones were
        tensors = {f"transformer.{name}" if name.startswith(_BARE) else name: tensor for name, tensor in tensors.items()}
    kept: dict[str, np.ndarray] = {}
    embeddings = _EMBEDDINGS[model_type]
    for name, tensor in tensors.items():
        if name.endswith(_BUFFERS):
            continue
        if name == "lm_head.weight" and tied:
            if not np.array_equal(tensor, tensors.get(embeddings, tensor)):
                raise DataError(f"{name} differs from {embeddings}, but config.json says they are tied", location=origin)
            kept.setdefault(embeddings, tensor)
        elif name.endswith(_FUSED) and tensor.shape[-1] % 3 == 0:
            kept |= {f"{name}[{third}]": part for third, part in enumerate(np.split(tensor, 3, axis=-1))}
        else:
            kept[name] = tensor
    return Kept(kept, ())
