"""Parameter names in foreign checkpoints: a two-column table for each architecture, and what else their files hold.

Hugging Face's linear layers keep weights as [out, in], ours as [in, out] with the heads as a separate axis. TF1's names follow
from Hugging Face's by a rule. Where one of their tensors holds several of our kernels, such as queries, keys and values in
GPT-2 and ModernBERT, its parts are written here as "…c_attn.weight[0]", [1] and [2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from tpulm.convert.heads import Head
from tpulm.errors import DataError
from tpulm.nn.params import named_leaves

# same: as ours; flat: all axes as one; dense: ours is [in, out…], theirs [out, in]; merge: ours is [in…, out], theirs [out, in]
# conv, conv merge: like dense and merge, but theirs is [in, out]
TensorLayout = Literal["same", "flat", "dense", "merge", "conv", "conv merge"]


class Name(NamedTuple):
    """One row: our path, their name ("{layer}" is the layer's number), and how the axes change."""

    ours: str
    theirs: str
    layout: TensorLayout = "same"


Table = tuple[Name, ...]


def _linear(ours: str, theirs: str, kernel: TensorLayout = "dense", bias: TensorLayout = "same") -> Table:
    return Name(f"{ours}/kernel", f"{theirs}.weight", kernel), Name(f"{ours}/bias", f"{theirs}.bias", bias)


def _norm(ours: str, theirs: str) -> Table:
    return Name(f"{ours}/scale", f"{theirs}.weight"), Name(f"{ours}/bias", f"{theirs}.bias")


_BERT_LAYER = "bert.encoder.layer.{layer}."
_BERT_BODY = (
    Name("embeddings/tokens", "bert.embeddings.word_embeddings.weight"),
    Name("embeddings/positions", "bert.embeddings.position_embeddings.weight"),
    Name("embeddings/types", "bert.embeddings.token_type_embeddings.weight"),
    *_linear("layers/attention/query", _BERT_LAYER + "attention.self.query", bias="flat"),
    *_linear("layers/attention/key", _BERT_LAYER + "attention.self.key", bias="flat"),
    *_linear("layers/attention/value", _BERT_LAYER + "attention.self.value", bias="flat"),
    *_linear("layers/attention/output", _BERT_LAYER + "attention.output.dense", "merge"),
    *_linear("layers/up", _BERT_LAYER + "intermediate.dense"),
    *_linear("layers/down", _BERT_LAYER + "output.dense"),
)
_POST_NORMS = (
    *_norm("embeddings/norm", "bert.embeddings.LayerNorm"),
    *_norm("layers/attention_norm", _BERT_LAYER + "attention.output.LayerNorm"),
    *_norm("layers/feed_forward_norm", _BERT_LAYER + "output.LayerNorm"),
)
_PRE_NORMS = (
    *_norm("layers/attention_norm", _BERT_LAYER + "attention.ln"),
    *_norm("layers/feed_forward_norm", _BERT_LAYER + "ln"),
    *_norm("final_norm", "bert.encoder.ln"),
)
_BERT_HEADS = (
    *_linear("masked_head/dense", "cls.predictions.transform.dense"),
    *_norm("masked_head/norm", "cls.predictions.transform.LayerNorm"),
    Name("masked_head/output_bias", "cls.predictions.bias"),
    *_linear("next_sentence/pooler", "bert.pooler.dense"),
    *_linear("next_sentence/output", "cls.seq_relationship"),
    *_linear("classification_head/dense", "bert.pooler.dense"),
    *_linear("classification_head/output", "classifier"),
    *_linear("token_head/output", "classifier"),
)
_ELECTRA = (
    *(row._replace(theirs=row.theirs.replace("bert.", "electra.", 1)) for row in (*_BERT_BODY, *_POST_NORMS)),
    *_linear("projection", "electra.embeddings_project"),
    *_linear("masked_head/dense", "generator_predictions.dense"),
    *_norm("masked_head/norm", "generator_predictions.LayerNorm"),
    Name("masked_head/output_bias", "generator_lm_head.bias"),
    *_linear("detection_head/dense", "discriminator_predictions.dense"),
    *_linear("detection_head/output", "discriminator_predictions.dense_prediction"),
    *_linear("classification_head/dense", "classifier.dense"),
    *_linear("classification_head/output", "classifier.out_proj"),
    *_linear("token_head/output", "classifier"),
)
_LLAMA_LAYER = "model.layers.{layer}."
_LLAMA = (
    Name("embeddings/tokens", "model.embed_tokens.weight"),
    *_linear("layers/attention/query", _LLAMA_LAYER + "self_attn.q_proj", bias="flat"),
    *_linear("layers/attention/key", _LLAMA_LAYER + "self_attn.k_proj", bias="flat"),
    *_linear("layers/attention/value", _LLAMA_LAYER + "self_attn.v_proj", bias="flat"),
    *_linear("layers/attention/output", _LLAMA_LAYER + "self_attn.o_proj", "merge"),
    Name("layers/attention_norm/scale", _LLAMA_LAYER + "input_layernorm.weight"),
    *_linear("layers/gate", _LLAMA_LAYER + "mlp.gate_proj"),
    *_linear("layers/up", _LLAMA_LAYER + "mlp.up_proj"),
    *_linear("layers/down", _LLAMA_LAYER + "mlp.down_proj"),
    Name("layers/feed_forward_norm/scale", _LLAMA_LAYER + "post_attention_layernorm.weight"),
    Name("final_norm/scale", "model.norm.weight"),
    Name("output", "lm_head.weight"),  # LlamaForCausalLM
    Name("masked_head/output", "lm_head.weight"),  # EuroBertForMaskedLM
    Name("masked_head/output_bias", "lm_head.bias"),
    *_linear("classification_head/dense", "dense"),  # EuroBertForSequenceClassification
    *_linear("classification_head/output", "classifier"),
    *_linear("token_head/output", "classifier"),
)
_MODERNBERT_LAYER = "model.layers.{layer}."
_MODERNBERT = (
    Name("embeddings/tokens", "model.embeddings.tok_embeddings.weight"),
    Name("embeddings/norm/scale", "model.embeddings.norm.weight"),
    Name("layers/attention_norm/scale", _MODERNBERT_LAYER + "attn_norm.weight"),
    *(
        Name(f"layers/attention/{ours}/kernel", f"{_MODERNBERT_LAYER}attn.Wqkv.weight[{third}]", "dense")
        for third, ours in enumerate(("query", "key", "value"))
    ),
    Name("layers/attention/output/kernel", _MODERNBERT_LAYER + "attn.Wo.weight", "merge"),
    Name("layers/feed_forward_norm/scale", _MODERNBERT_LAYER + "mlp_norm.weight"),
    Name("layers/gate/kernel", _MODERNBERT_LAYER + "mlp.Wi.weight[0]", "dense"),
    Name("layers/up/kernel", _MODERNBERT_LAYER + "mlp.Wi.weight[1]", "dense"),
    Name("layers/down/kernel", _MODERNBERT_LAYER + "mlp.Wo.weight", "dense"),
    Name("final_norm/scale", "model.final_norm.weight"),
    Name("masked_head/dense/kernel", "head.dense.weight", "dense"),
    Name("masked_head/norm/scale", "head.norm.weight"),
    Name("masked_head/output_bias", "decoder.bias"),
    Name("classification_head/dense/kernel", "head.dense.weight", "dense"),
    Name("classification_head/norm/scale", "head.norm.weight"),
    *_linear("classification_head/output", "classifier"),
    Name("token_head/dense/kernel", "head.dense.weight", "dense"),
    Name("token_head/norm/scale", "head.norm.weight"),
    *_linear("token_head/output", "classifier"),
)
_GPT2_LAYER = "transformer.h.{layer}."
_GPT2 = (
    Name("embeddings/tokens", "transformer.wte.weight"),
    Name("embeddings/positions", "transformer.wpe.weight"),
    *(
        row
        for third, ours in enumerate(("query", "key", "value"))
        for row in (
            Name(f"layers/attention/{ours}/kernel", f"{_GPT2_LAYER}attn.c_attn.weight[{third}]", "conv"),
            Name(f"layers/attention/{ours}/bias", f"{_GPT2_LAYER}attn.c_attn.bias[{third}]", "flat"),
        )
    ),
    *_linear("layers/attention/output", _GPT2_LAYER + "attn.c_proj", "conv merge"),
    *_norm("layers/attention_norm", _GPT2_LAYER + "ln_1"),
    *_linear("layers/up", _GPT2_LAYER + "mlp.c_fc", "same"),
    *_linear("layers/down", _GPT2_LAYER + "mlp.c_proj", "same"),
    *_norm("layers/feed_forward_norm", _GPT2_LAYER + "ln_2"),
    *_norm("final_norm", "transformer.ln_f"),
    Name("output", "lm_head.weight"),
    *_linear("classification_head/output", "score"),
)
# By the `model_type` of config.json. Each table has the rows of all heads and options of the architecture.
TABLES: Mapping[str, Table] = {
    "bert": (*_BERT_BODY, *_POST_NORMS, *_BERT_HEADS),
    "megatron-bert": (*_BERT_BODY, *_PRE_NORMS, *_BERT_HEADS),
    "electra": _ELECTRA,
    "eurobert": _LLAMA,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "modernbert": _MODERNBERT,
}
# For heads with the parameters, or models with the table, of another one: the prefixes of its names, and what replaces them.
_OTHERWISE: Mapping[tuple[str, Head | None], Mapping[str, str]] = {
    **{(model_type, "spans"): {"classifier.": "qa_outputs."} for model_type in ("bert", "megatron-bert", "electra")},
    ("electra", "choice"): {"classifier.dense.": "sequence_summary.summary.", "classifier.out_proj.": "classifier."},
    ("llama", "classification"): {"classifier.": "score."},
}
_HEAD_MARKS: Mapping[Head, tuple[str, ...]] = {  # prefixes that only files with this head contain
    "spans": ("qa_outputs.",),
    "choice": ("sequence_summary.summary.",),
    "classification": ("classifier.weight", "classifier.out_proj.weight", "score.weight"),
    "detection": ("discriminator_predictions.",),
    "next_sentence": ("cls.seq_relationship.",),
}
# Tensors that repeat another one: dropped when equal to it, refused otherwise.
_TIED = (
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    ("lm_head.weight", "transformer.wte.weight"),
    ("lm_head.weight", "model.embed_tokens.weight"),
    ("decoder.weight", "model.embeddings.tok_embeddings.weight"),
)
# Suffixes of tensors without weights (a buffer of 0, 1, 2, … or a mask), and tensors that not every head reads.
_BUFFERS = (".embeddings.position_ids", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
_POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")
_READING_POOLER = ("next_sentence", "classification", "choice")
# How the first conversions, bert-base-uncased among them, name a norm's scale and bias.
_OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_FUSED = {".c_attn.weight": (3, -1), ".c_attn.bias": (3, -1), ".Wqkv.weight": (3, 0), ".Wi.weight": (2, 0)}  # parts, axis
# Parameters of tpulm's models that are unused and that their files lack: a tensor of the same shape.
_UNUSED = {"model.layers.0.attn_norm.weight": "model.embeddings.norm.weight"}
_ENCODER = ("embeddings/", "projection/", "layers/", "final_norm/")  # our paths of everything but heads

# TF1: exceptions to the rule.
_TF1_NAMES = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",  # the one kernel that is [out, in]
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "generator_lm_head.bias": "generator_predictions/output_bias",
    "discriminator_predictions.dense_prediction.weight": "discriminator_predictions/dense_1/kernel",
    "discriminator_predictions.dense_prediction.bias": "discriminator_predictions/dense_1/bias",
}
_TF1_SUFFIXES = {
    "LayerNorm/weight": "LayerNorm/gamma",
    "LayerNorm/bias": "LayerNorm/beta",
    "_embeddings/weight": "_embeddings",
    "/weight": "/kernel",
}
_TF1_LAYOUTS: dict[TensorLayout, TensorLayout] = {"dense": "conv", "merge": "conv merge"}
TF1_NEXT_SENTENCE = _TF1_NAMES["cls.seq_relationship.weight"]  # without it nothing reads the pooler
TF1_POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
# Patterns of variables that are not weights of the model; None: dropped on purpose.
TF1_EXTRAS: tuple[tuple[str | None, str], ...] = (
    ("step", "global_step"),
    ("adam_m", "*/adam_m"),  # the optimizer's means of gradients
    ("adam_v", "*/adam_v"),  # and of their squares
    (None, "*/Adam"),  # the same two of tf.train.AdamOptimizer, which corrects bias separately
    (None, "*/Adam_1"),
    (None, "beta1_power"),
    (None, "beta2_power"),
)


def names(model_type: str, spec: Any, head: Head | None = None) -> Table:
    """Hugging Face's names for one model, or half an ELECTRA: the rows for the parameters in `spec`.

    `head` is needed only for "spans" and "choice", which have the parameters of other heads, and for a causal model's classes.
    """
    ours, otherwise = named_leaves(spec), _OTHERWISE.get((model_type, head), {})

    def named(row: Name) -> Name:
        begins = next((begin for begin in otherwise if row.theirs.startswith(begin)), None)
        return row if begins is None else row._replace(theirs=otherwise[begins] + row.theirs.removeprefix(begins))

    return tuple(named(row) for row in TABLES[model_type] if row.ours in ours)


def tf1_names(model_type: str, spec: Any, *, body: str = "electra", embeddings: str = "electra") -> Table:
    """Google's names for the same; `body` and `embeddings` are their scopes ("electra" or "generator") in an ELECTRA."""

    def row_of(row: Name) -> Name:
        name = _TF1_NAMES.get(row.theirs) or row.theirs.replace(".", "/").replace("layer/{layer}", "layer_{layer}")
        for theirs, tf1 in _TF1_SUFFIXES.items():
            if name.endswith(theirs):
                name = name.removesuffix(theirs) + tf1
        if name.startswith("electra/"):
            scope = embeddings if name.startswith("electra/embeddings/") else body
            name = scope + name.removeprefix("electra")
        return Name(row.ours, name, row.layout if name == TF1_NEXT_SENTENCE else _TF1_LAYOUTS.get(row.layout, row.layout))

    return tuple(map(row_of, names(model_type, spec)))


def head_in(tensors: Iterable[str]) -> Head:
    """The head to which tensors of these names belong; "masked" if no other matches."""
    for head, marks in _HEAD_MARKS.items():
        if any(name.startswith(marks) for name in tensors):
            return head
    return "masked"


def rename(tensors: Mapping[str, np.ndarray], named: Callable[[str], str], *, origin: str) -> dict[str, np.ndarray]:
    """The tensors under the names that `named` gives. Raises DataError if two get one name."""
    sources = dict[str, str]()
    for name in tensors:
        if (other := sources.setdefault(named(name), name)) != name:
            raise DataError(
                f"{other} and {name} are two names of one tensor; remove the one that the model does not use", location=origin
            )
    return {name: tensors[source] for name, source in sources.items()}


class Tidied(NamedTuple):
    """Tensors under the names of the tables, and the names of those left out that held weights."""

    tensors: dict[str, np.ndarray]
    dropped: tuple[str, ...]


def tidy(tensors: Mapping[str, np.ndarray], model_type: str, head: Head, *, tied: bool = True, origin: str) -> Tidied:
    """Rename tensors of bare encoders and old conversions, split fused ones, and leave out buffers, a pooler that the
    head does not read and, if the output is `tied`, repeats of other tensors.

    Raises DataError if an output that should repeat the embeddings does not.
    """
    known = {row.theirs for row in TABLES[model_type]}
    whole = [row.theirs.split(".") for row in TABLES[model_type] if row.ours.startswith((*_ENCODER, "next_sentence/pooler"))]
    bare = {parts[1]: ".".join(parts[:2]) for parts in whole}  # "embeddings": "bert.embeddings", whose prefix encoders lack

    def current(name: str) -> str:
        first, dot, rest = name.partition(".")
        name = bare.get(first, first) + dot + rest
        old = next((old for old in _OLD_SUFFIXES if name.endswith(old)), "")
        return name.removesuffix(old) + _OLD_SUFFIXES.get(old, "")

    renamed = rename(tensors, current, origin=origin)
    tidied = {name: tensor for name, tensor in renamed.items() if not name.endswith(_BUFFERS)}
    for name, source in _TIED if tied else ():
        if name not in tidied or source not in known:
            continue
        repeat = tidied.pop(name)
        if not np.array_equal(repeat, tidied.setdefault(source, repeat)):
            raise DataError(f"{name} differs from {source}, though config.json ties the two", location=origin)
    for name, tensor in list(tidied.items()):
        parts, axis = _fusion_of(name)
        if parts > 1 and tensor.ndim and tensor.shape[axis] % parts == 0:
            tidied |= {f"{name}[{number}]": part for number, part in enumerate(np.split(tidied.pop(name), parts, axis=axis))}
    for name, like in _UNUSED.items() if model_type == "modernbert" else ():
        if like in tidied and name not in tidied:
            tidied[name] = np.ones_like(tidied[like])
    dropped = () if head in _READING_POOLER else tuple(name for name in _POOLER if name in tidied)
    return Tidied({name: tensor for name, tensor in tidied.items() if name not in dropped}, dropped)


def ungrouped(
    tensors: Mapping[str, np.ndarray], *, groups: int, num_heads: int, head_size: int, origin: str
) -> Mapping[str, np.ndarray]:
    """Grouped-query attention (Ainslie et al. 2023) as multi-head attention: each query head has a copy of its group's keys and
    values. Raises DataError for keys or values of another number of groups."""

    def repeated(name: str, tensor: np.ndarray) -> np.ndarray:
        if groups == num_heads or not any(part in name for part in (".k_proj.", ".v_proj.")):
            return tensor
        if tensor.shape[:1] != (groups * head_size,):
            raise DataError(
                f"shape: {name} is {list(tensor.shape)}; by num_key_value_heads it has {groups * head_size} rows",
                location=origin,
            )
        heads = tensor.reshape(groups, head_size, *tensor.shape[1:])
        return np.repeat(heads, num_heads // groups, axis=0).reshape(-1, *tensor.shape[1:])

    return {name: repeated(name, tensor) for name, tensor in tensors.items()}


def without_heads(tidied: Tidied, model_type: str) -> Tidied:
    """The encoder's tensors alone."""
    heads = {row.theirs for row in TABLES[model_type] if not row.ours.startswith(_ENCODER)}
    dropped = tuple(name for name in tidied.tensors if name in heads)
    return Tidied({name: tensor for name, tensor in tidied.tensors.items() if name not in heads}, (*tidied.dropped, *dropped))


def fuse(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors as they are stored: parts "name[0]", "name[1]", … are joined, and unused ones left out."""
    fused: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if name.endswith("[0]"):
            whole = name.removesuffix("[0]")
            parts, axis = _fusion_of(whole)
            fused[whole] = np.concatenate([tensors[f"{whole}[{number}]"] for number in range(parts)], axis=axis)
        elif not name.endswith("]") and name not in _UNUSED:
            fused[name] = tensor
    return fused


def _fusion_of(name: str) -> tuple[int, int]:
    """How many of our parameters a tensor holds, and along which axis."""
    return next((fusion for suffix, fusion in _FUSED.items() if name.endswith(suffix)), (1, 0))
